//! The load generator: HTTP/2 over TLS, with as little work in the client as possible.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::RecvStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{Method, Request, StatusCode};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::row::quantile;

/// Bytes that the server may send ahead on one stream.
const STREAM_WINDOW: u32 = 4 << 20;
/// Bytes that the server may send ahead on one connection.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// A server, and the credentials for it.
#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    tls: Arc<ClientConfig>,
}

impl Target {
    /// Reads a kubeconfig as `hawser apiserver` writes it: one cluster, and one user with a certificate.
    pub fn from_kubeconfig(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
            line.map(str::trim).with_context(|| format!("no {name} in {}", path.display()))
        };
        let decoded = |name: &str| STANDARD.decode(field(name)?).context("no base64");
        let url = field("server:")?;
        let address = url.trim_start_matches("https://").parse().with_context(|| format!("{url:?}"))?;
        let ca = decoded("certificate-authority-data:")?;
        let certificate = decoded("client-certificate-data:")?;
        let key = decoded("client-key-data:")?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&ca).context("bad authority")?).context("bad authority")?;
        let chain = vec![CertificateDer::from_pem_slice(&certificate).context("bad certificate")?];
        let key = PrivateKeyDer::from_pem_slice(&key).context("bad key")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("no TLS versions")?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .context("the certificate cannot be used")?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { address, tls: Arc::new(tls) })
    }

    /// Opens `count` connections.
    pub async fn connect(&self, count: usize) -> Result<Vec<Connection>> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(Connection::open(self).await?);
        }
        Ok(connections)
    }
}

/// A request.
pub struct Call {
    pub method: Method,
    /// Path and query.
    pub path: String,
    pub content_type: &'static str,
    pub body: Bytes,
}

impl Call {
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), content_type: "", body: Bytes::new() }
    }

    pub fn post(path: impl Into<String>, body: Bytes) -> Self {
        Self { method: Method::POST, path: path.into(), content_type: "application/json", body }
    }

    pub fn put(path: impl Into<String>, body: Bytes) -> Self {
        Self { method: Method::PUT, ..Self::post(path, body) }
    }
}

/// An HTTP/2 connection. Clones share it.
#[derive(Clone)]
pub struct Connection {
    send: SendRequest<Bytes>,
    authority: Arc<str>,
}

impl Connection {
    async fn open(target: &Target) -> Result<Self> {
        let stream = TcpStream::connect(target.address).await.context("cannot connect")?;
        stream.set_nodelay(true).context("cannot set nodelay")?;
        let name = ServerName::IpAddress(target.address.ip().into());
        let tls = TlsConnector::from(Arc::clone(&target.tls));
        let stream = tls.connect(name, stream).await.context("the handshake failed")?;
        let (send, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(stream)
            .await
            .context("no HTTP/2")?;
        // Its end is detected by the requests.
        tokio::spawn(connection);
        Ok(Self { send, authority: target.address.to_string().into() })
    }

    async fn begin(&self, call: Call) -> Result<ResponseFuture> {
        let mut send = self.send.clone().ready().await.context("the connection has ended")?;
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("https://{}{}", self.authority, call.path))
            .header("user-agent", "bench/1");
        if !call.content_type.is_empty() {
            request = request.header("content-type", call.content_type);
        }
        let request = request.body(()).context("no request")?;
        let (response, mut stream) =
            send.send_request(request, call.body.is_empty()).context("cannot send a request")?;
        if !call.body.is_empty() {
            stream.send_data(call.body, true).context("cannot send a body")?;
        }
        Ok(response)
    }

    /// Sends a request; returns the header of the answer and its body as a stream.
    pub async fn open_stream(&self, call: Call) -> Result<(StatusCode, RecvStream)> {
        let (head, body) = self.begin(call).await?.await.context("no answer")?.into_parts();
        Ok((head.status, body))
    }

    /// Sends a request; returns status and size of the answer.
    pub async fn ask(&self, call: Call) -> Result<(StatusCode, usize)> {
        let (status, mut body) = self.open_stream(call).await?;
        let mut bytes = 0;
        while let Some(chunk) = next_chunk(&mut body).await? {
            bytes += chunk.len();
        }
        Ok((status, bytes))
    }

    /// Sends a request; returns the body of the answer, which must be a success.
    pub async fn read(&self, call: Call) -> Result<Vec<u8>> {
        let path = call.path.clone();
        let (status, mut body) = self.open_stream(call).await?;
        let mut bytes = Vec::new();
        while let Some(chunk) = next_chunk(&mut body).await? {
            bytes.extend_from_slice(&chunk);
        }
        ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&bytes));
        Ok(bytes)
    }
}

/// Returns the next bytes of an answer; `None` at its end.
pub async fn next_chunk(body: &mut RecvStream) -> Result<Option<Bytes>> {
    let Some(chunk) = body.data().await else { return Ok(None) };
    let chunk = chunk.context("an answer was cut off")?;
    body.flow_control().release_capacity(chunk.len()).context("the window cannot be opened")?;
    Ok(Some(chunk))
}

/// Results of one turn of a closed loop.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub per_second: f64,
    pub p99: f64,
    /// Number of answers.
    pub count: u64,
}

impl Turn {
    /// Computes the results from the times of all answers.
    pub fn of(times: &[f64], took: Duration) -> Self {
        let count = times.len();
        Self {
            per_second: count as f64 / took.as_secs_f64(),
            p99: quantile(times, 0.99),
            count: count as u64,
        }
    }
}

/// Creates the request of a client from its index and the request's number.
pub type Make = Arc<dyn Fn(usize, u64) -> Call + Send + Sync>;

/// Runs clients with one outstanding request each, distributed over the connections.
pub async fn closed_loop(
    connections: &[Connection],
    clients: usize,
    length: Duration,
    next: &Arc<AtomicU64>,
    make: &Make,
) -> Result<Turn> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let connection = connections[client % connections.len()].clone();
        let (make, next) = (Arc::clone(make), Arc::clone(next));
        tasks.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < length {
                let call = make(client, next.fetch_add(1, Ordering::Relaxed));
                let (path, began) = (call.path.clone(), Instant::now());
                let (status, _) = connection.ask(call).await?;
                ensure!(status.is_success(), "{path}: {status}");
                times.push(began.elapsed().as_secs_f64());
            }
            Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(of_client) = tasks.join_next().await {
        times.extend(of_client.context("a client panicked")??);
    }
    Ok(Turn::of(&times, start.elapsed()))
}
