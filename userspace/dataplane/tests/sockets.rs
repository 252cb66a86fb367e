//! Local sockets, through a cgroup of the test's own and the loopback interface.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use support::{Inside, Node, backend, frontend, in_namespace, key, service};
use userspace_dataplane::Kernel;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Applied, Backend, DataPlane, Protocol, Scope, ServiceTables, Tables};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const VIP: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 10), 80);

/// A test with a data plane, in whose cgroup the process is.
fn inside(test: impl FnOnce(&mut Kernel, &Node) + Send) {
    in_namespace(|| {
        let node = Node::new();
        let mut kernel = node.open();
        let _inside = Inside::enter(&node);
        test(&mut kernel, &node);
    });
}

fn vip(protocol: Protocol, backends: &[Backend]) -> ServiceTables {
    service(key("10.96.0.10", VIP.1, protocol, Scope::Internal), backends)
}

fn tcp_backend() -> (TcpListener, Backend) {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, backend(HERE, port, true))
}

fn udp_backend() -> (UdpSocket, Backend) {
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, backend(HERE, port, true))
}

fn udp_client() -> UdpSocket {
    udp_backend().0
}

/// Answers one datagram; gives the socket's number so that tests can tell backends apart.
fn answer(server: &UdpSocket, with: &[u8]) {
    let mut buffer = [0; 64];
    let (_, from) = server.recv_from(&mut buffer).unwrap();
    server.send_to(with, from).unwrap();
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_connection_reaches_the_backend_and_its_peer_is_the_service() {
    inside(|kernel, node| {
        let (listener, backend) = tcp_backend();
        kernel.apply_service("test/echo", Some(&vip(Protocol::Tcp, &[backend]))).unwrap();
        let mut client = TcpStream::connect(VIP).unwrap();
        assert_eq!(client.peer_addr().unwrap(), SocketAddr::from(VIP));
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"ping").unwrap();
        let mut buffer = [0; 4];
        server.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"ping");
        let inspector = Inspector::open(&node.bpf_root()).unwrap();
        let rows = inspector.services().unwrap();
        assert_eq!((rows[0].name.as_str(), rows[0].connections, rows[0].backends), ("test/echo", 1, 1));
        let connections = inspector.connections().unwrap();
        assert_eq!(connections[0].frontend, (VIP.0.into(), VIP.1));
        assert_eq!(connections[0].backend, (backend.address, backend.port));
        // Closed, it is forgotten.
        drop(client);
        assert_eq!(inspector.connections().unwrap(), []);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn without_backends_sockets_are_refused_at_once() {
    inside(|kernel, node| {
        let tables = ServiceTables {
            frontends: vec![
                frontend(key("10.96.0.10", VIP.1, Protocol::Tcp, Scope::Internal), &[]),
                frontend(key("10.96.0.10", VIP.1, Protocol::Udp, Scope::Internal), &[]),
            ],
        };
        kernel.apply_service("test/empty", Some(&tables)).unwrap();
        assert_eq!(TcpStream::connect(VIP).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(udp_client().connect(VIP).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(udp_client().send_to(b"x", VIP).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let mut silent = vip(Protocol::Tcp, &[]);
        silent.frontends[0].drop_when_empty = true;
        kernel.apply_service("test/empty", Some(&silent)).unwrap();
        assert_eq!(TcpStream::connect(VIP).unwrap_err().kind(), ErrorKind::TimedOut);
        let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
        assert_eq!(metrics["socket_refused"], 4);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_spread_over_the_backends() {
    inside(|kernel, _| {
        let backends: Vec<(TcpListener, Backend)> = (0..4).map(|_| tcp_backend()).collect();
        let list: Vec<Backend> = backends.iter().map(|(_, backend)| *backend).collect();
        kernel.apply_service("test/echo", Some(&vip(Protocol::Tcp, &list))).unwrap();
        let mut hits = [0_u32; 4];
        for _ in 0..400 {
            drop(TcpStream::connect(VIP).unwrap());
        }
        for ((listener, _), hits) in backends.iter().zip(&mut hits) {
            listener.set_nonblocking(true).unwrap();
            while listener.accept().is_ok() {
                *hits += 1;
            }
        }
        assert_eq!(hits.iter().sum::<u32>(), 400);
        // Binomial with n = 400, p = 1/4: mean 100, standard deviation 8.7; six of them.
        assert!(hits.iter().all(|count| (48..=152).contains(count)), "{hits:?}");
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn datagrams_of_a_socket_without_a_peer_stay_with_one_backend_and_come_back_from_the_service() {
    inside(|kernel, _| {
        let servers: Vec<(UdpSocket, Backend)> = (0..4).map(|_| udp_backend()).collect();
        let mut list: Vec<Backend> = servers.iter().map(|(_, backend)| *backend).collect();
        kernel.apply_service("test/dns", Some(&vip(Protocol::Udp, &list))).unwrap();
        let client = udp_client();
        client.send_to(b"first", VIP).unwrap();
        let taken = (0..4).find(|number| {
            let (server, _) = &servers[*number];
            server.set_nonblocking(true).unwrap();
            let waiting = server.peek_from(&mut [0; 16]).is_ok();
            server.set_nonblocking(false).unwrap();
            waiting
        });
        let taken = taken.expect("a backend has the datagram");
        let mut buffer = [0; 16];
        for round in 0..20 {
            if round > 0 {
                client.send_to(b"more", VIP).unwrap();
            }
            answer(&servers[taken].0, b"answer");
            let (length, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..length], from), (b"answer".as_slice(), SocketAddr::from(VIP)));
        }
        // Other backends come and go: it stays. Its own goes: it moves at once.
        list.swap(taken, 0);
        kernel.apply_service("test/dns", Some(&vip(Protocol::Udp, &list[..1]))).unwrap();
        client.send_to(b"more", VIP).unwrap();
        answer(&servers[taken].0, b"still");
        let (length, _) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"still");
        kernel.apply_service("test/dns", Some(&vip(Protocol::Udp, &list[1..2]))).unwrap();
        client.send_to(b"moved", VIP).unwrap();
        let (server, _) = servers.iter().find(|(_, backend)| *backend == list[1]).unwrap();
        answer(server, b"moved");
        let (_, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(from, SocketAddr::from(VIP));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_connected_datagram_socket_talks_to_the_service() {
    inside(|kernel, _| {
        let (server, backend) = udp_backend();
        kernel.apply_service("test/dns", Some(&vip(Protocol::Udp, &[backend]))).unwrap();
        let client = udp_client();
        client.connect(VIP).unwrap();
        assert_eq!(client.peer_addr().unwrap(), SocketAddr::from(VIP));
        client.send(b"x").unwrap();
        answer(&server, b"answer");
        let mut buffer = [0; 16];
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (b"answer".as_slice(), SocketAddr::from(VIP)));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn node_ports_answer_on_loopback_and_on_the_node_s_addresses() {
    inside(|kernel, _| {
        let (_listener, backend) = tcp_backend();
        let tables = service(key("0.0.0.0", 30_080, Protocol::Tcp, Scope::Internal), &[backend]);
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        support::ip("addr add 192.0.2.1/32 dev lo");
        support::ip("addr add 192.0.2.2/32 dev lo");
        kernel.set_node_addresses(&["192.0.2.1".parse().unwrap()]).unwrap();
        for address in ["192.0.2.1:30080", "127.0.0.1:30080"] {
            let client = TcpStream::connect(address).unwrap();
            assert_eq!(client.peer_addr().unwrap(), address.parse().unwrap());
        }
        // An address that is not the node's is not the node port's; another port neither.
        for address in ["192.0.2.2:30080", "192.0.2.1:30081"] {
            assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
    });
    // In a pod's namespace, loopback is the pod's.
    in_namespace(|| {
        let node = Node::new();
        let mut kernel = node.open();
        let (_listener, backend) = tcp_backend();
        let tables = service(key("0.0.0.0", 30_080, Protocol::Tcp, Scope::Internal), &[backend]);
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        let _inside = Inside::enter(&node);
        in_namespace(|| {
            let error = TcpStream::connect((HERE, 30_080)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        });
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn sockets_of_the_newer_family_reach_services_of_both() {
    inside(|kernel, _| {
        let (_listener, v4) = tcp_backend();
        let listener6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let v6 = backend(Ipv6Addr::LOCALHOST.into(), listener6.local_addr().unwrap().port(), true);
        let tables = ServiceTables {
            frontends: vec![
                frontend(key("10.96.0.10", 80, Protocol::Tcp, Scope::Internal), &[v4]),
                frontend(key("fd00::10", 80, Protocol::Tcp, Scope::Internal), &[v6]),
                frontend(key("fd00::11", 80, Protocol::Tcp, Scope::Internal), &[]),
            ],
        };
        kernel.apply_service("test/dual", Some(&tables)).unwrap();
        for address in ["[::ffff:10.96.0.10]:80", "[fd00::10]:80"] {
            let client = TcpStream::connect(address).unwrap();
            assert_eq!(client.peer_addr().unwrap(), address.parse().unwrap());
        }
        assert_eq!(TcpStream::connect("[fd00::11]:80").unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_new_process_finds_everything_and_writes_nothing() {
    in_namespace(|| {
        let node = Node::new();
        let (_listener, backend) = tcp_backend();
        let mut tables = Tables::new();
        for number in 0..50_u16 {
            let frontend =
                frontend(key("10.96.0.10", 80 + number, Protocol::Tcp, Scope::Internal), &[backend]);
            tables.insert(format!("test/{number}"), ServiceTables { frontends: vec![frontend] });
        }
        let mut kernel = node.open();
        assert_eq!(kernel.apply_full(&tables).unwrap().frontends_written, 50);
        drop(kernel);
        // Nobody is there, and connections are made all the same.
        let _inside = Inside::enter(&node);
        TcpStream::connect(VIP).unwrap();
        let mut kernel = node.open();
        TcpStream::connect(VIP).unwrap();
        assert_eq!(kernel.apply_full(&tables).unwrap(), Applied::default());
        // The allocator knows what is taken: a change disturbs no other service.
        let changed = vip(Protocol::Tcp, &[backend, backend]);
        kernel.apply_service("test/0", Some(&changed)).unwrap();
        for port in 80..130 {
            TcpStream::connect((VIP.0, port)).unwrap();
        }
        tables.remove("test/7");
        tables.insert("test/0".into(), changed);
        let expected = Applied { frontends_deleted: 1, blocks_freed: 1, ..Applied::default() };
        assert_eq!(kernel.apply_full(&tables).unwrap(), expected);
        let removed = TcpStream::connect_timeout(&SocketAddr::from((VIP.0, 87)), Duration::from_millis(200));
        assert!(removed.is_err(), "a removed service does not answer");
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn no_connection_fails_and_none_reaches_a_removed_backend_while_backends_are_switched() {
    inside(|kernel, _| {
        let backends: Vec<(TcpListener, Backend)> = (0..6).map(|_| tcp_backend()).collect();
        let list: Vec<Backend> = backends.iter().map(|(_, backend)| *backend).collect();
        kernel.apply_service("test/echo", Some(&vip(Protocol::Tcp, &list[..3]))).unwrap();
        let stop = AtomicBool::new(false);
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if let Err(error) = TcpStream::connect(VIP) {
                            stop.store(true, Ordering::Relaxed);
                            panic!("after {made:?} connections: {error}");
                        }
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for (listener, _) in &backends {
                let stop = &stop;
                listener.set_nonblocking(true).unwrap();
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match listener.accept() {
                            // A reset leaves nothing behind that would use up ports.
                            Ok((stream, _)) => linger_none(&stream),
                            Err(_) => std::thread::sleep(Duration::from_micros(200)),
                        }
                    }
                });
            }
            for round in 0..2_000 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let start = round % 4;
                kernel
                    .apply_service("test/echo", Some(&vip(Protocol::Tcp, &list[start..start + 3])))
                    .unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(made.load(Ordering::Relaxed) > 100, "{made:?} connections during the churn");
        // After a switch has returned, no new connection goes to what was removed.
        kernel.apply_service("test/echo", Some(&vip(Protocol::Tcp, &list[..1]))).unwrap();
        for (listener, _) in &backends {
            while listener.accept().is_ok() {}
        }
        for _ in 0..50 {
            TcpStream::connect(VIP).unwrap();
        }
        assert!(backends[1..].iter().all(|(listener, _)| listener.accept().is_err()));
    });
}

#[allow(unsafe_code)]
fn linger_none(stream: &TcpStream) {
    use std::os::fd::AsRawFd;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the value outlives the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}
