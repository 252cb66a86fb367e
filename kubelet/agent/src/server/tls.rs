//! The node's server: its certificate, and whom it lets in.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use userspace_daemon::tls::{self, ServingCertificate, TlsError};

use crate::config::{Config, Identify};

/// What a connection to the node's server is accepted with.
#[derive(Clone)]
pub(crate) struct NodeTls {
    pub acceptor: TlsAcceptor,
    /// Reads the user of a verified certificate; none where no client is known.
    pub identify: Option<Identify>,
}

/// Makes the acceptor of the node's server. Without a certificate authority no client is known; a client
/// that shows no certificate gets an answer all the same: 401.
pub(crate) fn tls(config: &Config, host_ips: &[String]) -> Result<NodeTls, TlsError> {
    let certificate = match &config.serving {
        Some(serving) => serving.clone(),
        None => {
            let names = std::iter::once(&config.node_name).chain(host_ips);
            ServingCertificate::self_signed(names.cloned())?
        }
    };
    let authority = config.client_authority.as_ref();
    let tls = tls::server(&certificate, authority.map(|authority| authority.pem.as_str()))?;
    let identify = authority.map(|authority| authority.identify);
    Ok(NodeTls { acceptor: TlsAcceptor::from(Arc::new(tls)), identify })
}
