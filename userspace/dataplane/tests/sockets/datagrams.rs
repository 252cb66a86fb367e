//! Datagrams, of sockets with and without a peer.

use std::collections::BTreeMap;

use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::Tables;

use crate::*;

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn datagrams_of_a_socket_without_a_peer_stay_with_one_backend_and_come_back_from_the_service() {
    both(|kernel, _, side| {
        let servers: Vec<(UdpSocket, Backend)> = (0..4).map(|_| side.udp()).collect();
        let mut list: Vec<Backend> = servers.iter().map(|(_, backend)| *backend).collect();
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &list))).unwrap();
        let client = side.udp().0;
        client.send_to(b"first", side.at(80)).unwrap();
        let taken = waiting(&servers);
        let mut buffer = [0; 16];
        for round in 0..20 {
            if round > 0 {
                client.send_to(b"more", side.at(80)).unwrap();
            }
            answer(&servers[taken].0, b"answer");
            let (length, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..length], from), (b"answer".as_slice(), side.at(80)));
        }
        // Other backends come and go: it stays. Its own goes: it moves at once.
        list.swap(taken, 0);
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &list[..1]))).unwrap();
        client.send_to(b"more", side.at(80)).unwrap();
        answer(&servers[taken].0, b"still");
        let (length, _) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"still");
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &list[1..2]))).unwrap();
        client.send_to(b"moved", side.at(80)).unwrap();
        let (server, _) = servers.iter().find(|(_, backend)| *backend == list[1]).unwrap();
        answer(server, b"moved");
        let (_, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(from, side.at(80));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_connected_datagram_socket_talks_to_the_service() {
    both(|kernel, _, side| {
        let (server, backend) = side.udp();
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[backend]))).unwrap();
        let client = side.udp().0;
        client.connect(side.at(80)).unwrap();
        assert_eq!(client.peer_addr().unwrap(), side.at(80));
        client.send(b"x").unwrap();
        answer(&server, b"answer");
        let mut buffer = [0; 16];
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (b"answer".as_slice(), side.at(80)));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn one_socket_talks_to_many_services_and_knows_them_apart() {
    inside(|kernel, _| {
        let mut servers: BTreeMap<SocketAddr, UdpSocket> = BTreeMap::new();
        let mut tables = Tables::new();
        for number in 0..16_u16 {
            let side = SIDES[usize::from(number % 2)];
            let (server, backend) = side.udp();
            tables.insert(
                format!("test/{number}"),
                service(side.key(1_000 + number, Protocol::Udp), &[backend]),
            );
            servers.insert(side.at(1_000 + number), server);
        }
        kernel.apply_full(&tables).unwrap();
        // One socket for both families: IPv4-mapped addresses are IPv4.
        let client = UdpSocket::bind("[::]:0").unwrap();
        client.set_read_timeout(Some(scaled(Duration::from_secs(5)))).unwrap();
        let seen = |to: &SocketAddr| match to {
            SocketAddr::V4(to) => SocketAddr::new(to.ip().to_ipv6_mapped().into(), to.port()),
            SocketAddr::V6(_) => *to,
        };
        for round in 0..3 {
            for to in servers.keys() {
                client.send_to(b"question", seen(to)).unwrap();
            }
            for (to, server) in servers.iter().rev() {
                answer(server, to.to_string().as_bytes());
                let mut buffer = [0; 64];
                let (length, from) = client.recv_from(&mut buffer).unwrap();
                assert_eq!(from, seen(to), "round {round}");
                assert_eq!(&buffer[..length], to.to_string().as_bytes());
            }
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_backend_that_was_away_meanwhile_is_not_mistaken_for_the_one_in_its_place() {
    both(|kernel, _, side| {
        let servers = [side.udp(), side.udp(), side.udp()];
        let client = side.udp().0;
        let with = |kernel: &mut Kernel, backend: Backend| {
            kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[backend]))).unwrap();
        };
        // Blocks of one backend follow each other; a place is reused after a few changes.
        for round in 0..60 {
            let (server, backend) = &servers[round % 3];
            with(kernel, *backend);
            client.send_to(b"question", side.at(80)).unwrap();
            answer(server, b"answer");
            let (_, from) = client.recv_from(&mut [0; 16]).unwrap();
            assert_eq!(from, side.at(80));
            if round % 2 == 0 {
                // Two changes without a datagram in between.
                with(kernel, servers[(round + 1) % 3].1);
                with(kernel, servers[(round + 2) % 3].1);
            }
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn closed_socket_has_no_shown_connection() {
    both(|kernel, node, side| {
        let (server, backend) = side.udp();
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &[backend]))).unwrap();
        let inspector = Inspector::open(&node.bpf_root()).unwrap();
        let mut clients = Vec::from([(); 3].map(|()| {
            let client = UdpSocket::bind((side.unspecified(), 0)).unwrap();
            client.send_to(b"ask", side.at(80)).unwrap();
            server.recv(&mut [0; 8]).unwrap();
            client
        }));
        let shown = || {
            let rows = inspector.connections().unwrap();
            rows.iter().filter_map(|row| row.socket).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(shown(), clients.iter().map(socket_cookie).collect());
        clients.truncate(1);
        // The entries of the two others are still in the tables.
        assert_eq!(shown(), [socket_cookie(&clients[0])].into());
    });
}
