//! The subject of a certificate request: PKCS #10 in PEM, in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::der_parser::Oid;
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

/// The parts of a subject that name a user and its groups.
#[derive(Debug, PartialEq, Eq)]
pub struct Subject {
    pub common_names: Vec<String>,
    pub organizations: Vec<String>,
}

/// The subject of a request. What programs could read in different ways is refused, for the signer is another
/// one.
pub fn read(encoded: &str) -> Result<Subject, String> {
    let text = STANDARD.decode(encoded).map_err(|error| format!("illegal base64 data: {error}"))?;
    let begins = text.windows(BEGIN.len()).filter(|window| *window == BEGIN).count();
    if begins != 1 {
        return Err(format!("one PEM block is wanted, found {begins}"));
    }
    let (_, pem) = parse_x509_pem(&text).map_err(|error| format!("malformed PEM: {error}"))?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
    }
    let (rest, request) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|error| format!("malformed certificate request: {error}"))?;
    if !rest.is_empty() {
        return Err("trailing data after the certificate request".to_owned());
    }
    let name = &request.certification_request_info.subject;
    Ok(Subject {
        common_names: values(name, &OID_X509_COMMON_NAME, "CN")?,
        organizations: values(name, &OID_X509_ORGANIZATION_NAME, "O")?,
    })
}

const BEGIN: &[u8] = b"-----BEGIN";

/// All values of an attribute. One in an encoding that is not read here might be read elsewhere.
fn values(name: &X509Name<'_>, attribute: &Oid<'_>, called: &str) -> Result<Vec<String>, String> {
    let found = name.iter_by_oid(attribute);
    let text = found.map(|value| value.as_str().map(str::to_owned));
    text.collect::<Result<_, _>>().map_err(|_| format!("the subject's {called} is in an unknown encoding"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn request(names: &[(DnType, DnValue)]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        let key = KeyPair::generate().unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    fn names(text: &str) -> Result<Subject, String> {
        read(&STANDARD.encode(text))
    }

    #[test]
    fn names_and_groups_are_read_in_the_usual_encodings() {
        for value in [
            DnValue::from("x"),
            DnValue::PrintableString("x".try_into().unwrap()),
            DnValue::Ia5String("x".try_into().unwrap()),
        ] {
            let text = request(&[(DnType::CommonName, value.clone()), (DnType::OrganizationName, value)]);
            let one = || vec!["x".to_owned()];
            assert_eq!(names(&text), Ok(Subject { common_names: one(), organizations: one() }));
        }
    }

    #[test]
    fn ambiguous_subjects_are_refused() {
        let wide = DnValue::BmpString("system:masters".try_into().unwrap());
        let hidden = request(&[(DnType::OrganizationName, wide)]);
        assert_eq!(names(&hidden).unwrap_err(), "the subject's O is in an unknown encoding");
        let plain = request(&[(DnType::CommonName, DnValue::from("x"))]);
        assert_eq!(names(&format!("{plain}{hidden}")).unwrap_err(), "one PEM block is wanted, found 2");
        assert_eq!(names(&format!("x{plain}\n{hidden}")).unwrap_err(), "one PEM block is wanted, found 2");
        let other = plain.replace("CERTIFICATE REQUEST", "CERTIFICATE");
        assert_eq!(names(&other).unwrap_err(), "PEM block type must be CERTIFICATE REQUEST");
        for garbage in
            ["", "x", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"]
        {
            assert!(names(garbage).is_err(), "{garbage}");
        }
        assert!(read("*").is_err());
    }
}
