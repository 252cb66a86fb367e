//! One layout after another under traffic at full rate, with real programs on both sides, and processes that
//! die on the way. Everything is removed when a test ends, also after a failure.
#![allow(clippy::print_stdout, reason = "what was counted is worth a line")]

#[path = "../../../tests/support/mod.rs"]
pub mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ebpf_common::LAYOUT_VERSION;
use ebpf_common::flow::flow_flag;

use self::support::namespace::{Cluster, FAR_POD, NODE, POD_A, POD_B, interfaces};
use self::support::{Inside, Node, frontend, in_namespace, ip, key, reset, scaled, share};
use super::flows::{Slot, slot};
use super::*;
use crate::convert;
use crate::data_plane::DataPlane as _;
use crate::kernel::{ClassifierHook, Config, Kernel, Limits, XdpMode};
use crate::tables::{Backend, Protocol, Scope, ServiceTables};

#[test]
fn connections_become_slots() {
    let end = |text: &str, port| (text.parse::<IpAddr>().unwrap(), port);
    let mut connection = Connection {
        service: 3,
        protocol: 6,
        from: (end("192.0.2.9", 40_000), end("10.96.0.1", 80)),
        to: (end("192.0.2.1", 1_024), end("10.1.0.5", 8_080)),
        flags: flow_flag::THROUGH | flow_flag::EXTERNAL,
        seen: 77,
    };
    let Some(Slot::V4(flow)) = slot(&connection, 5) else { panic!("of v4") };
    assert_eq!(convert::address4(flow.key.destination), connection.from.1.0);
    assert_eq!((u16::from_be(flow.key.source_port), u16::from_be(flow.destination_port)), (40_000, 8_080));
    assert_eq!((flow.service, flow.seen, flow.flags, flow.epoch), (5, 77, connection.flags, 0));
    connection.to.0 = end("fd00::1", 1);
    assert!(slot(&connection, 5).is_none(), "one end of another family");
}

#[test]
fn only_earlier_layouts_in_use_count() {
    let root = tempfile::tempdir().unwrap();
    let find = |layout| {
        let versions = ["v0", "v1", "v2", "v9"].map(|name| root.path().join(name));
        predecessor(root.path(), layout, &versions)
    };
    assert!(find(2).unwrap().is_none());
    for name in ["v0", "v1", "v2", "v9"] {
        fs::create_dir_all(root.path().join(name).join("links")).unwrap();
    }
    assert!(find(2).unwrap().is_none(), "nothing is attached");
    // In use, but without readable maps, or of an unknown layout.
    for name in ["v0", "v1"] {
        fs::write(root.path().join(name).join("links/cgroup-connect4"), "").unwrap();
        assert!(find(2).unwrap().is_none());
    }
    fs::write(root.path().join("v9/links/cgroup-connect4"), "").unwrap();
    let Err(error) = find(2) else { panic!("a later layout is in use") };
    let text = support::chain(&error);
    assert!(text.contains("v9 is in use and of a later layout than this build's, which is 2"), "{text}");
}

#[test]
fn a_range_of_ports_is_halved() {
    assert_eq!(halves((1_024, 65_535)), Some(((1_024, 33_279), (33_280, 65_535))));
    assert_eq!(halves((7, 8)), Some(((7, 7), (8, 8))));
    assert_eq!(halves((7, 7)), None);
    assert_eq!(halves((8, 7)), None);
}

impl Steps {
    /// Creates steps that end the process after this one.
    fn until(last: usize) -> Self {
        Self { last: Some(last), ..Self::default() }
    }
}

pub const VIP: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 10), 80);
pub const NODE_PORT: u16 = 30_080;
const BACKENDS: usize = 6;
pub const FIRST_PORT: u16 = 9_000;
/// Number of layout replacements in each of the tests; every other time the process dies on the way.
const SWITCHES: u32 = 10;

/// The counts of the clients.
#[derive(Default)]
struct Ledger {
    exchanges: AtomicU64,
    failures: AtomicU64,
    /// Exchanges of an established connection, or of a datagram socket, that another backend answered.
    moved: AtomicU64,
    /// Exchanges that took as long as a retransmission.
    slow: AtomicU64,
    stop: AtomicBool,
}

