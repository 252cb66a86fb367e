//! Connections to nodes and pods: one a request, since most of them become streams.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::error_chain;
use apiserver_schema::error::ApiError;
use async_trait::async_trait;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use userspace_daemon::tunnel;

use super::node_tunnels::places::Applicant;
use super::node_tunnels::reachability::{Destination, Server, Step, Way};
use super::node_tunnels::{TunnelError, Tunnels, Usable};
use super::reach::{self, OwnAddresses};
use super::{Body, Peer, Target, Transport};
use crate::clients::budget::{Budget, Charge};
use crate::errors::too_many_requests;
use crate::limits;
use crate::lookups::Lookups;
use apiserver_auth::authentication::KubeletTls;

/// A byte stream to a server on a node.
pub trait NodeStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> NodeStream for T {}

/// Opens byte streams to nodes and pods; the simulation has its own.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Returns the addresses of a host name.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }

    /// Returns a stream to `peer` that is ready for HTTP. It is at `address`, which was checked: nothing is looked
    /// up again.
    async fn dial(&self, peer: &Peer, address: SocketAddr) -> io::Result<Box<dyn NodeStream>>;

    /// Makes a stream that leads to `peer` ready for HTTP, as [`Dial::dial`] does with its own.
    async fn secure(&self, _: &Peer, stream: Box<dyn NodeStream>) -> io::Result<Box<dyn NodeStream>> {
        Ok(stream)
    }
}

/// A failure to connect to a server.
pub enum ConnectError {
    /// Requests are not sent on to its address, or the client has too many of them.
    NotAllowed(ApiError),
    /// It did not answer in time.
    Late,
    Io(io::Error),
    /// It does not speak HTTP.
    Http(hyper::Error),
    /// A server whose node keeps a tunnel was reached neither directly nor through that.
    NoWay {
        direct: Box<Self>,
        tunnel: Box<Self>,
    },
    /// It was not reached through its tunnel.
    Tunnel(TunnelError),
}

impl ConnectError {
    /// Describes the failure, in one line.
    pub fn why(&self) -> String {
        match self {
            Self::NotAllowed(refusal) => refusal.message.clone(),
            Self::Late => "no answer in time".to_owned(),
            Self::Io(error) => error.to_string(),
            Self::Http(error) => error.to_string(),
            Self::NoWay { direct, tunnel } => format!("{}; {}", direct.why(), tunnel.why()),
            Self::Tunnel(error) => error_chain(error),
        }
    }
}

/// The API server as a client of nodes and pods, on behalf of one request, or as one of webhooks.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub kubelets: &'a Kubelets,
    /// The addresses that nothing is sent on to.
    pub own: &'a OwnAddresses,
    /// The budget of the request.
    pub budget: &'a Budget,
    /// True for the call of a webhook.
    pub webhook: bool,
}

/// The way in which the API server reaches nodes and pods. Cheap to clone.
#[derive(Clone)]
pub struct Kubelets {
    dial: Arc<dyn Dial>,
    /// The host names of nodes that are being looked up.
    lookups: Arc<Lookups>,
    tunnels: Arc<Tunnels>,
}

impl Kubelets {
    /// Over TCP and TLS, with the set-up of `Pki::kubelet_client_tls`.
    pub fn new(tls: KubeletTls) -> Self {
        Self::with_dial(Arc::new(Network(tls)))
    }

    /// Over streams of another kind.
    pub fn with_dial(dial: Arc<dyn Dial>) -> Self {
        Self { dial, lookups: Arc::default(), tunnels: Arc::default() }
    }

    /// Returns the tunnels of nodes to this server.
    pub fn tunnels(&self) -> &Arc<Tunnels> {
        &self.tunnels
    }
}

