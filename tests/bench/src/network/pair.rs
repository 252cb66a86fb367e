//! A pod that talks to another one, on its own node and on another.
//!
//! ```text
//!   pod ── eth0 ══ poda ── node a ── wire ══ wire ── node b ── poda ══ eth0 ── pod
//!                            └──── hawser-vxlan ════════ ┘
//! ```
//!
//! `limit` is the kernel alone: veth pairs, static routes, and VXLAN with static neighbours and FDB. Hawser has
//! its programs at pods' interfaces and uplinks, as `hawser up` has, and its own routes, neighbours and FDB.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use tests_e2e::{Lab, eventually, output};
use userspace_dataplane::DataPlane;
use userspace_dataplane::XdpMode;
use userspace_dataplane::tables::{Interface, Masquerade, NodeTables, NonMasquerade, Role};
use userspace_network::peers::{Mode, TUNNEL};

use super::routes::{Follower, node_object};
use crate::node;
use crate::place::{self, Place, in_namespace, pod};
use crate::row::Report;
use crate::sockets::rows;
use crate::stage::{CONNECT_RATE, TCP_RR, THROUGHPUT, UDP_RR, Work, list};
use crate::subject::{Plan, Subject, in_turn};
use crate::worker::Worker;

/// The way between the two pods.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Path {
    Node,
    Routes,
    Vxlan,
}

impl Path {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Node, "node"), (Self::Routes, "routes"), (Self::Vxlan, "vxlan")];
}

const POD_PORT: u16 = 8080;
/// Addresses of the two nodes on the link between them.
const NODES: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
const PODS: [&str; 2] = ["10.244.0.10", "10.244.1.10"];
const RANGES: [&str; 2] = ["10.244.0.0/24", "10.244.1.0/24"];
const CLUSTER: &str = "10.244.0.0/16";

/// Measures connections, round trips and bulk data between two pods.
pub fn run(report: &Report, plan: &Plan) {
    for (path, name) in Path::ALL {
        let works: Vec<Work> = [CONNECT_RATE, TCP_RR, UDP_RR, THROUGHPUT]
            .into_iter()
            .filter(|work| plan.has(&format!("pod_{}/path={name}", work.name)))
            .collect();
        if works.is_empty() {
            continue;
        }
        report.attempt(&format!("pods/path={name}"), || {
            let subjects = [Subject::Limit, Subject::Hawser];
            let pairs: Result<Vec<Pair>> = subjects
                .into_iter()
                .filter(|subject| plan.subjects.contains(subject))
                .map(|subject| Pair::new(subject, path))
                .collect();
            let pairs = pairs?;
            works.iter().try_for_each(|work| {
                let case = format!("pod_{}/path={name}", work.name);
                let (rounds, seconds) = plan.choose((21, 0.05), (61, 0.1));
                let turns = in_turn(&pairs, rounds, |pair| pair.work(*work, seconds * plan.stretch))?;
                let subjects: Vec<Subject> = pairs.iter().map(|pair| pair.subject).collect();
                rows(report, ("network", &case), *work, &subjects, &turns)
            })
        });
    }
}

/// Two pods, with a worker in each. Parts end in the order of the fields.
pub struct Pair {
    subject: Subject,
    client: RefCell<Worker>,
    _server: Worker,
    target: &'static str,
    _followers: Vec<Follower>,
    machines: Machines,
}

impl Pair {
    pub fn new(subject: Subject, path: Path) -> Result<Self> {
        let machines = Machines::new(path)?;
        let mut followers = Vec::new();
        match (subject, path) {
            (_, Path::Node) => {}
            (Subject::Hawser, _) => {
                for own in 0..machines.labs.len() {
                    followers.push(machines.follow(own, path)?);
                }
            }
            (_, Path::Routes) => machines.static_routes()?,
            (_, Path::Vxlan) => machines.static_tunnel()?,
        }
        if subject == Subject::Hawser {
            for own in 0..machines.labs.len() {
                machines.program(own).with_context(|| format!("cannot program node {own}"))?;
            }
        }
        let place = |pod: usize| Place { namespace: machines.pod(pod), cgroup: None };
        let target = machines.addresses()[1];
        let server = Worker::start(&place(1), &["serve", &list(&[target], POD_PORT)])?;
        let client = RefCell::new(Worker::start(&place(0), &["client"])?);
        Ok(Self { subject, client, _server: server, target, _followers: followers, machines })
    }

    /// Returns the first pod's node.
    pub fn lab(&self) -> &Lab {
        &self.machines.labs[0]
    }

    /// Returns the pods' addresses, the client's first.
    pub fn addresses(&self) -> [&'static str; 2] {
        self.machines.addresses()
    }

    pub fn work(&self, work: Work, seconds: f64) -> Result<Vec<f64>> {
        let line = format!("{} {}:{} {seconds}", work.name, self.target, POD_PORT + work.port);
        self.client.borrow_mut().ask(&line).with_context(|| format!("with {}", self.subject.name()))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.subject == Subject::Hawser {
            self.machines.labs.iter().for_each(node::clear);
        }
    }
}

/// One or two nodes, with two pods on them.
struct Machines {
    labs: Vec<Lab>,
    /// Names of the pods' namespaces.
    pods: Vec<String>,
    path: Path,
}

