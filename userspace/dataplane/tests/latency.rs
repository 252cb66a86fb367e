//! Round-trip times by service, and connections in great number: the output equals the kernel's statements
//! about each socket, and a scan takes little.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "in a test, to panic is to fail")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use support::namespace::{self, Cluster, Namespace};
use support::packet::{Packet, SYN};
use support::topology::{LOCAL_POD, REDIRECT, REMOTE_POD, Topology, VIP, VIP6, at, tcx};
use support::{Inside, Node, backend, frontend, in_namespace, ip, key, service};
use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::{Inspector, Latencies, LatencyWatch};
use userspace_dataplane::tables::{NodeTables, Protocol, Scope, ServiceTables};
use userspace_dataplane::{Config, Kernel, Limits, Program};

const NAME: &str = "test/echo";

/// Times of one socket in seconds, smoothed and least, and retransmitted segments.
#[derive(Debug)]
struct Told {
    rtt: f64,
    least_rtt: f64,
}

/// Returns the kernel's statements about a socket, as its owner gets them.
#[allow(unsafe_code)]
fn told(stream: &TcpStream) -> Told {
    let mut info = [0_u32; 64];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: value and length outlive the call.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert!(result == 0 && length > 152, "TCP_INFO");
    let seconds = |word: usize| f64::from(info[word / 4]) / 1_000_000.0;
    Told { rtt: seconds(68), least_rtt: seconds(148) }
}

fn look(node: &Node) -> Latencies {
    LatencyWatch::default().look(&Inspector::open(&node.bpf_root()).unwrap()).unwrap()
}

/// Sends bytes there and back, so that more than the handshake is measured.
fn exchange(mut client: &TcpStream, mut server: &TcpStream) {
    let mut buffer = [0; 4];
    for _ in 0..5 {
        client.write_all(b"ping").unwrap();
        server.read_exact(&mut buffer).unwrap();
        server.write_all(b"pong").unwrap();
        client.read_exact(&mut buffer).unwrap();
    }
}

