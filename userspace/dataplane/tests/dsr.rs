//! Direct server return between two live nodes, each with a data plane of its own: a client, a router,
//! the node that the client asks, and the backend's node with its pod.
//!
//! ```text
//!             client
//!                │
//!   front ──── router ──── back ──── pod
//! ```
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::namespace::{Namespace, exchange_tcp, serve_tcp};
use support::{Node, backend, frontend, index_of, ip, key, offloads_off, scaled, sysctl};
use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Forwarding, Interface, NodeTables, Protocol, Role, Scope, ServiceTables};
use userspace_dataplane::{Config, Kernel, XdpMode};

/// A place of both families.
type Dual = (Ipv4Addr, Ipv6Addr);

const fn at(net: u16, host: u16) -> Dual {
    (Ipv4Addr::new(192, 0, net as u8, host as u8), Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host))
}

const CLIENT: Dual = at(2, 100);
const FRONT: Dual = at(3, 1);
const BACK: Dual = at(4, 1);
const POD: Dual = (Ipv4Addr::new(10, 2, 0, 7), Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 7));
const VIP: Dual = (Ipv4Addr::new(10, 96, 0, 10), Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10));
const PORT: u16 = 8_080;
const NODE_PORT: u16 = 30_080;
const ROUTER: u16 = 254;
/// Interfaces of the router, by where they lead, with their link addresses.
const LINKS: [(&str, &str); 3] =
    [("toclient", "02:00:00:00:02:fe"), ("tofront", "02:00:00:00:03:fe"), ("toback", "02:00:00:00:04:fe")];
const POD_LINK: &str = "02:00:00:00:05:01";
/// Bytes that a connection carries each way.
const AMOUNT: usize = 1_000_000;

fn both(place: Dual) -> [IpAddr; 2] {
    [place.0.into(), place.1.into()]
}

/// The whole network; removed when dropped.
struct Net {
    client: Namespace,
    router: Namespace,
    front: Namespace,
    back: Namespace,
    pod: Namespace,
}

impl Net {
    fn new() -> Self {
        let [client, router, front, back, pod] = std::array::from_fn(|_| Namespace::new());
        for namespace in [&router, &front, &back] {
            namespace.run(|| {
                sysctl("net/ipv4/ip_forward", "1");
                sysctl("net/ipv6/conf/all/forwarding", "1");
                // Replies come from addresses to which no route leads back.
                sysctl("net/ipv4/conf/all/rp_filter", "0");
                sysctl("net/ipv4/conf/default/rp_filter", "0");
            });
        }
        for ((name, link), other) in LINKS.into_iter().zip([&client, &front, &back]) {
            router.connect(name, link, other);
        }
        back.connect("pod", POD_LINK, &pod);
        for (namespace, place) in [(&client, CLIENT), (&front, FRONT), (&back, BACK)] {
            namespace.run(move || {
                let [net, _] = numbers(place);
                ip(&format!("addr add {}/24 dev eth0", place.0));
                ip(&format!("addr add {}/64 dev eth0 nodad", place.1));
                ip(&format!("route add default via {}", at(net, ROUTER).0));
                ip(&format!("route add default via {}", at(net, ROUTER).1));
            });
        }
        router.run(|| {
            for ((name, _), place) in LINKS.into_iter().zip([CLIENT, FRONT, BACK]) {
                let [net, _] = numbers(place);
                ip(&format!("addr add {}/24 dev {name}", at(net, ROUTER).0));
                ip(&format!("addr add {}/64 dev {name} nodad", at(net, ROUTER).1));
            }
            for (to, via) in [(VIP, FRONT), (POD, BACK)] {
                ip(&format!("route add {}/32 via {}", to.0, via.0));
                ip(&format!("route add {}/128 via {}", to.1, via.1));
            }
        });
        back.run(|| {
            ip(&format!("route add {}/32 dev pod", POD.0));
            ip(&format!("route add {}/128 dev pod", POD.1));
            ip("addr add fe80::1/64 dev pod nodad");
        });
        pod.run(|| {
            ip(&format!("addr add {}/32 dev eth0", POD.0));
            ip("route add 169.254.1.1 dev eth0 scope link");
            ip("route add default via 169.254.1.1");
            ip(&format!("neigh add 169.254.1.1 lladdr {POD_LINK} dev eth0"));
            ip(&format!("addr add {}/128 dev eth0 nodad", POD.1));
            ip("route add default via fe80::1 dev eth0");
            ip(&format!("neigh add fe80::1 lladdr {POD_LINK} dev eth0"));
            for address in both(POD) {
                serve_tcp(address, PORT);
                serve_datagrams(address);
            }
        });
        Self { client, router, front, back, pod }
    }

