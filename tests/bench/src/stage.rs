//! A node with real clients and servers, and one subject that balances between them.
//!
//! ```text
//!   client's namespace        node's namespace             pods' namespaces
//!     client ── eth0 ──────── uplink          poda ─────── eth0  client
//!                             client ─ lo ─ servers
//!                                             podb ─────── eth0  servers
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tests_e2e::Lab;
use tests_e2e::lab::NODE_IP;
use userspace_dataplane::DataPlane;
use userspace_dataplane::XdpMode;
use userspace_dataplane::tables::{Interface, Role};

use crate::node;
use crate::peers::{self, Service};
use crate::place::{self, Place, Pods, in_namespace};
use crate::subject::Subject;
use crate::worker::{ECHO, RESET, SINK, Worker};

/// Places of client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Processes of the node, over its loopback interface.
    Local,
    /// Pod to ClusterIP to pod, with translation in the client's socket.
    PodSocket,
    /// Like `PodSocket`, but with translation of each packet, as for sandboxed pods.
    PodPacket,
    /// Another host to a node port to a pod.
    NodePort,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Local, Self::PodSocket, Self::PodPacket, Self::NodePort];

    /// Returns the parameter in a case's name; empty for the local way.
    pub fn parameter(self) -> &'static str {
        match self {
            Self::Local => "",
            Self::PodSocket => "/path=pod-socket",
            Self::PodPacket => "/path=pod-packet",
            Self::NodePort => "/path=node-port",
        }
    }
}

/// Kind of work, and the port of the service that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub name: &'static str,
    pub port: u16,
}

pub const CONNECT_RATE: Work = Work { name: "connect_rate", port: RESET };
pub const TCP_RR: Work = Work { name: "tcp_rr", port: ECHO };
pub const UDP_RR: Work = Work { name: "udp_rr", port: RESET };
pub const THROUGHPUT: Work = Work { name: "throughput", port: SINK };
pub const UPLOAD: Work = Work { name: "upload", port: SINK };

/// Backends of the service for processes of the node.
const LOCAL_SERVERS: [&str; 3] = ["10.200.0.1", "10.200.0.2", "10.200.0.3"];
const LOCAL_VIP: &str = "10.98.255.1";
const POD_VIP: &str = "10.98.255.2";
const SERVICE_PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
const NODE_PORT: u16 = 30_080;

/// A subject between its clients and its servers.
pub struct Stage {
    pub subject: Subject,
    clients: RefCell<BTreeMap<Way, Worker>>,
    /// The servers run until they are dropped.
    _servers: Vec<Worker>,
    pods: Option<Pods>,
    lab: Lab,
}

impl Stage {
    /// Sets up a stage with this many services, one of them in use, with pods or for the local way alone.
    pub fn new(subject: Subject, services: usize, with_pods: bool) -> Result<Self> {
        let lab = Lab::new()?;
        let on_node = Place::node(&lab);
        // Services need a route, whatever translates them.
        on_node.run("ip route add default dev uplink")?;
        for address in LOCAL_SERVERS {
            on_node.run(&format!("ip addr add {address}/32 dev lo"))?;
        }
        let pods = if with_pods { Some(Pods::new(&lab)?) } else { None };
        let services = stage_services(services);
        let mut stage = Self { subject, clients: RefCell::default(), _servers: Vec::new(), pods, lab };
        if subject == Subject::Hawser {
            stage.program(&services)?;
        }
        peers::load_rules(subject, &on_node, &services)?;
        stage._servers.push(Worker::start(&on_node, &["serve", &list(&LOCAL_SERVERS, BACKEND_PORT)])?);
        if let Some(pods) = &stage.pods {
            let place = Place { namespace: pods.server(), cgroup: None };
            stage._servers.push(Worker::start(&place, &["serve", &list(&Pods::SERVERS, BACKEND_PORT)])?);
        }
        Ok(stage)
    }