fn connected(to: SocketAddr, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(to).unwrap();
    let (server, _) = listener.accept().unwrap();
    exchange(&client, &server);
    (client, server)
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn sockets_that_were_translated_have_the_times_that_the_kernel_tells_their_owners() {
    in_namespace(|| {
        let node = Node::new();
        let mut kernel = node.open();
        let _inside = Inside::enter(&node);
        let listeners = [Ipv4Addr::LOCALHOST.into(), IpAddr::from(Ipv6Addr::LOCALHOST)]
            .map(|address| TcpListener::bind((address, 0)).unwrap());
        let places = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
        let vips = [SocketAddr::from(VIP), SocketAddr::from(VIP6)];
        let frontends = [0, 1].map(|n| {
            let backend = backend(places[n].ip(), places[n].port(), true);
            frontend(key(&vips[n].ip().to_string(), 80, Protocol::Tcp, Scope::Internal), &[backend])
        });
        let tables = ServiceTables { frontends: frontends.into(), ..ServiceTables::default() };
        kernel.apply_service(NAME, Some(&tables)).unwrap();
        let before = look(&node);
        assert!(before.services.is_empty(), "{before:?}");
        // Through the service with either family, with an IPv6 socket to an IPv4 address, and past the
        // service.
        let mapped = SocketAddr::from((VIP.0.to_ipv6_mapped(), VIP.1));
        let through: Vec<(TcpStream, TcpStream)> = [(vips[0], 0), (vips[0], 0), (mapped, 0), (vips[1], 1)]
            .map(|(to, n)| connected(to, &listeners[n]))
            .into();
        let _past = connected(places[0], &listeners[0]);
        let found = look(&node);
        let row = &found.services[NAME];
        let told: Vec<Told> = through.iter().map(|(client, _)| told(client)).collect();
        assert_eq!((found.services.len(), row.connections), (1, 4));
        assert!(found.sockets >= before.sockets + 10 && found.namespaces >= 1, "{found:?}");
        let mut rtts: Vec<f64> = told.iter().map(|told| told.rtt).collect();
        rtts.sort_by(f64::total_cmp);
        assert!(rtts[0] > 0.0 && rtts[3] < 60.0, "{rtts:?}");
        assert_eq!((row.rtt_p50_seconds, row.rtt_max_seconds), (Some(rtts[1]), Some(rtts[3])));
        let least = told.iter().map(|told| told.least_rtt).fold(f64::MAX, f64::min);
        assert_eq!(row.rtt_min_seconds, Some(least));
        assert_eq!(row.retransmits, 0);
        drop(through);
        assert!(look(&node).services.is_empty());
    });
}

/// The one-way delay of the slow link.
const DELAY: Duration = Duration::from_millis(15);

/// Creates an interface whose other end is this process, in the namespace of the calling thread.
#[allow(unsafe_code)]
fn tunnel(address: &str, peer: &str) -> File {
    const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: all fields are integers or pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"slow0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
    assert_eq!(result, 0, "a tunnel: {}", std::io::Error::last_os_error());
    ip(&format!("addr add {address} peer {peer} dev slow0"));
    ip("link set slow0 up");
    file
}

/// Carries packets from one end to the other, each after the delay, until the first end is gone.
fn carry(mut from: File, mut to: File) {
    let (sender, receiver) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok(length) = from.read(&mut buffer) {
            if sender.send((Instant::now(), buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        while let Ok((came, packet)) = receiver.recv() {
            std::thread::sleep((came + DELAY).saturating_duration_since(Instant::now()));
            // An interface that is going down takes nothing.
            let _ = to.write(&packet);
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_slow_link_between_two_other_namespaces_is_seen_from_here() {
    in_namespace(|| {
        let node = Node::new();
        let mut kernel = node.open();
        let _inside = Inside::enter(&node);
        let (near, far) = (Namespace::new(), Namespace::new());
        let here = near.run(|| tunnel("10.9.0.1", "10.9.0.2"));
        let there = far.run(|| tunnel("10.9.0.2", "10.9.0.1"));
        carry(here.try_clone().unwrap(), there.try_clone().unwrap());
        carry(there, here);
        let listener = far.run(|| TcpListener::bind("10.9.0.2:8080").unwrap());
        let slow = backend([10, 9, 0, 2].into(), 8_080, false);
        let vip = key(&VIP.0.to_string(), VIP.1, Protocol::Tcp, Scope::Internal);
        kernel.apply_service(NAME, Some(&service(vip, &[slow]))).unwrap();
        let client = near.run(|| TcpStream::connect(SocketAddr::from(VIP)).unwrap());
        let (server, _) = listener.accept().unwrap();
        exchange(&client, &server);
        let found = look(&node);
        let row = &found.services[NAME];
        assert_eq!(row.connections, 1);
        assert_eq!(row.rtt_p50_seconds, Some(told(&client).rtt));
        // No packet is faster than the link; how much slower one may be depends on the machine.
        let both_ways = 2.0 * DELAY.as_secs_f64();
        assert!(row.rtt_min_seconds.unwrap() >= both_ways, "{row:?}");
        assert!(row.rtt_p50_seconds.unwrap() >= both_ways, "{row:?}");
        assert!(found.namespaces >= 3, "{found:?}");
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_of_packets_count_once_with_what_the_clients_end_has_measured() {
    let cluster = Cluster::new();
    let node = Node::new();
    let config = node.config();
    let _kernel = cluster.node.run(move || {
        let mut kernel = Kernel::open(config).unwrap();
        let addresses = vec![namespace::NODE.into(), namespace::NODE6.into()];
        kernel.set_node(&NodeTables { addresses, ..NodeTables::default() }).unwrap();
        kernel.set_interfaces(&namespace::interfaces()).unwrap();
        let frontends = [("0.0.0.0", IpAddr::from(namespace::POD_A)), ("::", namespace::POD_A6.into())].map(
            |(any, pod)| {
                let backend = backend(pod, 8_080, true);
                frontend(key(any, 30_080, Protocol::Tcp, Scope::External), &[backend])
            },
        );
        let tables = ServiceTables { frontends: frontends.into(), ..ServiceTables::default() };
        kernel.apply_service(NAME, Some(&tables)).unwrap();
        kernel
    });
    let mut open = Vec::new();
    for (pod, entry) in [
        (IpAddr::from(namespace::POD_A), IpAddr::from(namespace::NODE)),
        (namespace::POD_A6.into(), namespace::NODE6.into()),
    ] {
        let listener = cluster.pod_a.run(move || TcpListener::bind((pod, 8_080)).unwrap());
        let client = cluster.client.run(move || TcpStream::connect((entry, 30_080)).unwrap());
        let (server, peer) = listener.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        exchange(&client, &server);
        open.push((client, server));
    }
    let found = look(&node);
    let row = &found.services[NAME];
    assert_eq!((found.services.len(), row.connections), (1, 2));
    let longest = open.iter().map(|(client, _)| told(client).rtt).fold(0.0, f64::max);
    assert_eq!(row.rtt_max_seconds, Some(longest));
}

/// Returns the bytes of private memory of the process.
fn own_memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1_024
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_quarter_of_a_million_connections_are_shown_without_being_kept() {
    const CONNECTIONS: u32 = 240_000;
    in_namespace(|| {
        let topology = Topology::new();
        let node = Node::new();
        let limits = Limits { flows4: 524_288, ..node.config().limits };
        let mut kernel = Kernel::open(Config { limits, ..node.config() }).unwrap();
        let vip = key(&VIP.0.to_string(), VIP.1, Protocol::Tcp, Scope::Internal);
        kernel.apply_service(NAME, Some(&service(vip, &[at(REMOTE_POD, false)]))).unwrap();
        for number in 0..CONNECTIONS {
            let client = Ipv4Addr::from(u32::from(LOCAL_POD.0) + number / 60_000);
            let from = (client, 1_024 + (number % 60_000) as u16);
            let run = tcx(&kernel, Program::PodIngress, &Packet::tcp(from, VIP, SYN), topology.pod);
            assert_eq!(run.verdict, REDIRECT);
        }
        let inspector = Inspector::open(&node.bpf_root()).unwrap();
        let before = own_memory();
        let (mut shown, mut most, began) = (0_u32, 0, Instant::now());
        inspector
            .visit_connections(|row| {
                assert_eq!((row.service.as_str(), row.backend.0), (NAME, REMOTE_POD.0.into()));
                shown += 1;
                if shown.is_multiple_of(10_000) {
                    most = most.max(own_memory());
                }
                true
            })
            .unwrap();
        let (took, grown) = (began.elapsed(), most.saturating_sub(before));
        // Sets of the table fill unevenly, so that a few were evicted.
        assert!((CONNECTIONS * 9 / 10..=CONNECTIONS).contains(&shown), "{shown}");
        assert!(grown < 16 << 20, "{grown} bytes for {shown} connections");
        let began = Instant::now();
        let found = look(&node);
        eprintln!(
            "{shown} connections shown in {took:?} with {grown} bytes more; round-trip times beside them \
             took {:?} for {} sockets in {} namespaces",
            began.elapsed(),
            found.sockets,
            found.namespaces
        );
        // An early end gets no more rows.
        let mut shown = 0;
        inspector
            .visit_connections(|_| {
                shown += 1;
                shown < 10
            })
            .unwrap();
        assert_eq!(shown, 10);
    });
}
