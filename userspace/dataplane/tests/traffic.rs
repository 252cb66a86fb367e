//! Real packets between network namespaces: a client, a node, its pods, another node. No socket is in the
//! node's cgroup, so that all translation happens on interfaces.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "in a test, to panic is to fail")]

#[path = "traffic/bandwidth.rs"]
mod bandwidth;
#[path = "traffic/policy.rs"]
mod policy;
mod support;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::namespace::*;
use support::{Node, backend, frontend, key, scaled};
use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Masquerade, NodeTables, NonMasquerade, Protocol, Scope, ServiceTables};
use userspace_dataplane::{ClassifierHook, Config, Kernel, Limits, XdpMode};

const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const VIP6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10);
const PORT: u16 = 8_080;
const NODE_PORT: u16 = 30_080;

/// A place of both families.
type Dual = (Ipv4Addr, Ipv6Addr);
const AT_NODE: Dual = (NODE, NODE6);
const AT_CLIENT: Dual = (CLIENT, CLIENT6);
const AT_POD_A: Dual = (POD_A, POD_A6);
const AT_POD_B: Dual = (POD_B, POD_B6);
const AT_FAR_POD: Dual = (FAR_POD, FAR_POD6);
const AT_VIP: Dual = (VIP, VIP6);

fn both(place: Dual) -> [IpAddr; 2] {
    [place.0.into(), place.1.into()]
}

/// Starts a cluster whose node balances; the service has these backends, from inside and from outside.
fn start(backends: &'static [(Dual, bool)], xdp: XdpMode) -> (Cluster, Node, Kernel) {
    let cluster = Cluster::new();
    let node = Node::new();
    let config = Config { xdp, xdp_redirect: xdp != XdpMode::Off, ..node.config() };
    let kernel = cluster.node.run(move || {
        let mut kernel = Kernel::open(config).unwrap();
        let addresses = ["192.0.2.1", "192.0.3.1", "2001:db8:2::1", "2001:db8:3::1"];
        let addresses = addresses.map(|address| address.parse().unwrap()).to_vec();
        kernel.set_node(&NodeTables { addresses, ..NodeTables::default() }).unwrap();
        kernel.set_interfaces(&interfaces()).unwrap();
        kernel.apply_service("test/echo", Some(&echo(backends))).unwrap();
        kernel
    });
    (cluster, node, kernel)
}

fn echo(backends: &[(Dual, bool)]) -> ServiceTables {
    let mut frontends = Vec::new();
    for (family, (vip, any)) in [("10.96.0.10", "0.0.0.0"), ("fd00:96::10", "::")].into_iter().enumerate() {
        let list: Vec<_> =
            backends.iter().map(|(place, local)| backend(both(*place)[family], PORT, *local)).collect();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            frontends.push(frontend(key(vip, 80, protocol, Scope::Internal), &list));
            frontends.push(frontend(key(any, NODE_PORT, protocol, Scope::Internal), &list));
            frontends.push(frontend(key(any, NODE_PORT, protocol, Scope::External), &list));
        }
    }
    ServiceTables { frontends, ..ServiceTables::default() }
}

fn serve(namespace: &Namespace, place: Dual) {
    namespace.run(move || {
        for address in both(place) {
            serve_tcp(address, PORT);
            serve_udp(address, PORT);
        }
    });
}

/// Starts a cluster whose node gives packets of pods that leave it the node's address.
fn start_masquerading(hook: ClassifierHook) -> (Cluster, Node, Kernel) {
    let cluster = Cluster::new();
    let node = Node::new();
    let config = Config { xdp: XdpMode::Off, ..node.config() };
    let kernel = cluster.node.run(move || {
        let mut kernel = Kernel::open_with(config, hook).unwrap();
        let range = |text: &str| text.parse().unwrap();
        let own = [NODE.into(), NODE6.into(), "192.0.3.1".parse().unwrap(), "2001:db8:3::1".parse().unwrap()];
        let inside = ["10.1.0.0/16", "10.2.0.0/16", "fd00:1::/64", "fd00:2::/64"];
        let inside = inside.map(|text| (range(text), NonMasquerade::Cluster));
        let exempt = own.map(|address: IpAddr| (address.into(), NonMasquerade::Node));
        let masquerade = Masquerade {
            pods: vec![range("10.1.0.0/24"), range("fd00:1::/64")],
            exempt: inside.into_iter().chain(exempt).collect(),
        };
        let tables = NodeTables {
            addresses: own.to_vec(),
            snat_addresses: vec![NODE.into(), NODE6.into()],
            masquerade: Some(masquerade),
            ..NodeTables::default()
        };
        kernel.set_node(&tables).unwrap();
        kernel.set_interfaces(&interfaces()).unwrap();
        kernel
    });
    (cluster, node, kernel)
}

