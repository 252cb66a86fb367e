//! `/healthz`, `/livez` and `/readyz` of a component on its own, over TLS, on the ports where
//! Kubernetes looks for them. They are answered to everybody, as Kubernetes answers them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use userspace_daemon::tls::{self, ServingCertificate};

/// How probes are answered; the port is the component's own flag.
#[derive(Args, Clone)]
pub struct Probes {
    /// Address that probes are answered on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind_address: IpAddr,
    /// Serving certificate for probes, PEM; self-signed unless given
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
}

impl Probes {
    /// Answers until `stop`; port 0 is for not at all. An error is a port that is taken or files
    /// that cannot be used.
    pub async fn answer(&self, port: u16, stop: &CancellationToken) -> Result<()> {
        if port == 0 {
            return Ok(());
        }
        let acceptor = TlsAcceptor::from(Arc::new(self.tls()?));
        let address = SocketAddr::new(self.bind_address, port);
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot answer probes on {address}: choose another --secure-port, or 0 for none")
        })?;
        let stop = stop.clone();
        let handler = Arc::new(|request: Request<Incoming>| -> BoxFuture<'static, _> {
            Box::pin(std::future::ready(answer(request.method(), request.uri().path())))
        });
        tokio::spawn(userspace_daemon::serve(listener, Some(acceptor), handler, stop));
        Ok(())
    }

    fn tls(&self) -> Result<rustls::ServerConfig> {
        let certificate = match (&self.tls_cert_file, &self.tls_private_key_file) {
            (Some(chain), Some(key)) => ServingCertificate { chain: read(chain)?, key: read(key)? },
            _ => ServingCertificate::self_signed(["localhost", "127.0.0.1", "::1"].map(str::to_owned))?,
        };
        tls::server(&certificate, None).context("cannot use --tls-cert-file with --tls-private-key-file")
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A process that answers is well: one that loses its lease ends.
fn answer(method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (code, text) = match path {
        _ if method != Method::GET && method != Method::HEAD => (405, "Method Not Allowed\n"),
        "/healthz" | "/livez" | "/readyz" => (200, "ok"),
        _ => (404, "404 page not found\n"),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    let headers = response.headers_mut();
    let value = http::HeaderValue::from_static;
    headers.insert(http::header::CONTENT_TYPE, value("text/plain; charset=utf-8"));
    headers.insert("x-content-type-options", value("nosniff"));
    response
}