impl Caller<'_> {
    /// Returns a connection of its own to the target's server.
    pub(super) async fn connect(self, target: &Target) -> Result<SendRequest<Body>, ConnectError> {
        let stream = self.stream(&target.peer, target.loopback).await?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(limits::BACKEND_HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ConnectError::Http)?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to a node or pod ended");
            }
        });
        Ok(sender)
    }

    /// Returns a stream to a server on a node, by the way that leads there; `loopback` if it may be on this machine, by a
    /// loopback address. Every connection to a kubelet or a pod begins here.
    pub async fn stream(self, peer: &Peer, loopback: bool) -> Result<Box<dyn NodeStream>, ConnectError> {
        let (tunnels, node) = (&self.kubelets.tunnels, peer.node.as_str());
        let to = server(peer);
        let begun = Instant::now();
        let mut failures: [Option<ConnectError>; 2] = [None, None];
        for Step { way, time } in tunnels.plan(node, to) {
            let time = limits::BACKEND_CONNECT.saturating_sub(begun.elapsed()).min(*time);
            let outcome = match way {
                Way::Direct => in_time(time, self.direct(peer, loopback)).await,
                Way::Tunnel => in_time(time, self.tunneled(peer, loopback)).await,
            };
            match outcome {
                Ok(stream) => {
                    tunnels.succeeded(node, to, *way, failures[Way::Direct as usize].is_some());
                    return Ok(stream);
                }
                // No other way makes it a better address.
                Err(ConnectError::NotAllowed(refusal)) if *way == Way::Direct => {
                    return Err(ConnectError::NotAllowed(refusal));
                }
                Err(error) => {
                    tunnels.failed(to.kind, *way);
                    failures[*way as usize] = Some(error);
                }
            }
        }
        Err(match failures {
            // There are too many connections in tunnels, and there is no other way.
            [_, Some(ConnectError::NotAllowed(refusal))] => ConnectError::NotAllowed(refusal),
            [Some(direct), Some(tunnel)] => {
                ConnectError::NoWay { direct: Box::new(direct), tunnel: Box::new(tunnel) }
            }
            [Some(only), None] | [None, Some(only)] => only,
            [None, None] => ConnectError::Late,
        })
    }

    async fn direct(self, peer: &Peer, loopback: bool) -> Result<Box<dyn NodeStream>, ConnectError> {
        let dial = &self.kubelets.dial;
        // A name server could answer differently the next time, so the name is resolved once.
        let addresses = match peer.host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, peer.port)],
            Err(_) => self.resolve(peer).await.map_err(ConnectError::Io)?,
        };
        reach::check(&addresses, loopback, self.own, reach::is_local).map_err(ConnectError::NotAllowed)?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match dial.dial(peer, SocketAddr::new(address.ip().to_canonical(), peer.port)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(ConnectError::Io(last))
    }

    /// Returns the addresses of a peer with a name. Nodes choose their names themselves, and one may be chosen that no
    /// name server answers for.
    async fn resolve(self, peer: &Peer) -> io::Result<Vec<SocketAddr>> {
        let (dial, name, port) = (Arc::clone(&self.kubelets.dial), peer.host.clone(), peer.port);
        let lookup = async move { dial.resolve(&name, port).await };
        self.kubelets.lookups.resolve(&peer.node, &peer.host, lookup).await
    }

    /// Returns a stream through a tunnel of the peer's node, the newest that can. The node carries it to its own kubelet, by
    /// no address, which TLS proves; or to one of its own pods.
    async fn tunneled(self, peer: &Peer, loopback: bool) -> Result<Box<dyn NodeStream>, ConnectError> {
        let to = match peer.transport {
            Transport::Kubelet => tunnel::kubelet(&peer.node, peer.port),
            Transport::Http | Transport::Https => {
                let ip = peer.host.parse::<IpAddr>();
                let ip = ip.map_err(|_| ConnectError::Tunnel(TunnelError::Name(peer.host.clone())))?;
                let address = SocketAddr::new(ip, peer.port);
                reach::check(&[address], loopback, self.own, reach::is_local)
                    .map_err(ConnectError::NotAllowed)?;
                tunnel::pod(address)
            }
        };
        let mut first = None;
        for usable in self.kubelets.tunnels.of(&peer.node) {
            let charge = self.budget.try_charge(limits::HELD_BY_TUNNELED);
            let charge = charge.ok_or_else(|| ConnectError::NotAllowed(too_many_requests()))?;
            match self.through(usable, peer, &to, charge).await {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    let next = error.is_of_the_tunnel();
                    first.get_or_insert(error);
                    if !next {
                        break;
                    }
                }
            }
        }
        Err(match first {
            // The client is told when to come back.
            Some(TunnelError::NoPlace(refused)) => ConnectError::NotAllowed(refused.into()),
            Some(error) => ConnectError::Tunnel(error),
            None => ConnectError::Tunnel(TunnelError::None),
        })
    }

    /// Returns a stream through one tunnel, ready for HTTP.
    async fn through(
        self,
        usable: Usable,
        peer: &Peer,
        to: &str,
        charge: Charge,
    ) -> Result<Box<dyn NodeStream>, TunnelError> {
        let applicant =
            if self.webhook { Applicant::Webhook } else { Applicant::Request(self.budget.account()) };
        let carried = usable.dial(server(peer).kind, to, (applicant, charge)).await?;
        let secured = self.kubelets.dial.secure(peer, Box::new(carried));
        let secured = tokio::time::timeout(limits::TUNNEL_SECURE, secured).await;
        Ok(secured.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no TLS in time")))?)
    }
}

fn server(peer: &Peer) -> Server {
    let kind = match peer.transport {
        Transport::Kubelet => Destination::Kubelet,
        Transport::Http | Transport::Https => Destination::Pod,
    };
    Server { kind, ip: peer.host.parse().ok() }
}

/// Waits for a stream no longer than `time`.
async fn in_time(
    time: Duration,
    stream: impl Future<Output = Result<Box<dyn NodeStream>, ConnectError>>,
) -> Result<Box<dyn NodeStream>, ConnectError> {
    tokio::time::timeout(time, stream).await.map_err(|_| ConnectError::Late)?
}

struct Network(KubeletTls);

#[async_trait]
impl Dial for Network {
    async fn dial(&self, peer: &Peer, address: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        self.secure(peer, Box::new(stream)).await
    }

    async fn secure(&self, peer: &Peer, stream: Box<dyn NodeStream>) -> io::Result<Box<dyn NodeStream>> {
        let config = match peer.transport {
            Transport::Kubelet => self.0.to_kubelet(&peer.node),
            Transport::Https => self.0.without_credentials(),
            Transport::Http => return Ok(stream),
        };
        let name = ServerName::try_from(peer.host.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
    }
}
