//! TLS of the node's server: its own certificate and the verification of clients.

use std::sync::Arc;

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio_rustls::TlsAcceptor;

use crate::config::{Config, Identify};

/// The certificates of the node's server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the {what} is not PEM")]
    Pem {
        what: &'static str,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the certificate of the node's server cannot be used")]
    Server(#[source] rustls::Error),
    #[error("the certificate authority of the node's clients cannot be used")]
    Authority(#[source] rustls::Error),
    #[error("cannot verify clients of the node's server")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("cannot generate a self-signed certificate")]
    Generate(#[from] rcgen::Error),
}

/// TLS configuration for connections to the node's server.
#[derive(Clone)]
pub(crate) struct NodeTls {
    pub acceptor: TlsAcceptor,
    /// Reads the user from a verified certificate; `None` if there is no authority for clients.
    pub identify: Option<Identify>,
}

/// Builds the TLS configuration of the node's server. Without a certificate authority no client is
/// authenticated.
pub(crate) fn tls(config: &Config, host_ips: &[String]) -> Result<NodeTls, TlsError> {
    let (chain, key) = match &config.serving {
        Some(serving) => (serving.chain.clone(), serving.key.clone()),
        None => self_signed(&config.node_name, host_ips)?,
    };
    let chain = certificates(&chain, "certificate of the node's server")?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|source| TlsError::Pem { what: "key of the node's server", source })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Server)?;
    let builder = match &config.client_authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&authority.pem, "certificate authority of the node's clients")? {
                roots.add(certificate).map_err(TlsError::Authority)?;
            }
            // A client without a certificate can connect, so that it gets a 401 answer.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
        }
    };
    let mut tls = builder.with_single_cert(chain, key).map_err(TlsError::Server)?;
    // Upgrades exist only in HTTP/1.1.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let identify = config.client_authority.as_ref().map(|authority| authority.identify);
    Ok(NodeTls { acceptor: TlsAcceptor::from(Arc::new(tls)), identify })
}

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { what, source })
}

/// Returns a self-signed certificate and its key, both in PEM.
fn self_signed(node: &str, host_ips: &[String]) -> Result<(String, String), TlsError> {
    let names: Vec<String> = std::iter::once(node.to_owned()).chain(host_ips.iter().cloned()).collect();
    let made = rcgen::generate_simple_self_signed(names)?;
    Ok((made.cert.pem(), made.signing_key.serialize_pem()))
}