impl Ledger {
    fn report(&self, began: Instant, outcome: io::Result<usize>, before: Option<usize>, what: &str) {
        match outcome {
            Ok(index) if before.is_some_and(|before| before != index) => {
                self.moved.fetch_add(1, Ordering::SeqCst);
            }
            Ok(_) => {}
            Err(error) => {
                if self.failures.fetch_add(1, Ordering::SeqCst) < 5 {
                    println!("{what}: {error} ({:?})", error.raw_os_error());
                }
            }
        }
        if began.elapsed() > Duration::from_millis(900) {
            self.slow.fetch_add(1, Ordering::SeqCst);
        }
        self.exchanges.fetch_add(1, Ordering::SeqCst);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// Answers everything with the backend's index, for as long as the process lives.
pub fn serve(address: Ipv4Addr, index: usize) {
    let at = (address, FIRST_PORT + index as u16);
    let socket = UdpSocket::bind(at).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&[index as u8], from);
        }
    });
    let listener = TcpListener::bind(at).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            std::thread::spawn(move || {
                let mut buffer = [0; 1];
                while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&[index as u8]).is_ok() {}
            });
        }
    });
}

/// The maximum time to wait for an answer.
fn waiting() -> Duration {
    scaled(Duration::from_secs(20))
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, waiting())?;
    stream.set_read_timeout(Some(waiting()))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub fn ask(stream: &mut TcpStream) -> io::Result<usize> {
    stream.write_all(b"?")?;
    let mut buffer = [0; 1];
    stream.read_exact(&mut buffer)?;
    Ok(buffer[0] as usize)
}

/// Opens a connection per exchange.
fn short_connections(ledger: &Ledger, to: SocketAddr) {
    while !ledger.stopped() {
        let began = Instant::now();
        let outcome = connect(to).and_then(|mut stream| {
            let index = ask(&mut stream)?;
            reset(&stream);
            Ok(index)
        });
        ledger.report(began, outcome, None, "a new connection");
    }
}

/// Uses permanent connections, whose peer is the service.
fn long_connections(ledger: &Ledger, to: SocketAddr) {
    let open = || {
        let mut stream = connect(to).unwrap();
        let index = ask(&mut stream).unwrap();
        (stream, index)
    };
    let mut streams: Vec<(TcpStream, usize)> = (0..8).map(|_| open()).collect();
    while !ledger.stopped() {
        for (stream, index) in &mut streams {
            let began = Instant::now();
            ledger.report(began, ask(stream), Some(*index), "an established connection");
        }
    }
    for (stream, _) in &streams {
        assert_eq!(stream.peer_addr().unwrap(), to);
    }
}

/// Checks that the service answers.
fn answered(from: SocketAddr, to: SocketAddr) -> io::Result<()> {
    if from == to { Ok(()) } else { Err(io::Error::other(format!("an answer from {from}"))) }
}

/// Opens a socket per exchange, without a peer of its own.
fn datagrams(ledger: &Ledger, to: SocketAddr) {
    let mut buffer = [0; 64];
    while !ledger.stopped() {
        let began = Instant::now();
        let outcome = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.set_read_timeout(Some(waiting()))?;
            socket.send_to(b"?", to)?;
            let (_, from) = socket.recv_from(&mut buffer)?;
            answered(from, to).map(|()| buffer[0] as usize)
        });
        ledger.report(began, outcome, None, "a new datagram socket");
    }
}

/// Uses one socket for all exchanges, and one that is connected.
fn two_sockets(ledger: &Ledger, to: SocketAddr) {
    let open = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(waiting())).unwrap();
        socket
    };
    let (free, bound) = (open(), open());
    bound.connect(to).unwrap();
    let mut buffer = [0; 64];
    let (mut first, mut second) = (None, None);
    while !ledger.stopped() {
        let began = Instant::now();
        let outcome = free.send_to(b"?", to).and_then(|_| {
            let (_, from) = free.recv_from(&mut buffer)?;
            answered(from, to).map(|()| buffer[0] as usize)
        });
        let index = outcome.as_ref().ok().copied();
        ledger.report(began, outcome, first, "a datagram socket");
        first = first.or(index);
        let began = Instant::now();
        let outcome = bound.send(b"?").and_then(|_| bound.recv(&mut buffer)).map(|_| buffer[0] as usize);
        let index = outcome.as_ref().ok().copied();
        ledger.report(began, outcome, second, "a connected datagram socket");
        second = second.or(index);
    }
    assert_eq!(bound.peer_addr().unwrap(), to);
}

/// Starts all clients, which run for as long as the ledger says.
fn start(ledger: &Arc<Ledger>, to: (Ipv4Addr, u16)) -> Vec<JoinHandle<()>> {
    let work: [fn(&Ledger, SocketAddr); 5] =
        [short_connections, short_connections, long_connections, datagrams, two_sockets];
    let one = |work: fn(&Ledger, SocketAddr)| {
        let ledger = Arc::clone(ledger);
        std::thread::spawn(move || work(&ledger, to.into()))
    };
    work.map(one).into()
}

pub fn tables(places: &[Backend]) -> Tables {
    let mut frontends = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        frontends.push(frontend(key("10.96.0.10", VIP.1, protocol, Scope::Internal), places));
        frontends.push(frontend(key("0.0.0.0", NODE_PORT, protocol, Scope::External), places));
    }
    frontends.sort_by_key(|frontend| frontend.key);
    Tables::from([("test/upgrade".to_owned(), ServiceTables { frontends, ..ServiceTables::default() })])
}

