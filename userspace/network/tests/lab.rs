//! Nodes with the real pod network, in namespaces around one that is their switch and their router.
//!
//! ```text
//!   node 1 ─ 192.0.2.1 ──┐                          ┌── 198.51.100.3 ─ node 3
//!   node 2 ─ 192.0.2.2 ──┴─ bridge 192.0.2.254  hub ┘   198.51.100.254
//! ```
//!
//! Nodes 1 and 2 share a link; node 3 is behind a router that knows nothing of pods. Addresses are from the
//! ranges for documentation (RFC 5737, RFC 3849).

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use userspace_network::netns::{block_on, within};
use userspace_network::peers::{
    DEFAULT_WIREGUARD_PORT, Mode, Nodes, Peer, PeerConfig, WireGuard, follow_with,
};
use userspace_network::prepare;
use userspace_network::wireguard::{ANNOTATION, KEY_FILE, Published};

use crate::machine::{Namespace, Node, Pod, output, time_factor, wait_for};

/// The families of the nodes' own addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outer {
    V4,
    V6,
    Both,
}

/// A node with its copy of the API's Nodes.
pub struct Member {
    pub number: u8,
    pub node: Node,
    pub nodes: Cache<Peer>,
    /// The WireGuard key of the running pod network.
    published: watch::Sender<Option<Published>>,
    follower: Option<Follower>,
}

/// A process of the pod network; dropping it is its sudden death.
struct Follower {
    _end: oneshot::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Lab {
    pub hub: Namespace,
    pub members: Vec<Member>,
}

impl Lab {
    /// Makes `count` nodes that know each other, with their pod networks running.
    pub fn new(count: u8, mode: Mode, outer: Outer) -> Self {
        let hub = Namespace::new();
        without_dad(&hub);
        hub.ip("link set lo up");
        hub.ip("link add br0 type bridge");
        hub.ip("link set br0 up");
        hub.ip("addr add 192.0.2.254/24 dev br0");
        hub.ip("addr add 2001:db8:2::254/64 dev br0 nodad");
        hub.run(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        });
        let members = (1..=count).map(|number| Member::new(&hub, number, mode, outer)).collect();
        let lab = Self { hub, members };
        for member in &lab.members {
            lab.announce(member.number, member.number, outer);
        }
        lab
    }

    pub fn member(&self, number: u8) -> &Member {
        &self.members[usize::from(number) - 1]
    }

    /// Writes a Node into all nodes' copies of the API, with the address of the node `at`.
    pub fn announce(&self, number: u8, at: u8, outer: Outer) {
        for member in &self.members {
            member.hear(number, at, outer);
        }
    }

    /// Writes a Node with a WireGuard key, or what is to pass for one, into all nodes' copies of the API.
    pub fn publish(&self, number: u8, outer: Outer, key: &str) {
        for member in &self.members {
            member.nodes.apply(with_key(node_object(number, number, outer), key));
        }
    }

    pub fn forget(&self, number: u8) {
        for member in &self.members {
            member.nodes.delete(&ObjectKey::new("", &format!("node-{number}")));
        }
    }
}

/// Returns the address of a node.
pub fn node_ip(number: u8, ipv4: bool) -> IpAddr {
    let text = match (number, ipv4) {
        (3, true) => "198.51.100.3".to_owned(),
        (3, false) => "2001:db8:3::3".to_owned(),
        (_, true) => format!("192.0.2.{number}"),
        (_, false) => format!("2001:db8:2::{number}"),
    };
    text.parse().unwrap()
}

/// Returns the ranges of a node's pods.
pub fn ranges(number: u8) -> [String; 2] {
    [format!("10.77.{number}.0/24"), format!("fd00:77:0:{number}::/64")]
}

fn node_ips(number: u8, outer: Outer) -> Vec<IpAddr> {
    match outer {
        Outer::V4 => vec![node_ip(number, true)],
        Outer::V6 => vec![node_ip(number, false)],
        Outer::Both => vec![node_ip(number, true), node_ip(number, false)],
    }
}

fn node_object(number: u8, at: u8, outer: Outer) -> k8s_openapi::api::core::v1::Node {
    object(&format!("node-{number}"), number, &ranges(number), &node_ips(at, outer))
}

