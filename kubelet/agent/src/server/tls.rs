//! TLS of the node's server: its own certificate and the verification of clients.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use userspace_daemon::tls::{self, CertificateAndKey, TlsError};

use crate::config::{Config, Identify};

/// TLS configuration for connections to the node's server.
#[derive(Clone)]
pub(crate) struct NodeTls {
    pub acceptor: TlsAcceptor,
    /// Reads the user from a verified certificate; `None` if there is no authority for clients.
    pub identify: Option<Identify>,
}

/// Builds the acceptor of the node's server. Without a certificate authority no client is authenticated; a
/// client without a certificate can connect, so that it gets a 401 answer.
pub(crate) fn tls(config: &Config, host_ips: &[String]) -> Result<NodeTls, TlsError> {
    let certificate = match &config.serving {
        Some(serving) => serving.clone(),
        None => {
            let names = std::iter::once(&config.node_name).chain(host_ips);
            CertificateAndKey::self_signed(names.cloned())?
        }
    };
    let authority = config.client_authority.as_ref();
    let mut tls = tls::server(&certificate, authority.map(|authority| authority.pem.as_str()))?;
    if let Some(rotated) = &config.rotated_serving {
        tls.cert_resolver = Arc::new(rotated.clone());
    }
    let identify = authority.map(|authority| authority.identify);
    Ok(NodeTls { acceptor: TlsAcceptor::from(Arc::new(tls)), identify })
}
