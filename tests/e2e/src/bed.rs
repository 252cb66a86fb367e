//! Several nodes on one machine, each with a network namespace and a cgroup of its own, around a namespace
//! that is their switch and their router. Links can be cut, and can delay, reorder and lose frames ([`Faults`]).
//! Addresses are from ranges for documentation and benchmarks (RFC 5737, RFC 2544, RFC 3849, RFC 7042); no traffic
//! leaves the namespaces.
//!
//! ```text
//!   node 1 ─ 192.0.2.1 ──┐                          ┌── 198.18.3.1 ─ node 3, behind the router
//!   node 2 ─ 192.0.2.2 ──┴─ bridge 192.0.2.254  hub ┘   198.18.3.254
//! ```
//!
//! Nodes of two stacks have IPv6 addresses, too: 2001:db8::1, 2001:db8::2, and 2001:db8:3::1 behind the router.

mod faults;

pub use faults::{Faults, Faulty, Passed};

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::lab::{Machine, enter, remove_cgroup, unified, unique};
use crate::{eventually, output};

/// A node's place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the switch, together with others.
    Switch,
    /// On a link of its own, behind the router.
    Router,
}

/// The address families of a bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    Ipv4,
    Dual,
}

/// Flags of `hawser up`, `join` and `kubelet` with which pods and Services have addresses of both families.
pub const DUAL_STACK: [&str; 4] = [
    "--service-cluster-ip-range",
    "10.96.0.0/16,fd00:96::/112",
    "--cluster-cidr",
    "10.244.0.0/16,fd00:244::/56",
];

/// A node of the bed.
pub struct Node {
    /// 1 for the first.
    pub number: usize,
    pub place: Place,
    stack: Stack,
    /// Part of all its names; also that of its network namespace.
    id: String,
    hub: String,
    cgroup: PathBuf,
    dir: PathBuf,
}

impl Node {
    /// Returns the node's name in the cluster.
    pub fn name(&self) -> String {
        format!("node-{}", self.number)
    }

    /// Returns the node's address.
    pub fn ip(&self) -> String {
        self.ip_at(self.host())
    }

    /// Returns the node's IPv6 address, which nodes of two stacks have.
    pub fn ipv6(&self) -> String {
        self.ipv6_at(self.host())
    }

    /// Returns the node's addresses in the form of `--node-ip`.
    pub fn ips(&self) -> String {
        match self.stack {
            Stack::Ipv4 => self.ip(),
            Stack::Dual => format!("{},{}", self.ip(), self.ipv6()),
        }
    }

    /// Returns the last part of the node's addresses.
    fn host(&self) -> usize {
        match self.place {
            Place::Switch => self.number,
            Place::Router => 1,
        }
    }

    fn ip_at(&self, host: usize) -> String {
        match self.place {
            Place::Switch => format!("192.0.2.{host}"),
            Place::Router => format!("198.18.{}.{host}", self.number),
        }
    }

    fn ipv6_at(&self, host: usize) -> String {
        match self.place {
            Place::Switch => format!("2001:db8::{host:x}"),
            Place::Router => format!("2001:db8:{:x}::{host:x}", self.number),
        }
    }

    /// Replaces the addresses of a node of two stacks by others of its networks, which are returned: that of IPv4 and
    /// that of IPv6.
    pub fn readdress(&self, host: usize) -> Result<[String; 2]> {
        let (id, others) = (&self.id, [self.ip_at(host), self.ipv6_at(host)]);
        ip(&format!("-n {id} addr flush dev uplink"))?;
        ip(&format!("-n {id} addr add {}/24 dev uplink", others[0]))?;
        self.add_ipv6(&others[1])?;
        self.route_all()?;
        Ok(others)
    }

    /// Returns the node's cgroup in the form of `--cgroup-root`.
    pub fn cgroup_root(&self) -> String {
        format!("/{}", self.id)
    }

    /// Returns the directory of the node's pins.
    pub fn bpf_root(&self) -> String {
        format!("/sys/fs/bpf/{}", self.id)
    }

    /// Returns a command for a program on the node.
    pub fn on(&self, program: impl AsRef<OsStr>) -> Command {
        enter(&self.cgroup, &self.id, program.as_ref())
    }

    /// Returns the name of the node's network namespace.
    pub fn namespace(&self) -> &str {
        &self.id
    }

