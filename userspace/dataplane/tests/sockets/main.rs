//! Local sockets, through a cgroup of the test's own and the loopback interface.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

#[path = "../support/mod.rs"]
mod support;

mod choice;
mod connect;
mod datagrams;
mod destroy;
mod node_ports;
mod refusals;
mod switches;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use support::shared::with_kernel;
use support::{Inside, Node, backend, in_namespace, key, scaled, service};
use userspace_dataplane::Kernel;
use userspace_dataplane::tables::{Backend, FrontendKey, NodeTables, Protocol, Scope, ServiceTables};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const VIP: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 10), 80);

/// A family of addresses: loopback, and the address of a service.
#[derive(Clone, Copy, Debug)]
struct Side {
    here: IpAddr,
    vip: IpAddr,
}

const SIDES: [Side; 2] = [
    Side { here: HERE, vip: IpAddr::V4(VIP.0) },
    Side {
        here: IpAddr::V6(Ipv6Addr::LOCALHOST),
        vip: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x10)),
    },
];

impl Side {
    fn at(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.vip, port)
    }

    fn key(self, port: u16, protocol: Protocol) -> FrontendKey {
        FrontendKey { address: self.vip, port, protocol, scope: Scope::Internal }
    }

    fn unspecified(self) -> IpAddr {
        match self.here {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Returns the service at port 80.
    fn service(self, protocol: Protocol, backends: &[Backend]) -> ServiceTables {
        service(self.key(80, protocol), backends)
    }

    fn tcp(self) -> (TcpListener, Backend) {
        tcp_backend_at(self.here, 0)
    }

    fn udp(self) -> (UdpSocket, Backend) {
        udp_backend_at(self.here)
    }

    /// Returns the n-th address of this host, added if necessary.
    fn address(self, number: u8) -> IpAddr {
        match self.here {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(127, 0, 1, number)),
            IpAddr::V6(_) => {
                let address = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, number.into());
                support::ip(&format!("addr replace {address}/128 dev lo nodad"));
                wait_until_usable(address);
                address.into()
            }
        }
    }
}

/// Waits until a new address of an interface is usable: the kernel makes the route to it a little later, and
/// on a busy machine connections find it later than datagrams do.
fn wait_until_usable(address: Ipv6Addr) {
    let unreachable = |outcome: std::io::Result<()>| {
        outcome.is_err_and(|error| error.kind() == std::io::ErrorKind::NetworkUnreachable)
    };
    let datagram = || UdpSocket::bind("[::]:0").unwrap().connect((address, 9));
    let connection = || TcpStream::connect((address, 9)).map(drop);
    while unreachable(datagram()) || unreachable(connection()) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a test with a data plane, with the process in its cgroup.
fn inside(test: impl FnOnce(&mut Kernel, &Node) + Send) {
    in_namespace(|| {
        with_kernel(|kernel, node| {
            let _inside = Inside::enter(node);
            test(kernel, node);
        });
    });
}

/// Runs the test with each family.
fn both(test: impl Fn(&mut Kernel, &Node, Side) + Send + Sync) {
    for side in SIDES {
        inside(|kernel, node| test(kernel, node, side));
    }
}

fn vip(protocol: Protocol, backends: &[Backend]) -> ServiceTables {
    service(key("10.96.0.10", VIP.1, protocol, Scope::Internal), backends)
}

fn node_at(address: &str) -> NodeTables {
    NodeTables { addresses: vec![address.parse().unwrap()], ..NodeTables::default() }
}

fn tcp_backend() -> (TcpListener, Backend) {
    tcp_backend_at(HERE, 0)
}

fn tcp_backend_at(address: IpAddr, port: u16) -> (TcpListener, Backend) {
    let listener = TcpListener::bind((address, port)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, backend(address, port, true))
}

fn udp_backend() -> (UdpSocket, Backend) {
    udp_backend_at(HERE)
}

fn udp_backend_at(address: IpAddr) -> (UdpSocket, Backend) {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(scaled(Duration::from_secs(5)))).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, backend(address, port, true))
}

fn udp_client() -> UdpSocket {
    udp_backend().0
}

/// Answers one datagram.
fn answer(server: &UdpSocket, with: &[u8]) {
    let mut buffer = [0; 64];
    let (_, from) = server.recv_from(&mut buffer).unwrap();
    server.send_to(with, from).unwrap();
}

/// Returns the index of the server that has a datagram waiting.
fn waiting(servers: &[(UdpSocket, Backend)]) -> usize {
    let has = |server: &UdpSocket| {
        server.set_nonblocking(true).unwrap();
        let waiting = server.peek_from(&mut [0; 16]).is_ok();
        server.set_nonblocking(false).unwrap();
        waiting
    };
    servers.iter().position(|(server, _)| has(server)).expect("a backend has the datagram")
}

/// Returns the index of the listener that has accepted the one connection that was made, and resets it.
fn accepted(listeners: &[(TcpListener, Backend)]) -> usize {
    let mut hits = Vec::new();
    // The client may be connected before the listener notices.
    let start = std::time::Instant::now();
    while hits.is_empty() && start.elapsed() < scaled(Duration::from_secs(1)) {
        for (number, (listener, _)) in listeners.iter().enumerate() {
            listener.set_nonblocking(true).unwrap();
            while let Ok((stream, _)) = listener.accept() {
                linger_none(&stream);
                hits.push(number);
            }
        }
    }
    assert_eq!(hits.len(), 1, "one connection: {hits:?}");
    hits[0]
}

/// Connects and returns the index of the listener that was reached.
fn reach(to: SocketAddr, listeners: &[(TcpListener, Backend)]) -> usize {
    let client = TcpStream::connect(to).unwrap_or_else(|error| panic!("{to}: {error}"));
    linger_none(&client);
    assert_eq!(client.peer_addr().unwrap(), to);
    accepted(listeners)
}

/// Returns the cookie of the network namespace of this thread.
fn netns_cookie() -> u64 {
    const SO_NETNS_COOKIE: i32 = 71;
    cookie(&UdpSocket::bind("127.0.0.1:0").unwrap(), SO_NETNS_COOKIE)
}

/// Returns the cookie by which programs know the socket.
fn socket_cookie(socket: &UdpSocket) -> u64 {
    cookie(socket, libc::SO_COOKIE)
}

#[allow(unsafe_code)]
fn cookie(socket: &UdpSocket, option: i32) -> u64 {
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    let value = (&raw mut cookie).cast();
    // SAFETY: value and length outlive the call.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, &raw mut length) };
    assert_eq!(result, 0);
    cookie
}

#[allow(unsafe_code)]
fn linger_none(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the value outlives the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}
