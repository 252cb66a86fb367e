//! Each server asks the next one, in the order of their nodes' names, whether it still answers. One that is
//! killed cannot say so itself: its neighbour takes it out of its EndpointSlice, so that the proxy of its
//! node leads pods to others. It puts itself back as soon as it runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
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
use crate::slices::{NAMESPACE, SERVICE};
use crate::wire;

/// The server of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub node: String,
    /// Its addresses, one a family, that count as ready.
    pub sockets: Vec<Listed>,
}

/// An address of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Name of the EndpointSlice that tells it.
    pub slice: String,
    pub address: SocketAddr,
}

/// Returns the ready server whose node follows a node by name, or the first after the last. `None` if there is no
/// other.
pub fn next<S: AsRef<Slice>>(slices: &[S], node: &str) -> Option<Peer> {
    let mut peers: BTreeMap<&str, Vec<Listed>> = BTreeMap::new();
    for (of, listed) in slices.iter().filter_map(|slice| ready(slice.as_ref())) {
        if of != node {
            peers.entry(of).or_default().push(listed);
        }
    }
    let after = peers.range::<str, _>((Bound::Excluded(node), Bound::Unbounded)).next();
    let (of, sockets) = after.or_else(|| peers.first_key_value())?;
    let mut sockets = sockets.clone();
    sockets.sort_unstable();
    Some(Peer { node: (*of).to_owned(), sockets })
}

fn ready(slice: &Slice) -> Option<(&str, Listed)> {
    let service = slice.service()?;
    if (service.namespace.as_str(), service.name.as_str()) != (NAMESPACE, SERVICE) {
        return None;
    }
    let endpoint = slice.endpoints.first().filter(|endpoint| endpoint.ready)?;
    let port = slice.ports.iter().find(|port| &*port.name == "dns" && port.protocol == Protocol::Udp)?;
    let address = (endpoint.address, port.number).into();
    Some((slice.node.as_deref()?, Listed { slice: slice.names().1.to_owned(), address }))
}

/// The answers of one peer, by address.
#[derive(Debug, Default)]
pub struct Watch(BTreeMap<Listed, Answers>);

#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    /// There was one: an address that never answered may just be out of our reach.
    seen: bool,
    failures: u32,
}

impl Watch {
    /// Forgets all addresses but these.
    pub fn turn_to(&mut self, all: &[Listed]) {
        self.0.retain(|listed, _| all.contains(listed));
    }

