//! Traffic at full rate while the endpoints change all the time and the process that changes them is replaced
//! again and again. No exchange may fail, no client may get a backend that was gone before its request, and
//! no packet may find none.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "in a test, to panic is to fail; what was counted is worth a line"
)]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use support::namespace::*;
use support::{Inside, Node, frontend, in_namespace, ip, key, reset, scaled, share};
use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Backend, NodeTables, Protocol, Scope, ServiceTables, Tables};
use userspace_dataplane::{Config, Kernel, Limits, XdpMode};

const VIP: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 10), 80);
const NODE_PORT: u16 = 30_080;
const BACKENDS: usize = 8;
const FIRST_PORT: u16 = 9_000;
/// Number of changes of the endpoints in each of the tests.
const CHANGES: u32 = 4_000;
/// Number of times that another process takes over meanwhile.
const RESTARTS: u32 = 10;

/// The state that clients share with the thread that changes the endpoints.
#[derive(Default)]
struct Ledger {
    /// Backends that have been withdrawn: a bit is set after the change, and cleared before the next one that
    /// brings the backend back.
    gone: AtomicU32,
    /// Number of times that each has come back.
    returns: [AtomicU64; BACKENDS],
    exchanges: AtomicU64,
    failures: AtomicU64,
    /// Exchanges with a backend that was gone all the while.
    stale: AtomicU64,
    stop: AtomicBool,
}

/// The state that a client reads before its request.
struct Before {
    gone: u32,
    returns: [u64; BACKENDS],
}

impl Ledger {
    fn before(&self) -> Before {
        // In this order: a backend that comes back in between has one more return afterwards.
        let returns = std::array::from_fn(|index| self.returns[index].load(Ordering::SeqCst));
        Before { gone: self.gone.load(Ordering::SeqCst), returns }
    }

    fn report(&self, before: &Before, outcome: std::io::Result<usize>, new: bool) {
        match outcome {
            Ok(index) => {
                let bit = 1 << index;
                let returned = self.returns[index].load(Ordering::SeqCst) != before.returns[index];
                if new && before.gone & bit != 0 && !returned {
                    self.stale.fetch_add(1, Ordering::SeqCst);
                }
            }
            Err(error) => {
                if self.failures.fetch_add(1, Ordering::SeqCst) < 3 {
                    println!("an exchange failed: {error} ({:?})", error.raw_os_error());
                }
            }
        }
        self.exchanges.fetch_add(1, Ordering::SeqCst);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// Answers everything with the backend's index, for as long as the process lives.
fn serve(address: Ipv4Addr, index: usize, protocol: Protocol) {
    let at = (address, FIRST_PORT + index as u16);
    if protocol == Protocol::Udp {
        let socket = UdpSocket::bind(at).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&[index as u8], from);
            }
        });
        return;
    }
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

fn ask(stream: &mut TcpStream) -> std::io::Result<usize> {
    stream.write_all(b"?")?;
    let mut buffer = [0; 1];
    stream.read_exact(&mut buffer)?;
    Ok(buffer[0] as usize)
}

/// Sends a datagram and waits for its answer. Returns the backend's index, and the address that answered.
fn ask_by_datagram(socket: &UdpSocket, to: SocketAddr) -> std::io::Result<(usize, SocketAddr)> {
    let mut buffer = [0; 64];
    socket.send_to(b"?", to)?;
    let (_, from) = socket.recv_from(&mut buffer)?;
    Ok((buffer[0] as usize, from))
}

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, waiting())?;
    stream.set_read_timeout(Some(waiting()))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The maximum time to wait for an answer.
fn waiting() -> Duration {
    scaled(Duration::from_secs(20))
}

/// Opens a connection per exchange.
fn short_connections(ledger: &Ledger, to: SocketAddr) {
    while !ledger.stopped() {
        let before = ledger.before();
        let outcome = connect(to).and_then(|mut stream| {
            let index = ask(&mut stream)?;
            reset(&stream);
            Ok(index)
        });
        ledger.report(&before, outcome, true);
    }
}

