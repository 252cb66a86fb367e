//! The certificate of the node server, which can be replaced while the server runs.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use userspace_daemon::tls::CertificateAndKey;

use super::request::certified;

/// The certificate that new connections are shown. Clones share it; until there is one, handshakes fail.
#[derive(Clone, Debug, Default)]
pub struct Serving(Arc<ArcSwapOption<CertifiedKey>>);

impl Serving {
    /// Shows `pair` from now on. Returns false if certificate and key do not belong together, and changes
    /// nothing then.
    pub fn replace(&self, pair: &CertificateAndKey) -> bool {
        let Some(certified) = certified(pair) else { return false };
        self.0.store(Some(Arc::new(certified)));
        true
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
