//! Requests that are signed, and those that are not.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use rcgen::KeyPair;

use super::*;
use crate::authority::request::tests::pem;
use crate::authority::{Authority, tests::authority};
use crate::testing::ambient;

fn signing() -> Signing {
    let (certificate, key) = authority(&KeyPair::generate().unwrap(), 2090);
    Signing::by_one(Authority::new(&certificate, &key).unwrap(), Duration::from_secs(3600))
}

fn request(signer: &str, pem: &str, usages: &[&str], conditions: &[&str]) -> CertificateSigningRequest {
    let mut request = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.as_bytes().to_vec()),
            signer_name: signer.to_owned(),
            usages: Some(usages.iter().map(ToString::to_string).collect()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    let conditions = conditions
        .iter()
        .map(|kind| CertificateSigningRequestCondition { type_: (*kind).to_owned(), ..Default::default() });
    request.status.get_or_insert_default().conditions = Some(conditions.collect());
    request
}

#[test]
fn approved_requests_of_the_right_form_are_signed_once() {
    let (signing, node) = (signing(), pem("system:node:a", &["system:nodes"], &[]));
    let usages = ["digital signature", "client auth"];
    let plan = |request: &CertificateSigningRequest| plan(request, &signing, &ambient());
    let approved = request(rules::KUBELET_CLIENT, &node, &usages, &[APPROVED]);
    let Ok(Some(Signed::Certificate(certificate))) = plan(&approved) else { panic!("not signed") };
    assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----\n"));
    let mut issued = approved.clone();
    issued.status.as_mut().unwrap().certificate = Some(ByteString(certificate.into_bytes()));
    assert_eq!(plan(&issued), Ok(None), "it has been signed");
    for conditions in [&[][..], &[DENIED], &[APPROVED, FAILED], &[APPROVED, DENIED]] {
        assert_eq!(
            plan(&request(rules::KUBELET_CLIENT, &node, &usages, conditions)),
            Ok(None),
            "{conditions:?}"
        );
    }
    assert_eq!(plan(&request("example.com/own", &node, &usages, &[APPROVED])), Ok(None), "another signer's");
    let mut serving_only = signing.clone();
    serving_only.authorities.retain(|signer, _| *signer == rules::KUBELET_SERVING);
    assert_eq!(super::plan(&approved, &serving_only, &ambient()), Ok(None), "its signer has no authority");
}

/// An approver may have been deceived; the signer checks the form again.
#[test]
fn approved_requests_of_a_wrong_form_fail() {
    let signing = signing();
    let masters = pem("system:node:a", &["system:masters"], &[]);
    let node = pem("system:node:a", &["system:nodes"], &[]);
    for (signer, pem, usages, why) in [
        (rules::KUBELET_CLIENT, &masters, &["digital signature", "client auth"][..], "organization is not"),
        (rules::KUBELET_CLIENT, &node, &["digital signature", "server auth"], "usages did not match"),
        (rules::KUBELET_SERVING, &node, &["digital signature", "server auth"], "subjectAltName is required"),
        (rules::CLIENT, &node, &["client auth", "cert sign"], "invalid usage for client certificate"),
        (rules::LEGACY, &node, &["levitation"], "unrecognized usage values"),
    ] {
        let planned = plan(&request(signer, pem, usages, &[APPROVED]), &signing, &ambient());
        let Ok(Some(Signed::Refused(message))) = planned else { panic!("{signer} {usages:?}: {planned:?}") };
        assert!(message.contains(why), "{message}");
    }
    let rubbish = request(rules::CLIENT, "rubbish", &["client auth"], &[APPROVED]);
    assert!(plan(&rubbish, &signing, &ambient()).is_err());
}
