//! The contents of a certificate signing request (PKCS #10, RFC 2986).

use std::net::IpAddr;

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

const LABEL: &str = "CERTIFICATE REQUEST";

/// The parts of a request that certificates take over. Everything else in it is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    /// The user; empty if none is named.
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub emails: Vec<String>,
    pub uris: Vec<String>,
    /// The public key in DER.
    pub key: Vec<u8>,
}

impl Request {
    /// Reads a request in PEM whose signature is that of its own key. The error says what is wrong with it.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let block = Pem::iter_from_buffer(text).next().and_then(Result::ok);
        let block = block
            .filter(|block| block.label == LABEL)
            .ok_or_else(|| format!("PEM block type must be {LABEL}"))?;
        Self::read(&block.contents, |request| {
            request
                .verify_signature()
                .map_err(|error| format!("unable to verify certificate request signature: {error}"))
        })
    }

    /// Reads a request in DER that passes a check.
    pub(crate) fn read(
        der: &[u8],
        check: impl Fn(&X509CertificationRequest<'_>) -> Result<(), String>,
    ) -> Result<Self, String> {
        let malformed = |_| "malformed certificate request".to_owned();
        let (rest, request) = X509CertificationRequest::from_der(der).map_err(malformed)?;
        if !rest.is_empty() {
            return Err("trailing data after the certificate request".to_owned());
        }
        check(&request)?;
        let info = &request.certification_request_info;
        let mut parsed = Self {
            common_name: common_name(&info.subject)?,
            organizations: organizations(&info.subject)?,
            key: info.subject_pki.raw.to_vec(),
            ..Self::default()
        };
        for extension in request.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                names.general_names.iter().try_for_each(|name| parsed.add(name))?;
            }
        }
        Ok(parsed)
    }

    /// Returns `true` if there are alternative names of any kind.
    pub(crate) fn has_alternative_names(&self) -> bool {
        !(self.dns_names.is_empty()
            && self.addresses.is_empty()
            && self.emails.is_empty()
            && self.uris.is_empty())
    }

    fn add(&mut self, name: &GeneralName<'_>) -> Result<(), String> {
        match name {
            GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
            GeneralName::RFC822Name(name) => self.emails.push((*name).to_owned()),
            GeneralName::URI(name) => self.uris.push((*name).to_owned()),
            GeneralName::IPAddress(octets) => {
                let address = <[u8; 4]>::try_from(*octets)
                    .map(IpAddr::from)
                    .or_else(|_| <[u8; 16]>::try_from(*octets).map(IpAddr::from));
                let address = address.map_err(|_| "an IP subjectAltName has a wrong length".to_owned())?;
                // Clients in Go take it for the IPv4 address in it, which would be compared with nothing here.
                if address != address.to_canonical() {
                    return Err(format!("the IP subjectAltName {address} is an IPv4 address in IPv6 form"));
                }
                self.addresses.push(address);
            }
            // Such a name does not become part of the certificate.
            _ => {}
        }
        Ok(())
    }
}

/// Returns the common name. Programs read several of them in different ways, so more than one is refused.
fn common_name(subject: &X509Name<'_>) -> Result<String, String> {
    let mut names = subject.iter_common_name();
    let Some(name) = names.next() else { return Ok(String::new()) };
    if names.next().is_some() {
        return Err("the subject has several common names".to_owned());
    }
    name.as_str()
        .map(str::to_owned)
        .map_err(|_| "the subject's common name is in an unknown encoding".to_owned())
}

fn organizations(subject: &X509Name<'_>) -> Result<Vec<String>, String> {
    let all = subject.iter_organization().map(|name| name.as_str().map(str::to_owned));
    all.collect::<Result<_, _>>()
        .map_err(|_| "an organization of the subject is in an unknown encoding".to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    /// Returns a request in PEM for a user with at most two groups and for names, which are addresses where
    /// they can be read as such.
    pub(crate) fn pem(user: &str, groups: &[&str], names: &[&str]) -> String {
        let mut params =
            CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        let kinds = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        for (kind, group) in kinds.into_iter().zip(groups) {
            params.distinguished_name.push(kind, *group);
        }
        params.distinguished_name.push(DnType::CommonName, user);
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    pub(crate) fn request(user: &str, groups: &[&str], names: &[&str]) -> Request {
        Request::parse(pem(user, groups, names).as_bytes()).unwrap()
    }

    #[test]
    fn names_are_read_in_full() {
        let request =
            request("system:node:a", &["system:nodes", "other"], &["a.example", "192.0.2.1", "2001:db8::1"]);
        assert_eq!(request.common_name, "system:node:a");
        assert_eq!(request.organizations, ["system:nodes", "other"]);
        assert_eq!(request.dns_names, ["a.example"]);
        assert_eq!(
            request.addresses,
            ["192.0.2.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap())
        );
        assert!(request.has_alternative_names() && request.emails.is_empty());
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![
            SanType::Rfc822Name("a@example".try_into().unwrap()),
            SanType::URI("spiffe://a".try_into().unwrap()),
        ];
        let text = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let request = Request::parse(text.as_bytes()).unwrap();
        assert_eq!((request.emails.len(), request.uris.len()), (1, 1));
    }

    #[test]
    fn ipv4_addresses_in_ipv6_form_are_refused() {
        let error = Request::parse(pem("a", &[], &["::ffff:192.0.2.1"]).as_bytes()).unwrap_err();
        assert_eq!(error, "the IP subjectAltName ::ffff:192.0.2.1 is an IPv4 address in IPv6 form");
        let plain = Request::parse(pem("a", &[], &["192.0.2.1", "2001:db8::1"]).as_bytes()).unwrap();
        assert_eq!(plain.addresses.len(), 2);
    }

    #[test]
    fn requests_that_are_malformed_or_ambiguous_are_refused() {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "system:node:a");
        params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), "system:node:b");
        let two = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        assert_eq!(Request::parse(two.as_bytes()).unwrap_err(), "the subject has several common names");
        let good = pem("a", &[], &[]);
        let relabelled = good.replace("CERTIFICATE REQUEST", "CERTIFICATE");
        for text in [
            "",
            "x",
            &relabelled,
            "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        ] {
            assert!(Request::parse(text.as_bytes()).is_err(), "{text}");
        }
        // Another key than the one that signed the request.
        let block = Pem::iter_from_buffer(good.as_bytes()).next().unwrap().unwrap();
        let mut forged = block.contents.clone();
        *forged.last_mut().unwrap() ^= 1;
        let text = apiserver_meta::pem::encode(LABEL, &forged);
        assert!(
            Request::parse(text.as_bytes()).unwrap_err().contains("signature"),
            "a request with a wrong signature"
        );
    }
}
