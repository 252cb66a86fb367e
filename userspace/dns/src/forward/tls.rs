//! Upstreams by TLS (RFC 7858), with a connection for each question.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use userspace_daemon::tls::provider;

/// Settings of one rule, as the lines `tls` and `tls_servername` of CoreDNS have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// The name that upstreams' certificates must have; their address unless given.
    pub server_name: Option<String>,
    /// File with the certificate authorities; those of the system unless given.
    pub authorities: Option<PathBuf>,
}

/// TLS cannot be used for a rule.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the certificate authorities are not PEM")]
    Pem(#[source] pem::Error),
    #[error("there is no certificate authority: install ca-certificates, or name a file with `tls FILE`")]
    NoAuthority,
    #[error("a certificate authority cannot be used")]
    Authority(#[source] rustls::Error),
    #[error("`tls_servername` is not a valid name")]
    Name(#[from] InvalidDnsNameError),
}

/// The client of one rule.
pub struct Tls {
    pub settings: TlsSettings,
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

impl Tls {
    /// Returns a client. `read` reads the file with the authorities.
    pub fn new(settings: &TlsSettings, read: &dyn Fn(&std::path::Path) -> String) -> Result<Self, TlsError> {
        let certificates = match &settings.authorities {
            Some(path) => CertificateDer::pem_slice_iter(read(path).as_bytes())
                .collect::<Result<Vec<_>, _>>()
                .map_err(TlsError::Pem)?,
            // Certificates of the system that cannot be read are left out; having none at all is an error below.
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = RootCertStore::empty();
        if settings.authorities.is_some() {
            for certificate in certificates {
                roots.add(certificate).map_err(TlsError::Authority)?;
            }
        } else {
            roots.add_parsable_certificates(certificates);
        }
        if roots.is_empty() {
            return Err(TlsError::NoAuthority);
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Authority)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = settings.server_name.clone().map(ServerName::try_from).transpose()?;
        Ok(Self { settings: settings.clone(), connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Secures a connection to an upstream.
    pub async fn secure(&self, upstream: SocketAddr, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = self.name.clone().unwrap_or_else(|| ServerName::IpAddress(upstream.ip().into()));
        self.connector.connect(name, stream).await
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("settings", &self.settings).finish_non_exhaustive()
    }
}
