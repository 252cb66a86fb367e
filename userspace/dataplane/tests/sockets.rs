//! Local sockets, through a cgroup of the test's own and the loopback interface.
#![allow(unsafe_code)]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use support::{Inside, Node, backend, in_namespace, key, service};
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Backend, DataPlane, Protocol, Scope};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn listener() -> (TcpListener, Backend) {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, backend(HERE, port, true))
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_connection_reaches_the_backend_and_its_peer_is_the_service() {
    in_namespace(|| {
        let node = Node::new();
        let mut kernel = node.open();
        let (listener, backend) = listener();
        let vip = key("10.96.0.10", 80, Protocol::Tcp, Scope::Internal);
        kernel.apply_service("test/echo", Some(&service(vip, &[backend]))).unwrap();
        let _inside = Inside::enter(&node);
        let mut client = TcpStream::connect(("10.96.0.10", 80)).unwrap();
        assert_eq!(client.peer_addr().unwrap(), SocketAddr::new(vip.address, 80));
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"ping").unwrap();
        let mut buffer = [0; 4];
        server.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"ping");
        let inspector = Inspector::open(&node.bpf_root()).unwrap();
        let rows = inspector.services().unwrap();
        assert_eq!((rows[0].name.as_str(), rows[0].connections, rows[0].backends), ("test/echo", 1, 1));
        let connections = inspector.connections().unwrap();
        assert_eq!(connections[0].frontend, (vip.address, 80));
        assert_eq!(connections[0].backend, (backend.address, backend.port));
    });
}
