//! Certificates of each kind of authority, as another implementation reads them.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, PKCS_ECDSA_P384_SHA384,
    PKCS_ED25519,
};

use super::request::tests::request;
use super::*;
use crate::testing::{ambient, at};

/// The longest life in these tests.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns certificate and key of an authority that ends with the year.
pub(crate) fn authority(key: &KeyPair, year: i32) -> (String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = rcgen::date_time_ymd(year, 12, 31);
    (params.self_signed(key).unwrap().pem(), key.serialize_pem())
}

fn usages(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

#[test]
fn every_usual_key_signs_what_others_accept() {
    let ec = ["", "384", "ed"].map(|kind| match kind {
        "384" => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap(),
        "ed" => KeyPair::generate_for(&PKCS_ED25519).unwrap(),
        _ => KeyPair::generate().unwrap(),
    });
    let mut pairs: Vec<(String, String)> = ec.iter().map(|key| authority(key, 2090)).collect();
    let file = |text: &str| text.to_owned();
    pairs.push((file(include_str!("testdata/rsa.crt")), file(include_str!("testdata/rsa.key"))));
    pairs.push((file(include_str!("testdata/ec.crt")), file(include_str!("testdata/ec.key"))));
    for (certificate, key) in &pairs {
        let authority = Authority::new(certificate, key).unwrap();
        let asked = request("system:node:a", &["system:nodes"], &["a.example", "192.0.2.1", "2001:db8::1"]);
        let usages = usages(&["digital signature", "key encipherment", "server auth"]);
        let signed = authority.sign(&asked, &usages, YEAR, &ambient()).unwrap();
        let (block, ca) = (block(&signed).unwrap(), block(certificate).unwrap());
        let (signed, ca) = (block.parse_x509().unwrap(), ca.parse_x509().unwrap());
        signed.verify_signature(Some(ca.public_key())).unwrap();
        assert_eq!(signed.issuer(), ca.subject());
        assert_eq!(signed.subject().to_string(), "O=system:nodes, CN=system:node:a");
        assert_eq!(signed.public_key().raw, asked.key);
        assert!(!signed.is_ca());
        let flags = signed.key_usage().unwrap().unwrap().value;
        assert!(flags.digital_signature() && flags.key_encipherment() && !flags.key_cert_sign());
        let purposes = signed.extended_key_usage().unwrap().unwrap().value;
        assert!(purposes.server_auth && !purposes.client_auth && !purposes.any);
        let names = signed.subject_alternative_name().unwrap().unwrap().value.general_names.len();
        assert_eq!(names, 3);
    }
}

/// The subject was copied from the request as it was, with attributes that nobody had checked.
#[test]
fn subjects_have_the_groups_and_the_user_and_nothing_else() {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "other");
    params.distinguished_name.push(DnType::OrganizationalUnitName, "admins");
    params.distinguished_name.push(DnType::CountryName, "XX");
    // The identifier of a user (RFC 4519), which some programs take for the name.
    params.distinguished_name.push(DnType::CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 1]), "root");
    params.distinguished_name.push(DnType::CommonName, "system:node:ä");
    let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let request = Request::parse(request.as_bytes()).unwrap();
    let (certificate, key) = authority(&KeyPair::generate().unwrap(), 2090);
    let authority = Authority::new(&certificate, &key).unwrap();
    let signed = authority.sign(&request, &usages(&["client auth"]), YEAR, &ambient()).unwrap();
    let block = block(&signed).unwrap();
    let signed = block.parse_x509().unwrap();
    assert_eq!(signed.subject().to_string(), "O=system:nodes, O=other, CN=system:node:ä");
    let nameless = Request { organizations: Vec::new(), common_name: String::new(), ..request };
    assert_eq!(subject(&nameless), [0x30, 0]);
}

#[test]
fn times_are_those_of_kubernetes() {
    let (certificate, key) = authority(&KeyPair::generate().unwrap(), 2090);
    let long = Authority::new(&certificate, &key).unwrap();
    let (from, until) = long.validity(at(0), YEAR).unwrap();
    assert_eq!((from, until), (at(-300), at(365 * 24 * 3600 - 300)));
    // A short life is not shortened by the minutes before its beginning.
    let (from, until) = long.validity(at(0), Duration::from_secs(600)).unwrap();
    assert_eq!((from, until), (at(-300), at(600)));
    // 1,800,000,000 is in January 2027.
    let (certificate, key) = authority(&KeyPair::generate().unwrap(), 2027);
    let short = Authority::new(&certificate, &key).unwrap();
    assert_eq!(short.validity(at(0), YEAR * 2).unwrap().1, short.not_after);
    let (certificate, key) = authority(&KeyPair::generate().unwrap(), 2026);
    let over = Authority::new(&certificate, &key).unwrap();
    assert!(matches!(over.validity(at(0), YEAR), Err(AuthorityError::Expired(_))));

    for (asked, expected) in [
        (None, 3600),
        (Some(7200), 3600),
        (Some(3599), 3599),
        (Some(600), 600),
        (Some(599), 600),
        (Some(-1), 600),
    ] {
        assert_eq!(lifetime(Duration::from_secs(3600), asked).as_secs(), expected, "{asked:?}");
    }
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let key = KeyPair::generate().unwrap();
    let (certificate, pem) = authority(&key, 2090);
    let (other, _) = authority(&KeyPair::generate().unwrap(), 2090);
    assert!(matches!(Authority::new(&other, &pem), Err(AuthorityError::Mismatch)));
    let leaf = CertificateParams::default().self_signed(&key).unwrap().pem();
    assert!(matches!(Authority::new(&leaf, &pem), Err(AuthorityError::Certificate)));
    assert!(matches!(Authority::new("", &pem), Err(AuthorityError::Certificate)));
    for key in ["", "x", certificate.as_str()] {
        assert!(matches!(Authority::new(&certificate, key), Err(AuthorityError::Key)));
    }
}

#[test]
fn unknown_usages_are_refused_and_double_ones_are_one() {
    let error = usage_values(&usages(&["client auth", "x", "y"])).unwrap_err().to_string();
    assert_eq!(error, "unrecognized usage values: [\"x\", \"y\"]");
    let (flags, purposes) = usage_values(&usages(&["s/mime", "email protection", "signing"])).unwrap();
    assert_eq!((flags, purposes.len()), (vec![0], 1));
}
