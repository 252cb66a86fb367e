//! TLS of daemons: server configurations from PEM, clients that trust anyone, and verifiers that add a rule
//! to those of a certificate authority.

mod verify;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

pub use verify::{ClientRule, RuledClients, RuledServers, ServerRule, TrustAnyone};

/// A server's certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the {what} is not PEM")]
    Pem {
        what: &'static str,
        #[source]
        source: pem::Error,
    },
    #[error("the serving certificate cannot be used")]
    Server(#[source] rustls::Error),
    #[error("the certificate authority of clients cannot be used")]
    Authority(#[source] rustls::Error),
    #[error("clients cannot be verified")]
    Verifier(#[from] VerifierBuilderError),
    #[error("cannot make a certificate")]
    Generate(#[from] rcgen::Error),
}

/// A certificate chain and its private key, both PEM, of a server or a client.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateAndKey {
    /// The own certificate first, then those of intermediate authorities.
    pub certificate: String,
    /// PKCS #8, PKCS #1 or SEC 1.
    pub key: String,
}

/// Shows the certificate and not the key.
impl std::fmt::Debug for CertificateAndKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateAndKey").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl CertificateAndKey {
    /// Makes a self-signed certificate for host names and addresses.
    pub fn self_signed(names: impl IntoIterator<Item = String>) -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed(names.into_iter().collect::<Vec<_>>())?;
        Ok(Self { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() })
    }
}

/// Returns the cryptography of all TLS in this product.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Makes [`provider`] the default of everything in this process that speaks TLS. Fails if there is a default
/// already.
pub fn install() -> Result<(), Arc<CryptoProvider>> {
    rustls::crypto::ring::default_provider().install_default()
}

/// Returns the configuration of a server that speaks HTTP/1.1. With the PEM of a certificate authority it
/// asks clients for certificates; a client without one passes the handshake, so that it can be told why it is
/// refused.
pub fn server(
    certificate: &CertificateAndKey,
    client_authority: Option<&str>,
) -> Result<ServerConfig, TlsError> {
    let chain = certificates(&certificate.certificate, "serving certificate")?;
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes())
        .map_err(|source| TlsError::Pem { what: "key of the serving certificate", source })?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Server)?;
    let builder = match client_authority {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, "certificate authority of clients")? {
                roots.add(certificate).map_err(TlsError::Authority)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Server)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns the configuration of a client that accepts any server: see [`TrustAnyone`].
pub fn trusting_client() -> Result<ClientConfig, rustls::Error> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAnyone::new()))
        .with_no_client_auth())
}

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { what, source })
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    async fn shake_hands(server: ServerConfig, client: ClientConfig) -> Result<(), std::io::Error> {
        let (here, there) = tokio::io::duplex(16 << 10);
        let name = ServerName::try_from("somebody.example").unwrap();
        let (acceptor, connector) =
            (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)));
        let (accepted, connected) = tokio::join!(acceptor.accept(here), connector.connect(name, there));
        accepted?;
        connected.map(|_| ())
    }

    #[tokio::test]
    async fn a_trusting_client_takes_a_server_of_another_name_that_has_its_key() {
        let own = CertificateAndKey::self_signed(["localhost".to_owned()]).unwrap();
        shake_hands(server(&own, None).unwrap(), trusting_client().unwrap()).await.unwrap();
    }

    #[tokio::test]
    async fn a_trusting_client_refuses_a_server_without_the_key_of_its_certificate() {
        #[derive(Debug)]
        struct Thief(Arc<rustls::sign::CertifiedKey>);
        impl rustls::server::ResolvesServerCert for Thief {
            fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
                Some(Arc::clone(&self.0))
            }
        }
        let [victim, thief] =
            ["a", "b"].map(|name| CertificateAndKey::self_signed([name.to_owned()]).unwrap());
        let key = PrivateKeyDer::from_pem_slice(thief.key.as_bytes()).unwrap();
        let key = provider().key_provider.load_private_key(key).unwrap();
        let stolen =
            rustls::sign::CertifiedKey::new(certificates(&victim.certificate, "chain").unwrap(), key);
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Thief(Arc::new(stolen))));
        assert!(shake_hands(config, trusting_client().unwrap()).await.is_err());
    }

    #[test]
    fn file_without_pem_is_named() {
        let own = CertificateAndKey::self_signed(["localhost".to_owned()]).unwrap();
        let text = |certificate: &CertificateAndKey, authority| {
            server(certificate, authority).err().map(|error| error.to_string())
        };
        let keyless = CertificateAndKey { key: "none".to_owned(), ..own.clone() };
        assert_eq!(text(&keyless, None).unwrap(), "the key of the serving certificate is not PEM");
        assert_eq!(
            text(&own, Some("-----BEGIN CERTIFICATE-----\n!")).unwrap(),
            "the certificate authority of clients is not PEM"
        );
        assert_eq!(text(&own, Some(&own.certificate)), None);
    }
}
