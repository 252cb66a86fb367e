//! One node's network as programs see it in a test run: interfaces that lead nowhere, with static routes and
//! neighbours.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{Backend, Interface, NodeTables, Role};
use userspace_dataplane::{Kernel, Program, TestRun};

use super::packet::{Address, End, End6, Packet};
use super::{Node, backend, index_of, ip, scaled, sysctl};

pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const CLIENT: End = (Ipv4Addr::new(192, 0, 2, 100), 40_000);
pub const VIP: End = (Ipv4Addr::new(10, 96, 0, 10), 80);
pub const LOCAL_POD: End = (Ipv4Addr::new(10, 1, 0, 5), 8_080);
pub const OTHER_POD: End = (Ipv4Addr::new(10, 1, 0, 6), 8_080);
pub const REMOTE_POD: End = (Ipv4Addr::new(10, 2, 0, 7), 8_080);
pub const NODE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub const CLIENT6: End6 = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x100), 40_000);
pub const VIP6: End6 = (Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10), 80);
pub const LOCAL_POD6: End6 = (Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 5), 8_080);
pub const OTHER_POD6: End6 = (Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 6), 8_080);
pub const REMOTE_POD6: End6 = (Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 7), 8_080);
/// Link address of the other node, through which remote pods are reached.
pub const OTHER_NODE_LINK: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
/// Link address of [`CLIENT`].
pub const CLIENT_LINK: [u8; 6] = [2, 0, 0, 0, 0, 0x64];

/// Verdicts of tcx and XDP programs.
pub const NEXT: u32 = u32::MAX;
pub const DROP: u32 = 2;
pub const REDIRECT: u32 = 7;
pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;
pub const XDP_TX: u32 = 3;

/// Interfaces of the node.
pub struct Topology {
    pub uplink: u32,
    pub pod: u32,
    pub other_pod: u32,
}

impl Topology {
    /// Builds the network in the namespace of this thread.
    pub fn new() -> Self {
        sysctl("net/ipv4/ip_forward", "1");
        for (name, peer) in [("up0", "up1"), ("pod0", "pod1"), ("pod2", "pod3")] {
            // Packets of the tests are for this address.
            ip(&format!("link add {name} address 02:00:00:00:00:01 type veth peer name {peer}"));
            ip(&format!("link set {name} up"));
            ip(&format!("link set {peer} up"));
        }
        ip(&format!("addr add {NODE}/24 dev up0"));
        ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:22 dev up0");
        ip("neigh add 192.0.2.100 lladdr 02:00:00:00:00:64 dev up0");
        ip(&format!("route add {}/32 dev pod0", LOCAL_POD.0));
        ip(&format!("route add {}/32 dev pod2", OTHER_POD.0));
        ip("route add 10.2.0.0/24 via 192.0.2.2");
        sysctl("net/ipv6/conf/all/forwarding", "1");
        ip(&format!("addr add {NODE6}/64 dev up0 nodad"));
        ip("neigh add 2001:db8::2 lladdr 02:00:00:00:00:22 dev up0");
        ip("neigh add 2001:db8::100 lladdr 02:00:00:00:00:64 dev up0");
        ip(&format!("route add {}/128 dev pod0", LOCAL_POD6.0));
        ip(&format!("route add {}/128 dev pod2", OTHER_POD6.0));
        ip("route add fd00:2::/64 via 2001:db8::2");
        wait_for_own_address();
        Self { uplink: index_of("up0"), pod: index_of("pod0"), other_pod: index_of("pod2") }
    }

    pub fn interfaces(&self) -> Vec<Interface> {
        let interface = |name: &str, index, role| Interface { name: name.to_owned(), index, role };
        vec![
            interface("up0", self.uplink, Role::Uplink),
            interface("pod0", self.pod, Role::Pod),
            interface("pod2", self.other_pod, Role::Pod),
        ]
    }

    /// Opens a data plane that knows the node's address.
    pub fn open(&self, node: &Node) -> Kernel {
        let mut kernel = node.open();
        self.announce(&mut kernel);
        kernel
    }

    /// Sets the node's address in a data plane.
    pub fn announce(&self, kernel: &mut Kernel) {
        let addresses = vec![NODE.into(), NODE6.into()];
        kernel.set_node(&NodeTables { addresses, ..NodeTables::default() }).unwrap();
    }
}

/// Waits for the route to an own address, which the kernel makes a moment after the address.
fn wait_for_own_address() {
    let asked = || {
        let found = Command::new("ip").args(["-6", "route", "get", &NODE6.to_string()]).output().unwrap();
        String::from_utf8_lossy(&found.stdout).starts_with("local")
    };
    let end = Instant::now() + scaled(Duration::from_secs(5));
    while !asked() {
        assert!(Instant::now() < end, "no route to {NODE6}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn at<A: Address>(end: (A, u16), local: bool) -> Backend {
    backend(end.0.into(), end.1, local)
}

/// Runs a tcx program on a packet that came in on an interface; on egress, one that the node made.
pub fn tcx<A: Address>(kernel: &Kernel, program: Program, packet: &Packet<A>, interface: u32) -> TestRun {
    tcx_bytes(kernel, program, &packet.bytes(), interface)
}

/// Runs as [`tcx`] does, on a frame.
pub fn tcx_bytes(kernel: &Kernel, program: Program, frame: &[u8], interface: u32) -> TestRun {
    let mut context = [0_u8; 192];
    if program != Program::Egress {
        context[36..40].copy_from_slice(&interface.to_ne_bytes());
    }
    context[40..44].copy_from_slice(&interface.to_ne_bytes());
    kernel.test_run(program, frame, &context, 1).unwrap()
}

/// Runs the XDP program on a packet from an interface.
pub fn xdp<A: Address>(kernel: &Kernel, packet: &Packet<A>, interface: u32) -> TestRun {
    xdp_bytes(kernel, &packet.bytes(), interface)
}

/// Runs as [`xdp`] does, on a frame.
pub fn xdp_bytes(kernel: &Kernel, frame: &[u8], interface: u32) -> TestRun {
    let mut context = [0_u8; 24];
    context[4..8].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
    context[12..16].copy_from_slice(&interface.to_ne_bytes());
    kernel.test_run(Program::UplinkXdp, frame, &context, 1).unwrap()
}
