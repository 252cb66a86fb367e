//! `hawser leave`: takes the machine out of its cluster and restores it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_client::connect;
use apiserver_meta::pods::MIRROR;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::data_dir::{self, DataDir, Leaving, Made};
use crate::down;
use crate::join_args::Leave;
use crate::limits;
use crate::membership::Membership;
use crate::node::Directories;

/// Drains the node if that is asked for, stops its components, removes what they made, and deletes the Node. What is
/// to be done is recorded first, so that the next one finishes what one that was killed has begun.
pub async fn run(args: Leave) -> Result<()> {
    let Leave { data_dir, kubeconfig, drain, drain_timeout } = args;
    if !data_dir.exists() || is_empty(&data_dir) {
        println!("{} does not exist or is empty: nothing to do", data_dir.display());
        return Ok(());
    }
    if data_dir.join("pki").exists() || data_dir.join("store").exists() {
        bail!("{} is the directory of a whole cluster: use `hawser down`", data_dir.display());
    }
    has_no_volumes(&data_dir)?;
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
    has_no_volumes(&data_dir)?;
    let data = DataDir::open_to_leave(&data_dir)?;
    let made = data.made()?;
    let Leaving { node_name: node, joined } = begin(&data, &membership, made.as_ref())?;
    if let Some(made) = &made {
        let errors = down::remove(&data, made).await;
        if !errors.is_empty() {
            let list: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
            bail!("cannot remove everything; run it again after correcting this:\n  {}", list.join("\n  "));
        }
        data.forget()?;
    }
    // Credentials go before the Node, so that nothing makes it anew.
    membership.remove()?;
    match (&node, &administrator) {
        (Some(node), Some(client)) => delete_node(client, node).await?,
        (Some(node), None) => println!(
            "this machine is restored; the Node remains, since nodes may not delete it: `kubectl delete node {node}`"
        ),
        (None, _) => {}
    }
    // The record of the leave goes last, so that a killed `leave` can be finished by the next.
    if joined { data.discard_all() } else { data.end_of_leave() }
}

/// Returns what is to be done: the record of a leave that was killed, or a new one.
fn begin(data: &DataDir, membership: &Membership, made: Option<&Made>) -> Result<Leaving> {
    if let Some(begun) = data_dir::leaving(data.path())? {
        return Ok(begun);
    }
    let cluster = membership.cluster()?;
    let joined = cluster.is_some();
    let node_name = cluster.map(|cluster| cluster.node_name);
    let node_name = node_name.or_else(|| made.map(|made| made.node_name.clone()));
    let leaving = Leaving { node_name, joined };
    data.begin_to_leave(&leaving)?;
    Ok(leaving)
}

/// Refuses to leave while the directory holds volumes of claims: they are nowhere else.
pub fn has_no_volumes(data_dir: &Path) -> Result<()> {
    let volumes = Directories::new(data_dir).volumes();
    if volumes.exists() && !is_empty(&volumes) {
        let shown = volumes.display();
        bail!(
            "{shown} holds the data of claims: delete the claims while the node runs, or move the directories elsewhere, \
             then run this again"
        );
    }
    Ok(())
}

/// Returns whether a directory has no entries: a leave may have been killed just before it removed it.
fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

async fn connect_own(membership: &Membership) -> Result<Client> {
    Ok(connect(&membership.kubeconfig(), "kubelet").await?)
}

/// Returns the name of the node: that of the membership, or that which a component has recorded.
pub fn node_name(data_dir: &Path, joined: Option<&str>) -> Result<String> {
    let begun = data_dir::leaving(data_dir)?.and_then(|leaving| leaving.node_name);
    if let Some(name) = joined.map(str::to_owned).or(begun) {
        return Ok(name);
    }
    // Read without the lock, which a component holds.
    let file = data_dir.join("made.json");
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let made: Made =
        serde_json::from_slice(&text).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(made.node_name)
}

pub async fn delete_node(client: &Client, node: &str) -> Result<()> {
    match Api::<Node>::all(client.clone()).delete(node, &DeleteParams::default()).await {
        Ok(_) => {
            println!("node {node} has left");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error).with_context(|| {
            format!("this machine is restored, but Node {node} could not be deleted: run this again")
        }),
    }
}

/// Ends the process that works on the directory, if there is one.
pub async fn stop_holder(data_dir: &Path) -> Result<()> {
    let Some(Holder { pid, process }) = holder(data_dir)? else { return Ok(()) };
    info!(pid, "stopping the node's components");
    match pidfd_send_signal(&process, Signal::TERM) {
        // It has ended by itself.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => return Err(error).with_context(|| format!("cannot stop process {pid}")),
    }
    let deadline = Instant::now() + limits::COMPONENT_END;
    while is_held(data_dir) {
        if Instant::now() > deadline {
            bail!("process {pid} does not end: stop it, then run this again");
        }
        sleep(limits::COMPONENT_END_PAUSE).await;
    }
    Ok(())
}

