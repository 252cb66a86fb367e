//! TLS of the API's port. Clients are asked for a certificate and need none; one that the
//! authorities do not vouch for does not end the handshake, but is answered with 401 in HTTP, as
//! Kubernetes does: the client then learns why, and a token beside it still counts.
//!
//! What the port serves with, and whom it believes, may come from files instead of the data
//! directory's own authority, so that several API servers can share them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{Error, RootCertStore, ServerConfig};
use userspace_daemon::tls::{CertificateAndKey, ClientRule, RuledClients, provider};

use super::pki::{Pki, PkiError, Subject, certificates, private_key};
use super::renewal::Renewing;
use super::tls::AmbientTime;

/// Files used instead of certificates that the authority of the data directory would issue; all PEM.
#[derive(Clone, Debug, Default)]
pub struct ListenerFiles {
    /// Authorities whose client certificates are believed, in addition to the own one.
    pub client_ca: Option<PathBuf>,
    /// The serving certificate, with intermediate ones after it.
    pub certificate: Option<PathBuf>,
    /// Its private key. Without it, or without the certificate, both are issued.
    pub key: Option<PathBuf>,
}

/// TLS of the API's port, and the verifier of client certificates after the handshake.
#[derive(Clone)]
pub struct ListenerTls {
    config: Arc<ServerConfig>,
    clients: Arc<dyn ClientCertVerifier>,
    time: Arc<AmbientTime>,
    client_authorities: String,
    authorities: String,
}

impl ListenerTls {
    /// For the acceptor. It lets every client certificate through whose key the client has: see
    /// [`ListenerTls::vouches_for`].
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Returns `true` if a chain of certificates, the client's own first, leads to an authority, is valid now
    /// and is meant for clients.
    pub fn vouches_for(&self, chain: &[CertificateDer<'_>]) -> bool {
        let (Some((own, rest)), Some(now)) = (chain.split_first(), self.time.current_time()) else {
            return false;
        };
        match self.clients.verify_client_cert(own, rest, now) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%error, "a client certificate is not believed");
                false
            }
        }
    }

    /// Returns the authorities whose client certificates are accepted, as PEM.
    pub fn client_authorities(&self) -> &str {
        &self.client_authorities
    }

    /// Returns the certificates that a client should trust, as PEM: the serving certificate's chain and the
    /// authorities.
    pub fn authorities(&self) -> &str {
        &self.authorities
    }
}

impl From<ListenerTls> for Arc<ServerConfig> {
    fn from(tls: ListenerTls) -> Self {
        tls.config
    }
}

/// Lets every client certificate through, and leaves the judgement for later.
#[derive(Debug)]
struct JudgedLater;

impl ClientRule for JudgedLater {
    const MANDATORY: bool = false;

    fn verify(
        &self,
        _: &dyn ClientCertVerifier,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }
}

impl Pki {
    /// The API server's TLS: its certificate for `subject` is kept as `apiserver`; a client may
    /// show a certificate, which counts if it is of this authority; HTTP/2 and HTTP/1.1.
    pub fn apiserver_tls(&self, subject: &Subject) -> Result<ListenerTls, PkiError> {
        self.listener_tls(subject, &ListenerFiles::default())
    }

    /// Does what [`Pki::apiserver_tls`] does, with files in place of what would be issued. A given serving
    /// certificate stays as it is: whoever made it renews it. Errors name the file.
    pub fn listener_tls(&self, subject: &Subject, files: &ListenerFiles) -> Result<ListenerTls, PkiError> {
        let mut roots = self.roots()?;
        let mut authorities = match &files.client_ca {
            Some(path) => add_authorities(&mut roots, path)?,
            None => String::new(),
        };
        let client_authorities = format!("{authorities}{}", self.ca_pem());
        let resolver = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => {
                let pair = given_pair(certificate, key)?;
                authorities.push_str(&pair.certificate);
                let inconsistent =
                    |_| PkiError::Mismatch { certificate: certificate.clone(), key: key.clone() };
                Renewing::fixed(self, &pair).map_err(inconsistent)?
            }
            _ => Renewing::new(self, &self.load_or_issue("apiserver", subject)?)?,
        };
        authorities.push_str(self.ca_pem());
        let clients: Arc<dyn ClientCertVerifier> =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                .allow_unauthenticated()
                .build()
                .map_err(PkiError::Verifier)?;
        let mut config = ServerConfig::builder_with_details(provider(), self.time())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_client_cert_verifier(Arc::new(RuledClients {
                chain: Arc::clone(&clients),
                rule: JudgedLater,
            }))
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(ListenerTls {
            config: Arc::new(config),
            clients,
            time: self.time(),
            client_authorities,
            authorities,
        })
    }
}

/// Returns the text of a file that was configured; errors name it.
pub(super) fn read_given(path: &Path) -> Result<String, PkiError> {
    std::fs::read_to_string(path).map_err(|cause| PkiError::File { path: path.to_owned(), cause })
}

/// Adds every certificate of a file, which must have one at least.
fn add_authorities(roots: &mut RootCertStore, path: &Path) -> Result<String, PkiError> {
    let broken = || PkiError::Content { path: path.to_owned(), what: "certificates of authorities" };
    let text = read_given(path)?;
    let found = certificates(&text);
    if found.is_empty() {
        return Err(broken());
    }
    for certificate in found {
        roots.add(certificate).map_err(|_| broken())?;
    }
    Ok(on_its_own_line(text))
}

fn given_pair(certificate: &Path, key: &Path) -> Result<CertificateAndKey, PkiError> {
    let (chain, secret) = (read_given(certificate)?, read_given(key)?);
    if certificates(&chain).is_empty() {
        return Err(PkiError::Content { path: certificate.to_owned(), what: "a certificate" });
    }
    if private_key(&secret).is_none() {
        return Err(PkiError::Content { path: key.to_owned(), what: "a private key" });
    }
    Ok(CertificateAndKey { certificate: on_its_own_line(chain), key: secret })
}

/// PEM texts are put after one another.
fn on_its_own_line(mut text: String) -> String {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
