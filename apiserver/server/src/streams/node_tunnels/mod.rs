//! The tunnels that nodes keep to this server, for those that it cannot dial: the registry, and the choice of the way.

mod metered;
pub mod places;
pub mod reachability;

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use userspace_daemon::metrics::Counter;
use userspace_daemon::tunnel::{DialError, Dialer, TunnelStream};

use crate::clients::budget::Charge;
use crate::clients::frame_limit::Earnings;
use crate::limits;
use metered::Metered;
use places::{Applicant, NoPlace, Place, Places};
use reachability::{Destination, Experience, Known, Server, Step, Way};

/// The tunnels of all nodes to this server.
pub struct Tunnels {
    began: Instant,
    /// The number of the next tunnel.
    next: AtomicU64,
    nodes: Mutex<HashMap<String, Node>>,
    /// By [`Destination::ALL`] and [`Way::ALL`]: connections that were made, and attempts that failed.
    dials: [[[Counter; 2]; 2]; 2],
}

impl Default for Tunnels {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            next: AtomicU64::default(),
            nodes: Mutex::default(),
            dials: Default::default(),
        }
    }
}

/// A node that has tunnels.
#[derive(Default)]
struct Node {
    /// The newest last.
    tunnels: Vec<Tunnel>,
    experience: Experience,
}

struct Tunnel {
    id: u64,
    /// `None` once nothing new goes through it. It carries on what it has, and ends with that: HTTP/2 closes a connection
    /// without streams that nobody can open one in.
    dialer: Option<Dialer>,
    earnings: Arc<Earnings>,
    /// The places for connections to pods.
    pods: Arc<Places>,
    /// Cancelled to end it at once.
    closed: CancellationToken,
}

/// Keeps a tunnel in the registry until it is dropped.
pub struct Registered {
    tunnels: Arc<Tunnels>,
    node: String,
    id: u64,
    closed: CancellationToken,
}

impl Registered {
    /// Takes no new connections from now on: the credentials that it was opened with have ended.
    pub fn retire(&self) {
        let mut nodes = self.tunnels.lock();
        let tunnels = nodes.get_mut(&self.node).map(|node| &mut node.tunnels);
        for tunnel in tunnels.into_iter().flatten().filter(|tunnel| tunnel.id == self.id) {
            tunnel.dialer = None;
        }
    }

    /// Returns the token that ends the tunnel at once.
    pub fn closed(&self) -> &CancellationToken {
        &self.closed
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut nodes = self.tunnels.lock();
        let Some(node) = nodes.get_mut(&self.node) else { return };
        node.tunnels.retain(|tunnel| tunnel.id != self.id);
        if node.tunnels.is_empty() {
            nodes.remove(&self.node);
        }
    }
}

/// A server on a node was not reached through a tunnel.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The tunnel ended since the way was chosen.
    #[error("its tunnel has ended")]
    None,
    /// A node resolves no names for others.
    #[error("{0:?} is not the address of a pod")]
    Name(String),
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    #[error(transparent)]
    Dial(#[from] DialError),
    /// TLS with the server failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl TunnelError {
    /// Returns `true` if another tunnel to the same node may do better: an old one may lead through a balancer that has
    /// not broken it.
    pub fn is_of_the_tunnel(&self) -> bool {
        match self {
            Self::Dial(error) => error.is_of_the_tunnel(),
            Self::Io(_) | Self::NoPlace(_) => true,
            Self::None | Self::Name(_) => false,
        }
    }
}

/// A tunnel that takes connections.
pub struct Usable {
    dialer: Dialer,
    earnings: Arc<Earnings>,
    pods: Arc<Places>,
}

impl Usable {
    /// Opens a connection to a server of this kind, as `userspace_daemon::tunnel` names it. One to a pod takes a place,
    /// which `applicant` asks for.
    pub async fn dial(
        self,
        kind: Destination,
        to: &str,
        (applicant, charge): (Applicant<'_>, Charge),
    ) -> Result<Carried, TunnelError> {
        let Self { dialer, earnings, pods } = self;
        let place = match kind {
            Destination::Kubelet => None,
            Destination::Pod => Some(pods.take(applicant)?),
        };
        earnings.request();
        let answer = timeout(limits::TUNNEL_ANSWER, dialer.dial(to)).await;
        let stream = answer.unwrap_or(Err(DialError::Late))?;
        Ok(Carried { stream, earnings, _place: place, _charge: charge })
    }
}

impl Tunnels {
    /// Adds the tunnel of a node, whose kubelet and pods are reached by it from now on. A node that has many loses its
    /// oldest. `None` if the table is full.
    pub fn add(self: &Arc<Self>, node: &str, dialer: Dialer, earnings: Arc<Earnings>) -> Option<Registered> {
        let mut nodes = self.lock();
        if nodes.len() >= limits::TUNNEL_NODES && !nodes.contains_key(node) {
            return None;
        }
        let entry = nodes.entry(node.to_owned()).or_default();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let closed = CancellationToken::new();
        let (pods, dialer) = (Arc::default(), Some(dialer));
        entry.tunnels.push(Tunnel { id, dialer, earnings, pods, closed: closed.clone() });
        if entry.tunnels.len() > limits::TUNNELS_OF_NODE {
            entry.tunnels.remove(0).closed.cancel();
        }
        Some(Registered { tunnels: Arc::clone(self), node: node.to_owned(), id, closed })
    }

