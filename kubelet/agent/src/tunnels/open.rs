//! A connection to an API server that has switched to the protocol of tunnels.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, UPGRADE};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kube::client::ConfigExt;
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use userspace_daemon::tunnel;

use crate::limits;

/// A tunnel was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read the kubeconfig {}", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        cause: KubeconfigError,
    },
    #[error("the kubeconfig leads through a proxy, by which no tunnel is opened")]
    Proxy,
    #[error("cannot set up TLS")]
    Tls(#[source] Box<kube::Error>),
    #[error("{0:?} is not the address of a server")]
    Address(String),
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("no answer in time")]
    Late,
    #[error("the server does not speak HTTP")]
    Http(#[from] hyper::Error),
    #[error("the server refused with {status}: {message}")]
    Refused { status: StatusCode, message: String },
}

impl OpenError {
    /// Returns `true` if the server decided so. Those of other makes know no tunnels.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Proxy)
    }
}

/// A byte stream to an API server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens tunnels; tests have their own.
#[async_trait]
pub trait Opener: Send + Sync + 'static {
    /// Returns a stream to a server, `HOST:PORT`, that has switched to the protocol of tunnels.
    async fn open(&self, server: &str) -> Result<Box<dyn Stream>, OpenError>;
}

/// Opens the tunnels of a node with its credentials.
pub struct Door {
    pub kubeconfig: PathBuf,
    /// The path of the node's tunnel.
    pub path: String,
}

#[async_trait]
impl Opener for Door {
    async fn open(&self, server: &str) -> Result<Box<dyn Stream>, OpenError> {
        timeout(limits::TUNNEL_OPEN, self.switched(server)).await.map_err(|_| OpenError::Late)?
    }
}

impl Door {
    async fn switched(&self, server: &str) -> Result<Box<dyn Stream>, OpenError> {
        let path = &self.kubeconfig;
        let unreadable = |cause| OpenError::Kubeconfig { path: path.clone(), cause };
        let file = Kubeconfig::read_from(path).map_err(unreadable)?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        let config = config.map_err(unreadable)?;
        if config.proxy_url.is_some() {
            return Err(OpenError::Proxy);
        }
        let stream = connect(&config, server).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.path.parse().map_err(|_| OpenError::Address(self.path.clone()))?;
        let headers = request.headers_mut();
        headers.insert(HOST, server.parse().map_err(|_| OpenError::Address(server.to_owned()))?);
        headers.insert(CONNECTION, http::HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, http::HeaderValue::from_static(tunnel::PROTOCOL));
        headers.insert(CONTENT_LENGTH, http::HeaderValue::from_static("0"));
        let mut answer = sender.send_request(request).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refused(answer).await);
        }
        Ok(Box::new(TokioIo::new(hyper::upgrade::on(&mut answer).await?)))
    }
}

/// Connects over TLS, by which the server is verified and sees the node's certificate.
async fn connect(
    config: &Config,
    server: &str,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, OpenError> {
    let no_server = || OpenError::Address(server.to_owned());
    let authority: Authority = server.parse().map_err(|_| no_server())?;
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    let name = config.tls_server_name.clone().unwrap_or_else(|| host.clone());
    let name = ServerName::try_from(name).map_err(|_| no_server())?;
    let mut tls = config.rustls_client_config().map_err(|cause| OpenError::Tls(Box::new(cause)))?;
    // HTTP/2 has no upgrades.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let port = authority.port_u16().unwrap_or(443);
    let stream = TcpStream::connect((host, port)).await.map_err(OpenError::Connect)?;
    stream.set_nodelay(true).map_err(OpenError::Connect)?;
    TlsConnector::from(Arc::new(tls)).connect(name, stream).await.map_err(OpenError::Connect)
}

async fn refused(answer: Response<Incoming>) -> OpenError {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), limits::TUNNEL_REFUSAL).collect().await;
    let bytes = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let told = serde_json::from_slice::<serde_json::Value>(&bytes).ok();
    let message = told.as_ref().and_then(|status| status["message"].as_str()).unwrap_or_default();
    OpenError::Refused { status, message: message.to_owned() }
}
