//! Authorization of callers of the node's server by their client certificate. The cluster's authority signs
//! certificates for all users, including other nodes, so a valid signature alone grants nothing.

use rustls::pki_types::CertificateDer;

use crate::config::Identify;

/// User as which the API server calls kubelets, by the convention of Kubernetes installers.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
/// Group whose members may do everything.
const MASTERS: &str = "system:masters";

/// Permission level of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Presented no certificate.
    Anonymous,
    /// An authenticated user who has no access to the node's server.
    Forbidden,
    /// The API server, or an administrator.
    Permitted,
}

impl Caller {
    /// Classifies a caller by the certificate that the handshake has verified.
    pub(super) fn of(certificate: Option<&CertificateDer<'_>>, identify: Option<Identify>) -> Self {
        let (Some(certificate), Some(identify)) = (certificate, identify) else { return Self::Anonymous };
        match identify(certificate) {
            Some(user) if user.user == API_SERVER || user.in_group(MASTERS) => Self::Permitted,
            _ => Self::Forbidden,
        }
    }
}

/// The certificate reader that the binary passes to a kubelet.
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
    fn a_certificate_with_several_names_identifies_no_user() {
        for (first, second) in [(API_SERVER, "system:node:a"), ("system:node:a", API_SERVER)] {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, first);
            params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), second);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(
                Caller::of(Some(certificate.der()), Some(identify)),
                Caller::Forbidden,
                "{first}, {second}"
            );
        }
    }

    #[test]
    fn the_api_server_and_administrators_are_permitted_and_another_node_is_not() {
        assert_eq!(caller(API_SERVER, "any"), Caller::Permitted);
        assert_eq!(caller("kubernetes-admin", MASTERS), Caller::Permitted);
        assert_eq!(caller("system:node:other", "system:nodes"), Caller::Forbidden);
        assert_eq!(Caller::of(None, Some(identify)), Caller::Anonymous);
    }
}
