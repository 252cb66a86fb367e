//! TLS set-ups on top of the authority. Both sides take the time from `Ambient`, so that an
//! expired certificate is refused in simulated time too, and renew their certificates in time.

use std::sync::Arc;
use std::time::Duration;

use apiserver_kinds::certificate::CertificateUser;
use apiserver_meta::ambient::Ambient;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, ClientConfig, Error, RootCertStore, ServerConfig};
use userspace_daemon::tls::{
    CertificateAndKey, ClientRule, RuledClients, RuledServers, ServerRule, TrustAnyone, provider,
};

use super::pki::{KUBELET_CLIENT, Pki, PkiError, Subject};
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
struct OnlyUser(&'static str);

impl ClientRule for OnlyUser {
    const MANDATORY: bool = true;

    fn verify(
        &self,
        chain: &dyn ClientCertVerifier,
        own: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = chain.verify_client_cert(own, rest, now)?;
        match CertificateUser::read(own) {
            Ok(user) if user.name == self.0 => Ok(verified),
            _ => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }
}

/// Lets a kubelet's certificate pass that is good for the address called and names the node that is meant.
#[derive(Debug)]
struct OnlyNode(String);

impl ServerRule for OnlyNode {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        match CertificateUser::read(certificate) {
            Ok(user) if names_node(&user, &self.0) => Ok(()),
            Ok(user) => Err(Error::General(format!(
                "the certificate is that of {:?} and not of node {:?}",
                user.name, self.0
            ))),
            Err(error) => Err(Error::General(error.to_string())),
        }
    }
}

/// Returns `true` if a subject is the kubelet of a node: `system:node:NAME` in `system:nodes`, as in
/// certificates signed for kubelets, or the name of the node alone, as administrators issue them.
fn names_node(user: &CertificateUser, node: &str) -> bool {
    if node.is_empty() {
        return false;
    }
    match user.name.strip_prefix("system:node:") {
        Some(name) => name == node && user.in_group("system:nodes"),
        None => user.name == node,
    }
}

/// TLS from the API server to nodes. Cheap to clone.
#[derive(Clone)]
pub struct KubeletTls {
    /// Shows the API server's certificate.
    config: Arc<ClientConfig>,
    /// Shows none.
    anonymous: Arc<ClientConfig>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl KubeletTls {
    /// For the kubelet of a node, and of no other: a node can write any address into its status.
    pub fn to_kubelet(&self, node: &str) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.config);
        let verifier = RuledServers { chain: Arc::clone(&self.verifier), rule: OnlyNode(node.to_owned()) };
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        Arc::new(config)
    }

    /// Returns the configuration for other servers on a node: no certificate is shown, and none is checked.
    pub fn without_credentials(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.anonymous)
    }
}

impl Pki {
    /// Returns the TLS configuration of a kubelet's node server, HTTP/1.1: only the API server can connect,
    /// by the certificate of `kubelet_client_tls`. All others fail the handshake, so that requests need no
    /// further check.
    pub fn node_server_tls(&self, pair: &CertificateAndKey) -> Result<Arc<ServerConfig>, PkiError> {
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider())
            .build()
            .map_err(PkiError::Verifier)?;
        let mut config = ServerConfig::builder_with_details(provider(), self.time())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_client_cert_verifier(Arc::new(RuledClients { chain, rule: OnlyUser(KUBELET_CLIENT) }))
            .with_cert_resolver(Renewing::new(self, pair)?);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// A client that trusts this authority alone and shows `pair`. HTTP/1.1 only, since exec,
    /// attach and port-forward are upgrades.
    pub fn client_tls(&self, pair: &CertificateAndKey) -> Result<Arc<ClientConfig>, PkiError> {
        let mut config = ClientConfig::builder_with_details(provider(), self.time())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_root_certificates(self.roots()?)
            .with_client_cert_resolver(Renewing::new(self, pair)?);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Returns the TLS configuration with which the API server calls kubelets; its certificate is stored as
    /// `apiserver-kubelet-client`. The user is `kube-apiserver-kubelet-client`, in no group.
    pub fn kubelet_client_tls(&self) -> Result<KubeletTls, PkiError> {
        let pair = self.load_or_issue("apiserver-kubelet-client", &Subject::kubelet_client())?;
        let mut config = ClientConfig::clone(&*self.client_tls(&pair)?);
        // A session that is resumed is not verified again, and the next one may be meant for another node.
        config.resumption = Resumption::disabled();
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(self.roots()?), provider())
            .build()
            .map_err(PkiError::Verifier)?;
        let mut anonymous = ClientConfig::builder_with_details(provider(), self.time())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .dangerous()
            // A server on another port of a node may have any certificate, and gets nothing secret.
            .with_custom_certificate_verifier(Arc::new(TrustAnyone::new()))
            .with_no_client_auth();
        anonymous.alpn_protocols.clone_from(&config.alpn_protocols);
        anonymous.resumption = Resumption::disabled();
        Ok(KubeletTls { config: Arc::new(config), anonymous: Arc::new(anonymous), verifier })
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