/// Uses permanent connections, which keep the backend that they began with.
fn long_connections(ledger: &Ledger, to: SocketAddr) {
    let mut streams: Vec<(TcpStream, usize)> = (0..8)
        .map(|_| {
            let mut stream = connect(to).unwrap();
            let index = ask(&mut stream).unwrap();
            (stream, index)
        })
        .collect();
    while !ledger.stopped() {
        for (stream, index) in &mut streams {
            let before = ledger.before();
            let outcome = ask(stream);
            if let Ok(now) = outcome {
                assert_eq!(now, *index, "an established connection keeps its backend");
            }
            ledger.report(&before, outcome, false);
        }
    }
}

/// Opens a socket per exchange, without a peer of its own.
fn datagrams(ledger: &Ledger, to: SocketAddr) {
    while !ledger.stopped() {
        let before = ledger.before();
        let outcome = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.set_read_timeout(Some(waiting()))?;
            let (index, from) = ask_by_datagram(&socket, to)?;
            assert_eq!(from, to, "the service answers");
            Ok(index)
        });
        ledger.report(&before, outcome, true);
    }
}

/// Uses one socket for all exchanges: it must leave a backend that is gone with its next datagram.
fn one_socket(ledger: &Ledger, to: SocketAddr) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(waiting())).unwrap();
    while !ledger.stopped() {
        let before = ledger.before();
        let outcome = ask_by_datagram(&socket, to);
        ledger.report(&before, outcome.map(|(index, _)| index), true);
    }
}

/// Returns the tables while the backends of `mask` are in use.
fn tables(places: &[Backend; BACKENDS], mask: u32) -> ServiceTables {
    let list: Vec<Backend> =
        (0..BACKENDS).filter(|index| mask & 1 << index != 0).map(|index| places[index]).collect();
    let mut frontends = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        frontends.push(frontend(key("10.96.0.10", VIP.1, protocol, Scope::Internal), &list));
        frontends.push(frontend(key("0.0.0.0", NODE_PORT, protocol, Scope::External), &list));
    }
    frontends.sort_by_key(|frontend| frontend.key);
    ServiceTables { frontends, ..ServiceTables::default() }
}

/// Changes the endpoints under traffic; `open` makes the next process.
fn churn(ledger: &Ledger, places: &[Backend; BACKENDS], mut kernel: Kernel, open: impl Fn() -> Kernel) {
    let mut roll: u32 = 0x2545_f491;
    let changes = u64::from(share(CHANGES));
    let restart = changes / u64::from(share(RESTARTS));
    let mut mask = u32::MAX >> (32 - BACKENDS);
    for change in 0..changes {
        // No faster than the clients, so that every state is reached.
        while ledger.exchanges.load(Ordering::SeqCst) < change {
            std::thread::yield_now();
        }
        roll ^= roll << 13;
        roll ^= roll >> 17;
        roll ^= roll << 5;
        let next = Some(roll >> 8 & 0xff).filter(|mask| *mask != 0).unwrap_or(1);
        for (index, returns) in ledger.returns.iter().enumerate() {
            if next & !mask & 1 << index != 0 {
                ledger.gone.fetch_and(!(1 << index), Ordering::SeqCst);
                returns.fetch_add(1, Ordering::SeqCst);
            }
        }
        if change % restart == restart - 1 {
            drop(kernel);
            kernel = open();
            let all = Tables::from([("test/churn".to_owned(), tables(places, next))]);
            kernel.apply_full(&all).unwrap();
        } else {
            kernel.apply_service("test/churn", Some(&tables(places, next))).unwrap();
        }
        mask = next;
        ledger.gone.fetch_or(!mask & 0xff, Ordering::SeqCst);
    }
}

