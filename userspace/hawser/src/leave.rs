//! `hawser leave`: takes the machine out of its cluster and restores it.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_client::connect;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::data_dir::DataDir;
use crate::down;
use crate::join_args::Leave;
use crate::membership::Membership;

/// Time that a component gets to end after SIGTERM.
const ENDING: Duration = Duration::from_secs(60);
/// Pause between looks.
const PAUSE: Duration = Duration::from_millis(200);
/// The annotation of pods that stand for a file on the node.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Drains the node if that is asked for, stops its components, deletes the Node, and removes what they made.
pub async fn run(args: Leave) -> Result<()> {
    let Leave { data_dir, kubeconfig, drain, drain_timeout } = args;
    if !data_dir.exists() {
        println!("{} does not exist: nothing to do", data_dir.display());
        return Ok(());
    }
    if data_dir.join("pki").exists() || data_dir.join("store").exists() {
        bail!("{} is the directory of a whole cluster: use `hawser down`", data_dir.display());
    }
    let membership = Membership::of(&data_dir);
    let joined = membership.cluster()?;
    let administrator = match &kubeconfig {
        Some(file) => Some(connect(file, "hawser").await?),
        None => None,
    };
    if drain {
        let node = node_name(&data_dir, joined.as_ref().map(|cluster| cluster.node_name.as_str()))?;
        let own = || connect_own(&membership);
        let client = match &administrator {
            Some(client) => client.clone(),
            None => own().await.context("cannot drain without --kubeconfig")?,
        };
        drain_node(&client, &node, drain_timeout).await?;
    }
    stop_holder(&data_dir).await?;
    let data = DataDir::open_existing(&data_dir)?;
    let made = data.made()?;
    let node =
        joined.map(|cluster| cluster.node_name).or_else(|| made.as_ref().map(|made| made.node_name.clone()));
    if let Some(made) = &made {
        let errors = down::remove(&data, made).await;
        if !errors.is_empty() {
            let list: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
            bail!("cannot remove everything; run it again after correcting this:\n  {}", list.join("\n  "));
        }
        data.forget()?;
    }
    // Credentials go before the Node, so that nothing makes it anew.
    let whole = membership.cluster()?.is_some();
    membership.remove()?;
    if whole {
        data.discard_all()?;
    }
    let Some(node) = node else { return Ok(()) };
    match administrator {
        Some(client) => delete_node(&client, &node).await,
        None => {
            println!(
                "this machine is restored; the Node remains, since nodes may not delete it: `kubectl delete node {node}`"
            );
            Ok(())
        }
    }
}

async fn connect_own(membership: &Membership) -> Result<Client> {
    Ok(connect(&membership.kubeconfig(), "kubelet").await?)
}

/// Returns the name of the node: that of the membership, or that which a component has recorded.
fn node_name(data_dir: &Path, joined: Option<&str>) -> Result<String> {
    if let Some(name) = joined {
        return Ok(name.to_owned());
    }
    // Read without the lock, which a component holds.
    let file = data_dir.join("made.json");
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let made: crate::data_dir::Made =
        serde_json::from_slice(&text).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(made.node_name)
}

async fn delete_node(client: &Client, node: &str) -> Result<()> {
    match Api::<Node>::all(client.clone()).delete(node, &DeleteParams::default()).await {
        Ok(_) => {
            println!("node {node} has left");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error)
            .with_context(|| format!("this machine is restored, but Node {node} could not be deleted")),
    }
}