/// Returns a Node that has published a WireGuard key.
pub fn with_key(mut node: k8s_openapi::api::core::v1::Node, key: &str) -> k8s_openapi::api::core::v1::Node {
    node.metadata.annotations.get_or_insert_default().insert(ANNOTATION.to_owned(), key.to_owned());
    node
}

/// Returns a Node as the API has it.
pub fn object(
    name: &str,
    created: u8,
    ranges: &[String],
    ips: &[IpAddr],
) -> k8s_openapi::api::core::v1::Node {
    let addresses: Vec<_> = ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "uid": format!("uid-{name}"),
            "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"),
        },
        "spec": {"podCIDR": ranges[0], "podCIDRs": ranges},
        "status": {"addresses": addresses},
    }))
    .unwrap()
}

impl Member {
    fn new(hub: &Namespace, number: u8, mode: Mode, outer: Outer) -> Self {
        let mut node = Node::new();
        let (port, gateway) = (format!("n{number}"), if number == 3 { 3 } else { 2 });
        without_dad(&node.namespace);
        node.namespace.ip("link set lo up");
        node.namespace.ip("link add eth0 type veth peer name up1");
        node.namespace.ip(&format!("link set up1 name {port} netns {}", node_path(hub)));
        node.namespace.ip("link set eth0 up");
        hub.ip(&format!("link set {port} up"));
        if number == 3 {
            hub.ip("addr add 198.51.100.254/24 dev n3");
            hub.ip("addr add 2001:db8:3::254/64 dev n3 nodad");
        } else {
            hub.ip(&format!("link set {port} master br0"));
        }
        node.namespace.ip(&format!("addr add {}/24 dev eth0", node_ip(number, true)));
        node.namespace.ip(&format!("addr add {}/64 dev eth0 nodad", node_ip(number, false)));
        let gateway4 = if number == 3 { "198.51.100.254" } else { "192.0.2.254" };
        node.namespace.ip(&format!("route add default via {gateway4}"));
        node.namespace.ip(&format!("route add default via 2001:db8:{gateway}::254"));
        node.config.mtu = None;
        node.config.node_name = format!("node-{number}");
        node.config.peers = PeerConfig {
            mode,
            cluster_cidrs: vec!["10.77.0.0/16".parse().unwrap(), "fd00:77::/48".parse().unwrap()],
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
            node_ips: node_ips(number, outer),
            state_dir: Some(node.config.state_dir.clone()),
            ..PeerConfig::default()
        };
        let mut member = Self {
            number,
            node,
            nodes: Cache::default(),
            published: watch::Sender::new(None),
            follower: None,
        };
        member.prepare();
        member.start();
        member
    }

    /// Prepares the machine for pods.
    pub fn prepare(&self) {
        let own = ranges(self.number).map(|range| range.parse().unwrap());
        let config = self.node.config.clone();
        self.node.namespace.run(|| block_on(prepare(&config, &own)).unwrap().unwrap());
    }

    /// Encrypts from the next start on.
    pub fn encrypt(&mut self) {
        let key_file = self.node.config.state_dir.join(KEY_FILE);
        self.node.config.peers.encryption = Some(WireGuard { port: DEFAULT_WIREGUARD_PORT, key_file });
    }

    /// Waits for the WireGuard key of the pod network that was started last.
    pub fn published(&self) -> Published {
        wait_for("the key", || self.published.borrow().is_some());
        let key = *self.published.borrow();
        key.unwrap()
    }

    /// Writes a Node into this node's copy of the API, with the address of the node `at`.
    pub fn hear(&self, number: u8, at: u8, outer: Outer) {
        self.nodes.apply(node_object(number, at, outer));
    }

    /// Starts the pod network with the Nodes that have been announced.
    pub fn start(&mut self) {
        self.start_with(Box::pin(std::future::ready(())));
    }

