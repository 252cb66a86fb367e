//! The edge: frames, datagrams and times to the [`Announcer`], and back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use apiserver_meta::ambient::Ambient;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::announcer::{Action, Announcer};
use crate::socket::{Frames, Groups, Port, pings, ports};
use crate::wire::{Message, Ping, build, parse};
use crate::{Desired, Note, limits};

/// The settings of an announcer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcing {
    /// The name of this node.
    pub node: String,
    /// UDP port of pings; the same on all nodes.
    pub port: u16,
}

/// The announcer cannot work.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    #[error("cannot open a raw socket for {what}: the process needs CAP_NET_RAW")]
    Raw {
        what: &'static str,
        #[source]
        cause: io::Error,
    },
    #[error("cannot listen on UDP port {port} for pings of other nodes")]
    Pings {
        port: u16,
        #[source]
        cause: io::Error,
    },
    #[error("cannot list the interfaces of this machine")]
    Interfaces(#[source] io::Error),
    #[error("cannot read from the {what} socket")]
    Read {
        what: &'static str,
        #[source]
        cause: io::Error,
    },
}

/// Announces until shutdown, and then until other nodes have taken over, but not for long.
pub async fn run(
    config: Announcing,
    mut desired: watch::Receiver<Arc<Desired>>,
    ambient: Ambient,
    tell: impl Fn(Note) + Send + Sync,
    shutdown: CancellationToken,
) {
    let mut announcer = Announcer::new(&config.node);
    loop {
        // Without addresses there is nothing to listen to.
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            found = desired.wait_for(|desired| !desired.addresses.is_empty()) => {
                if found.is_err() {
                    return;
                }
            }
        }
        let outcome = match Edge::open(&config) {
            Ok(mut edge) => edge.serve(&mut announcer, &mut desired, &ambient, &tell, &shutdown).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) if shutdown.is_cancelled() => return,
            Ok(()) => {}
            Err(error) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "load balancer addresses are not announced from this node, trying again"
                );
                // It answers nobody while it has no sockets; others take over.
                announcer = Announcer::new(&config.node);
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(limits::OPEN_PAUSE) => {}
                }
            }
        }
    }
}

/// The sockets of an announcer.
struct Edge {
    port: u16,
    arp: Frames,
    ndp: Frames,
    v4: UdpSocket,
    /// `None` on a machine without IPv6.
    v6: Option<UdpSocket>,
    ports: BTreeMap<u32, Port>,
    groups: Groups,
    joined: (Vec<u32>, BTreeSet<Ipv6Addr>),
    links: Vec<u32>,
}

/// Something from outside.
enum Event {
    Frame(Vec<u8>, u32),
    Datagram(Vec<u8>, SocketAddr),
    Desired,
    Gone,
    Stop,
    Time,
}

impl Edge {
    fn open(config: &Announcing) -> Result<Self, AnnounceError> {
        let Announcing { node: _, port } = *config;
        let raw = |what| move |cause| AnnounceError::Raw { what, cause };
        let v6 = match pings(port, false) {
            Ok(socket) => Some(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(AnnounceError::Pings { port, cause: error });
            }
            Err(error) => {
                debug!(%error, "no pings over IPv6");
                None
            }
        };
        Ok(Self {
            port,
            arp: Frames::arp().map_err(raw("ARP"))?,
            ndp: Frames::ndp().map_err(raw("NDP"))?,
            v4: pings(port, true).map_err(|cause| AnnounceError::Pings { port, cause })?,
            v6,
            ports: BTreeMap::new(),
            groups: Groups::default(),
            joined: <(Vec<u32>, BTreeSet<Ipv6Addr>)>::default(),
            links: Vec::new(),
        })
    }

    /// Serves until there are no addresses, or until this node has left.
    async fn serve(
        &mut self,
        announcer: &mut Announcer,
        desired: &mut watch::Receiver<Arc<Desired>>,
        ambient: &Ambient,
        tell: &(impl Fn(Note) + Sync),
        shutdown: &CancellationToken,
    ) -> Result<(), AnnounceError> {
        let mut actions = Vec::new();
        let (mut farewell, mut changed) = (None, true);
        desired.mark_changed();
        loop {
            let now = Instant::now();
            // A step looks at all addresses, a frame concerns one.
            if changed || announcer.due().is_some_and(|due| now >= due) {
                announcer.tick(now, || ambient.random.next_u64(), &mut actions);
            }
            changed = false;
            for action in actions.drain(..) {
                self.act(action, tell).await;
            }
            self.join(announcer.groups());
            if farewell.is_some_and(|end| now >= end || !announcer.is_busy()) {
                return Ok(());
            }
            let due = announcer.due().into_iter().chain(farewell).min();
            match self.next(desired, due, shutdown, farewell.is_some()).await? {
                Event::Time => {}
                Event::Frame(bytes, link) => {
                    let frame = parse(&bytes).filter(|_| self.links.contains(&link));
                    // A bridge may return our own frames.
                    let own = self.ports.get(&link).map(|port| port.mac);
                    if let Some(frame) = frame.filter(|frame| Some(frame.sender.mac) != own) {
                        announcer.hear(&frame, link, Instant::now(), &mut actions);
                    }
                }
                Event::Datagram(bytes, from) => {
                    let ping = Ping::parse(&bytes);
                    let answer = ping
                        .and_then(|ping| announcer.datagram(ping, from.ip().to_canonical(), Instant::now()));
                    if let Some(answer) = answer {
                        self.send(&answer, from).await;
                    }
                }
                Event::Desired => {
                    let desired = Arc::clone(&desired.borrow_and_update());
                    self.links = desired.links.iter().map(|link| link.index).collect();
                    self.ports = ports().map_err(AnnounceError::Interfaces)?;
                    let ends = desired.addresses.is_empty();
                    announcer.set(desired, Instant::now(), &mut actions);
                    changed = true;
                    if ends {
                        for action in actions.drain(..) {
                            self.act(action, tell).await;
                        }
                        return Ok(());
                    }
                }
                Event::Gone | Event::Stop => {
                    announcer.leave();
                    changed = true;
                    farewell = Some(Instant::now() + limits::FAREWELL);
                }
            }
        }
    }