/// Ends the process that works on the directory, if there is one.
async fn stop_holder(data_dir: &Path) -> Result<()> {
    let Some(pid) = holder(data_dir)? else { return Ok(()) };
    info!(pid = pid.as_raw_nonzero().get(), "stopping the node's components");
    kill_process(pid, Signal::TERM)
        .with_context(|| format!("cannot stop process {}", pid.as_raw_nonzero()))?;
    let deadline = Instant::now() + ENDING;
    while holder(data_dir)?.is_some() {
        if Instant::now() > deadline {
            bail!("process {} does not end: stop it, then run this again", pid.as_raw_nonzero());
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Returns the process that holds the lock of the directory.
fn holder(data_dir: &Path) -> Result<Option<Pid>> {
    let path = data_dir.join("lock");
    let Ok(file) = File::open(&path) else { return Ok(None) };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        // Nobody holds it; it is released when the file is closed.
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    pid.with_context(|| format!("{} does not say which process holds it", path.display())).map(Some)
}

/// Cordons a node, evicts its pods, and waits until they are gone.
async fn drain_node(client: &Client, node: &str, timeout: Duration) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    let cordoned = nodes.patch(node, &PatchParams::default(), &cordon).await;
    cordoned.with_context(|| format!("cannot cordon node {node}"))?;
    let deadline = Instant::now() + timeout;
    loop {
        let pods: Api<Pod> = Api::all(client.clone());
        let selected = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let list =
            pods.list(&selected).await.with_context(|| format!("cannot list the pods of node {node}"))?;
        let left: Vec<&Pod> = list.items.iter().filter(|pod| is_evicted(pod)).collect();
        if left.is_empty() {
            return Ok(());
        }
        let mut refused = None;
        for pod in &left {
            if pod.metadata.deletion_timestamp.is_none() {
                refused = evict(client, pod).await?.or(refused);
            }
        }
        if Instant::now() > deadline {
            let first = left.first().map(|pod| name_of(pod)).unwrap_or_default();
            let why = refused.unwrap_or_else(|| "it does not end".to_owned());
            bail!(
                "{} pods are left on node {node}, {first} first: {why}; give a longer --drain-timeout",
                left.len()
            );
        }
        sleep(PAUSE * 5).await;
    }
}

fn name_of(pod: &Pod) -> String {
    let meta = &pod.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// Asks for the eviction of a pod. Returns why it has to wait.
async fn evict(client: &Client, pod: &Pod) -> Result<Option<String>> {
    let meta = &pod.metadata;
    let api: Api<Pod> = Api::namespaced(client.clone(), meta.namespace.as_deref().unwrap_or_default());
    match api.evict(meta.name.as_deref().unwrap_or_default(), &EvictParams::default()).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(kube::Error::Api(status)) if matches!(status.code, 429 | 409 | 500) => {
            warn!(pod = name_of(pod), why = %status.message, "cannot evict yet");
            Ok(Some(status.message.clone()))
        }
        Err(error) => Err(error).with_context(|| format!("cannot evict pod {}", name_of(pod))),
    }
}

/// Returns whether a drain waits for a pod: not for those of DaemonSets, which would come back, those of files on
/// the node, and those that have ended.
fn is_evicted(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let daemon = owners.iter().any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet");
    let mirror = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
    !daemon && !mirror && !apiserver_meta::pods::is_finished(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_leaves_pods_that_would_come_back() {
        let pod = |body: serde_json::Value| serde_json::from_value::<Pod>(body).unwrap();
        let owned = |kind: &str| {
            json!({"metadata": {"name": "p", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]}})
        };
        assert!(is_evicted(&pod(owned("ReplicaSet"))));
        assert!(is_evicted(&pod(json!({"metadata": {"name": "bare"}}))));
        assert!(!is_evicted(&pod(owned("DaemonSet"))));
        assert!(!is_evicted(&pod(json!({"metadata": {"name": "m", "annotations": {MIRROR: "x"}}}))));
        assert!(!is_evicted(&pod(json!({"metadata": {"name": "p"}, "status": {"phase": "Succeeded"}}))));
    }

    #[test]
    fn the_holder_of_a_directory_is_known_while_it_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(holder(dir.path()).unwrap().is_none());
        let data = DataDir::open(dir.path()).unwrap();
        let pid = holder(dir.path()).unwrap().unwrap();
        assert_eq!(pid.as_raw_nonzero().get(), std::process::id() as i32);
        drop(data);
        assert!(holder(dir.path()).unwrap().is_none());
    }
}
