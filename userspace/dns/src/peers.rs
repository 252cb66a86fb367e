//! Each server asks the next one, in the order of their nodes' names, whether it still answers. One that is
//! killed cannot say so itself: its neighbour takes it out of its EndpointSlice, so that the proxy of its
//! node leads pods to others. It puts itself back as soon as it runs.

use std::net::SocketAddr;
use std::sync::Arc;

use apiserver_client::{Cache, Projection};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::cluster::{Protocol, Slice};
use crate::engine::Engine;
use crate::forward::{Link, Question, exchange};
use crate::limits;
use crate::name::Name;
use crate::slices::{self, NAMESPACE, SERVICE};
use crate::wire;

/// The server of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of its EndpointSlice.
    pub slice: String,
    pub address: SocketAddr,
    /// It counts as ready.
    pub ready: bool,
}

/// Returns the server whose slice follows that of a node by name, or the first after the last. `None` if
/// there is no other.
pub fn next<S: AsRef<Slice>>(slices: &[S], node: &str) -> Option<Peer> {
    let (own, own_v6) = (slices::name(node, true), slices::name(node, false));
    let mut peers: Vec<Peer> = slices.iter().filter_map(|slice| peer(slice.as_ref())).collect();
    peers.retain(|peer| peer.slice != own && peer.slice != own_v6);
    peers.sort_unstable_by(|a, b| a.slice.cmp(&b.slice));
    let next = peers.iter().position(|peer| peer.slice > own).unwrap_or(0);
    (!peers.is_empty()).then(|| peers.swap_remove(next))
}

fn peer(slice: &Slice) -> Option<Peer> {
    let service = slice.service()?;
    if (service.namespace.as_str(), service.name.as_str()) != (NAMESPACE, SERVICE) {
        return None;
    }
    let endpoint = slice.endpoints.first()?;
    let port = slice.ports.iter().find(|port| &*port.name == "dns" && port.protocol == Protocol::Udp)?;
    let name = slice.names().1.to_owned();
    Some(Peer { slice: name, address: (endpoint.address, port.number).into(), ready: endpoint.ready })
}

/// The answers of one peer.
#[derive(Debug, Default)]
pub struct Watch {
    peer: Option<(String, SocketAddr)>,
    /// It has answered: one that never did may just be out of our reach.
    seen: bool,
    failures: u32,
}

impl Watch {
    /// Records an answer or a failure. Returns `true` if the peer is to be taken out.
    pub fn record(&mut self, peer: &Peer, answered: bool) -> bool {
        let current = Some((peer.slice.clone(), peer.address));
        if self.peer != current {
            *self = Self { peer: current, ..Self::default() };
        }
        if answered {
            (self.seen, self.failures) = (true, 0);
            return false;
        }
        self.failures += 1;
        let gone = self.seen && self.failures >= limits::PEER_FAILURES;
        if gone {
            // Only another answer makes it worth watching again.
            self.seen = false;
        }
        gone
    }
}

/// Watches the next server until `stop`.
pub async fn run(
    client: Client,
    engine: Arc<Engine>,
    cache: Cache<Slice>,
    node: Arc<str>,
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
        let Some(peer) = next(&cache.list_namespace(NAMESPACE), &node).filter(|peer| peer.ready) else {
            continue;
        };
        let answered = answers(&engine, peer.address).await;
        if watch.record(&peer, answered) {
            warn!(slice = peer.slice, address = %peer.address, "the DNS server of another node no longer answers");
            if let Err(error) = take_out(&api, &peer.slice).await {
                debug!(%error, "cannot take it out of its EndpointSlice");
            }
        }
    }
}

async fn answers(engine: &Engine, address: SocketAddr) -> bool {
    let domain = engine.zone.load().settings().domain;
    let Ok(name) = Name::parse(&format!("dns-version.{domain}")) else { return false };
    let question = Question { name, kind: wire::TXT, dnssec: false };
    let wrong = engine.metrics.forward.wrong.get(&[&address.to_string()]);
    let link = Link { upstream: address, tcp: false, mixed: true, wrong: &wrong.value };
    exchange(&link, &question, &*engine.ambient.random, limits::PEER_PAUSE).await.is_ok()
}

async fn take_out(api: &Api<EndpointSlice>, name: &str) -> Result<(), Error> {
    let mut slice = api.get(name).await?;
    for endpoint in slice.endpoints.iter_mut().flatten() {
        let conditions = endpoint.conditions.get_or_insert_default();
        (conditions.ready, conditions.serving) = (Some(false), Some(false));
    }
    api.replace(name, &PostParams::default(), &slice).await.map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, ip: &str) -> Arc<Slice> {
        let object = json!({
            "metadata": {
                "namespace": "kube-system", "name": name, "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4", "endpoints": [{"addresses": [ip]}],
            "ports": [{"name": "dns-tcp", "port": 1054}, {"name": "dns", "protocol": "UDP", "port": 1053}],
        });
        Arc::new(Slice::of(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn servers_watch_each_other_in_a_ring() {
        let slices = [
            slice("kube-dns-n1", "10.0.1.1"),
            slice("kube-dns-n3", "10.0.3.1"),
            slice("kube-dns-n2", "10.0.2.1"),
        ];
        let of = |node: &str| next(&slices, node).map(|peer| peer.address.to_string());
        assert_eq!(of("n1").as_deref(), Some("10.0.2.1:1053"));
        assert_eq!(of("n2").as_deref(), Some("10.0.3.1:1053"));
        assert_eq!(of("n3").as_deref(), Some("10.0.1.1:1053"));
        assert_eq!(next(&slices[..1], "n1"), None, "alone");
    }

    #[test]
    fn a_server_that_answered_before_is_taken_out_once() {
        let peer = next(&[slice("kube-dns-n2", "10.0.2.1")], "n1").unwrap();
        let mut watch = Watch::default();
        let mut outcomes = |answers: &[bool]| -> Vec<bool> {
            answers.iter().map(|answered| watch.record(&peer, *answered)).collect()
        };
        assert_eq!(outcomes(&[false; 9]), [false; 9], "it was never reached");
        assert_eq!(outcomes(&[true, false, false, true, false, false]), [false; 6]);
        assert_eq!(outcomes(&[false, false, false, false]), [true, false, false, false]);
        assert_eq!(outcomes(&[true, false, false, false]), [false, false, false, true]);
    }
}
