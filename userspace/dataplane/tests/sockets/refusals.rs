//! What is refused, and what is left alone.

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