/// Replaces one layout by the next again and again. `open` returns a data plane with that layout; every other
/// time it is stopped at a step, and a second process finishes the replacement.
fn switch_layouts(
    ledger: &Ledger,
    mut kernel: Kernel,
    open: impl Fn(u32, &Steps) -> Result<Kernel, DataPlaneError>,
) {
    let more = |ledger: &Ledger, exchanges: u64| {
        let before = ledger.exchanges.load(Ordering::SeqCst);
        while ledger.exchanges.load(Ordering::SeqCst) < before + exchanges {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // The clients take all the time that there is; whoever switches gets its share first, as the clients
    // of a real node do not run on it, and a switch takes seconds instead of minutes.
    // SAFETY: takes numbers; zero is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
    let switches = share(SWITCHES).max(2);
    let mut steps_of_one = 0;
    for switch in 0..switches {
        more(ledger, 500);
        drop(kernel);
        let layout = LAYOUT_VERSION + 1 + switch;
        if switch % 2 == 1 {
            // Over all replacements each part of the way is reached.
            let step = 1 + steps_of_one * (switch as usize / 2) / (switches as usize / 2);
            assert!(open(layout, &Steps::until(step)).is_err(), "stopped at step {step}");
            more(ledger, 500);
        }
        let steps = Steps::default();
        kernel = open(layout, &steps).unwrap_or_else(|error| panic!("{}", support::chain(&error)));
        steps_of_one = steps_of_one.max(steps.taken.get());
    }
    more(ledger, 500);
    assert!(steps_of_one > 10, "{steps_of_one} steps");
    println!("{switches} switches of {steps_of_one} steps each");
}

/// Asserts that no exchange failed, and none got another backend.
fn check(ledger: &Ledger) {
    let of = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    let (failures, moved) = (of(&ledger.failures), of(&ledger.moved));
    let (exchanges, slow) = (of(&ledger.exchanges), of(&ledger.slow));
    println!("{exchanges} exchanges, {failures} failed, {moved} got another backend, {slow} took long");
    assert_eq!((failures, moved), (0, 0), "failed, and got another backend in the middle of a connection");
}

/// Asserts that only this layout's pins are left, and each of its hooks runs one program.
fn check_alone(node: &Node, kernel: &Kernel) {
    let left: Vec<_> =
        fs::read_dir(node.bpf_root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let versions = left.iter().filter(|name| name.to_string_lossy().starts_with('v'));
    assert_eq!(versions.count(), 1, "{left:?}");
    assert!(kernel.maps_directory().exists());
    let config = kernel.tables.store.config();
    assert_eq!((config.snat_port_min, config.snat_port_max), (SNAT_PORTS.0, SNAT_PORTS.1));
    assert_eq!(config.flags & config_flag::LEAVING, 0);
}

const SNAT_PORTS: (u16, u16) = (ebpf_common::limits::SNAT_PORT_MIN, ebpf_common::limits::SNAT_PORT_MAX);

/// Runs between namespaces, where every packet passes the programs; half of the backends are on another node.
fn packets(xdp: XdpMode, hook: ClassifierHook) {
    let (cluster, node, ledger) = (Cluster::new(), Node::new(), Arc::new(Ledger::default()));
    if xdp == XdpMode::Generic {
        for outside in [&cluster.client, &cluster.far] {
            outside.run(|| support::offloads_off("eth0"));
        }
    }
    // Pods have routes to each other, also between nodes.
    cluster.far.run(|| ip(&format!("route add {POD_A}/32 via 192.0.3.1")));
    let places: [Backend; BACKENDS] = std::array::from_fn(|index| {
        let (address, local) = if index % 2 == 0 { (POD_B, true) } else { (FAR_POD, false) };
        Backend::new(address.into(), FIRST_PORT + index as u16, local)
    });
    for index in 0..BACKENDS {
        let (namespace, address) =
            if index % 2 == 0 { (&cluster.pod_b, POD_B) } else { (&cluster.far, FAR_POD) };
        namespace.run(move || serve(address, index));
    }
    // Room for the remains of a few seconds of new connections, so that nothing in use is evicted.
    let limits = Limits { flows4: 1 << 18, ..node.config().limits };
    let config = Config { xdp, xdp_redirect: xdp != XdpMode::Off, limits, ..node.config() };
    let open = move |layout: u32, steps: &Steps| {
        let mut kernel = Kernel::open_layout(config.clone(), hook, layout, steps)?;
        let addresses = vec![NODE.into(), [192, 0, 3, 1].into()];
        kernel.set_node(&NodeTables { addresses, ..NodeTables::default() })?;
        kernel.set_interfaces(&interfaces())?;
        kernel.apply_full(&tables(&places))?;
        Ok(kernel)
    };
    let first = open.clone();
    let kernel = cluster.node.run(move || {
        first(LAYOUT_VERSION, &Steps::default()).unwrap_or_else(|error| panic!("{}", support::chain(&error)))
    });
    let mut threads = Vec::new();
    for (namespace, to) in [(&cluster.client, (NODE, NODE_PORT)), (&cluster.pod_a, VIP)] {
        let ledger = Arc::clone(&ledger);
        threads.extend(namespace.run(move || start(&ledger, to)));
    }
    let (all, layout) = (Arc::clone(&ledger), LAYOUT_VERSION + share(SWITCHES).max(2));
    cluster.node.run({
        let open = open.clone();
        move || switch_layouts(&all, kernel, open)
    });
    ledger.stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    check(&ledger);
    let kernel = cluster.node.run(move || open(layout, &Steps::default()).map_err(|error| error.to_string()));
    check_alone(&node, &kernel.unwrap());
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_go_on_while_a_layout_replaces_another() {
    packets(XdpMode::Off, ClassifierHook::Auto);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_through_xdp_go_on_while_a_layout_replaces_another() {
    packets(XdpMode::Generic, ClassifierHook::Auto);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_through_filters_go_on_while_a_layout_replaces_another() {
    packets(XdpMode::Off, ClassifierHook::Filter);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn sockets_lose_nothing_while_a_layout_replaces_another() {
    in_namespace(|| {
        let (node, ledger) = (Node::new(), Arc::new(Ledger::default()));
        let places: [Backend; BACKENDS] = std::array::from_fn(|index| {
            Backend::new(Ipv4Addr::LOCALHOST.into(), FIRST_PORT + index as u16, true)
        });
        for index in 0..BACKENDS {
            serve(Ipv4Addr::LOCALHOST, index);
        }
        let open = |layout: u32, steps: &Steps| {
            // Room for the sockets of a few seconds, so that nothing in use is evicted.
            let limits = Limits { sockets: 1 << 18, ..node.config().limits };
            let config = Config { limits, ..node.config() };
            let mut kernel = Kernel::open_layout(config, ClassifierHook::Auto, layout, steps)?;
            kernel.apply_full(&tables(&places))?;
            Ok(kernel)
        };
        let kernel = open(LAYOUT_VERSION, &Steps::default()).unwrap();
        let _inside = Inside::enter(&node);
        let threads = start(&ledger, VIP);
        switch_layouts(&ledger, kernel, open);
        ledger.stop.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        check(&ledger);
        check_alone(&node, &open(LAYOUT_VERSION + share(SWITCHES).max(2), &Steps::default()).unwrap());
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_later_layout_is_left_alone() {
    let node = Node::new();
    let places = [Backend::new(Ipv4Addr::LOCALHOST.into(), FIRST_PORT, true)];
    let config = node.config();
    let newer =
        || Kernel::open_layout(config.clone(), ClassifierHook::Auto, LAYOUT_VERSION + 1, &Steps::default());
    let mut kernel = newer().unwrap();
    kernel.apply_full(&tables(&places)).unwrap();
    let before = (links(&kernel), kernel.tables.store.config());
    let Err(error) = Kernel::open(config.clone()) else { panic!("a later layout is in use") };
    let DataPlaneError::Kernel { cause, .. } = &error else { panic!("{error}") };
    let refused = cause.downcast_ref::<NewerLayout>().expect("the reason");
    assert_eq!(refused.ours, LAYOUT_VERSION);
    assert_eq!(refused.theirs, kernel.maps_directory().parent().unwrap());
    assert!(!node.bpf_root().join(format!("v{LAYOUT_VERSION}")).exists(), "nothing was made");
    assert_eq!((links(&kernel), kernel.tables.store.config()), before, "nothing was changed");
    // Clients that know the backend stay with it.
    drop(kernel);
    assert_eq!(newer().unwrap().apply_full(&tables(&places)).unwrap(), crate::tables::Applied::default());
    // After the removal there is nothing to refuse.
    crate::remove(&node.bpf_root()).unwrap();
    Kernel::open(config.clone()).unwrap();
}

/// Returns ids of its links, and of the programs that they run.
fn links(kernel: &Kernel) -> BTreeSet<(String, u32, u32)> {
    let directory = kernel.maps_directory().parent().unwrap().join("links");
    let one = |entry: io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let info = crate::sys::link_info(crate::sys::object_get(&path).unwrap().as_fd()).unwrap();
        (path.file_name().unwrap().to_string_lossy().into_owned(), info.id, info.program_id)
    };
    fs::read_dir(directory).unwrap().map(one).collect()
}