    /// Waits for the next event.
    async fn next(
        &self,
        desired: &mut watch::Receiver<Arc<Desired>>,
        due: Option<Instant>,
        shutdown: &CancellationToken,
        leaving: bool,
    ) -> Result<Event, AnnounceError> {
        let read = |what| move |cause| AnnounceError::Read { what, cause };
        let (mut first, mut second) = ([0; 256], [0; 256]);
        let later = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let v6 = async {
            match &self.v6 {
                Some(socket) => socket.recv_from(&mut second).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled(), if !leaving => Ok(Event::Stop),
            changed = desired.changed(), if !leaving => {
                Ok(if changed.is_ok() { Event::Desired } else { Event::Gone })
            }
            // Steps come before frames, so that a flood of questions delays no ping.
            () = later => Ok(Event::Time),
            datagram = self.v4.recv_from(&mut first) => Ok(datagram_of(datagram, &first)),
            datagram = v6 => Ok(datagram_of(datagram, &second)),
            frame = self.arp.next() => {
                let (frame, link) = frame.map_err(read("ARP"))?;
                Ok(Event::Frame(frame, link))
            }
            frame = self.ndp.next() => {
                let (frame, link) = frame.map_err(read("NDP"))?;
                Ok(Event::Frame(frame, link))
            }
        }
    }

    async fn act(&self, action: Action, tell: &impl Fn(Note)) {
        match action {
            Action::Tell(note) => {
                match &note {
                    Note::Announced(address) => info!(%address, "this node announces the address"),
                    Note::Withdrawn(address) => info!(%address, "this node no longer announces the address"),
                    Note::Contested(address, mac) => {
                        warn!(%address, %mac, "another machine answers for the address: not announced");
                    }
                }
                tell(note);
            }
            Action::Ping(to, ping) => self.send(&ping, SocketAddr::new(to, self.port)).await,
            Action::Send(Some(link), message) => self.transmit(link, &message),
            Action::Send(None, message) => {
                self.links.iter().for_each(|link| self.transmit(*link, &message));
            }
        }
    }

    fn transmit(&self, link: u32, message: &Message) {
        let Some(port) = self.ports.get(&link) else { return };
        let address = match message {
            Message::Probe(address) | Message::Announce(address) | Message::Answer(address, _) => *address,
        };
        let socket = if address.is_ipv4() { &self.arp } else { &self.ndp };
        for frame in build(message, port.mac) {
            if let Err(error) = socket.send(&frame, &port.address) {
                debug!(%error, %address, link, "cannot send a frame");
            }
        }
    }

    /// Sends a datagram. One that cannot be sent is lost, as others are: the silence tells.
    async fn send(&self, ping: &Ping, to: SocketAddr) {
        let socket = if matches!(to.ip(), IpAddr::V4(_)) { Some(&self.v4) } else { self.v6.as_ref() };
        let Some(socket) = socket else { return };
        if let Err(error) = socket.try_send_to(&ping.build(), to) {
            debug!(%error, %to, "cannot send a ping");
        }
    }

    fn join(&mut self, groups: BTreeSet<Ipv6Addr>) {
        let wanted = (self.links.clone(), groups);
        if self.joined == wanted {
            return;
        }
        match self.groups.set(&wanted.0, &wanted.1) {
            Ok(()) => self.joined = wanted,
            Err(error) => {
                warn!(%error, "cannot join the multicast groups of all IPv6 addresses, trying again")
            }
        }
    }
}

/// Returns an event for a datagram. An error reports that an earlier datagram did not arrive.
fn datagram_of(datagram: io::Result<(usize, SocketAddr)>, bytes: &[u8]) -> Event {
    match datagram {
        Ok((length, from)) => Event::Datagram(bytes[..length].to_vec(), from),
        Err(_) => Event::Time,
    }
}
