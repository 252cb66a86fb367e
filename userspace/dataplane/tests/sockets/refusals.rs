//! Refused connections, and those that are left alone.

use std::io::ErrorKind;

use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::Frontend;

use crate::support::frontend;
use crate::*;

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn without_backends_sockets_are_refused_at_once() {
    inside(|kernel, node| {
        let tables = ServiceTables {
            frontends: vec![
                frontend(key("10.96.0.10", VIP.1, Protocol::Tcp, Scope::Internal), &[]),
                frontend(key("10.96.0.10", VIP.1, Protocol::Udp, Scope::Internal), &[]),
            ],
            ..ServiceTables::default()
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
fn addresses_of_services_do_not_leave_untranslated() {
    both(|kernel, node, side| {
        let (_listener, backend) = side.tcp();
        let mut tables = side.service(Protocol::Tcp, &[backend]);
        tables.frontends.insert(0, Frontend::mark(side.vip));
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        let ranges = ["10.96.0.0/16".parse().unwrap(), "fd00::/108".parse().unwrap()];
        kernel.set_node(&NodeTables { service_ranges: ranges.into(), ..NodeTables::default() }).unwrap();
        let nobodys = match side.vip {
            IpAddr::V4(_) => "10.96.7.7:80".parse::<SocketAddr>().unwrap(),
            IpAddr::V6(_) => "[fd00::7:7]:80".parse().unwrap(),
        };
        TcpStream::connect(side.at(80)).unwrap();
        let undefined = TcpStream::connect(side.at(81)).unwrap_err();
        assert_eq!(undefined.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(TcpStream::connect(nobodys).unwrap_err().kind(), ErrorKind::HostUnreachable);
        let client = side.udp().0;
        // The port exists, for another protocol.
        for port in [80, 81] {
            assert_eq!(client.send_to(b"x", side.at(port)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            assert_eq!(client.connect(side.at(port)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
        assert_eq!(client.send_to(b"x", nobodys).unwrap_err().kind(), ErrorKind::HostUnreachable);
        assert_eq!(client.connect(nobodys).unwrap_err().kind(), ErrorKind::HostUnreachable);
        let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
        assert_eq!((metrics["unknown_port_refused"], metrics["unallocated_dropped"]), (5, 3));
        // In a pod, programs connect a datagram socket to learn their address: nothing is sent.
        in_namespace(|| {
            default_route(side);
            UdpSocket::bind((side.unspecified(), 0)).unwrap().connect(side.at(81)).unwrap();
            let error = TcpStream::connect(side.at(81)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            let error = side.udp().0.send_to(b"x", side.at(81)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        });
        // Addresses outside the ranges are unknown, and not refused.
        let elsewhere = SocketAddr::new(side.here, backend.port);
        TcpStream::connect(elsewhere).unwrap();
    });
}

/// Adds a default route of the namespace, which leads nowhere.
fn default_route(side: Side) {
    support::ip("link add out type veth peer name nowhere");
    support::ip("link set nowhere up");
    support::ip("link set out up");
    match side.here {
        IpAddr::V4(_) => {
            support::ip("addr add 192.0.2.77/24 dev out");
            support::ip("route add default dev out");
        }
        IpAddr::V6(_) => {
            support::ip("addr add fd02::77/64 dev out nodad");
            wait_until_usable("fd02::77".parse().unwrap());
            support::ip("-6 route add default dev out");
        }
    }
}

/// Returns `true` if no hook has translated a connection, in a namespace without a route out.
fn is_untranslated(side: Side) -> bool {
    match TcpStream::connect(side.at(80)) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{error}");
            true
        }
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn sockets_of_exempt_namespaces_are_left_alone() {
    both(|kernel, _, side| {
        let (_listener, backend) = side.tcp();
        kernel.apply_service("test/echo", Some(&side.service(Protocol::Tcp, &[backend]))).unwrap();
        assert!(!is_untranslated(side));
        let before = TcpStream::connect(side.at(80)).unwrap();
        let mut tables = NodeTables { exempt: [netns_cookie()].into(), ..NodeTables::default() };
        tables.service_ranges = vec!["10.96.0.0/16".parse().unwrap(), "fd00::/108".parse().unwrap()];
        kernel.set_node(&tables).unwrap();
        assert!(is_untranslated(side));
        let error = side.udp().0.send_to(b"x", side.at(81)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "unknown ports are left alone too: {error}");
        // A client that was connected before still sees the service.
        assert_eq!(before.peer_addr().unwrap(), side.at(80));
        // Other namespaces are not affected.
        in_namespace(|| {
            let (_own, _) = tcp_backend_at(side.here, backend.port);
            assert!(!is_untranslated(side));
        });
        kernel.set_node(&NodeTables::default()).unwrap();
        assert!(!is_untranslated(side));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn limited_services_are_the_node_s_own_sockets_and_pods_packets() {
    both(|kernel, _, side| {
        let (_listener, backend) = side.tcp();
        let mut tables = side.service(Protocol::Tcp, &[backend]);
        tables.frontends[0].limited = true;
        tables.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        assert!(!is_untranslated(side));
        in_namespace(|| assert!(is_untranslated(side)));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn refusals_are_told_with_the_address_and_the_service() {
    both(|kernel, node, side| {
        let mut events = Inspector::open(&node.bpf_root()).unwrap().events().unwrap();
        let mut tables = side.service(Protocol::Tcp, &[]);
        tables.frontends.insert(0, Frontend::mark(side.vip));
        let mut silent = frontend(side.key(90, Protocol::Tcp), &[]);
        silent.drop_when_empty = true;
        tables.frontends.push(silent);
        kernel.apply_service("test/echo", Some(&tables)).unwrap();
        let ranges = ["10.96.0.0/16".parse().unwrap(), "fd00::/108".parse().unwrap()];
        kernel.set_node(&NodeTables { service_ranges: ranges.into(), ..NodeTables::default() }).unwrap();
        let service = Some("test/echo".to_owned());
        for (port, kind, service) in
            [(80, "refused", &service), (90, "dropped_empty", &service), (81, "unknown_port", &None)]
        {
            TcpStream::connect(side.at(port)).unwrap_err();
            let event = events.read().expect("an event");
            assert_eq!((event.kind.as_str(), event.hook.as_str()), (kind, "socket"));
            assert_eq!((event.destination, event.protocol), ((side.vip, port), 6));
            assert_eq!((&event.service, event.interface), (service, None));
        }
        assert_eq!(events.read(), None);
    });
}