    /// Returns the command that sets the node's link `up` or `down` at the hub.
    pub fn link_command(&self, state: &str) -> String {
        format!("ip -n {} link set n{} {state}", self.hub, self.number)
    }

    /// Cuts the node off: nothing reaches it and it reaches nothing.
    pub fn cut(&self) -> Result<()> {
        ip(self.link_command("down").trim_start_matches("ip "))
    }

    /// Connects the node again.
    pub fn heal(&self) -> Result<()> {
        ip(self.link_command("up").trim_start_matches("ip "))
    }

    /// Kills all processes on the node.
    pub fn kill_all(&self) -> Result<()> {
        let (kill, processes) = (self.cgroup.join("cgroup.kill"), self.cgroup.join("cgroup.procs"));
        if !kill.exists() {
            return Ok(());
        }
        fs::write(&kill, "1").with_context(|| format!("cannot write {}", kill.display()))?;
        eventually("processes of an earlier run to end", || {
            Ok(fs::read_to_string(&processes)?.is_empty().then_some(()))
        })
    }

    fn make(&self) -> Result<()> {
        fs::create_dir_all(&self.cgroup).with_context(|| format!("cannot make {}", self.cgroup.display()))?;
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot make {}", self.dir.display()))?;
        let (id, hub, number, address) = (&self.id, &self.hub, self.number, self.ip());
        ip(&format!("netns add {id}"))?;
        ip(&format!("-n {id} link set lo up"))?;
        let mac = self.mac_at_hub();
        ip(&format!("-n {id} link add uplink type veth peer name n{number} address {mac} netns {hub}"))?;
        // Link-local addresses would appear a moment later and show up as a difference.
        ip(&format!("-n {id} link set uplink addrgenmode none up"))?;
        ip(&format!("-n {id} addr add {address}/24 dev uplink"))?;
        if self.stack == Stack::Dual {
            self.add_ipv6(&self.ipv6())?;
        }
        self.connect()?;
        self.route_all()
    }

    /// Connects the link's end at the hub.
    fn connect(&self) -> Result<()> {
        let (hub, number, [gateway, gateway6]) = (&self.hub, self.number, self.gateways());
        ip(&format!("-n {hub} link set n{number} addrgenmode none up"))?;
        match self.place {
            Place::Switch => ip(&format!("-n {hub} link set n{number} master br0"))?,
            Place::Router => ip(&format!("-n {hub} addr add {gateway}/24 dev n{number}"))?,
        }
        if (self.place, self.stack) == (Place::Router, Stack::Dual) {
            ip(&format!("-n {hub} addr add {gateway6}/64 dev n{number} nodad"))?;
            ip(&format!("-n {hub} addr add fe80::fe/64 dev n{number} nodad"))?;
        }
        Ok(())
    }

    /// Returns the hardware address of the link's end at the hub, which outlives the interface.
    fn mac_at_hub(&self) -> String {
        format!("02:00:5e:00:53:{:02x}", self.number)
    }

    /// Adds an IPv6 address, and a link-local one, without which Linux does not resolve neighbours for packets that it
    /// forwards.
    fn add_ipv6(&self, address: &str) -> Result<()> {
        let id = &self.id;
        ip(&format!("-n {id} addr add {address}/64 dev uplink nodad"))?;
        ip(&format!("-n {id} addr add fe80::{:x}/64 dev uplink nodad", self.number))
    }

    /// Returns the hub's addresses on the node's link, of IPv4 and IPv6.
    fn gateways(&self) -> [String; 2] {
        match self.place {
            Place::Switch => [HUB_IP, HUB_IPV6].map(str::to_owned),
            Place::Router => [self.ip_at(254), self.ipv6_at(0xfe)],
        }
    }

    /// Sets the default routes.
    fn route_all(&self) -> Result<()> {
        let (id, [gateway, gateway6]) = (&self.id, self.gateways());
        ip(&format!("-n {id} route replace default via {gateway}"))?;
        match self.stack {
            Stack::Ipv4 => Ok(()),
            Stack::Dual => ip(&format!("-n {id} -6 route replace default via {gateway6}")),
        }
    }
}