/// Sends everything that comes back to its sender, which it tells: datagrams that are longer than a link
/// carries, too.
fn mirror(namespace: &Namespace, address: IpAddr, port: u16) {
    namespace.run(move || {
        let socket = UdpSocket::bind((address, port)).unwrap();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                socket.send_to(&buffer[..length], from).unwrap();
            }
        });
    });
}

/// Sends a datagram of this length, and expects it back.
fn reflect(namespace: &Namespace, to: SocketAddr, length: usize) {
    namespace.run(move || {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.set_read_timeout(Some(scaled(Duration::from_secs(10)))).unwrap();
        let sent: Vec<u8> = (0..length).map(|at| at as u8).collect();
        socket.send_to(&sent, to).unwrap();
        let mut back = vec![0; 65_536];
        let (length, from) = socket.recv_from(&mut back).unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!((from, &back[..length]), (to, sent.as_slice()));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_reaches_hosts_outside_that_have_no_route_to_it() {
    for hook in [ClassifierHook::Auto, ClassifierHook::Filter] {
        let (cluster, node, mut kernel) = start_masquerading(hook);
        serve(&cluster.client, AT_CLIENT);
        exchange(&cluster.pod_a, (AT_CLIENT, PORT), AT_NODE);
        for address in both(AT_CLIENT) {
            let at = SocketAddr::from((address, 9_000));
            mirror(&cluster.client, address, at.port());
            for (pod, length) in [(&cluster.pod_a, 100), (&cluster.pod_b, 8_000), (&cluster.pod_a, 60_000)] {
                reflect(pod, at, length);
                ping(pod, address, length);
            }
            // Nobody listens: the error is the pod's.
            let closed = SocketAddr::from((address, 9_001));
            let error = cluster.pod_a.run(move || exchange_udp(closed).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{closed}");
        }
        // A host behind another uplink, which knows the node by its address.
        for address in ["192.0.3.2", "2001:db8:3::2"].map(|address| address.parse::<IpAddr>().unwrap()) {
            mirror(&cluster.far, address, 9_000);
            reflect(&cluster.pod_b, SocketAddr::from((address, 9_000)), 3_000);
            ping(&cluster.pod_b, address, 3_000);
        }
        // A service whose backend is outside needs both translations.
        kernel.apply_service("test/echo", Some(&echo(&[(AT_CLIENT, false)]))).unwrap();
        exchange(&cluster.pod_b, (AT_VIP, 80), AT_NODE);
        // Pods see each other's addresses.
        serve(&cluster.pod_b, AT_POD_B);
        exchange(&cluster.pod_a, (AT_POD_B, PORT), AT_POD_A);
        let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
        assert!(metrics["masqueraded"] > 20 && metrics["masquerade_exhausted"] == 0, "{metrics:?}");
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_to_the_outside_outlive_the_process() {
    let (cluster, node, kernel) = start_masquerading(ClassifierHook::Auto);
    serve(&cluster.client, AT_CLIENT);
    let stop = Arc::new(AtomicBool::new(false));
    let (done, finished) = std::sync::mpsc::channel();
    for address in both(AT_CLIENT) {
        let (to, done, stop) = (SocketAddr::from((address, PORT)), done.clone(), stop.clone());
        cluster.pod_a.spawn(move || {
            let lasting = std::panic::catch_unwind(|| keep_talking(to, &stop)).unwrap_or(0);
            done.send(lasting).unwrap();
        });
    }
    drop(kernel);
    exchange(&cluster.pod_b, (AT_CLIENT, PORT), AT_NODE);
    let config = node.config();
    let _kernel = cluster.node.run(move || Kernel::open(config).unwrap());
    exchange(&cluster.pod_b, (AT_CLIENT, PORT), AT_NODE);
    stop.store(true, Ordering::Relaxed);
    drop(done);
    let rounds: Vec<usize> = finished.iter().collect();
    assert!(rounds.len() == 2 && rounds.iter().all(|rounds| *rounds > 1), "{rounds:?}");
}

/// Exchanges data in both families and protocols, enough for large segments; the server has to see `seen`.
#[track_caller]
fn exchange(from: &Namespace, to: (Dual, u16), seen: Dual) {
    for (address, expected) in both(to.0).into_iter().zip(both(seen)) {
        let to = SocketAddr::from((address, to.1));
        let found = from.run(move || {
            let exchanges = [exchange_tcp(to, 5), exchange_tcp(to, 2_000_000), exchange_udp(to)];
            exchanges.map(|seen| seen.unwrap_or_else(|error| panic!("{to}: {error}")).ip())
        });
        assert_eq!(found, [expected; 3], "{to}");
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_outside_reaches_a_local_pod_under_its_own_address() {
    let (cluster, _node, _kernel) = start(&[(AT_POD_A, true)], XdpMode::Off);
    serve(&cluster.pod_a, AT_POD_A);
    exchange(&cluster.client, (AT_NODE, NODE_PORT), AT_CLIENT);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_outside_reaches_a_pod_elsewhere_through_the_node() {
    for xdp in [XdpMode::Off, XdpMode::Generic] {
        let (cluster, node, _kernel) = start(&[(AT_FAR_POD, false)], xdp);
        if xdp == XdpMode::Generic {
            for outside in [&cluster.client, &cluster.far] {
                outside.run(|| support::offloads_off("eth0"));
            }
        }
        serve(&cluster.far, AT_FAR_POD);
        exchange(&cluster.client, (AT_NODE, NODE_PORT), AT_NODE);
        let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
        assert_eq!(metrics["xdp_redirected"] > 0, xdp == XdpMode::Generic, "{metrics:?}");
        assert_eq!(metrics["flow_created"], 6);
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_outside_reaches_a_server_on_the_node() {
    let (cluster, _node, _kernel) = start(&[(AT_NODE, true)], XdpMode::Off);
    serve(&cluster.node, AT_NODE);
    exchange(&cluster.client, (AT_NODE, NODE_PORT), AT_CLIENT);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_reaches_a_pod_beside_it_elsewhere_and_a_server_on_the_node() {
    static BESIDE: [(Dual, bool); 1] = [(AT_POD_B, true)];
    static NODES: [(Dual, bool); 1] = [(AT_NODE, true)];
    for backends in [&BESIDE, &NODES] {
        let (cluster, _node, _kernel) = start(backends, XdpMode::Off);
        serve(&cluster.pod_b, AT_POD_B);
        serve(&cluster.node, AT_NODE);
        exchange(&cluster.pod_a, (AT_VIP, 80), AT_POD_A);
        exchange(&cluster.pod_a, (AT_NODE, NODE_PORT), AT_POD_A);
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_reaches_itself() {
    let (cluster, _node, _kernel) = start(&[(AT_POD_A, true)], XdpMode::Off);
    serve(&cluster.pod_a, AT_POD_A);
    exchange(&cluster.pod_a, (AT_VIP, 80), AT_NODE);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn without_backends_everyone_is_refused_at_once() {
    for xdp in [XdpMode::Off, XdpMode::Generic] {
        let (cluster, _node, _kernel) = start(&[], xdp);
        for (from, place, port) in [(&cluster.pod_a, AT_VIP, 80), (&cluster.client, AT_NODE, NODE_PORT)] {
            for address in both(place) {
                let to = SocketAddr::from((address, port));
                let (tcp, udp) = from.run(move || (exchange_tcp(to, 1), exchange_udp(to)));
                assert_eq!(tcp.unwrap_err().kind(), ErrorKind::ConnectionRefused, "{to}");
                assert_eq!(udp.unwrap_err().kind(), ErrorKind::ConnectionRefused, "{to}");
            }
        }
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_outlive_the_process() {
    let (cluster, node, kernel) = start(&[(AT_POD_A, true)], XdpMode::Off);
    serve(&cluster.pod_a, AT_POD_A);
    drop(kernel);
    exchange(&cluster.client, (AT_NODE, NODE_PORT), AT_CLIENT);
    let config = node.config();
    let _kernel = cluster.node.run(move || Kernel::open(config).unwrap());
    exchange(&cluster.client, (AT_NODE, NODE_PORT), AT_CLIENT);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn nobody_notices_when_processes_come_and_go() {
    let (cluster, node, kernel) = start(&[(AT_FAR_POD, false)], XdpMode::Off);
    serve(&cluster.far, AT_FAR_POD);
    // Permanent connections, and new ones, one after the other.
    let stop = Arc::new(AtomicBool::new(false));
    let (done, finished) = std::sync::mpsc::channel();
    for address in both(AT_NODE) {
        let (to, done, stop) = (SocketAddr::from((address, NODE_PORT)), done.clone(), stop.clone());
        cluster.client.spawn(move || {
            let lasting = std::panic::catch_unwind(|| keep_talking(to, &stop)).unwrap_or(0);
            done.send(lasting).unwrap();
        });
        cluster.client.run(move || exchange_udp(to).unwrap());
    }
    let mut kernel = Some(kernel);
    for _ in 0..3 {
        drop(kernel.take());
        let config = node.config();
        kernel = Some(cluster.node.run(move || Kernel::open(config).unwrap()));
        let applied =
            kernel.as_mut().unwrap().apply_service("test/echo", Some(&echo(&[(AT_FAR_POD, false)])));
        assert_eq!(applied.unwrap(), Default::default(), "nothing to write");
        for address in both(AT_NODE) {
            let to = SocketAddr::from((address, NODE_PORT));
            cluster.client.run(move || exchange_tcp(to, 5).unwrap());
        }
    }
    stop.store(true, Ordering::Relaxed);
    drop(done);
    let rounds: Vec<usize> = finished.iter().collect();
    assert!(rounds.len() == 2 && rounds.iter().all(|rounds| *rounds > 100), "{rounds:?}");
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

/// The service that the older binary balances: its one backend is [`FAR_POD`], by IPv4 alone.
#[test]
#[ignore = "needs root, eBPF and an older build of the data plane: HAWSER_OLDER names a program that opens \
            the data plane at the pins and the cgroup it is given, with an echo service"]
fn a_newer_binary_takes_over_from_an_older_one_while_traffic_goes_on() {
    let Some(older) = std::env::var_os("HAWSER_OLDER") else {
        eprintln!("no older build is given");
        return;
    };
    let (cluster, node) = (Cluster::new(), Node::new());
    let (root, cgroup) = (node.bpf_root(), node.cgroup().to_path_buf());
    cluster.node.run(move || {
        let status = std::process::Command::new(older).arg(root).arg(cgroup).status().unwrap();
        assert!(status.success(), "{status}");
    });
    serve(&cluster.far, AT_FAR_POD);
    let stop = Arc::new(AtomicBool::new(false));
    let (done, finished) = std::sync::mpsc::channel();
    let (from, to) = (&cluster.client, SocketAddr::from((NODE, NODE_PORT)));
    let (lasting, stopping) = (done.clone(), stop.clone());
    from.spawn(move || {
        let rounds = std::panic::catch_unwind(|| keep_talking(to, &stopping)).unwrap_or(0);
        lasting.send(("lasting", rounds)).unwrap();
    });
    let (fresh, stopping) = (done.clone(), stop.clone());
    from.spawn(move || {
        let (mut rounds, mut failures) = (0, 0);
        while !stopping.load(Ordering::Relaxed) {
            match exchange_tcp(to, 5).and_then(|_| exchange_udp(to)) {
                Ok(_) => rounds += 1,
                Err(error) => {
                    eprintln!("{to}: {error}");
                    failures += 1;
                }
            }
        }
        // A connection that begins in the old table after it was copied, and goes on in the new one before
        // that is corrected, is lost.
        fresh.send(("fresh", if failures > 1 { 0 } else { rounds })).unwrap();
    });
    std::thread::sleep(Duration::from_secs(1));
    // Room for all the short connections besides the lasting ones.
    let config = node.config();
    let config = Config { limits: Limits { flows4: 1 << 18, ..config.limits }, ..config };
    let mut kernel = cluster.node.run(move || Kernel::open(config).unwrap());
    std::thread::sleep(Duration::from_secs(1));
    kernel.apply_service("test/echo", Some(&echo(&[(AT_FAR_POD, false)]))).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    stop.store(true, Ordering::Relaxed);
    drop(done);
    let rounds: Vec<(&str, usize)> = finished.iter().collect();
    assert!(rounds.len() == 2 && rounds.iter().all(|(_, rounds)| *rounds > 20), "{rounds:?}");
}
