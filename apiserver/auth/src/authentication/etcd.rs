//! Certificates of etcd. Its members take whoever shows a certificate of their authority for an administrator, so they
//! have an authority of their own, which signs for nobody else.

use std::collections::BTreeSet;

use super::pki::{Subject, Usage};

impl Subject {
    /// A member of etcd, towards its clients and the other members, which compare its address with `addresses`.
    pub fn etcd_member(node_name: &str, addresses: impl IntoIterator<Item = String>) -> Self {
        let mut hosts: BTreeSet<String> = addresses.into_iter().collect();
        hosts.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        Self {
            common_name: format!("etcd-{node_name}"),
            organizations: Vec::new(),
            hosts,
            usage: Usage::Peer,
        }
    }

    /// The API server as a client of etcd.
    pub fn etcd_client() -> Self {
        Self::client("kube-apiserver-etcd-client", &[])
    }
}

#[cfg(test)]
mod tests {
    use apiserver_meta::ambient::Ambient;

    use super::*;
    use crate::authentication::pki::Pki;

    #[test]
    fn certificate_of_a_member_is_kept_until_its_address_changes() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open_named(dir.path(), "etcd-ca", &Ambient::system()).unwrap();
        let at = |address: &str| Subject::etcd_member("a", [address.to_owned()]);
        let first = pki.load_or_issue("member", &at("192.0.2.1")).unwrap();
        assert_eq!(pki.load_or_issue("member", &at("192.0.2.1")).unwrap(), first);
        assert_ne!(pki.load_or_issue("member", &at("192.0.2.2")).unwrap(), first);
    }
}
