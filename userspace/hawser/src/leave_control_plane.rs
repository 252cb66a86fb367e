//! `hawser leave` on one of several control nodes: takes its member out of etcd, and the machine out of the cluster.

use std::path::Path;

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_client::connect;
use apiserver_meta::ambient::Ambient;
use kube::Client;
use serde_json::json;
use tracing::warn;

use crate::control_plane::ControlPlane;
use crate::data_dir::{self, DataDir, Leaving};
use crate::join_args::Leave;
use crate::leave::{delete_node, drain_node, has_no_volumes, node_name, stop_holder};
use crate::limits;
use crate::{api_servers, discovery, down, etcd, leave};

/// Takes the machine out of its cluster, whichever kind of node it is.
pub async fn run(args: Leave) -> Result<()> {
    match ControlPlane::read(&args.data_dir)? {
        Some(record) if is_one_of_several(&record) || others_live(&args, &record).await? => {
            Box::pin(leave_cluster(args, record)).await
        }
        _ => leave::run(args).await,
    }
}

/// Returns whether there is a cluster without this machine: it joined one, or others joined what `up` runs here.
fn is_one_of_several(record: &ControlPlane) -> bool {
    record.joined.is_some() || record.member.is_some() && !record.etcd_servers.is_empty()
}

/// Returns whether other control nodes live beside one that runs `up` on an etcd that is not Hawser's, which does not list
/// them; or whether an earlier `leave` has found that.
async fn others_live(args: &Leave, record: &ControlPlane) -> Result<bool> {
    if record.member.is_some() {
        return Ok(false);
    }
    if data_dir::leaving(&args.data_dir)?.is_some_and(|leaving| leaving.joined) {
        return Ok(true);
    }
    if let Some(servers) = own_list(&args.data_dir).await {
        return Ok(servers.len() > 1);
    }
    // The server of this machine does not answer, so that one that does is another.
    let Some(file) = &args.kubeconfig else { return Ok(false) };
    let servers = api_servers::living(&connect(file, "hawser").await?).await;
    Ok(!servers.context("no answer from the server of --kubeconfig")?.is_empty())
}

/// Returns the API servers that live, as the one of this machine knows them; `None` if it does not answer.
async fn own_list(data_dir: &Path) -> Option<Vec<String>> {
    let client = connect(&data_dir.join("kubeconfig.yaml"), "hawser").await.ok()?;
    tokio::time::timeout(limits::JOIN_REQUEST, api_servers::living(&client)).await.ok()?.ok()
}

/// Returns whether the keys of the cluster would go with this machine, whose etcd is not Hawser's: no other control node
/// lives, as far as its API server knows.
fn is_last(record: &ControlPlane, living: Option<&[String]>) -> bool {
    !record.etcd_started && record.member.is_none() && living.is_some_and(|servers| servers.len() <= 1)
}

/// Drains the node if that is asked for, stops its components, removes its member of etcd and what they made, and
/// deletes the Node at another control node. Every step may be repeated.
async fn leave_cluster(args: Leave, record: ControlPlane) -> Result<()> {
    let Leave { data_dir, kubeconfig, drain, drain_timeout } = args;
    let node = node_name(&data_dir, record.joined.as_ref().map(|joined| joined.node_name.as_str()))?;
    if record.member.is_some() && record.etcd_servers.is_empty() {
        bail!("this machine has the last member of etcd, and with it all objects: use `hawser down`");
    }
    has_no_volumes(&data_dir)?;
    let living = own_list(&data_dir).await;
    if is_last(&record, living.as_deref()) {
        bail!(
            "no other control node runs, and the keys of the cluster would go with this machine: start another one, or \
             use `hawser down`"
        );
    }
    let own = connect(&data_dir.join("kubeconfig.yaml"), "hawser").await;
    let mut known = living.unwrap_or_default();
    known.extend(beside_members(&record, record.up(&data_dir)?.api_port));
    known.sort_unstable();
    known.dedup();
    let given = match &kubeconfig {
        Some(file) => Some(connect(file, "hawser").await?),
        None => None,
    };
    if drain {
        let client = match (&given, own) {
            (Some(client), _) => client.clone(),
            (None, own) => own.context("cannot drain: the API server of this machine does not run")?,
        };
        drain_node(&client, &node, drain_timeout).await?;
    }
    stop_holder(&data_dir).await?;
    has_no_volumes(&data_dir)?;
    let data = DataDir::open_to_leave(&data_dir)?;
    // A run that was killed may have removed the keys already: then the member has left.
    let pki = data.join("pki");
    let has_keys = pki.exists();
    let mut clients: Vec<Client> = given.into_iter().collect();
    if has_keys {
        clients.extend(others(&data, &known).await?);
    }
    if has_keys && !record.etcd_started && record.member.is_none() {
        check_keys_elsewhere(&clients).await?;
    }
    data.begin_to_leave(&Leaving { node_name: Some(node.clone()), joined: true })?;
    if let Some(member) = record.member.as_ref().filter(|_| has_keys) {
        let flags = etcd::flags_of(&record, data.path());
        etcd::leave(&flags, &member.peer_url).await?;
    }
    etcd::stop(data.path()).await?;
    if let Some(made) = data.made()? {
        let errors = down::remove(&data, &made).await;
        if !errors.is_empty() {
            let list: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
            bail!("cannot remove everything; run it again after correcting this:\n  {}", list.join("\n  "));
        }
        data.forget()?;
    }
    if !delete_anywhere(&clients, &node).await {
        println!(
            "this machine is restored; the Node remains: `kubectl delete node {node}` at another control node"
        );
    }
    // Before the record: a directory of keys without it is that of a whole cluster, which the next attempt would refuse.
    // In one step: half of the keys would stop the next attempt.
    if has_keys {
        let removed = data.join("pki.removed");
        std::fs::rename(&pki, removed).with_context(|| format!("cannot remove {}", pki.display()))?;
    }
    data.discard_all()
}

