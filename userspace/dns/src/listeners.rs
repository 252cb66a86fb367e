//! The addresses that the server listens on: the node's own address for pods, and the node's address while
//! there is none.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::engine::Engine;
use crate::objects::Node;
use crate::server::{Readiness, Sockets, pages};

/// Ports and numbers of sockets.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub dns: u16,
    /// Port of the pages; 0 for none.
    pub pages: u16,
    pub sockets: usize,
}

/// The open sockets.
pub struct Listeners {
    engine: Arc<Engine>,
    readiness: Arc<Readiness>,
    ports: Ports,
    stop: CancellationToken,
    tasks: TaskTracker,
    open: BTreeMap<IpAddr, Open>,
    /// The last failure that was logged.
    told: String,
}

struct Open {
    address: SocketAddr,
    stop: CancellationToken,
}

/// Returns the addresses to listen on by family, the best first: one of each family is opened.
pub fn candidates(node: Option<&Node>, fixed: &[IpAddr]) -> Vec<Vec<IpAddr>> {
    if !fixed.is_empty() {
        return fixed.iter().map(|ip| vec![*ip]).collect();
    }
    let Some(node) = node else { return Vec::new() };
    [true, false]
        .into_iter()
        .map(|is_v4| {
            let for_pods = node.pod_ranges.iter().map(|range| first(range.network()));
            let own = node.addresses.iter().copied();
            // Without pods of a family, nobody asks by it.
            let has_pods = node.pod_ranges.iter().any(|range| range.is_ipv4() == is_v4);
            let own = own.filter(|_| has_pods || node.pod_ranges.is_empty());
            for_pods.chain(own).filter(|ip| ip.is_ipv4() == is_v4).collect::<Vec<_>>()
        })
        .filter(|family| !family.is_empty())
        .collect()
}

/// Returns the first address after that of a network: the one that the pod network gives the node.
pub fn first(network: IpAddr) -> IpAddr {
    match network {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip).wrapping_add(1)).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip).wrapping_add(1)).into()),
    }
}

impl Listeners {
    pub fn new(
        engine: Arc<Engine>,
        readiness: Arc<Readiness>,
        ports: Ports,
        stop: CancellationToken,
    ) -> Self {
        let (tasks, open, told) = (TaskTracker::new(), BTreeMap::new(), String::new());
        Self { engine, readiness, ports, stop, tasks, open, told }
    }

    /// Opens the best address of each family that can be had, closes what is no longer wanted, and returns
    /// the addresses that are open.
    pub async fn reconcile(&mut self, wanted: &[Vec<IpAddr>]) -> Vec<SocketAddr> {
        let mut keep = Vec::new();
        for family in wanted {
            for ip in family {
                if self.open.contains_key(ip) || self.open(*ip).await {
                    keep.push(*ip);
                    break;
                }
            }
        }
        self.open.retain(|ip, open| {
            let wanted = keep.contains(ip);
            if !wanted {
                info!(address = %open.address, "the address is no longer listened on");
                open.stop.cancel();
            }
            wanted
        });
        self.open.values().map(|open| open.address).collect()
    }

    async fn open(&mut self, ip: IpAddr) -> bool {
        let sockets = match Sockets::open(ip, self.ports.dns, self.ports.sockets) {
            Ok(sockets) => sockets,
            Err(error) => {
                let text = format!("{error}: {}", error.cause);
                // The pod network may be about to add the address.
                if error.cause.kind() == std::io::ErrorKind::AddrNotAvailable || text == self.told {
                    debug!(error = text, "cannot listen yet, trying again");
                } else {
                    warn!(error = text, "cannot listen, retrying: the port may be in use");
                    self.told = text;
                }
                return false;
            }
        };
        let (address, stop) = (sockets.address, self.stop.child_token());
        sockets.serve(&self.engine, &stop, &self.tasks);
        info!(%address, "answering queries");
        if self.ports.pages != 0 {
            let at = SocketAddr::new(ip, self.ports.pages);
            match TcpListener::bind(at).await {
                Ok(listener) => {
                    let handler = pages(Arc::clone(&self.engine), Arc::clone(&self.readiness));
                    self.tasks.spawn(userspace_daemon::serve(listener, None, handler, stop.clone()));
                }
                Err(error) => {
                    warn!(%error, address = %at, "metrics and probes are not served: choose another port")
                }
            }
        }
        self.open.insert(ip, Open { address, stop });
        true
    }

    /// Waits until all tasks have ended, after the shutdown has begun.
    pub async fn end(self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use apiserver_client::Projection;
    use serde_json::json;

    use super::*;

    fn node(ranges: &[&str], addresses: &[&str]) -> Node {
        let addresses: Vec<_> =
            addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        let object = json!({
            "metadata": {"name": "n1"}, "spec": {"podCIDRs": ranges}, "status": {"addresses": addresses},
        });
        Node::project(serde_json::from_value(object).unwrap())
    }

    fn texts(all: Vec<Vec<IpAddr>>) -> Vec<String> {
        all.iter()
            .map(|family| family.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn the_address_for_pods_comes_before_the_nodes() {
        let dual = node(&["10.244.3.0/24", "fd00:3::/64"], &["192.0.2.1", "2001:db8::1"]);
        assert_eq!(texts(candidates(Some(&dual), &[])), ["10.244.3.1 192.0.2.1", "fd00:3::1 2001:db8::1"]);
        let single = node(&["10.244.3.0/24"], &["192.0.2.1", "2001:db8::1"]);
        assert_eq!(texts(candidates(Some(&single), &[])), ["10.244.3.1 192.0.2.1"]);
        assert_eq!(texts(candidates(Some(&node(&[], &["192.0.2.1"])), &[])), ["192.0.2.1"]);
        assert!(candidates(None, &[]).is_empty());
        let fixed = ["127.0.0.1".parse().unwrap()];
        assert_eq!(texts(candidates(Some(&dual), &fixed)), ["127.0.0.1"]);
    }
}