impl Machine for Node {
    fn id(&self) -> &str {
        &self.id
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    fn run(&self, program: &str) -> Command {
        self.on(program)
    }
}

/// The hub's address on the switch: that of a host outside of the cluster.
pub const HUB_IP: &str = "192.0.2.254";
/// Its IPv6 address, in a bed of two stacks.
pub const HUB_IPV6: &str = "2001:db8::fe";

/// The nodes and what connects them; removed when dropped, also if the test fails.
pub struct Bed {
    pub nodes: Vec<Node>,
    hub: String,
    dir: PathBuf,
    stack: Stack,
    /// Removed with the bed.
    _temporary: Option<tempfile::TempDir>,
}

impl Bed {
    /// Makes a bed for a test.
    pub fn new(places: &[Place]) -> Result<Self> {
        Self::with(places, Stack::Ipv4)
    }

    /// Makes a bed of these families for a test.
    pub fn with(places: &[Place], stack: Stack) -> Result<Self> {
        let id = unique("hwb");
        let temporary = tempfile::Builder::new().prefix(&format!("{id}-")).tempdir()?;
        let dir = temporary.path().to_owned();
        Self::build(&id, dir, Some(temporary), places, stack)
    }

    /// Makes a bed whose names begin with `id` and whose files are in `dir`, which stays.
    pub fn named(id: &str, dir: &Path, places: &[Place], stack: Stack) -> Result<Self> {
        Self::build(id, dir.to_owned(), None, places, stack)
    }

    /// Returns the bed of this name whose process was killed, to be removed; without nodes if there is none.
    pub fn left_behind(id: &str, dir: &Path) -> Result<Self> {
        let names = output(Command::new("ip").args(["netns", "list"]))?;
        let words = names.lines().filter_map(|line| line.split(' ').next());
        let numbers = words.filter_map(|name| name.strip_prefix(id)?.strip_prefix('n')?.parse().ok());
        let places = vec![Place::Switch; numbers.max().unwrap_or(0)];
        Self::plan(id, dir.to_owned(), None, &places, Stack::Ipv4)
    }

    fn build(
        id: &str,
        dir: PathBuf,
        temporary: Option<tempfile::TempDir>,
        places: &[Place],
        stack: Stack,
    ) -> Result<Self> {
        let bed = Self::plan(id, dir, temporary, places, stack)?;
        bed.make()?;
        Ok(bed)
    }

    fn plan(
        id: &str,
        dir: PathBuf,
        temporary: Option<tempfile::TempDir>,
        places: &[Place],
        stack: Stack,
    ) -> Result<Self> {
        let (hub, cgroups) = (format!("{id}h"), unified()?);
        let node = |(index, place): (usize, &Place)| {
            let number = index + 1;
            let id = format!("{id}n{number}");
            let (cgroup, dir) = (cgroups.join(&id), dir.join(format!("node-{number}")));
            Node { number, place: *place, stack, id, hub: hub.clone(), cgroup, dir }
        };
        let nodes = places.iter().enumerate().map(node).collect();
        Ok(Self { nodes, hub, dir, stack, _temporary: temporary })
    }

    fn make(&self) -> Result<()> {
        let hub = &self.hub;
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link set lo up"))?;
        // Its own address would be that of one of its ports, and change with them.
        ip(&format!("-n {hub} link add br0 address 02:00:5e:00:53:fe type bridge"))?;
        ip(&format!("-n {hub} link set br0 addrgenmode none up"))?;
        ip(&format!("-n {hub} addr add {HUB_IP}/24 dev br0"))?;
        output(self.on_hub("sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))?;
        if self.stack == Stack::Dual {
            ip(&format!("-n {hub} addr add {HUB_IPV6}/64 dev br0 nodad"))?;
            ip(&format!("-n {hub} addr add fe80::fe/64 dev br0 nodad"))?;
            output(self.on_hub("sh").args(["-c", "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"]))?;
        }
        self.nodes.iter().try_for_each(Node::make)
    }

    /// Returns a command for a program on the hub, a host outside of the cluster.
    pub fn on_hub(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.hub)).arg("--").arg(program);
        command
    }

    /// Returns a directory for the test's own files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for namespace in self.nodes.iter().map(|node| &node.id).chain([&self.hub]) {
            // Fails if it was never created.
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
        for node in &self.nodes {
            remove_cgroup(&node.cgroup);
        }
    }
}

fn ip(line: &str) -> Result<()> {
    output(Command::new("ip").args(line.split_whitespace())).map(drop)
}
