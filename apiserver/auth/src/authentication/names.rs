//! The names and addresses in a server's certificate.

use std::collections::BTreeSet;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::pki::address_from_octets;

/// Returns the DNS names and addresses in a certificate (DER), as text; empty if it cannot be read.
pub fn server_names(der: &[u8]) -> BTreeSet<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return BTreeSet::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return BTreeSet::new() };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => Some(address_from_octets(bytes)?.to_string()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[test]
    fn names_and_addresses_are_read() {
        let names = ["*.apis.example", "192.0.2.1", "2001:db8::1"].map(str::to_owned);
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names.to_vec()).unwrap().self_signed(&key).unwrap();
        assert_eq!(server_names(certificate.der()), names.into());
        let none = CertificateParams::default().self_signed(&key).unwrap();
        assert!(server_names(none.der()).is_empty() && server_names(b"x").is_empty());
    }
}
