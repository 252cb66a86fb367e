//! Which backend is chosen.

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
