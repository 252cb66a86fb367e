//! Node ports, and the guard of them.

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