    /// Starts the pod network, which has all Nodes when `synced` ends.
    pub fn start_with(&mut self, synced: futures::future::BoxFuture<'static, ()>) {
        let namespace = self.node.namespace.file.try_clone().unwrap();
        let (config, name) = (self.node.config.peers.clone(), self.node.config.node_name.clone());
        let published = self.published.clone();
        published.send_replace(None);
        let nodes = Nodes { cache: self.nodes.clone(), synced, recorder: None, published };
        let (sender, end) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            within(&namespace, || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let follow =
                        follow_with(config, name, nodes, Ambient::system(), CancellationToken::new());
                    tokio::select! {
                        () = follow => {}
                        _ = end => {}
                    }
                });
            })
            .unwrap();
        });
        self.follower = Some(Follower { _end: sender, thread: Some(thread) });
    }

    /// Ends the pod network without a chance to clean up.
    pub fn kill(&mut self) {
        if let Some(Follower { _end, thread }) = self.follower.take() {
            drop(_end);
            thread.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }

    /// Returns the names of all interfaces, with their properties.
    pub fn links(&self) -> String {
        self.node.namespace.run(|| output("ip", &["-o", "-d", "link"]))
    }

    /// Returns the routes to other nodes' pods.
    pub fn routes(&self) -> String {
        let routes = |family: &'static str| {
            self.node.namespace.run(|| output("ip", &[family, "route", "show", "proto", "145"]))
        };
        routes("-4") + &routes("-6")
    }

    pub fn has_tunnel(&self) -> bool {
        self.node.namespace.run(|| output("ip", &["-o", "link"])).contains("hawser-vxlan")
    }

    /// Waits until the number of routes to other nodes' pods is this.
    pub fn wait_for_routes(&self, count: usize) {
        wait_for(&format!("{count} routes on node {}", self.number), || {
            self.routes().lines().count() == count
        });
    }

    /// Adds a pod. Returns it with its address of each family.
    pub fn pod(&self, id: &str) -> (Pod, IpAddr, IpAddr) {
        let pod = self.node.add(id);
        let shown = pod.namespace.run(|| output("ip", &["-o", "-6", "addr", "show", "dev", "eth0"]));
        let start = format!("fd00:77:0:{}::", self.number);
        let word = shown.split_whitespace().find(|word| word.starts_with(&start)).unwrap();
        let v6 = word.split('/').next().unwrap().parse().unwrap();
        let v4 = pod.address;
        (pod, v4, v6)
    }
}

/// Makes IPv6 addresses usable at once.
fn without_dad(namespace: &Namespace) {
    namespace.run(|| {
        for interface in ["all", "default"] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/accept_dad"), "0").unwrap();
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/dad_transmits"), "0").unwrap();
        }
    });
}

fn node_path(namespace: &Namespace) -> String {
    // Seen by another process, `self` in the path would be that process.
    namespace.path.display().to_string().replace("/proc/self", &format!("/proc/{}", std::process::id()))
}

/// A stream of datagrams from one pod to another and back.
pub struct Stream<'a> {
    stop: AtomicBool,
    pub sent: AtomicU64,
    pub answered: AtomicU64,
    ends: [&'a Namespace; 2],
    at: IpAddr,
}

impl<'a> Stream<'a> {
    pub fn new(server: &'a Namespace, at: IpAddr, client: &'a Namespace) -> Self {
        Self {
            stop: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            ends: [server, client],
            at,
        }
    }

    /// Sends datagrams, each after the answer to the one before or 200 ms, while `work` runs. All but those
    /// that were lost are answered when it returns.
    pub fn during(&self, work: impl FnOnce(&Self)) {
        let server = self.ends[0].run(|| UdpSocket::bind(SocketAddr::new(self.at, 0)).unwrap());
        let any: IpAddr = if self.at.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let client = self.ends[1].run(|| UdpSocket::bind(SocketAddr::new(any, 0)).unwrap());
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(Duration::from_millis(200) * time_factor())).unwrap();
        }
        client.connect(server.local_addr().unwrap()).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut bytes = [0; 64];
                while !self.stop.load(Ordering::Relaxed) {
                    if let Ok((length, from)) = server.recv_from(&mut bytes) {
                        let _ = server.send_to(&bytes[..length], from);
                    }
                }
            });
            scope.spawn(|| {
                let mut bytes = [0; 64];
                while !self.stop.load(Ordering::Relaxed) {
                    let number = self.sent.fetch_add(1, Ordering::Relaxed);
                    if client.send(&number.to_be_bytes()).is_ok() && client.recv(&mut bytes).is_ok() {
                        self.answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            work(self);
            self.stop.store(true, Ordering::Relaxed);
        });
    }

    pub fn lost(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) - self.answered.load(Ordering::Relaxed)
    }

    /// Waits for this many more answers.
    pub fn wait_for(&self, count: u64) {
        let goal = self.answered.load(Ordering::Relaxed) + count;
        wait_for("answers", || self.answered.load(Ordering::Relaxed) >= goal);
    }
}
