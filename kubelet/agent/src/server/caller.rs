//! Who calls the node's server, by the certificate shown. The authority signs for every user of
//! the cluster, other nodes among them, so its signature alone opens nothing.

use rustls::pki_types::CertificateDer;

use crate::config::Identify;

/// The API server's user when it calls kubelets, by the custom of Kubernetes' installers.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
/// May do everything.
const MASTERS: &str = "system:masters";

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Showed no certificate.
    Nobody,
    /// A user of the cluster with no business here.
    Stranger,
    /// The API server, or an administrator.
    Permitted,
}

impl Caller {
    /// Judges the certificate that the handshake has verified.
    pub(super) fn of(certificate: Option<&CertificateDer<'_>>, identify: Option<Identify>) -> Self {
        let (Some(certificate), Some(identify)) = (certificate, identify) else { return Self::Nobody };
        match identify(certificate) {
            Some(user) if user.user == API_SERVER || user.in_group(MASTERS) => Self::Permitted,
            _ => Self::Stranger,
        }
    }
}

/// The reader of certificates that the binary gives to a kubelet.
#[cfg(test)]
pub(super) fn identify(certificate: &[u8]) -> Option<apiserver_meta::identity::Identity> {
    apiserver_kinds::certificate::CertificateUser::read(certificate).ok().map(Into::into)
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
        Caller::of(Some(params.self_signed(&key).unwrap().der()), Some(identify))
    }

    #[test]
    fn a_certificate_with_several_names_is_nobodys() {
        for (first, second) in [(API_SERVER, "system:node:a"), ("system:node:a", API_SERVER)] {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, first);
            params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), second);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(
                Caller::of(Some(certificate.der()), Some(identify)),
                Caller::Stranger,
                "{first}, {second}"
            );
        }
    }

    #[test]
    fn the_api_server_and_administrators_are_let_in_and_another_node_is_not() {
        assert_eq!(caller(API_SERVER, "any"), Caller::Permitted);
        assert_eq!(caller("kubernetes-admin", MASTERS), Caller::Permitted);
        assert_eq!(caller("system:node:other", "system:nodes"), Caller::Stranger);
        assert_eq!(Caller::of(None, Some(identify)), Caller::Nobody);
    }
}
