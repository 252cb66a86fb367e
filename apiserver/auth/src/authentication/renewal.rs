//! Certificates of a process that runs for longer than they live: each handshake takes the
//! current one, and in its last month the first handshake issues its successor, in memory. The
//! files are renewed at the next start.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, SignatureScheme};
use userspace_daemon::tls::CertificateAndKey;

use super::pki::{Pki, PkiError, Subject, certificates, private_key, renew_at, subject};

struct Current {
    key: Arc<CertifiedKey>,
    /// Seconds since 1970; from then on it is renewed.
    renew_at: i64,
}

/// A certificate that is renewed by the authority that issued it.
pub(super) struct Renewing {
    pki: Pki,
    /// `None` for a certificate that the authority would not issue in that form, or did not
    /// issue; it stays.
    subject: Option<Subject>,
    current: ArcSwap<Current>,
}

impl Renewing {
    /// Starts with `pair`.
    pub(super) fn new(pki: &Pki, pair: &CertificateAndKey) -> Result<Arc<Self>, PkiError> {
        let current = ArcSwap::from_pointee(load(pair)?);
        Ok(Arc::new(Self { pki: pki.clone(), subject: subject(&pair.certificate), current }))
    }

    /// Returns `pair` unchanged, whoever issued it.
    pub(super) fn fixed(pki: &Pki, pair: &CertificateAndKey) -> Result<Arc<Self>, PkiError> {
        let current = ArcSwap::from_pointee(load(pair)?);
        Ok(Arc::new(Self { pki: pki.clone(), subject: None, current }))
    }

    fn current(&self) -> Arc<CertifiedKey> {
        let current = self.current.load_full();
        let Some(subject) = self.subject.as_ref().filter(|_| self.pki.now() >= current.renew_at) else {
            return current.key.clone();
        };
        match self.pki.issue(subject).and_then(|pair| load(&pair)) {
            Ok(next) => {
                let key = next.key.clone();
                self.current.store(Arc::new(next));
                tracing::info!(subject = %subject.common_name, "renewed a certificate");
                key
            }
            Err(error) => {
                tracing::warn!(%error, subject = %subject.common_name, "cannot renew a certificate");
                current.key.clone()
            }
        }
    }
}

fn load(pair: &CertificateAndKey) -> Result<Current, PkiError> {
    let missing = || PkiError::Tls(Error::General("the PEM text holds no certificate and key".to_owned()));
    let key = private_key(&pair.key).ok_or_else(missing)?;
    let renew_at = renew_at(&pair.certificate).ok_or_else(missing)?;
    let provider = rustls::crypto::ring::default_provider();
    let key =
        CertifiedKey::from_der(certificates(&pair.certificate), key, &provider).map_err(PkiError::Tls)?;
    Ok(Current { key: Arc::new(key), renew_at })
}

impl std::fmt::Debug for Renewing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewing").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Renewing {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for Renewing {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
