//! The pages of a separate component, over TLS, on the ports where Kubernetes expects them. As in Kubernetes, `/healthz`,
//! `/livez` and `/readyz` need no credentials, and the others a token of a user who may get them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use http::{HeaderMap, StatusCode};
use kube::Client;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use userspace_daemon::Handler;
use userspace_daemon::metrics::Format;
use userspace_daemon::page::{Page, json, pages, ready, text, typed};
use userspace_daemon::probes::{Probe, well};
use userspace_daemon::tls::{self, CertificateAndKey};

use crate::delegated::Delegated;
use crate::health::{self, Check, Results};

const METRICS: &str = "/metrics";
const SLIS: &str = "/metrics/slis";
/// Requests and limits of pods, which only the scheduler has.
const RESOURCES: &str = "/metrics/resources";
const CONFIGZ: &str = "/configz";
/// Before the name of a check.
const CHECKS: &str = "/healthz/";

/// Settings of the probes; the port is the component's own flag.
#[derive(Args, Clone)]
pub struct Probes {
    /// Address that probes are answered on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub bind_address: IpAddr,
    /// Serving certificate for probes, PEM; self-signed unless given
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of that certificate, PEM
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

/// The pages of a component that has more than probes.
pub struct Pages {
    pub metrics: Box<dyn Fn(Format) -> String + Send + Sync>,
    /// Requests and limits of pods, if the component shows them.
    pub resources: Option<Box<dyn Fn(Format) -> String + Send + Sync>>,
    /// The configuration that it runs with, JSON.
    pub configz: String,
    /// Returns the results of its checks.
    pub health: Box<dyn Fn() -> Vec<Check> + Send + Sync>,
    /// Results of the checks that were asked for at `/healthz`.
    pub results: Results,
}

impl Pages {
    /// Returns the handler of these pages. `/healthz`, `/livez` and `/readyz` need no credentials; the others, and the
    /// single checks below `/healthz`, are for users whom the API server of `client` permits them.
    pub fn for_users_of(self, client: Client) -> Handler {
        let (readers, own) = (Arc::new(Delegated::new(client)), Arc::new(self));
        pages(move |request| {
            let path = request.uri().path();
            if Probe::at(path) == Some(Probe::Health) {
                let checks = (own.health)();
                own.results.note(&checks);
                return Some(ready(health::all(&checks, request.uri().query())));
            }
            if Probe::at(path).is_some() {
                return Some(ready(well()));
            }
            let is_known = [METRICS, SLIS, CONFIGZ].contains(&path) || path.starts_with(CHECKS);
            let has_resources = path == RESOURCES && own.resources.is_some();
            if !is_known && !has_resources {
                return None;
            }
            let (readers, own) = (Arc::clone(&readers), Arc::clone(&own));
            let (path, headers) = (path.to_owned(), request.headers().clone());
            Some(Box::pin(async move {
                match readers.get(&path, &headers).await {
                    StatusCode::OK => own.page(&path, &headers),
                    code => text(code, format!("{}\n", code.canonical_reason().unwrap_or_default())),
                }
            }))
        })
    }

    fn page(&self, path: &str, headers: &HeaderMap) -> Page {
        match path {
            METRICS => {
                let format = Format::accepted(headers);
                typed(StatusCode::OK, format.media(), (self.metrics)(format))
            }
            SLIS => {
                let format = Format::accepted(headers);
                typed(StatusCode::OK, format.media(), self.results.page(format))
            }
            RESOURCES => match &self.resources {
                Some(resources) => {
                    let format = Format::accepted(headers);
                    typed(StatusCode::OK, format.media(), resources(format))
                }
                None => text(StatusCode::NOT_FOUND, "404 page not found\n"),
            },
            CONFIGZ => json(StatusCode::OK, self.configz.clone()),
            _ => {
                let check = path.strip_prefix(CHECKS).and_then(|name| health::one(&(self.health)(), name));
                check.unwrap_or_else(|| text(StatusCode::NOT_FOUND, "404 page not found\n"))
            }
        }
    }
}