    /// Records an answer or a failure. Returns `true` if the address is to be taken out.
    pub fn record(&mut self, listed: &Listed, answered: bool) -> bool {
        let answers = self.0.entry(listed.clone()).or_default();
        if answered {
            *answers = Answers { seen: true, failures: 0 };
            return false;
        }
        answers.failures += 1;
        let gone = answers.seen && answers.failures >= limits::PEER_FAILURES;
        if gone {
            // Only another answer makes it worth watching again.
            answers.seen = false;
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
        let Some(peer) = next(&cache.list_namespace(NAMESPACE), &node) else { continue };
        watch.turn_to(&peer.sockets);
        for listed in &peer.sockets {
            let answered = answers(&engine, listed.address).await;
            if watch.record(listed, answered) {
                let Listed { slice, address } = listed;
                warn!(node = peer.node, slice, %address, "the DNS server of another node no longer answers");
                if let Err(error) = take_out(&api, slice).await {
                    debug!(%error, "cannot take it out of its EndpointSlice");
                }
            }
        }
    }
}

/// Returns `true` if a server at an address knows our domain and is complete.
pub async fn answers(engine: &Engine, address: SocketAddr) -> bool {
    let domain = engine.zone.load().settings().domain;
    let Ok(name) = Name::parse(&format!("dns-version.{domain}")) else { return false };
    let question = Question { name, kind: wire::TXT, dnssec: false };
    let wrong = engine.metrics.forward.wrong.get(&[&address.to_string()]);
    let link = Link { upstream: address, tcp: false, tls: None, mixed: true, wrong: &wrong.value };
    let asked = exchange(&link, &question, &*engine.ambient.random, limits::PEER_PAUSE);
    asked.await.is_ok_and(|reply| reply.code == wire::NO_ERROR && !reply.empty)
}

/// Marks the endpoints of a slice as not ready.
pub async fn take_out(api: &Api<EndpointSlice>, name: &str) -> Result<(), Error> {
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

    fn slice(name: &str, node: &str, ip: &str, ready: bool) -> Arc<Slice> {
        let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
        let object = json!({
            "metadata": {
                "namespace": "kube-system", "name": name, "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": family,
            "endpoints": [{"addresses": [ip], "nodeName": node, "conditions": {"ready": ready}}],
            "ports": [{"name": "dns-tcp", "port": 1054}, {"name": "dns", "protocol": "UDP", "port": 1053}],
        });
        Arc::new(Slice::of(serde_json::from_value(object).unwrap()))
    }

    fn addresses(slices: &[Arc<Slice>], node: &str) -> Option<String> {
        let peer = next(slices, node)?;
        let all: Vec<_> = peer.sockets.iter().map(|listed| listed.address.to_string()).collect();
        Some(format!("{}: {}", peer.node, all.join(" ")))
    }

    #[test]
    fn servers_watch_each_other_in_a_ring_of_nodes() {
        let slices = [
            slice("kube-dns-n1", "n1", "10.0.1.1", true),
            slice("kube-dns-n1-ipv6", "n1", "fd00:1::1", true),
            slice("kube-dns-n3", "n3", "10.0.3.1", true),
            slice("kube-dns-n2-ipv6", "n2", "fd00:2::1", true),
            slice("kube-dns-n2", "n2", "10.0.2.1", true),
        ];
        assert_eq!(addresses(&slices, "n1").as_deref(), Some("n2: 10.0.2.1:1053 [fd00:2::1]:1053"));
        assert_eq!(addresses(&slices, "n2").as_deref(), Some("n3: 10.0.3.1:1053"));
        assert_eq!(addresses(&slices, "n3").as_deref(), Some("n1: 10.0.1.1:1053 [fd00:1::1]:1053"));
        assert_eq!(addresses(&slices[..2], "n1"), None, "alone");
    }

    #[test]
    fn servers_that_are_out_are_passed_over() {
        let slices = [
            slice("kube-dns-n1", "n1", "10.0.1.1", true),
            slice("kube-dns-n2", "n2", "10.0.2.1", false),
            slice("kube-dns-n2-ipv6", "n2", "fd00:2::1", true),
            slice("kube-dns-n3", "n3", "10.0.3.1", true),
        ];
        assert_eq!(addresses(&slices, "n1").as_deref(), Some("n2: [fd00:2::1]:1053"));
        let out = [slices[0].clone(), slices[1].clone(), slices[3].clone()];
        assert_eq!(addresses(&out, "n1").as_deref(), Some("n3: 10.0.3.1:1053"));
        assert_eq!(addresses(&out[..2], "n1"), None);
    }

    #[test]
    fn a_server_that_answered_before_is_taken_out_once() {
        let slices = [
            slice("kube-dns-n2", "n2", "10.0.2.1", true),
            slice("kube-dns-n2-ipv6", "n2", "fd00:2::1", true),
        ];
        let peer = next(&slices, "n1").unwrap();
        let mut watch = Watch::default();
        let mut outcomes = |answers: &[bool]| -> Vec<bool> {
            watch.record(&peer.sockets[1], true);
            answers.iter().map(|answered| watch.record(&peer.sockets[0], *answered)).collect()
        };
        assert_eq!(outcomes(&[false; 9]), [false; 9], "it was never reached");
        assert_eq!(outcomes(&[true, false, false, true, false, false]), [false; 6]);
        assert_eq!(outcomes(&[false, false, false, false]), [true, false, false, false]);
        assert_eq!(outcomes(&[true, false, false, false]), [false, false, false, true]);
        watch.turn_to(&[]);
        assert!(watch.0.is_empty());
    }
}
