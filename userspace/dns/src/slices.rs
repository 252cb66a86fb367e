//! The server's own EndpointSlices: one a family, by which the proxies of all nodes find it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use apiserver_client::message;
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, Error};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::cluster::SERVICE_NAME;
use crate::limits;
use crate::rights;

/// Namespace and name of the cluster's DNS Service, as every Kubernetes has them.
pub const NAMESPACE: &str = "kube-system";
pub const SERVICE: &str = "kube-dns";
/// The label by which others see who writes a slice, and its value.
const MANAGED_BY: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "dns.hawser.dev");

/// The state that slices tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The addresses that the server listens on.
    pub addresses: Vec<SocketAddr>,
    /// Answers are complete.
    pub ready: bool,
    /// The server is about to end.
    pub ending: bool,
    /// The uid of the Node, which owns the slices.
    pub node_uid: String,
    /// The port of metrics, if they are served.
    pub metrics: Option<u16>,
}

/// Returns the name of a node's slice of a family.
pub fn name(node: &str, is_v4: bool) -> String {
    if is_v4 { format!("{SERVICE}-{node}") } else { format!("{SERVICE}-{node}-ipv6") }
}

/// Returns the slice of a family; `None` if the server does not listen there.
pub fn slice(node: &str, state: &State, is_v4: bool) -> Option<EndpointSlice> {
    let addresses: Vec<&SocketAddr> =
        state.addresses.iter().filter(|address| address.is_ipv4() == is_v4).collect();
    let port = addresses.first()?.port();
    let ips: Vec<IpAddr> = addresses.iter().map(|address| address.ip()).collect();
    let endpoint = |ip: &IpAddr| Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(state.ready && !state.ending),
            serving: Some(state.ready),
            terminating: Some(state.ending),
        }),
        // The own node asks this server and no other, as long as it is ready.
        hints: Some(EndpointHints {
            for_nodes: Some(vec![ForNode { name: node.to_owned() }]),
            ..EndpointHints::default()
        }),
        node_name: Some(node.to_owned()),
        ..Endpoint::default()
    };
    let port_of = |name: &str, protocol: &str, port: u16| EndpointPort {
        name: Some(name.to_owned()),
        protocol: Some(protocol.to_owned()),
        port: Some(port.into()),
        ..EndpointPort::default()
    };
    let metrics = state.metrics.map(|port| port_of("metrics", "TCP", port));
    let ports = [port_of("dns", "UDP", port), port_of("dns-tcp", "TCP", port)].into_iter().chain(metrics);
    Some(EndpointSlice {
        address_type: if is_v4 { "IPv4" } else { "IPv6" }.to_owned(),
        endpoints: Some(ips.iter().map(endpoint).collect()),
        metadata: ObjectMeta {
            name: Some(name(node, is_v4)),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(
                [(SERVICE_NAME, SERVICE), MANAGED_BY]
                    .map(|(label, value)| (label.to_owned(), value.to_owned()))
                    .into(),
            ),
            // With the Node, its slices go.
            owner_references: (!state.node_uid.is_empty()).then(|| {
                vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: node.to_owned(),
                    uid: state.node_uid.clone(),
                    ..OwnerReference::default()
                }]
            }),
            ..ObjectMeta::default()
        },
        ports: Some(ports.collect()),
    })
}

/// Returns `true` if an existing slice says what the wanted one does.
fn is_current(there: &EndpointSlice, wanted: &EndpointSlice) -> bool {
    let labels = |slice: &EndpointSlice| slice.metadata.labels.clone().unwrap_or_default();
    let (has, wants) = (labels(there), labels(wanted));
    there.endpoints == wanted.endpoints
        && there.ports == wanted.ports
        && there.metadata.owner_references == wanted.metadata.owner_references
        && wants.iter().all(|(label, value)| has.get(label) == Some(value))
}