    /// Makes segments and checksums those of a wire.
    fn without_offloads(&self) {
        for namespace in [&self.client, &self.front, &self.back, &self.pod] {
            namespace.run(|| offloads_off("eth0"));
        }
        self.router.run(|| LINKS.iter().for_each(|(name, _)| offloads_off(name)));
        self.back.run(|| offloads_off("pod"));
    }
}

/// Returns net and host of a place made by [`at`].
fn numbers(place: Dual) -> [u16; 2] {
    [place.1.segments()[2], place.1.segments()[7]]
}

/// Sends each datagram back.
fn serve_datagrams(address: IpAddr) {
    let socket = UdpSocket::bind((address, PORT)).unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let answer = [from.to_string().as_bytes(), b"\n", &buffer[..length]].concat();
            // The client finds out whether it arrives.
            let _ = socket.send_to(&answer, from);
        }
    });
}

/// Returns the service as a node has it, whose own the backend is or not.
fn service(local: bool, forwarding: Forwarding) -> ServiceTables {
    let mut frontends = Vec::new();
    let places = both(VIP).map(|vip| (vip, 80));
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    for (address, port) in places.into_iter().chain(any.map(|any| (any, NODE_PORT))) {
        let pod = if address.is_ipv4() { POD.0.into() } else { POD.1.into() };
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let key = key(&address.to_string(), port, protocol, Scope::External);
            let mut frontend = frontend(key, &[backend(pod, PORT, local)]);
            frontend.forwarding = forwarding;
            frontends.push(frontend);
        }
    }
    frontends.sort_by_key(|frontend| frontend.key);
    ServiceTables { frontends, ..ServiceTables::default() }
}

/// A node's data plane.
struct Running {
    node: Node,
    kernel: Option<Kernel>,
    config: Config,
    tables: ServiceTables,
}

impl Running {
    fn start(on: &Namespace, place: Dual, xdp: XdpMode, tables: ServiceTables, pod: bool) -> Self {
        let node = Node::new();
        let config = Config { xdp, ..node.config() };
        let mut this = Self { node, kernel: None, config, tables };
        this.open(on);
        let mut kernel = this.kernel.take().unwrap();
        let tables = this.tables.clone();
        this.kernel = Some(on.run(move || {
            let addresses = both(place).to_vec();
            kernel.set_node(&NodeTables { addresses, ..NodeTables::default() }).unwrap();
            let interface =
                |name: &str, role| Interface { name: name.to_owned(), index: index_of(name), role };
            let mut interfaces = vec![interface("eth0", Role::Uplink)];
            if pod {
                interfaces.push(interface("pod", Role::Pod));
            }
            kernel.set_interfaces(&interfaces).unwrap();
            kernel.apply_service("test/echo", Some(&tables)).unwrap();
            kernel
        }));
        this
    }

    /// Lets another process take over.
    fn open(&mut self, on: &Namespace) {
        drop(self.kernel.take());
        let config = self.config.clone();
        self.kernel = Some(on.run(move || Kernel::open(config).unwrap()));
    }

    fn metric(&self, label: &str) -> u64 {
        Inspector::open(&self.node.bpf_root()).unwrap().metrics().unwrap()[label]
    }
}

