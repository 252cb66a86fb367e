//! Users in client certificates: the common name is the user's name, each organization a group.
//!
//! Everybody who looks at a certificate reads it here. A certificate with several common names is nobody's:
//! readers of other makes take the first or the last, and two that disagree let somebody in as another.

use apiserver_meta::identity::Identity;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The user that a certificate names. Its signature has to be checked apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateUser {
    pub name: String,
    pub groups: Vec<String>,
}

/// A certificate names no user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate cannot be read")]
    Malformed,
    #[error("the certificate has no common name")]
    Nameless,
    #[error("the certificate has several common names")]
    SeveralNames,
    #[error("a name in the certificate is not text")]
    NotText,
}

impl From<CertificateUser> for Identity {
    /// The user, with the groups of the certificate and `system:authenticated`.
    fn from(user: CertificateUser) -> Self {
        let groups: Vec<&str> = user.groups.iter().map(String::as_str).collect();
        Self::authenticated(&user.name, &groups)
    }
}

impl CertificateUser {
    /// Reads the subject of a certificate (DER).
    pub fn read(der: &[u8]) -> Result<Self, CertificateError> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| CertificateError::Malformed)?;
        Self::of(&certificate)
    }

    /// Reads the subject of a certificate.
    pub fn of(certificate: &X509Certificate<'_>) -> Result<Self, CertificateError> {
        let subject = certificate.subject();
        let mut names = subject.iter_common_name();
        let name = names.next().ok_or(CertificateError::Nameless)?;
        if names.next().is_some() {
            return Err(CertificateError::SeveralNames);
        }
        let name = name.as_str().map_err(|_| CertificateError::NotText)?.to_owned();
        if name.is_empty() {
            return Err(CertificateError::Nameless);
        }
        let groups = subject.iter_organization().map(|group| group.as_str().map(str::to_owned));
        let groups = groups.collect::<Result<_, _>>().map_err(|_| CertificateError::NotText)?;
        Ok(Self { name, groups })
    }

    /// Returns `true` if the user is in a group.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}
