//! Connected datagram sockets leave a backend that is gone.

use std::io::ErrorKind;
use std::time::Instant;

use ebpf_common::flow::{FlowTags, WAYS};
use ebpf_common::socket::Connected;
use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;

use crate::support::elements::Elements;
use crate::*;

/// Returns a client of the service that waits for answers no longer than this.
fn client(side: Side) -> UdpSocket {
    let client = UdpSocket::bind((side.unspecified(), 0)).unwrap();
    client.set_read_timeout(Some(scaled(Duration::from_secs(5)))).unwrap();
    client.connect(side.at(80)).unwrap();
    client
}

/// Checks that the client, waiting for an answer, gets an error; returns the time until then.
fn is_told(client: &UdpSocket) -> Duration {
    let start = Instant::now();
    let error = client.recv(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    start.elapsed()
}

/// Checks that the socket is unaffected: it sends and gets answers.
fn goes_on(client: &UdpSocket, server: &UdpSocket) {
    client.send(b"still").unwrap();
    answer(server, b"answer");
    assert_eq!(client.recv(&mut [0; 16]).unwrap(), 6);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_connected_client_is_told_and_its_next_connection_reaches_a_backend_that_is_there() {
    both(|kernel, _, side| {
        let before = kernel.sockets_destroyed();
        let servers = [side.udp(), side.udp()];
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[servers[0].1]))).unwrap();
        let (leaves, direct) = (client(side), UdpSocket::bind((side.here, 0)).unwrap());
        // Others that talk to the same backend: past the service, and through another one.
        direct.connect((side.here, servers[0].1.port)).unwrap();
        direct.set_read_timeout(Some(scaled(Duration::from_secs(5)))).unwrap();
        let other = service(side.key(81, Protocol::Udp), &[servers[0].1]);
        kernel.apply_service("test/other", Some(&other)).unwrap();
        let through = UdpSocket::bind((side.unspecified(), 0)).unwrap();
        through.connect(side.at(81)).unwrap();
        through.set_read_timeout(Some(scaled(Duration::from_secs(5)))).unwrap();
        goes_on(&leaves, &servers[0].0);

        let mut waits = Vec::new();
        for round in 1..=5 {
            let (server, backend) = &servers[round % 2];
            kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[*backend]))).unwrap();
            waits.push(is_told(&leaves));
            leaves.connect(side.at(80)).unwrap();
            goes_on(&leaves, server);
        }
        // A scan begins a tenth of a second after the change. A fault makes every wait long, or leaves it to
        // the scan of every half minute; a machine that is busy with other tests delays one or two, by far
        // less than that.
        waits.sort();
        assert!(waits[2] < scaled(Duration::from_secs(1)), "{waits:?}");
        assert!(waits[4] < scaled(Duration::from_secs(4)), "{waits:?}");
        goes_on(&direct, &servers[0].0);
        goes_on(&through, &servers[0].0);
        // A backend that joins disturbs no client.
        let list = [servers[0].1, servers[1].1];
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &list))).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        goes_on(&leaves, &servers[1].0);
        assert_eq!(kernel.sockets_destroyed() - before, 5);
        let reconciled = kernel.check().unwrap().reconciled;
        let of_family = if side.here.is_ipv4() { reconciled.destroyed4 } else { reconciled.destroyed6 };
        assert!(of_family >= 5 && reconciled.looks.len() >= 5, "{reconciled:?}");
        assert_eq!(reconciled.destroyed4 + reconciled.destroyed6, kernel.sockets_destroyed());
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn no_endpoints_and_no_service_are_told_too() {
    both(|kernel, _, side| {
        let (_server, backend) = side.udp();
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[backend]))).unwrap();
        let first = client(side);
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[]))).unwrap();
        is_told(&first);
        assert_eq!(first.connect(side.at(80)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[backend]))).unwrap();
        let second = client(side);
        kernel.apply_service("test/dns", None).unwrap();
        is_told(&second);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_in_a_pod_is_found() {
    inside(|kernel, _| {
        let before = kernel.sockets_destroyed();
        let (_server, backend) = udp_backend();
        kernel.apply_service("test/dns", Some(&vip(Protocol::Udp, &[backend]))).unwrap();
        std::thread::scope(|scope| {
            let (ready, connected) = std::sync::mpsc::channel();
            let pod = scope.spawn(move || {
                in_namespace(|| {
                    // IPv4, and IPv4-mapped: both are IPv4 on the wire.
                    let plain = client(SIDES[0]);
                    let mapped = UdpSocket::bind("[::]:0").unwrap();
                    mapped.connect("[::ffff:10.96.0.10]:80").unwrap();
                    mapped.set_read_timeout(Some(scaled(Duration::from_secs(5)))).unwrap();
                    ready.send(()).unwrap();
                    is_told(&plain);
                    is_told(&mapped);
                });
            });
            connected.recv().unwrap();
            kernel.apply_service("test/dns", Some(&vip(Protocol::Udp, &[]))).unwrap();
            pod.join().unwrap();
        });
        let start = Instant::now();
        while kernel.sockets_destroyed() < before + 2 {
            assert!(start.elapsed() < scaled(Duration::from_secs(5)), "both are counted");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_process_that_comes_after_finishes_what_another_had_begun() {
    in_namespace(|| {
        let node = Node::new();
        let (_server, backend) = udp_backend();
        let mut tables = userspace_dataplane::tables::Tables::new();
        tables.insert("test/dns".into(), vip(Protocol::Udp, &[backend]));
        let mut kernel = node.open();
        kernel.apply_full(&tables).unwrap();
        let _inside = Inside::enter(&node);
        let client = client(SIDES[0]);
        tables.insert("test/dns".into(), vip(Protocol::Udp, &[]));
        kernel.apply_full(&tables).unwrap();
        // It dies before its scan.
        drop(kernel);
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
        client.set_nonblocking(false).unwrap();
        let mut kernel = node.open();
        kernel.apply_full(&tables).unwrap();
        is_told(&client);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn streams_to_a_backend_that_is_gone_are_left_alone() {
    use std::io::{Read as _, Write as _};
    both(|kernel, _, side| {
        let before = kernel.sockets_destroyed();
        let (listener, backend) = side.tcp();
        kernel.apply_service("test/echo", Some(&side.service(Protocol::Tcp, &[backend]))).unwrap();
        let mut client = TcpStream::connect(side.at(80)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        kernel.apply_service("test/echo", Some(&side.service(Protocol::Tcp, &[]))).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        client.write_all(b"still").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(client.peer_addr().unwrap(), side.at(80));
        assert_eq!(kernel.sockets_destroyed(), before);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_socket_whose_set_of_slots_is_full_is_kept_elsewhere() {
    both(|kernel, node, side| {
        let (server, backend) = side.udp();
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[backend]))).unwrap();
        let client = UdpSocket::bind((side.unspecified(), 0)).unwrap();
        client.set_read_timeout(Some(scaled(Duration::from_secs(5)))).unwrap();
        let maps = kernel.maps_directory();
        let tags = Elements::open(&maps.join("CONNECTED_TAGS"), size_of::<FlowTags>());
        // The set is full, with the tags of sixteen other sockets.
        let others: Vec<u8> = (1..=WAYS).flat_map(u32::to_ne_bytes).collect();
        tags.write(Connected::set(socket_cookie(&client)), &others);
        client.connect(side.at(80)).unwrap();
        assert_eq!(tags.read(Connected::set(socket_cookie(&client))).unwrap(), others);
        assert_eq!(client.peer_addr().unwrap(), side.at(80));
        goes_on(&client, &server);
        let rows = Inspector::open(&node.bpf_root()).unwrap().connections().unwrap();
        assert_eq!((rows.len(), rows[0].socket), (1, Some(socket_cookie(&client))));
        kernel.apply_service("test/dns", None).unwrap();
        is_told(&client);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_that_went_on_to_what_no_hook_translates_is_left_alone() {
    inside(|kernel, _| {
        let (_server, backend) = udp_backend();
        kernel.apply_service("test/dns", Some(&vip(Protocol::Udp, &[backend]))).unwrap();
        let (_other, behind) = udp_backend();
        let mut limited = service(key("10.96.0.10", 81, Protocol::Udp, Scope::Internal), &[behind]);
        limited.frontends[0].limited = true;
        limited.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
        kernel.apply_service("test/limited", Some(&limited)).unwrap();
        let before = kernel.sockets_destroyed();
        std::thread::scope(|scope| {
            let (ready, connected) = std::sync::mpsc::channel();
            let (lost, gone) = std::sync::mpsc::channel();
            let pod = scope.spawn(move || {
                in_namespace(move || {
                    // The packet path decides whether the pod's address is admitted: the socket is connected
                    // to the address of the service itself.
                    support::ip("route add 10.96.0.0/16 dev lo");
                    let moved = client(SIDES[0]);
                    moved.connect((VIP.0, 81)).unwrap();
                    let stays = client(SIDES[0]);
                    ready.send(()).unwrap();
                    gone.recv().unwrap();
                    is_told(&stays);
                    std::thread::sleep(Duration::from_millis(200));
                    moved.set_nonblocking(true).unwrap();
                    assert_eq!(moved.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
                    assert_eq!(moved.peer_addr().unwrap(), SocketAddr::from((VIP.0, 81)));
                });
            });
            connected.recv().unwrap();
            kernel.apply_service("test/dns", Some(&vip(Protocol::Udp, &[]))).unwrap();
            lost.send(()).unwrap();
            pod.join().unwrap();
        });
        assert_eq!(kernel.sockets_destroyed() - before, 1);
    });
}