/// Starts both nodes, with the service in this forwarding mode.
fn start(net: &Net, forwarding: Forwarding, xdp: XdpMode) -> [Running; 2] {
    [
        Running::start(&net.front, FRONT, xdp, service(false, forwarding), false),
        Running::start(&net.back, BACK, xdp, service(true, forwarding), true),
    ]
}

/// Returns the number of bytes that have come in at an interface.
fn received(on: &Namespace, interface: &'static str) -> u64 {
    on.run(move || {
        let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
        line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
    })
}

/// Makes connections with much data each way. The server has to see the client's own address, and its data
/// must not come by the node that was asked.
#[track_caller]
fn connections(net: &Net, front: Dual, port: u16) {
    for (address, seen) in both(front).into_iter().zip(both(CLIENT)) {
        let to = SocketAddr::from((address, port));
        let before = received(&net.front, "eth0");
        let found = net.client.run(move || [exchange_tcp(to, 5), exchange_tcp(to, AMOUNT)]);
        for found in found {
            assert_eq!(found.unwrap_or_else(|error| panic!("{to}: {error}")).ip(), seen, "{to}");
        }
        let come = received(&net.front, "eth0") - before;
        // Requests and acknowledgements. There are few retransmissions.
        let [once, more] = [AMOUNT as u64, AMOUNT as u64 * 8 / 5];
        assert!((once..more).contains(&come), "{to}: {come} bytes came by the node that was asked");
    }
}

/// Exchanges datagrams that are small, that fill a frame, and that take many.
#[track_caller]
fn datagrams(net: &Net) {
    for (address, seen) in both(VIP).into_iter().zip(both(CLIENT)) {
        let to = SocketAddr::from((address, 80));
        let found = net.client.run(move || {
            let full = if to.is_ipv4() { 1_472 } else { 1_452 };
            [5, full, 20_000, 60_000].map(|length| exchange_datagram(to, length))
        });
        assert_eq!(found, [seen; 4], "{to}");
    }
}

/// Sends a datagram until it comes back; returns the source that the server saw. The first ones show the MTU
/// of the path.
fn exchange_datagram(to: SocketAddr, length: usize) -> IpAddr {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.connect(to).unwrap();
    let payload: Vec<u8> = (0..length).map(|byte| ((byte * 31) >> 3) as u8).collect();
    let mut buffer = vec![0; 65_536];
    let end = Instant::now() + scaled(Duration::from_secs(5));
    while Instant::now() < end {
        // Fails if the kernel has learned meanwhile that the packet is too big.
        let _ = socket.send(&payload);
        socket.set_read_timeout(Some(scaled(Duration::from_millis(300)))).unwrap();
        if let Ok(got) = socket.recv(&mut buffer) {
            let line = buffer.iter().position(|byte| *byte == b'\n').unwrap();
            assert!(buffer[line + 1..got] == payload, "{to}: what comes back is what was sent");
            let seen: SocketAddr = std::str::from_utf8(&buffer[..line]).unwrap().parse().unwrap();
            return seen.ip();
        }
    }
    panic!("{to}: a datagram of {length} bytes does not come back");
}

