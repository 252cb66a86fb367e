//! `/healthz`, `/livez` and `/readyz` of a separate component, over TLS, on the ports where Kubernetes
//! expects them. As in Kubernetes, they need no credentials.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use userspace_daemon::probes;
use userspace_daemon::tls::{self, CertificateAndKey};

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
    pub async fn answer(&self, port: u16, stop: &CancellationToken) -> Result<()> {
        if port == 0 {
            return Ok(());
        }
        let acceptor = TlsAcceptor::from(Arc::new(self.tls()?));
        let address = SocketAddr::new(self.bind_address, port);
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot answer probes on {address}: choose another --secure-port, or 0 for none")
        })?;
        let handler = probes::always_well();
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
