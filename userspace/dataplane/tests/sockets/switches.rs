//! Connections while backends are switched.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;

use crate::*;

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn no_connection_fails_and_none_reaches_a_removed_backend_while_backends_are_switched() {
    both(|kernel, _, side| {
        let backends: Vec<(TcpListener, Backend)> = (0..6).map(|_| side.tcp()).collect();
        let list: Vec<Backend> = backends.iter().map(|(_, backend)| *backend).collect();
        kernel.apply_service("test/echo", Some(&side.service(Protocol::Tcp, &list[..3]))).unwrap();
        let stop = AtomicBool::new(false);
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        // A reset comes from a backend that has taken the connection.
                        if let Err(error) = TcpStream::connect(side.at(80))
                            && error.kind() != ErrorKind::ConnectionReset
                        {
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
                            // A reset leaves no state that would use up ports.
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
                    .apply_service("test/echo", Some(&side.service(Protocol::Tcp, &list[start..start + 3])))
                    .unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(made.load(Ordering::Relaxed) > 100, "{made:?} connections during the churn");
        // After a switch has returned, no new connection goes to a removed backend.
        kernel.apply_service("test/echo", Some(&side.service(Protocol::Tcp, &list[..1]))).unwrap();
        for (listener, _) in &backends {
            while listener.accept().is_ok() {}
        }
        for _ in 0..50 {
            TcpStream::connect(side.at(80)).unwrap();
        }
        assert!(backends[1..].iter().all(|(listener, _)| listener.accept().is_err()));
    });
}

/// Returns the number of clients without an error that are with another backend than this one.
fn strays(node: &Node, clients: &[UdpSocket], backend: Backend) -> usize {
    let rows = Inspector::open(&node.bpf_root()).unwrap().connections().unwrap();
    let backends: BTreeMap<u64, (IpAddr, u16)> =
        rows.into_iter().filter_map(|row| Some((row.socket?, row.backend))).collect();
    let silent = |client: &&UdpSocket| {
        client.set_nonblocking(true).unwrap();
        match client.peek(&mut [0; 1]).map_err(|error| error.kind()) {
            // After the error, a socket has no peer any more.
            Err(ErrorKind::ConnectionAborted) => false,
            Err(ErrorKind::WouldBlock) => client.peer_addr().is_ok(),
            other => panic!("{other:?}"),
        }
    };
    let stray = |client: &&UdpSocket| backends[&socket_cookie(client)] != (backend.address, backend.port);
    clients.iter().filter(silent).filter(stray).count()
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn no_connected_datagram_socket_stays_with_a_removed_backend() {
    both(|kernel, node, side| {
        let servers: Vec<(UdpSocket, Backend)> = (0..6).map(|_| side.udp()).collect();
        let list: Vec<Backend> = servers.iter().map(|(_, backend)| *backend).collect();
        kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &list[..3]))).unwrap();
        let stop = AtomicBool::new(false);
        let clients: Vec<UdpSocket> = std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut clients = Vec::new();
                    while !stop.load(Ordering::Relaxed) && clients.len() < 400 {
                        let client = UdpSocket::bind((side.unspecified(), 0)).unwrap();
                        client.connect(side.at(80)).unwrap();
                        clients.push(client);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    clients
                })
            });
            for round in 0..300 {
                // The first one is always there.
                let backends = [list[0], list[1 + round % 5], list[1 + (round + 1) % 5]];
                let tables = side.service(Protocol::Udp, &backends);
                kernel.apply_service("test/dns", Some(&tables)).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
            kernel.apply_service("test/dns", Some(&side.service(Protocol::Udp, &list[..1]))).unwrap();
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let start = Instant::now();
        while strays(node, &clients, list[0]) > 0 {
            assert!(start.elapsed() < scaled(Duration::from_secs(5)), "{}", strays(node, &clients, list[0]));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(kernel.sockets_destroyed() > 0);
        // Sockets whose backend was there all the time have been left alone.
        let rows = Inspector::open(&node.bpf_root()).unwrap().connections().unwrap();
        let kept = rows.iter().filter(|row| row.backend == (list[0].address, list[0].port)).count();
        let silent = clients.iter().filter(|client| client.peer_addr().is_ok()).count();
        assert_eq!(silent, kept);
        assert!(kept > 0 && kept < clients.len(), "{kept} of {}", clients.len());
    });
}