    /// Fills the tables and attaches to the interfaces, as the proxy does.
    fn program(&self, services: &[Service]) -> Result<()> {
        let (lab, pods): (_, &[&str]) =
            (&self.lab, if self.pods.is_some() { &Pods::INTERFACES } else { &[] });
        in_namespace(&place::node_namespace(lab), || {
            let mut kernel = node::open(lab, node::limits(services.len()), XdpMode::Off)?;
            kernel.apply_full(&node::tables(services)).context("cannot program the tables")?;
            let address: Ipv4Addr = NODE_IP.parse().context("not an address")?;
            node::set_node(&mut kernel, address)?;
            let named = std::iter::once(("uplink", Role::Uplink)).chain(pods.iter().map(|n| (*n, Role::Pod)));
            let interfaces: Result<Vec<Interface>> = named
                .map(|(name, role)| {
                    Ok(Interface { name: name.to_owned(), index: place::interface(name)?, role })
                })
                .collect();
            kernel.set_interfaces(&interfaces?).context("cannot attach to the interfaces")
        })
    }

    /// Works for this long; returns the client's figures.
    pub fn work(&self, way: Way, work: Work, seconds: f64) -> Result<Vec<f64>> {
        let mut clients = self.clients.borrow_mut();
        let client = match clients.entry(way) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Worker::start(&self.client_place(way)?, &["client"])?),
        };
        let line = format!("{} {} {seconds}", work.name, self.targets(way, work.port));
        client.ask(&line).with_context(|| format!("through {} ({way:?})", self.subject.name()))
    }

    fn client_place(&self, way: Way) -> Result<Place> {
        let pod = || self.pods.as_ref().map(Pods::client).context("the stage has no pods");
        Ok(match way {
            Way::Local => Place::node(&self.lab),
            Way::PodSocket => Place { namespace: pod()?, cgroup: Some(self.lab.cgroup().to_path_buf()) },
            Way::PodPacket => Place { namespace: pod()?, cgroup: None },
            Way::NodePort => Place::client(&self.lab),
        })
    }

    /// Returns the addresses that clients connect to: the service, or its backends directly.
    fn targets(&self, way: Way, port: u16) -> String {
        match (self.subject, way) {
            (Subject::Limit, Way::Local) => list(&LOCAL_SERVERS, BACKEND_PORT + port),
            (Subject::Limit, _) => list(&Pods::SERVERS, BACKEND_PORT + port),
            (_, Way::Local) => list(&[LOCAL_VIP], SERVICE_PORT + port),
            (_, Way::PodSocket | Way::PodPacket) => list(&[POD_VIP], SERVICE_PORT + port),
            (_, Way::NodePort) => list(&[NODE_IP], NODE_PORT + port),
        }
    }

    /// Returns the node's place with its cgroup, and the service and backend that are used there.
    pub fn hook(&self) -> (Place, SocketAddr, SocketAddr) {
        let address = |ip: &str, port| SocketAddr::new(ip.parse().unwrap_or([0, 0, 0, 0].into()), port);
        let backend = address(LOCAL_SERVERS[0], BACKEND_PORT);
        (Place::node(&self.lab), address(LOCAL_VIP, SERVICE_PORT), backend)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.clients.borrow_mut().clear();
        self._servers.clear();
        if self.subject == Subject::Hawser {
            node::clear(&self.lab);
        }
    }
}

/// Returns idle services followed by the one in use: once with processes of the node as its backends, and
/// once with pods.
fn stage_services(count: usize) -> Vec<Service> {
    let mut services = peers::idle_services(count - 1);
    for (vip, servers, node_port) in
        [(LOCAL_VIP, LOCAL_SERVERS, None), (POD_VIP, Pods::SERVERS, Some(NODE_PORT))]
    {
        for (protocol, port) in [("tcp", RESET), ("udp", RESET), ("tcp", ECHO), ("tcp", SINK)] {
            services.push(Service {
                vip: vip.to_owned(),
                port: SERVICE_PORT + port,
                protocol,
                backends: servers.iter().map(|ip| format!("{ip}:{}", BACKEND_PORT + port)).collect(),
                remote: false,
                masquerade: false,
                node_port: node_port.map(|first| first + port),
            });
        }
    }
    services
}

pub fn list(addresses: &[&str], port: u16) -> String {
    let sockets: Vec<String> = addresses.iter().map(|address| format!("{address}:{port}")).collect();
    sockets.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_that_is_used_comes_last() {
        let services = stage_services(100);
        assert_eq!(services.len(), 99 + 8);
        assert_eq!(services[99].vip, LOCAL_VIP);
        assert_eq!(services[106].node_port, Some(30_082));
        assert_eq!(list(&LOCAL_SERVERS, 1), "10.200.0.1:1,10.200.0.2:1,10.200.0.3:1");
    }
}