    /// Returns the attempts to make to reach a server on a node.
    pub fn plan(&self, node: &str, to: Server) -> &'static [Step] {
        let now = self.now();
        let mut nodes = self.lock();
        let Some(node) = nodes.get_mut(node) else { return Known::default().plan(false, now).0 };
        let has_tunnel = node.tunnels.iter().any(|tunnel| tunnel.dialer.is_some());
        node.experience.plan(to, has_tunnel, now)
    }

    /// Notes that a connection was made by `way`; `direct_failed` if direct dialing failed before.
    pub fn succeeded(&self, node: &str, to: Server, way: Way, direct_failed: bool) {
        self.dials[to.kind as usize][way as usize][0].add(1);
        let now = self.now();
        if let Some(node) = self.lock().get_mut(node) {
            node.experience.learn(to, way, direct_failed, now);
        }
    }

    /// Counts an attempt that failed.
    pub fn failed(&self, to: Destination, way: Way) {
        self.dials[to as usize][way as usize][1].add(1);
    }

    /// Returns the tunnels of a node that take connections, the newest first.
    pub fn of(&self, node: &str) -> Vec<Usable> {
        let nodes = self.lock();
        let tunnels = nodes.get(node).map(|node| node.tunnels.as_slice()).unwrap_or_default();
        let usable = |tunnel: &Tunnel| {
            let (dialer, earnings) = (tunnel.dialer.clone()?, Arc::clone(&tunnel.earnings));
            Some(Usable { dialer, earnings, pods: Arc::clone(&tunnel.pods) })
        };
        tunnels.iter().rev().filter_map(usable).collect()
    }

    /// Returns the number of tunnels.
    pub fn open(&self) -> usize {
        self.lock().values().map(|node| node.tunnels.len()).sum()
    }

    /// Returns the numbers of attempts to reach kubelets, or pods, by way and outcome.
    pub fn dials(&self, to: Destination) -> Vec<(&'static str, &'static str, u64)> {
        let of = |way: Way| {
            ["success", "failure"]
                .into_iter()
                .zip(&self.dials[to as usize][way as usize])
                .map(move |(outcome, count)| (way.name(), outcome, count.value()))
        };
        Way::ALL.into_iter().flat_map(of).collect()
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Node>> {
        // Nothing panics while it holds the lock, and each change is complete.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves a tunnel that a node has opened over `stream`, until it ends, or until `stop`. Once `lifetime` is over, it
/// only finishes what it carries, so that the node opens another one with its present certificate.
pub async fn keep(
    tunnels: &Arc<Tunnels>,
    node: &str,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    lifetime: Duration,
    stop: &CancellationToken,
) -> io::Result<()> {
    let earnings = Arc::<Earnings>::default();
    let (dialer, carried) = Dialer::open(Metered::new(stream, Arc::clone(&earnings))).await?;
    let Some(registered) = tunnels.add(node, dialer, earnings) else {
        return Err(io::Error::other("as many nodes have tunnels as may"));
    };
    tracing::info!(node, "a node keeps a tunnel to this server");
    let mut carried = std::pin::pin!(carried);
    let mut over = std::pin::pin!(tokio::time::sleep(lifetime));
    loop {
        tokio::select! {
            ended = carried.as_mut() => return ended,
            () = registered.closed().cancelled() => return Err(io::Error::other("newer ones took its place")),
            () = stop.cancelled() => return Ok(()),
            () = over.as_mut(), if !over.is_elapsed() => registered.retire(),
        }
    }
}

/// A connection through a tunnel, which the client pays for whom it was opened.
pub struct Carried {
    stream: TunnelStream<tokio::sync::OwnedSemaphorePermit>,
    earnings: Arc<Earnings>,
    /// Its place among the connections to pods.
    _place: Option<Place>,
    _charge: Charge,
}

impl AsyncRead for Carried {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        // The node may send as much again: its frames for that are not counted against it.
        self.earnings.body(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Carried {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
