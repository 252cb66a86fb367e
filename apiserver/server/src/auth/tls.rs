//! TLS set-ups on top of the authority. Both sides take the time from `Ambient`, so that an
//! expired certificate is refused in simulated time too.

use std::sync::Arc;
use std::time::Duration;

use apiserver_api::ambient::Ambient;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::UnixTime;
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::pki::{Pair, Pki, PkiError, Subject, certificates, private_key};

/// The time of `Ambient` for certificate checks.
pub(super) struct AmbientTime(pub(super) Ambient);

impl std::fmt::Debug for AmbientTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AmbientTime")
    }
}

impl TimeProvider for AmbientTime {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

impl Pki {
    /// The API server's TLS: its certificate for `subject` is kept as `apiserver`; a client may
    /// show a certificate, which must then be one of this authority; HTTP/2 and HTTP/1.1.
    pub fn apiserver_tls(&self, subject: &Subject) -> Result<Arc<ServerConfig>, PkiError> {
        self.server_tls(&self.keep("apiserver", subject)?, &[b"h2", b"http/1.1"])
    }

    /// TLS of any server of the cluster, such as a kubelet's (`protocols` for ALPN, best first).
    /// Clients without a certificate are let through: what they may do is for the server to say.
    pub fn server_tls(&self, pair: &Pair, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, PkiError> {
        let provider = provider();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(PkiError::Verifier)?;
        let key = private_key(&pair.key).ok_or_else(no_key)?;
        let mut config = ServerConfig::builder_with_details(provider, self.time())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(&pair.certificate), key)
            .map_err(PkiError::Tls)?;
        config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// A client that trusts this authority alone and shows `pair`. HTTP/1.1 only, since exec,
    /// attach and port-forward are upgrades.
    pub fn client_tls(&self, pair: &Pair) -> Result<Arc<ClientConfig>, PkiError> {
        let key = private_key(&pair.key).ok_or_else(no_key)?;
        let mut config = ClientConfig::builder_with_details(provider(), self.time())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(certificates(&pair.certificate), key)
            .map_err(PkiError::Tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// What the API server calls kubelets with; its certificate is kept as
    /// `apiserver-kubelet-client`. The user is `kube-apiserver-kubelet-client` in `system:masters`.
    pub fn kubelet_client_tls(&self) -> Result<Arc<ClientConfig>, PkiError> {
        let subject = Subject::client("kube-apiserver-kubelet-client", &["system:masters"]);
        self.client_tls(&self.keep("apiserver-kubelet-client", &subject)?)
    }

    fn roots(&self) -> Result<RootCertStore, PkiError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca_der.clone()).map_err(PkiError::Tls)?;
        Ok(roots)
    }

    fn time(&self) -> Arc<AmbientTime> {
        Arc::new(AmbientTime(self.ambient.clone()))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn no_key() -> PkiError {
    PkiError::Tls(rustls::Error::General("the PEM text holds no private key".to_owned()))
}
