//! Datagrams, of sockets with and without a peer.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::*;

use crate::support::{self, Inside, Node, backend, frontend, in_namespace, key, service};
use crate::*;
use userspace_dataplane::Kernel;

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
