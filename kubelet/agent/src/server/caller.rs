//! Who calls the node's server, by the certificate shown. The authority signs for every user of
//! the cluster, other nodes among them, so its signature alone opens nothing.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The API server's user when it calls kubelets, by the custom of Kubernetes' installers.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
/// May do everything.
const MASTERS: &str = "system:masters";

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Showed no certificate: health only.
    Nobody,
    /// A user of the cluster with no business here.
    Stranger,
    /// The API server, or an administrator.
    Permitted,
}

impl Caller {
    /// By the certificate that the handshake has verified.
    pub(super) fn of(certificate: Option<&CertificateDer<'_>>) -> Self {
        let Some(certificate) = certificate else { return Self::Nobody };
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Self::Stranger };
        let subject = certificate.subject();
        let named = subject.iter_common_name().any(|name| name.as_str() == Ok(API_SERVER));
        let master = subject.iter_organization().any(|group| group.as_str() == Ok(MASTERS));
        if named || master { Self::Permitted } else { Self::Stranger }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn caller(name: &str, group: &str) -> Caller {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        let key = KeyPair::generate().unwrap();
        Caller::of(Some(params.self_signed(&key).unwrap().der()))
    }

    #[test]
    fn the_api_server_and_administrators_are_let_in_and_another_node_is_not() {
        assert_eq!(caller(API_SERVER, "any"), Caller::Permitted);
        assert_eq!(caller("kubernetes-admin", MASTERS), Caller::Permitted);
        assert_eq!(caller("system:node:other", "system:nodes"), Caller::Stranger);
        assert_eq!(Caller::of(None), Caller::Nobody);
    }
}
