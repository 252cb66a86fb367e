//! Connections to nodes and pods: one a request, since most of them become streams.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use apiserver_schema::error::ApiError;
use async_trait::async_trait;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::reach::{self, OwnAddresses};
use super::{Body, Peer, Target, Transport};
use crate::limits;
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
}

/// A failure to connect to a server.
pub(super) enum ConnectError {
    /// Requests are not sent on to its address.
    NotAllowed(ApiError),
    /// It did not answer in time.
    Late,
    Io(io::Error),
    /// It does not speak HTTP.
    Http(hyper::Error),
}

/// The way in which the API server reaches nodes and pods. Cheap to clone.
#[derive(Clone)]
pub struct Kubelets {
    dial: Arc<dyn Dial>,
}

impl Kubelets {
    /// Over TCP and TLS, with the set-up of `Pki::kubelet_client_tls`.
    pub fn new(tls: KubeletTls) -> Self {
        Self::with_dial(Arc::new(Network(tls)))
    }

    /// Over streams of another kind.
    pub fn with_dial(dial: Arc<dyn Dial>) -> Self {
        Self { dial }
    }

    /// Returns a connection of its own to the target's server.
    pub(super) async fn connect(
        &self,
        target: &Target,
        own: &OwnAddresses,
    ) -> Result<SendRequest<Body>, ConnectError> {
        let stream = tokio::time::timeout(limits::BACKEND_CONNECT, self.stream(target, own)).await;
        let stream = stream.map_err(|_| ConnectError::Late)??;
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

    async fn stream(&self, target: &Target, own: &OwnAddresses) -> Result<Box<dyn NodeStream>, ConnectError> {
        let peer = &target.peer;
        // A name server could answer differently the next time, so the name is resolved once.
        let addresses = match peer.host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, peer.port)],
            Err(_) => self.dial.resolve(&peer.host, peer.port).await.map_err(ConnectError::Io)?,
        };
        reach::check(&addresses, target.loopback, own, reach::is_local).map_err(ConnectError::NotAllowed)?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match self.dial.dial(peer, SocketAddr::new(address.ip().to_canonical(), peer.port)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(ConnectError::Io(last))
    }
}

struct Network(KubeletTls);

#[async_trait]
impl Dial for Network {
    async fn dial(&self, peer: &Peer, address: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let config = match peer.transport {
            Transport::Kubelet => self.0.to_kubelet(&peer.node),
            Transport::Https => self.0.without_credentials(),
            Transport::Http => return Ok(Box::new(stream)),
        };
        let name = ServerName::try_from(peer.host.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
    }
}
