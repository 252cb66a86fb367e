//! The pages of a separate component, over TLS, on the ports where Kubernetes expects them. As in Kubernetes, `/healthz`,
//! `/livez` and `/readyz` need no credentials, and the others a token of a user who may get them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use http::{Method, StatusCode};
use kube::Client;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use userspace_daemon::Handler;
use userspace_daemon::metrics::Format;
use userspace_daemon::page::{text, typed};
use userspace_daemon::probes::always_well;
use userspace_daemon::tls::{self, CertificateAndKey};

use crate::delegated::Delegated;

const METRICS: &str = "/metrics";

/// Settings of the probes; the port is the component's own flag.
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
    /// Answers until `stop`; does nothing if the port is 0. Fails if the port is taken or the files cannot be
    /// used.
    pub async fn answer(&self, port: u16, handler: Handler, stop: &CancellationToken) -> Result<()> {
        if port == 0 {
            return Ok(());
        }
        let acceptor = TlsAcceptor::from(Arc::new(self.tls()?));
        let address = SocketAddr::new(self.bind_address, port);
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot answer probes on {address}: choose another --secure-port, or 0 for none")
        })?;
        tokio::spawn(userspace_daemon::serve(listener, Some(acceptor), handler, stop.clone()));
        Ok(())
    }

    fn tls(&self) -> Result<rustls::ServerConfig> {
        let certificate = match (&self.tls_cert_file, &self.tls_private_key_file) {
            (Some(chain), Some(key)) => CertificateAndKey { certificate: read(chain)?, key: read(key)? },
            _ => CertificateAndKey::self_signed(["localhost", "127.0.0.1", "::1"].map(str::to_owned))?,
        };
        tls::server(&certificate, None).context("cannot use --tls-cert-file with --tls-private-key-file")
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the handler of the probes of a process that is healthy as long as it answers, and of `/metrics` for users
/// whom the API server of `client` permits it.
pub fn with_metrics(client: Client, page: impl Fn(Format) -> String + Send + Sync + 'static) -> Handler {
    let (probes, readers) = (always_well(), Arc::new(Delegated::new(client)));
    let page = Arc::new(page);
    Arc::new(move |request| {
        if request.uri().path() != METRICS || !matches!(*request.method(), Method::GET | Method::HEAD) {
            return probes(request);
        }
        let (readers, page) = (Arc::clone(&readers), Arc::clone(&page));
        Box::pin(async move {
            match readers.get(METRICS, request.headers()).await {
                StatusCode::OK => {
                    let format = Format::accepted(request.headers());
                    typed(StatusCode::OK, format.media(), page(format))
                }
                code => text(code, format!("{}\n", code.canonical_reason().unwrap_or_default())),
            }
        })
    })
}