/// Keeps the slices as `state` says until it says that the server ends; `changed` tells that another server has
/// changed one. Returns `true` if the end was told.
pub async fn run(
    client: Client,
    node: Arc<str>,
    mut state: watch::Receiver<State>,
    mut changed: watch::Receiver<()>,
) -> bool {
    let api: Api<EndpointSlice> = Api::namespaced(client, NAMESPACE);
    let (mut failed, mut forbidden) = (false, false);
    loop {
        let now = state.borrow_and_update().clone();
        if now.ending {
            // The API server may end at the same time.
            let told = tokio::time::timeout(limits::DRAIN, reconcile(&api, &node, &now)).await;
            return matches!(told, Ok(Ok(())));
        }
        let outcome = reconcile(&api, &node, &now).await;
        let is_forbidden = outcome.as_ref().is_err_and(rights::is_forbidden);
        if is_forbidden {
            if !std::mem::replace(&mut forbidden, true) {
                let why = outcome.as_ref().err().map(message).unwrap_or_default();
                info!(
                    why,
                    "not permitted to write this EndpointSlice; the server of `hawser up` writes those of its nodes"
                );
            }
        } else if let Err(error) = &outcome {
            if failed {
                debug!(error = message(error), "cannot write the EndpointSlices of this server");
            } else {
                warn!(error = message(error), "cannot write the EndpointSlices of this server; trying again");
            }
        }
        failed = outcome.is_err() && !is_forbidden;
        let pause = if failed { limits::SLICE_RETRY } else { limits::SLICE_CHECK };
        tokio::select! {
            biased;
            told = state.changed() => if told.is_err() { return false },
            Ok(()) = changed.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn reconcile(api: &Api<EndpointSlice>, node: &str, state: &State) -> Result<(), Error> {
    // Before the Node exists, nothing would own the slices.
    if state.node_uid.is_empty() {
        return Ok(());
    }
    for is_v4 in [true, false] {
        let name = name(node, is_v4);
        let there = api.get_opt(&name).await?;
        match (there, slice(node, state, is_v4)) {
            (None, Some(wanted)) => drop(api.create(&PostParams::default(), &wanted).await?),
            (Some(there), Some(mut wanted)) if !is_current(&there, &wanted) => {
                wanted.metadata.resource_version = there.metadata.resource_version;
                api.replace(&name, &PostParams::default(), &wanted).await?;
            }
            (Some(_), None) => drop(api.delete(&name, &DeleteParams::default()).await?),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_names_the_node_and_says_whether_the_server_is_ready() {
        let mut state = State {
            addresses: vec!["10.244.0.1:1053".parse().unwrap(), "[fd00::1]:1053".parse().unwrap()],
            ready: true,
            node_uid: "u".to_owned(),
            metrics: Some(9153),
            ..State::default()
        };
        let v4 = slice("n1", &state, true).unwrap();
        let text = serde_json::to_value(&v4).unwrap();
        assert_eq!(text["metadata"]["name"], "kube-dns-n1");
        assert_eq!(text["metadata"]["labels"]["kubernetes.io/service-name"], "kube-dns");
        assert_eq!(text["metadata"]["ownerReferences"][0]["uid"], "u");
        let endpoint = &text["endpoints"][0];
        assert_eq!(endpoint["addresses"], serde_json::json!(["10.244.0.1"]));
        assert_eq!(endpoint["conditions"]["ready"], true);
        assert_eq!(endpoint["hints"]["forNodes"][0]["name"], "n1");
        assert_eq!(text["ports"][0]["port"], 1053);
        assert_eq!(text["ports"].as_array().unwrap().len(), 3);
        assert_eq!(slice("n1", &state, false).unwrap().address_type, "IPv6");
        assert!(is_current(&v4, &v4));
        state.ending = true;
        let ending = slice("n1", &state, true).unwrap();
        assert!(!is_current(&v4, &ending));
        assert_eq!(serde_json::to_value(&ending).unwrap()["endpoints"][0]["conditions"]["ready"], false);
        state.addresses.pop();
        assert_eq!(slice("n1", &state, false), None);
    }
}
