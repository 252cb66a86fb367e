//! Routes to the pods of many nodes: from nothing, and after a change of one Node.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use apiserver_client::Cache;
use apiserver_meta::ambient::Ambient;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Node;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::sched::{CloneFlags, setns};
use serde_json::json;
use tests_e2e::{Lab, eventually, output};
use tokio_util::sync::CancellationToken;
use userspace_network::peers::{Mode, Nodes, Peer, PeerConfig, follow_with};

use crate::place::{self, Place, in_namespace};
use crate::row::{Metric, Report};
use crate::subject::Plan;

const SECONDS: Metric = ("seconds", "seconds");
/// Multicast groups of netlink(7) with changes of IPv4 routes, and of neighbours and FDB entries.
const GROUP_NEIGHBOUR: u32 = 3;
const GROUP_ROUTE: u32 = 7;
/// The name that the follower's own Node has.
const OWN: &str = "node-own";
/// Limit of a single change, many times what it takes.
const LATE: Duration = Duration::from_secs(10);

/// Measures both ways between nodes.
pub fn run(report: &Report, plan: &Plan) {
    for (mode, name) in [(Mode::Routes, "routes"), (Mode::Vxlan, "vxlan")] {
        for count in plan.sizes(&[5_000], &[100, 1_000, 5_000]) {
            let case = format!("peers/path={name}/nodes={count}");
            if plan.has(&case) {
                report.attempt(&case, || measure(report, plan, &case, mode, count));
            }
        }
    }
}

fn measure(report: &Report, plan: &Plan, case: &str, mode: Mode, count: usize) -> Result<()> {
    let rounds = plan.choose(3, 7);
    let lab = Lab::new()?;
    let node = Place::node(&lab);
    // All nodes are on the link for routes, and behind a router for the tunnel.
    let (address, subnet) = ("192.0.0.1", if mode == Mode::Routes { [192, 0] } else { [198, 18] });
    node.run(&format!("ip addr add {address}/19 dev uplink"))?;
    let namespace = place::node_namespace(&lab);
    let (mut all, mut one) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let follower = Follower::prepare(mode, OWN, address.parse().context("not an address")?);
        follower.nodes.apply(node_object(OWN, "10.99.0.0/24", address)?);
        for i in 0..count {
            follower.nodes.apply(peer(i, subnet, 10)?);
        }
        let began = Instant::now();
        let running = follower.run(&namespace)?;
        eventually("all routes", || {
            let routes = output(node.command("ip").args(["-4", "route", "show", "proto", "145"]))?;
            Ok((routes.lines().count() == count).then_some(()))
        })?;
        all.push(began.elapsed().as_secs_f64());
        for i in 0..plan.choose(5, 21).min(count) {
            let group = if mode == Mode::Routes { GROUP_ROUTE } else { GROUP_NEIGHBOUR };
            let changed = peer(i, subnet, 11)?;
            one.push(in_namespace(&namespace, || until_told(group, || running.nodes.apply(changed)))?);
        }
        drop(running);
        node.run("ip route flush proto 145")?;
        if mode == Mode::Vxlan {
            node.run("ip link del hawser-vxlan")?;
        }
    }
    report.row("network", &format!("{case}/from=nothing"), "hawser", SECONDS, &all)?;
    report.row("network", &format!("{case}/from=one-change"), "hawser", SECONDS, &one)
}

/// Returns the seconds from the beginning of `change` to the kernel's first message about it.
fn until_told(group: u32, change: impl FnOnce()) -> Result<f64> {
    let mut socket = Socket::new(NETLINK_ROUTE).context("cannot make a socket")?;
    socket.bind(&SocketAddr::new(0, 0)).context("cannot bind a socket")?;
    socket.add_membership(group).context("cannot join a group")?;
    socket.set_non_blocking(true).context("cannot set up a socket")?;
    let began = Instant::now();
    change();
    let mut buffer = Vec::with_capacity(1 << 14);
    while began.elapsed() < LATE {
        buffer.clear();
        match socket.recv(&mut buffer, 0) {
            Ok(_) => return Ok(began.elapsed().as_secs_f64()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(error).context("cannot hear of changes"),
        }
    }
    bail!("the kernel did not tell of a change within {LATE:?}")
}

/// Returns the Node `i`, whose address ends with `last` and more.
fn peer(i: usize, subnet: [u8; 2], last: usize) -> Result<Node> {
    let range = format!("10.{}.{}.0/24", 100 + i / 256, i % 256);
    let address = Ipv4Addr::new(subnet[0], subnet[1], (i / 200) as u8, (last + i % 200) as u8);
    node_object(&format!("peer-{i}"), &range, &address.to_string())
}

/// Returns a Node with this range of pods and this address.
pub fn node_object(name: &str, range: &str, address: &str) -> Result<Node> {
    let object = json!({
        "metadata": { "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "podCIDR": range, "podCIDRs": [range] },
        "status": { "addresses": [{ "type": "InternalIP", "address": address }] },
    });
    serde_json::from_value(object).context("not a Node")
}

/// The pod network of a node, in a thread of its own, which ends when this is dropped.
pub struct Follower {
    pub nodes: Cache<Peer>,
    config: PeerConfig,
    own: String,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts the pod network in a namespace.
    pub fn start(namespace: &Path, mode: Mode, own: &str, address: Ipv4Addr) -> Result<Self> {
        Self::prepare(mode, own, address).run(namespace)
    }

    fn prepare(mode: Mode, own: &str, address: Ipv4Addr) -> Self {
        let network = |text: &str| text.parse::<IpNetwork>().ok();
        let config = PeerConfig {
            mode,
            cluster_cidrs: network("10.0.0.0/8").into_iter().collect(),
            node_ips: vec![IpAddr::from(address)],
            ..PeerConfig::default()
        };
        Self {
            nodes: Cache::default(),
            config,
            own: own.to_owned(),
            stop: CancellationToken::new(),
            thread: None,
        }
    }

    fn run(mut self, namespace: &Path) -> Result<Self> {
        let file = File::open(namespace).with_context(|| format!("cannot open {}", namespace.display()))?;
        let nodes = Nodes {
            cache: self.nodes.clone(),
            synced: Box::pin(std::future::ready(())),
            recorder: None,
            published: tokio::sync::watch::Sender::new(None),
        };
        let (config, own, stop) = (self.config.clone(), self.own.clone(), self.stop.clone());
        self.thread = Some(std::thread::spawn(move || {
            let outcome =
                setns(file, CloneFlags::CLONE_NEWNET).context("cannot enter a namespace").and_then(|()| {
                    tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .context("cannot make a runtime")
                });
            match outcome {
                Ok(runtime) => runtime.block_on(follow_with(config, own, nodes, Ambient::system(), stop)),
                Err(error) => eprintln!("bench: the pod network of {own}: {error:#}"),
            }
        }));
        Ok(self)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // It has printed why it failed.
            let _ = thread.join();
        }
    }
}