/// Asserts that nothing went wrong, and that no counter says so.
fn check(ledger: &Ledger, node: &Node) -> BTreeMap<&'static str, u64> {
    let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
    let exchanges = ledger.exchanges.load(Ordering::SeqCst);
    let failures = ledger.failures.load(Ordering::SeqCst);
    let stale = ledger.stale.load(Ordering::SeqCst);
    println!("{exchanges} exchanges, {failures} failed, {stale} with a backend that was gone; {metrics:?}");
    assert!(exchanges >= u64::from(share(CHANGES)));
    for none in [
        "socket_refused",
        "packet_refused",
        "packet_dropped_empty",
        "snat_exhausted",
        "flow_insert_failed",
        "malformed",
        "unallocated_dropped",
        "unknown_port_refused",
    ] {
        assert_eq!(metrics[none], 0, "{none}");
    }
    assert_eq!((failures, stale), (0, 0));
    metrics
}

fn start(
    work: fn(&Ledger, SocketAddr),
    ledger: &Arc<Ledger>,
    to: (Ipv4Addr, u16),
) -> std::thread::JoinHandle<()> {
    let (ledger, to) = (Arc::clone(ledger), SocketAddr::from(to));
    std::thread::spawn(move || work(&ledger, to))
}

/// Runs between namespaces, where every packet passes the programs; half of the backends are on another node.
fn packets(xdp: XdpMode) {
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
        namespace.run(move || {
            serve(address, index, Protocol::Tcp);
            serve(address, index, Protocol::Udp);
        });
    }
    // Room for the remains of all new connections, so that nothing in use is evicted: on a quiet machine there are some
    // 130,000 flows of two slots, and the more, the longer the changes take.
    let limits = Limits { flows4: 1 << 20, ..node.config().limits };
    let config = Config { xdp, xdp_redirect: xdp != XdpMode::Off, limits, ..node.config() };
    let open = move || {
        let mut kernel = Kernel::open(config.clone()).unwrap();
        let addresses = vec![NODE.into(), IpAddr::from([192, 0, 3, 1])];
        kernel.set_node(&NodeTables { addresses, ..NodeTables::default() }).unwrap();
        kernel.set_interfaces(&interfaces()).unwrap();
        kernel
    };
    let all = Arc::clone(&ledger);
    let (clients, pods) = (&cluster.client, &cluster.pod_a);
    let kernel = cluster.node.run({
        let open = open.clone();
        move || {
            let mut kernel = open();
            kernel.apply_service("test/churn", Some(&tables(&places, 0xff))).unwrap();
            kernel
        }
    });
    let mut threads = Vec::new();
    for (namespace, to) in [(clients, (NODE, NODE_PORT)), (pods, VIP)] {
        let ledger = Arc::clone(&ledger);
        threads.extend(namespace.run(move || {
            [short_connections, long_connections, datagrams, one_socket].map(|work| start(work, &ledger, to))
        }));
    }
    cluster.node.run(move || churn(&all, &places, kernel, open));
    ledger.stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    if ledger.failures.load(Ordering::SeqCst) > 0 {
        // Shows whether a queue of the kernel dropped it.
        cluster.show_counters();
    }
    let metrics = check(&ledger, &node);
    assert!(metrics["flow_moved"] > 0, "the one socket has been moved");
    assert_eq!(metrics["xdp_redirected"] > 0, xdp == XdpMode::Generic);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_lose_nothing_while_endpoints_change() {
    packets(XdpMode::Off);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_through_xdp_lose_nothing_while_endpoints_change() {
    packets(XdpMode::Generic);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn sockets_lose_nothing_while_endpoints_change() {
    in_namespace(|| {
        let (node, ledger) = (Node::new(), Arc::new(Ledger::default()));
        let places: [Backend; BACKENDS] = std::array::from_fn(|index| {
            Backend::new(Ipv4Addr::LOCALHOST.into(), FIRST_PORT + index as u16, true)
        });
        for index in 0..BACKENDS {
            serve(Ipv4Addr::LOCALHOST, index, Protocol::Tcp);
            serve(Ipv4Addr::LOCALHOST, index, Protocol::Udp);
        }
        let mut kernel = node.open();
        kernel.apply_service("test/churn", Some(&tables(&places, 0xff))).unwrap();
        let _inside = Inside::enter(&node);
        let threads = [short_connections, long_connections, datagrams, one_socket]
            .map(|work| start(work, &ledger, VIP));
        churn(&ledger, &places, kernel, || node.open());
        ledger.stop.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        check(&ledger, &node);
    });
}
