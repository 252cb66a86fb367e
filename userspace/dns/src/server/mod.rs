//! The sockets: datagrams, connections, and the pages for probes and metrics.

mod pages;
mod tcp;
mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::Engine;
use crate::limits;

pub use pages::pages;

/// The readiness of the server, as pages and EndpointSlices tell it.
#[derive(Debug, Default)]
pub struct Readiness(AtomicBool);

impl Readiness {
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} by {protocol}")]
pub struct BindError {
    pub address: SocketAddr,
    protocol: &'static str,
    #[source]
    pub cause: io::Error,
}

/// The open sockets of one address.
pub struct Sockets {
    pub address: SocketAddr,
    udp: Vec<UdpSocket>,
    tcp: TcpListener,
}

impl Sockets {
    /// Opens the sockets of an address, with `count` for datagrams, over which the kernel spreads the
    /// queries. Port 0 chooses a free one.
    pub fn open(ip: IpAddr, port: u16, count: usize) -> Result<Self, BindError> {
        let asked = SocketAddr::new(ip, port);
        let failed = |protocol| move |cause: io::Error| BindError { address: asked, protocol, cause };
        let tcp = listen(asked).map_err(failed("TCP"))?;
        let address = tcp.local_addr().map_err(failed("TCP"))?;
        let udp = (0..count.clamp(1, limits::SOCKETS)).map(|_| datagrams(address));
        let udp = udp.collect::<Result<Vec<_>, _>>().and_then(closed).map_err(failed("UDP"))?;
        Ok(Self { address, udp, tcp })
    }

    /// Answers until `stop`, in tasks that `tasks` counts.
    pub fn serve(self, engine: &Arc<Engine>, stop: &CancellationToken, tasks: &TaskTracker) {
        for socket in self.udp {
            tasks.spawn(udp::serve(Arc::new(socket), Arc::clone(engine), stop.clone()));
        }
        tasks.spawn(tcp::serve(self.tcp, Arc::clone(engine), stop.clone()));
    }
}

fn datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket(address, SocketType::DGRAM)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // A burst must not be lost while a task waits for its turn. Without privileges the machine's limit holds.
    if sockopt::set_socket_recv_buffer_size_force(&socket, limits::QUEUE).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, limits::QUEUE)?;
    }
    rustix::net::bind(&socket, &address)?;
    UdpSocket::from_std(socket.into())
}

/// Takes from sockets the right to share their port, once all have it: another process of the same user, such as a
/// container in the node's network, could bind it as well and get its share of the queries. The kernel then chooses
/// a socket by the processor that a query arrives on.
fn closed(sockets: Vec<UdpSocket>) -> io::Result<Vec<UdpSocket>> {
    for (processor, socket) in (0..).zip(&sockets) {
        sockopt::set_socket_reuseport(socket, false)?;
        sockopt::set_socket_incoming_cpu(socket, processor)?;
    }
    Ok(sockets)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address, SocketType::STREAM)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, limits::CONNECTIONS as i32)?;
    TcpListener::from_std(socket.into())
}

fn socket(address: SocketAddr, kind: SocketType) -> io::Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use nix::sched::{CpuSet, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    #[tokio::test]
    async fn queries_are_spread_over_the_sockets_by_processor() {
        let count = std::thread::available_parallelism().unwrap().get().min(limits::SOCKETS);
        for ip in ["127.0.0.1", "::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let sockets = Sockets::open(ip, 0, count).unwrap();
            let address = sockets.address;
            for (processor, socket) in sockets.udp.iter().enumerate() {
                let client = std::thread::spawn(move || {
                    let mut own = CpuSet::new();
                    own.set(processor).unwrap();
                    sched_setaffinity(Pid::from_raw(0), &own).unwrap();
                    let client = std::net::UdpSocket::bind((ip, 0)).unwrap();
                    client.send_to(b"x", address).unwrap();
                });
                client.join().unwrap();
                let mut buffer = [0; 8];
                assert_eq!(socket.recv(&mut buffer).await.unwrap(), 1, "{ip}: {processor}");
            }
        }
    }
}
