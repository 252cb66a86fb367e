//! Connections to kubelets: one a request, since most of them become streams.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use apiserver_api::error::ApiError;
use async_trait::async_trait;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Body, Target, bad_gateway};

/// How long a kubelet may take to accept a connection and finish the TLS handshake.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// A byte stream to a node server.
pub trait NodeStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> NodeStream for T {}

/// Opens byte streams to node servers; the simulation has its own.
#[async_trait]
pub trait Dial: Send + Sync {
    /// A stream to the server at `address` (an IP address or a name) that is ready for HTTP.
    async fn dial(&self, address: &str, port: u16) -> io::Result<Box<dyn NodeStream>>;
}

/// How the API server reaches kubelets. Cheap to clone.
#[derive(Clone)]
pub struct Kubelets {
    dial: Arc<dyn Dial>,
}

impl Kubelets {
    /// Over TCP and TLS, with the set-up of `Pki::kubelet_client_tls`.
    pub fn new(tls: Arc<ClientConfig>) -> Self {
        Self::with_dial(Arc::new(Tls(TlsConnector::from(tls))))
    }

    /// Over streams of another kind.
    pub fn with_dial(dial: Arc<dyn Dial>) -> Self {
        Self { dial }
    }

    /// A connection of its own to the target's server.
    pub(super) async fn connect(&self, target: &Target) -> Result<SendRequest<Body>, ApiError> {
        let dial = self.dial.dial(&target.address, target.port);
        let stream = tokio::time::timeout(CONNECT_TIME, dial)
            .await
            .map_err(|_| {
                ApiError::new(504, "Timeout", format!("no answer from the kubelet at {}", target.authority()))
            })?
            .map_err(|error| bad_gateway(target, &format!("cannot be reached: {error}")))?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| bad_gateway(target, &format!("does not speak HTTP: {error}")))?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to a kubelet ended");
            }
        });
        Ok(sender)
    }
}

struct Tls(TlsConnector);

#[async_trait]
impl Dial for Tls {
    async fn dial(&self, address: &str, port: u16) -> io::Result<Box<dyn NodeStream>> {
        let name = ServerName::try_from(address.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let stream = TcpStream::connect((address, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(self.0.connect(name, stream).await?))
    }
}
