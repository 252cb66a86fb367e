//! Node ports, and the guard of them.

use std::io::ErrorKind;

use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;

use crate::support::frontend;
use crate::*;

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn node_ports_answer_on_loopback_and_on_the_node_s_addresses() {
    inside(|kernel, _| {
        let (_listener, backend) = tcp_backend();
        let tables = service(key("0.0.0.0", 30_080, Protocol::Tcp, Scope::Internal), &[backend]);
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        support::ip("addr add 192.0.2.1/32 dev lo");
        support::ip("addr add 192.0.2.2/32 dev lo");
        kernel.set_node(&node_at("192.0.2.1")).unwrap();
        for address in ["192.0.2.1:30080", "127.0.0.1:30080"] {
            let client = TcpStream::connect(address).unwrap();
            assert_eq!(client.peer_addr().unwrap(), address.parse().unwrap());
        }
        // An address that is not the node's does not serve the node port, and neither does another port.
        for address in ["192.0.2.2:30080", "192.0.2.1:30081"] {
            assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
    });
    // In a pod's namespace, loopback is the pod's.
    inside(|kernel, _| {
        let (_listener, backend) = tcp_backend();
        let tables = service(key("0.0.0.0", 30_080, Protocol::Tcp, Scope::Internal), &[backend]);
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        in_namespace(|| {
            let error = TcpStream::connect((HERE, 30_080)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        });
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn node_ports_of_the_newer_family_answer_as_well() {
    inside(|kernel, _| {
        let (_listener, backend) = SIDES[1].tcp();
        let tables = service(key("::", 30_080, Protocol::Tcp, Scope::Internal), &[backend]);
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        for address in ["fd02::1", "fd02::2"] {
            support::ip(&format!("addr add {address}/128 dev lo nodad"));
            wait_until_usable(address.parse().unwrap());
        }
        kernel.set_node(&node_at("fd02::1")).unwrap();
        for address in ["[fd02::1]:30080", "[::1]:30080"] {
            let client = TcpStream::connect(address).unwrap();
            assert_eq!(client.peer_addr().unwrap(), address.parse().unwrap());
        }
        let error = TcpStream::connect("[fd02::2]:30080").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // The unspecified address means loopback: the node's here, the pod's own in a pod.
        TcpStream::connect("[::]:30080").unwrap();
        in_namespace(|| {
            for address in ["[::]:30080", "[::1]:30080"] {
                let error = TcpStream::connect(address).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
            }
        });
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn processes_of_the_node_do_not_bind_node_ports_in_use() {
    inside(|kernel, node| {
        let (_listener, backend) = tcp_backend();
        let (_listener6, backend6) = SIDES[1].tcp();
        let tables = ServiceTables {
            frontends: vec![
                frontend(key("0.0.0.0", 30_080, Protocol::Tcp, Scope::Internal), &[backend]),
                frontend(key("::", 30_090, Protocol::Tcp, Scope::Internal), &[backend6]),
                frontend(key("0.0.0.0", 30_100, Protocol::Tcp, Scope::External), &[backend]),
            ],
            ..ServiceTables::default()
        };
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        support::ip("addr add 192.0.2.1/32 dev lo");
        support::ip("addr add 192.0.2.2/32 dev lo");
        let mut tables = node_at("192.0.2.1");
        kernel.set_node(&tables).unwrap();
        let taken = [
            "0.0.0.0:30080",
            "127.0.0.1:30080",
            "192.0.2.1:30080",
            "[::]:30080",
            "[::ffff:192.0.2.1]:30080",
            "[::]:30090",
            "[::1]:30090",
        ];
        let free = ["192.0.2.2:30080", "0.0.0.0:30081", "0.0.0.0:30090", "[::1]:30080", "0.0.0.0:30100"];
        for address in taken.iter().chain(&free) {
            TcpListener::bind(address).unwrap_or_else(|error| panic!("not guarded: {address}: {error}"));
        }
        tables.guard_node_ports = true;
        kernel.set_node(&tables).unwrap();
        for address in taken {
            assert_eq!(TcpListener::bind(address).unwrap_err().kind(), ErrorKind::AddrInUse, "{address}");
        }
        for address in free {
            TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        }
        // Another protocol is another port, and connecting is allowed.
        UdpSocket::bind("0.0.0.0:30080").unwrap();
        TcpStream::connect("127.0.0.1:30080").unwrap();
        in_namespace(|| TcpListener::bind("0.0.0.0:30080").unwrap());
        let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
        assert_eq!(metrics["bind_refused"], taken.len() as u64);
        // The service goes, the port is free.
        kernel.apply_service("test/echo", None).unwrap();
        TcpListener::bind("0.0.0.0:30080").unwrap();
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn node_ports_do_not_answer_on_a_loopback_that_is_closed() {
    inside(|kernel, _| {
        let (_listener, backend) = tcp_backend();
        let (_listener6, backend6) = SIDES[1].tcp();
        let tables = ServiceTables {
            frontends: vec![
                frontend(key("0.0.0.0", 30_080, Protocol::Tcp, Scope::Internal), &[backend]),
                frontend(key("::", 30_080, Protocol::Tcp, Scope::Internal), &[backend6]),
            ],
            ..ServiceTables::default()
        };
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        support::ip("addr add 192.0.2.1/32 dev lo");
        let loopback =
            ["127.0.0.1:30080", "0.0.0.0:30080", "[::1]:30080", "[::]:30080", "[::ffff:127.0.0.1]:30080"];
        let mut node = node_at("192.0.2.1");
        node.guard_node_ports = true;
        kernel.set_node(&node).unwrap();
        for address in loopback {
            TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
            assert!(TcpListener::bind(address).is_err(), "{address} is not guarded");
        }
        node.loopback_closed = true;
        kernel.set_node(&node).unwrap();
        for address in loopback {
            let error = TcpStream::connect(address).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
        }
        TcpStream::connect("192.0.2.1:30080").unwrap();
        // Addresses that do not serve node ports may be bound.
        let own = TcpListener::bind("127.0.0.1:30080").unwrap();
        TcpStream::connect("127.0.0.1:30080").unwrap();
        drop(own);
        assert_eq!(TcpListener::bind("0.0.0.0:30080").unwrap_err().kind(), ErrorKind::AddrInUse);
    });
}