/// The process that holds the lock of a directory.
struct Holder {
    pid: i32,
    /// Stands for this process and no other, whoever gets its number later.
    process: OwnedFd,
}

/// Returns whether a process holds the lock of the directory.
fn is_held(data_dir: &Path) -> bool {
    // A lock that is taken here is released when the file is closed.
    File::open(data_dir.join("lock"))
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_err())
}

/// Returns the process that holds the lock of the directory. The number in the file may be of a process that ended
/// long ago and be another one's by now, so that a process counts only if it has the file open.
fn holder(data_dir: &Path) -> Result<Option<Holder>> {
    let path = data_dir.join("lock");
    if !is_held(data_dir) {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let process =
        pid.and_then(|pid| Some((pid.as_raw_nonzero().get(), pidfd_open(pid, PidfdFlags::empty()).ok()?)));
    match process {
        Some((pid, process)) if has_open(pid, &path) => Ok(Some(Holder { pid, process })),
        // It has just ended.
        _ if !is_held(data_dir) => Ok(None),
        _ => bail!(
            "another process holds {}, since process {} does not: find it and stop it, then run this again",
            path.display(),
            text.trim()
        ),
    }
}

/// Returns whether a process has a file open.
fn has_open(pid: i32, path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.into_iter().any(|entry| data_dir::is_same(&file, &entry.path()))
}

/// Cordons a node, evicts its pods, and waits until they are gone.
pub async fn drain_node(client: &Client, node: &str, timeout: Duration) -> Result<()> {
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
        sleep(limits::DRAIN_PAUSE).await;
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
    fn directory_with_volumes_is_not_left() {
        let dir = tempfile::tempdir().unwrap();
        has_no_volumes(dir.path()).unwrap();
        fs::create_dir(dir.path().join("volumes")).unwrap();
        has_no_volumes(dir.path()).unwrap();
        fs::create_dir(dir.path().join("volumes/pvc-1")).unwrap();
        let error = has_no_volumes(dir.path()).unwrap_err().to_string();
        assert!(error.contains("holds the data of claims"), "{error}");
    }

    #[test]
    fn the_holder_of_a_directory_is_known_while_it_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(holder(dir.path()).unwrap().is_none());
        let data = DataDir::open(dir.path()).unwrap();
        let found = holder(dir.path()).unwrap().unwrap();
        assert_eq!(found.pid, std::process::id() as i32);
        drop(data);
        assert!(holder(dir.path()).unwrap().is_none());
    }

    /// The number in the file was that of a process which had ended, and by then another's, which got the signal.
    #[tokio::test]
    async fn no_process_but_the_holder_is_signalled() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        fs::write(dir.path().join("lock"), other.id().to_string()).unwrap();
        let error = stop_holder(dir.path()).await.unwrap_err().to_string();
        assert!(error.contains(&format!("process {} does not", other.id())), "{error}");
        assert!(other.try_wait().unwrap().is_none(), "it was signalled");
        other.kill().unwrap();
        other.wait().unwrap();
        // Nor is one that is not there.
        assert!(stop_holder(dir.path()).await.is_err());
        drop(data);
        stop_holder(dir.path()).await.unwrap();
    }

    #[tokio::test]
    async fn a_leave_that_was_killed_anywhere_is_finished() {
        let cluster = crate::membership::Cluster {
            server: "https://192.0.2.1:6443".to_owned(),
            authorities: "PEM".to_owned(),
            client_authorities: None,
            node_name: "b".to_owned(),
            ranges: crate::cluster_info::Ranges { services: Vec::new(), pods: Vec::new() },
        };
        // The files that one has removed before it was killed, in its order.
        for removed in 0..=5 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("node");
            let data = DataDir::open(&path).unwrap();
            let membership = Membership::of(&path);
            membership.create().unwrap();
            membership.remember(&cluster).unwrap();
            let begun = begin(&data, &membership, None).unwrap();
            assert_eq!(begun, Leaving { node_name: Some("b".to_owned()), joined: true });
            drop(data);
            for file in ["join/cluster.json", "join/kubeconfig.yaml", "version", "lock", "leaving.json"]
                .iter()
                .take(removed)
            {
                fs::remove_file(path.join(file)).unwrap();
            }
            if removed == 5 {
                fs::remove_dir(path.join("join")).unwrap();
            }
            if removed < 5 {
                let data = DataDir::open_to_leave(&path).unwrap();
                assert_eq!(begin(&data, &membership, None).unwrap(), begun, "{removed}");
            }
            let leave = Leave {
                data_dir: path.clone(),
                kubeconfig: None,
                drain: false,
                drain_timeout: Duration::ZERO,
            };
            run(leave).await.unwrap();
            assert!(removed == 5 || !path.exists(), "{removed}");
        }
    }
}