/// Returns the URLs of API servers beside the other members of Hawser's etcd: one that has just started is not in the
/// cluster's list yet.
fn beside_members(record: &ControlPlane, api_port: u16) -> Vec<String> {
    let members = record.etcd_servers.iter().filter(|_| record.etcd_started);
    let hosts = members.filter_map(|url| url.parse::<http::Uri>().ok()?.host().map(str::to_owned));
    hosts.map(|host| format!("https://{host}:{api_port}")).collect()
}

/// Deletes the Node at the first API server that does so, in several rounds: etcd may be electing a leader after this
/// machine's member has left. Returns `false` if none did.
async fn delete_anywhere(clients: &[Client], node: &str) -> bool {
    for round in 0..limits::NODE_DELETIONS {
        if round > 0 {
            tokio::time::sleep(limits::NODE_DELETION_PAUSE).await;
        }
        for client in clients {
            let deleted = tokio::time::timeout(limits::JOIN_REQUEST, delete_node(client, node)).await;
            match deleted.unwrap_or_else(|_| bail!("no answer")) {
                Ok(()) => return true,
                Err(error) => warn!(error = format!("{error:#}"), "cannot delete the Node there"),
            }
        }
    }
    false
}

/// Checks that another control node answers, and so has the keys of the cluster, after the server of this machine has
/// stopped. Members of Hawser's etcd need not be asked: each has them.
async fn check_keys_elsewhere(clients: &[Client]) -> Result<()> {
    for client in clients {
        let asked = tokio::time::timeout(limits::JOIN_REQUEST, client.apiserver_version()).await;
        if asked.is_ok_and(|answer| answer.is_ok()) {
            return Ok(());
        }
    }
    bail!(
        "no other control node answers, and the keys of the cluster would go with this machine, whose components have been \
         stopped: start another one and run this again, or use `hawser down`"
    )
}

/// Returns administrators' clients of the API servers that were known.
async fn others(data: &DataDir, known: &[String]) -> Result<Vec<Client>> {
    use base64::Engine as _;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let pki =
        Pki::open(&data.join("pki"), &Ambient::system()).context("cannot open the cluster's authority")?;
    let pair = pki.issue(&Subject::admin()).context("cannot issue a client certificate")?;
    let user = json!({
        "client-certificate-data": encode(&pair.certificate), "client-key-data": encode(&pair.key),
    });
    let mut clients = Vec::new();
    for url in known {
        clients.push(discovery::client(discovery::kubeconfig(url, pki.ca_pem(), &user)).await?);
    }
    Ok(clients)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_plane::{Joined, LocalMember};

    #[test]
    fn only_one_of_several_control_nodes_leaves() {
        let alone = ControlPlane {
            flags: Vec::new(),
            etcd_servers: Vec::new(),
            etcd_started: true,
            etcd_files: [None, None, None],
            member: Some(LocalMember {
                peer_url: "https://192.0.2.1:2380".to_owned(),
                client_url: "https://192.0.2.1:2379".to_owned(),
                client_port: 2379,
                peer_port: 2380,
            }),
            joined: None,
        };
        assert!(!is_one_of_several(&alone), "all objects would go");
        let others = vec!["https://192.0.2.2:2379".to_owned()];
        assert!(is_one_of_several(&ControlPlane { etcd_servers: others.clone(), ..alone.clone() }));
        // The etcd of others says nothing of other control nodes.
        assert!(!is_one_of_several(&ControlPlane { etcd_servers: others, member: None, ..alone.clone() }));
        let own = "https://192.0.2.1:6443".to_owned();
        let external =
            ControlPlane { etcd_started: false, etcd_servers: Vec::new(), member: None, ..alone.clone() };
        assert!(is_last(&external, Some(std::slice::from_ref(&own))), "the keys would go");
        assert!(!is_last(&external, Some(&[own.clone(), "https://192.0.2.2:6443".to_owned()])));
        assert!(!is_last(&external, None), "it does not run");
        assert!(!is_last(&alone, Some(&[own])), "its etcd decides");
        let joined = Some(Joined { node_name: "b".to_owned() });
        let several = ControlPlane { joined, member: None, ..alone };
        assert!(is_one_of_several(&several));
        let listed = ControlPlane { etcd_servers: vec!["https://192.0.2.2:2379".to_owned()], ..several };
        assert_eq!(beside_members(&listed, 6443), ["https://192.0.2.2:6443"]);
        assert!(beside_members(&ControlPlane { etcd_started: false, ..listed }, 6443).is_empty());
    }
}