impl Machines {
    fn new(path: Path) -> Result<Self> {
        let mut machines = Self { labs: vec![Lab::new()?], pods: Vec::new(), path };
        if path != Path::Node {
            machines.labs.push(Lab::new()?);
            let [a, b] = [0, 1].map(|i| format!("{}n", machines.labs[i].id));
            let link = format!("-n {a} link add wire type veth peer name wire netns {b}");
            output(Command::new("ip").args(link.split_whitespace()))?;
        }
        for (own, lab) in machines.labs.iter().enumerate() {
            let node = Place::node(lab);
            node.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0")?;
            if path != Path::Node {
                node.run(&format!("ip addr add {}/24 dev wire", NODES[own]))?;
                node.run("ip link set wire up")?;
            }
            // Pods' gateway; the address that a tunnel's neighbours would resolve.
            node.run(&format!("ip addr add 10.244.{own}.1/32 dev lo"))?;
        }
        for (i, address) in machines.addresses().into_iter().enumerate() {
            let lab = &machines.labs[i % machines.labs.len()];
            let name = format!("{}p{i}", lab.id);
            machines.pods.push(name.clone());
            let gateway = format!("10.244.{}.1", i % machines.labs.len());
            pod(&Place::node(lab), &name, &format!("pod{i}"), &[address], &gateway)?;
        }
        Ok(machines)
    }

    /// Returns the pods' addresses.
    fn addresses(&self) -> [&'static str; 2] {
        if self.path == Path::Node { [PODS[0], "10.244.0.11"] } else { PODS }
    }

    fn pod(&self, i: usize) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.pods[i])
    }

    fn static_routes(&self) -> Result<()> {
        for (own, lab) in self.labs.iter().enumerate() {
            Place::node(lab).run(&format!(
                "ip route add {} via {} dev wire",
                RANGES[1 - own],
                NODES[1 - own]
            ))?;
        }
        Ok(())
    }

    /// Makes a tunnel with the settings that Hawser's has.
    fn static_tunnel(&self) -> Result<()> {
        for (own, lab) in self.labs.iter().enumerate() {
            let (node, other) = (Place::node(lab), 1 - own);
            for line in [
                format!(
                    "ip link add tunnel type vxlan id 4145 dstport 14789 local {} dev wire nolearning",
                    NODES[own]
                ),
                format!("ip link set tunnel address 02:00:00:00:00:0{own} mtu 1450 up"),
                format!("ip route add {} via 10.244.{other}.1 dev tunnel onlink", RANGES[other]),
                format!(
                    "ip neigh add 10.244.{other}.1 lladdr 02:00:00:00:00:0{other} dev tunnel nud permanent"
                ),
                format!("bridge fdb add 02:00:00:00:00:0{other} dev tunnel dst {}", NODES[other]),
            ] {
                node.run(&line)?;
            }
        }
        Ok(())
    }

    /// Lets the pod network of a node keep the ways to the other one.
    fn follow(&self, own: usize, path: Path) -> Result<Follower> {
        let mode = if path == Path::Routes { Mode::Routes } else { Mode::Vxlan };
        let lab = &self.labs[own];
        let address: Ipv4Addr = NODES[own].parse().context("not an address")?;
        let follower = Follower::start(&place::node_namespace(lab), mode, &format!("node-{own}"), address)?;
        for i in 0..self.labs.len() {
            follower.nodes.apply(node_object(&format!("node-{i}"), RANGES[i], NODES[i])?);
        }
        let node = Place::node(lab);
        eventually("routes to the other node", || {
            let routes = output(node.command("ip").args(["route", "show", RANGES[1 - own]]))?;
            Ok((!routes.is_empty()).then_some(()))
        })?;
        Ok(follower)
    }

    /// Attaches Hawser's programs as on a node of `hawser up`.
    fn program(&self, own: usize) -> Result<()> {
        let lab = &self.labs[own];
        let mut named = vec![("uplink", Role::Uplink)];
        if self.path == Path::Node {
            named.extend([("pod0", Role::Pod), ("pod1", Role::Pod)]);
        } else {
            named.extend([("wire", Role::Uplink), (["pod0", "pod1"][own], Role::Pod)]);
        }
        if self.path == Path::Vxlan {
            named.push((TUNNEL, Role::Uplink));
        }
        in_namespace(&place::node_namespace(lab), || {
            let mut kernel = node::open(lab, node::limits(1), XdpMode::Off)?;
            let address = NODES[own].parse().context("not an address")?;
            let exempt = BTreeMap::from([(CLUSTER.parse().context("not a range")?, NonMasquerade::Cluster)]);
            let masquerade = Masquerade { pods: vec![RANGES[own].parse().context("not a range")?], exempt };
            let tables = NodeTables {
                addresses: vec![address],
                service_ranges: vec!["10.96.0.0/12".parse().context("not a range")?],
                masquerade: Some(masquerade),
                ..NodeTables::default()
            };
            kernel.set_node(&tables).context("cannot set the node's address")?;
            let interfaces: Result<Vec<Interface>> = named
                .iter()
                .map(|(name, role)| {
                    Ok(Interface { name: (*name).to_owned(), index: place::interface(name)?, role: *role })
                })
                .collect();
            kernel.set_interfaces(&interfaces?).context("cannot attach to the interfaces")
        })
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for namespace in &self.pods {
            // Fails if it was never created.
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
    }
}
