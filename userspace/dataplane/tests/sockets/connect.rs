//! Connections and their peers.

use std::io::{ErrorKind, Read, Write};

use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Applied, Tables};

use crate::support::frontend;
use crate::*;

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
        // Once closed, it is forgotten.
        drop(client);
        assert_eq!(inspector.connections().unwrap(), []);
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
            ..ServiceTables::default()
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
            tables.insert(
                format!("test/{number}"),
                ServiceTables { frontends: vec![frontend], ..ServiceTables::default() },
            );
        }
        let mut kernel = node.open();
        assert_eq!(kernel.apply_full(&tables).unwrap().frontends_written, 50);
        drop(kernel);
        // There is no backend process, and connections are made all the same.
        let _inside = Inside::enter(&node);
        TcpStream::connect(VIP).unwrap();
        let mut kernel = node.open();
        TcpStream::connect(VIP).unwrap();
        assert_eq!(kernel.apply_full(&tables).unwrap(), Applied::default());
        // The allocator knows the space in use: a change affects no other service.
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
fn a_socket_that_connects_elsewhere_is_the_service_s_no_more() {
    both(|kernel, node, side| {
        let (server, backend) = side.udp();
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[backend]))).unwrap();
        let client = UdpSocket::bind((side.here, 0)).unwrap();
        client.connect(side.at(80)).unwrap();
        assert_eq!(client.peer_addr().unwrap(), side.at(80));
        // The backend itself, past the service.
        client.connect(server.local_addr().unwrap()).unwrap();
        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
        let inspector = Inspector::open(&node.bpf_root()).unwrap();
        assert_eq!(inspector.connections().unwrap(), []);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn many_connections_keep_their_peers() {
    both(|kernel, node, side| {
        let (_listener, backend) = side.udp();
        let mut tables = Tables::new();
        for number in 0..20_u16 {
            let key = side.key(1_000 + number, Protocol::Udp);
            tables.insert(format!("test/{number}"), service(key, &[backend]));
        }
        kernel.apply_full(&tables).unwrap();
        // More than a set of slots holds for consecutive cookies, each set many times over.
        let clients: Vec<(UdpSocket, SocketAddr)> = (0..900_u16)
            .map(|number| {
                let (client, to) = (UdpSocket::bind((side.here, 0)).unwrap(), side.at(1_000 + number % 20));
                client.connect(to).unwrap();
                (client, to)
            })
            .collect();
        for (client, to) in &clients {
            assert_eq!(client.peer_addr().unwrap(), *to);
        }
        let inspector = Inspector::open(&node.bpf_root()).unwrap();
        assert_eq!(inspector.connections().unwrap().len(), clients.len());
        drop(clients);
        assert_eq!(inspector.connections().unwrap(), []);
    });
}
