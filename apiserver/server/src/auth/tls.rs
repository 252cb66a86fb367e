//! TLS set-ups on top of the authority. Both sides take the time from `Ambient`, so that an
//! expired certificate is refused in simulated time too, and renew their certificates in time.

use std::sync::Arc;
use std::time::Duration;

use apiserver_api::ambient::Ambient;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::pki::{KUBELET_CLIENT, Pair, Pki, PkiError, Subject};
use super::renewal::Renewing;

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

/// Lets one user in, by the common name of a certificate that is otherwise good.
#[derive(Debug)]
struct OnlyUser {
    user: &'static str,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for OnlyUser {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        let parsed = X509Certificate::from_der(end_entity);
        let name = parsed.ok().and_then(|(_, certificate)| {
            let name = certificate.subject().iter_common_name().next()?;
            name.as_str().ok().map(str::to_owned)
        });
        if name.as_deref() == Some(self.user) {
            Ok(verified)
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

impl Pki {
    /// TLS of a kubelet's node server, HTTP/1.1: only the API server gets in, by the certificate
    /// of `kubelet_client_tls`. Everybody else fails the handshake, so that what comes through
    /// needs no further check.
    pub fn node_server_tls(&self, pair: &Pair) -> Result<Arc<ServerConfig>, PkiError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider())
            .build()
            .map_err(PkiError::Verifier)?;
        let mut config = ServerConfig::builder_with_details(provider(), self.time())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_client_cert_verifier(Arc::new(OnlyUser { user: KUBELET_CLIENT, verifier }))
            .with_cert_resolver(Renewing::new(self, pair)?);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// A client that trusts this authority alone and shows `pair`. HTTP/1.1 only, since exec,
    /// attach and port-forward are upgrades.
    pub fn client_tls(&self, pair: &Pair) -> Result<Arc<ClientConfig>, PkiError> {
        let mut config = ClientConfig::builder_with_details(provider(), self.time())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_root_certificates(self.roots()?)
            .with_client_cert_resolver(Renewing::new(self, pair)?);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// What the API server calls kubelets with; its certificate is kept as
    /// `apiserver-kubelet-client`. The user is `kube-apiserver-kubelet-client` in `system:masters`.
    pub fn kubelet_client_tls(&self) -> Result<Arc<ClientConfig>, PkiError> {
        self.client_tls(&self.keep("apiserver-kubelet-client", &Subject::kubelet_client())?)
    }

    pub(super) fn roots(&self) -> Result<RootCertStore, PkiError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca_der.clone()).map_err(PkiError::Tls)?;
        Ok(roots)
    }

    pub(super) fn time(&self) -> Arc<AmbientTime> {
        Arc::new(AmbientTime(self.ambient.clone()))
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