/// Returns the path MTU that the client has learned for an address.
fn learned_mtu(net: &Net, to: IpAddr) -> Option<u32> {
    let text = net.client.run(move || {
        let output = Command::new("ip").args(["route", "get", &to.to_string()]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let mut words = text.split_whitespace().skip_while(|word| *word != "mtu").skip(1);
    words.next().and_then(|word| word.parse().ok())
}

fn everything(forwarding: Forwarding, xdp: XdpMode) {
    let net = Net::new();
    net.without_offloads();
    let [front, back] = start(&net, forwarding, xdp);
    connections(&net, VIP, 80);
    connections(&net, FRONT, NODE_PORT);
    datagrams(&net);
    // Packets that did not fit with the additional bytes were answered, and the client has adapted.
    let more = if forwarding == Forwarding::DsrIpip { [20, 40] } else { [8, 24] };
    assert!(front.metric("too_big") > 0);
    for (vip, more) in both(VIP).into_iter().zip(more) {
        assert_eq!(learned_mtu(&net, vip), Some(1_500 - more), "{vip}");
    }
    assert!(front.metric("dsr_sent") > 0 && back.metric("dsr_received") > 0);
    assert_eq!(front.metric("xdp_transmitted") > 0, xdp == XdpMode::Generic);
    assert_eq!((front.metric("malformed"), back.metric("malformed")), (0, 0));
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn by_option_the_backend_s_node_answers_the_client() {
    everything(Forwarding::DsrOption, XdpMode::Off);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn by_option_in_xdp_the_backend_s_node_answers_the_client() {
    everything(Forwarding::DsrOption, XdpMode::Generic);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn by_outer_header_the_backend_s_node_answers_the_client() {
    everything(Forwarding::DsrIpip, XdpMode::Off);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn by_outer_header_in_xdp_the_backend_s_node_answers_the_client() {
    everything(Forwarding::DsrIpip, XdpMode::Generic);
}

/// The path from the router to the backend has a smaller MTU than the node's own link.
#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_router_s_word_about_the_outer_header_reaches_the_client() {
    for xdp in [XdpMode::Off, XdpMode::Generic] {
        let net = Net::new();
        net.without_offloads();
        net.router.run(|| {
            ip(&format!("route replace {}/32 via {} mtu lock 1400", POD.0, BACK.0));
            ip(&format!("route replace {}/128 via {} mtu lock 1400", POD.1, BACK.1));
        });
        let [front, _back] = start(&net, Forwarding::DsrIpip, xdp);
        connections(&net, VIP, 80);
        datagrams(&net);
        for (vip, fits) in both(VIP).into_iter().zip([1_380, 1_360]) {
            assert_eq!(learned_mtu(&net, vip), Some(fits), "{vip}");
        }
        assert!(front.metric("too_big") > 0);
        assert_eq!(front.metric("malformed"), 0);
    }
}

/// The network is like that between machines of one host, where segments are not cut.
#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn large_segments_go_as_they_are() {
    for forwarding in [Forwarding::DsrOption, Forwarding::DsrIpip] {
        let net = Net::new();
        let _nodes = start(&net, forwarding, XdpMode::Off);
        connections(&net, VIP, 80);
        datagrams(&net);
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_outlive_the_processes_of_both_nodes() {
    for forwarding in [Forwarding::DsrOption, Forwarding::DsrIpip] {
        let net = Net::new();
        net.without_offloads();
        let [mut front, mut back] = start(&net, forwarding, XdpMode::Generic);
        let stop = Arc::new(AtomicBool::new(false));
        let (done, finished) = std::sync::mpsc::channel();
        for vip in both(VIP) {
            let (to, done, stop) = (SocketAddr::from((vip, 80)), done.clone(), stop.clone());
            net.client.spawn(move || {
                let rounds = std::panic::catch_unwind(|| keep_talking(to, &stop)).unwrap_or(0);
                done.send(rounds).unwrap();
            });
        }
        for _ in 0..2 {
            front.open(&net.front);
            back.open(&net.back);
            for vip in both(VIP) {
                let to = SocketAddr::from((vip, 80));
                net.client.run(move || exchange_tcp(to, 5).unwrap());
            }
        }
        stop.store(true, Ordering::Relaxed);
        drop(done);
        let rounds: Vec<usize> = finished.iter().collect();
        assert!(rounds.len() == 2 && rounds.iter().all(|rounds| *rounds > 50), "{rounds:?}");
    }
}

/// Sends and receives over one connection until told to stop; returns the number of rounds.
fn keep_talking(to: SocketAddr, stop: &AtomicBool) -> usize {
    use std::io::{BufRead, BufReader, Read, Write};
    let mut stream = std::net::TcpStream::connect_timeout(&to, scaled(Duration::from_secs(10))).unwrap();
    stream.set_read_timeout(Some(scaled(Duration::from_secs(10)))).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let sent = [rounds as u8; 100];
        stream.write_all(&sent).unwrap();
        let mut back = [0; 100];
        reader.read_exact(&mut back).unwrap();
        assert_eq!(sent, back);
        rounds += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    rounds
}
