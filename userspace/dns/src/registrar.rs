//! Registers the servers of nodes that may not write EndpointSlices, such as those of `hawser join`. The server of
//! `hawser up` asks each node at its address for pods, lists the servers that answer, and takes out those that no longer
//! do.

use std::net::SocketAddr;
use std::sync::Arc;

use apiserver_client::{Cache, ObjectKey};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::cluster::Slice;
use crate::engine::Engine;
use crate::limits;
use crate::listeners::first;
use crate::objects::Node;
use crate::peers::{Listed, Watch, answers, take_out};
use crate::slices::{self, NAMESPACE, State};

/// The place where the server of a node would listen, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeServer {
    node: String,
    uid: String,
    listed: Listed,
}

/// Returns the places of all nodes but our own.
fn node_servers(nodes: &[Arc<Node>], own: &str, port: u16) -> Vec<NodeServer> {
    let of_node = |node: &Arc<Node>| {
        [true, false]
            .into_iter()
            .filter_map(|is_v4| {
                let range = node.pod_ranges.iter().find(|range| range.is_ipv4() == is_v4)?;
                let address = SocketAddr::new(first(range.network()), port);
                let listed = Listed { slice: slices::name(node.name(), is_v4), address };
                Some(NodeServer { node: node.name().to_owned(), uid: node.uid.to_string(), listed })
            })
            .collect::<Vec<_>>()
    };
    let others = nodes.iter().filter(|node| node.name() != own);
    others.flat_map(of_node).take(limits::REGISTERED_SERVERS).collect()
}

/// The next step for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    List,
    TakeOut,
}

/// Returns the next step for a server, by its slice, by whether it has answered, and whether it is gone since it did.
fn step(slice: Option<&Slice>, answered: bool, gone: bool) -> Step {
    let is_ready = slice.is_some_and(|slice| slice.endpoints.iter().any(|endpoint| endpoint.ready));
    match (is_ready, answered) {
        (false, true) => Step::List,
        (true, false) if gone => Step::TakeOut,
        _ => Step::Nothing,
    }
}

/// Looks after the servers of other nodes until `stop`.
pub async fn run(
    client: Client,
    engine: Arc<Engine>,
    (nodes, cache): (Cache<Node>, Cache<Slice>),
    (own, port): (Arc<str>, u16),
    stop: CancellationToken,
) {
    let api: Api<EndpointSlice> = Api::namespaced(client, NAMESPACE);
    let mut watch = Watch::default();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(limits::PEER_PAUSE) => {}
        }
        let servers = node_servers(&nodes.list(), &own, port);
        watch.turn_to(&servers.iter().map(|server| server.listed.clone()).collect::<Vec<_>>());
        let mut asked = JoinSet::new();
        for server in servers {
            let engine = Arc::clone(&engine);
            asked.spawn(async move { (answers(&engine, server.listed.address).await, server) });
        }
        for (answered, server) in asked.join_all().await {
            let gone = watch.record(&server.listed, answered);
            let slice = cache.get(&ObjectKey::new(NAMESPACE, &server.listed.slice));
            look_after(&api, &server, step(slice.as_deref(), answered, gone)).await;
        }
    }
}

async fn look_after(api: &Api<EndpointSlice>, server: &NodeServer, step: Step) {
    let NodeServer { node, listed: Listed { slice, address }, .. } = server;
    let done = match step {
        Step::Nothing => return,
        Step::List => list(api, server).await,
        Step::TakeOut => {
            warn!(node, %address, "the DNS server of another node no longer answers");
            take_out(api, slice).await
        }
    };
    if let Err(error) = done {
        debug!(%error, slice, "cannot write the EndpointSlice");
    }
}

/// Writes the slice of a server that answers. One that is about to end has said so, and is left alone.
async fn list(api: &Api<EndpointSlice>, server: &NodeServer) -> Result<(), Error> {
    let Listed { slice: name, address } = &server.listed;
    let state =
        State { addresses: vec![*address], ready: true, node_uid: server.uid.clone(), ..State::default() };
    let Some(mut wanted) = slices::slice(&server.node, &state, address.is_ipv4()) else { return Ok(()) };
    match api.get_opt(name).await? {
        None => drop(api.create(&PostParams::default(), &wanted).await?),
        Some(there) if is_ending(&there) => return Ok(()),
        Some(there) => {
            wanted.metadata.resource_version = there.metadata.resource_version;
            api.replace(name, &PostParams::default(), &wanted).await?;
        }
    }
    info!(node = server.node, %address, "the DNS server of another node answers");
    Ok(())
}

fn is_ending(slice: &EndpointSlice) -> bool {
    let terminating =
        |conditions: &k8s_openapi::api::discovery::v1::EndpointConditions| conditions.terminating;
    slice
        .endpoints
        .iter()
        .flatten()
        .any(|endpoint| endpoint.conditions.as_ref().and_then(terminating) == Some(true))
}

#[cfg(test)]
mod tests {
    use apiserver_client::Projection;
    use serde_json::json;

    use super::*;

    fn node(name: &str, ranges: &[&str]) -> Arc<Node> {
        let object = json!({"metadata": {"name": name, "uid": "u"}, "spec": {"podCIDRs": ranges}});
        Arc::new(Node::project(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn servers_are_looked_for_at_the_address_for_pods_of_each_other_node() {
        let nodes =
            [node("n1", &["10.244.1.0/24"]), node("n2", &["10.244.2.0/24", "fd00:2::/64"]), node("n3", &[])];
        let all = node_servers(&nodes, "n1", 1053);
        let text: Vec<String> =
            all.iter().map(|server| format!("{} {}", server.listed.slice, server.listed.address)).collect();
        assert_eq!(text, ["kube-dns-n2 10.244.2.1:1053", "kube-dns-n2-ipv6 [fd00:2::1]:1053"]);
        assert_eq!((all[0].node.as_str(), all[0].uid.as_str()), ("n2", "u"));
    }

    #[test]
    fn servers_are_listed_when_they_answer_and_taken_out_when_they_stop() {
        let slice = |ready: bool| {
            let object = json!({
                "metadata": {"namespace": "kube-system", "name": "kube-dns-n2"}, "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.244.2.1"], "conditions": {"ready": ready, "terminating": !ready}}],
            });
            serde_json::from_value::<EndpointSlice>(object).unwrap()
        };
        let (ready, out) = (Slice::of(slice(true)), Slice::of(slice(false)));
        for (slice, answered, gone, expected) in [
            (None, true, false, Step::List),
            (Some(&out), true, false, Step::List),
            (Some(&ready), true, false, Step::Nothing),
            (Some(&ready), false, false, Step::Nothing),
            (Some(&ready), false, true, Step::TakeOut),
            (Some(&out), false, true, Step::Nothing),
            (None, false, true, Step::Nothing),
        ] {
            assert_eq!(step(slice, answered, gone), expected, "{answered} {gone}");
        }
        assert!(is_ending(&slice(false)) && !is_ending(&slice(true)));
    }
}
