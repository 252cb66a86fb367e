//! ClusterTrustBundle and PodCertificateRequest.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::shared::{conditions, required_name, signer_name};
use super::{Errors, items, metadata, names, text, with_metadata};
use crate::error::FieldError;
use crate::meta;
use crate::registry::Written;

/// Shortest and longest life that may be asked for, seconds: an hour, and 91 days. Signers of
/// Kubernetes give a day at most.
const SHORTEST: i64 = 3600;
const LONGEST: i64 = 91 * 86_400;
const LONGEST_KUBERNETES: i64 = 86_400;
/// Longest public key and proof, bytes.
const KEY: usize = 10 * 1024;

/// Errors of a ClusterTrustBundle; one with a signer is called `SIGNER:NAME` with a colon for a slash.
pub fn bundle(object: &Value) -> Vec<FieldError> {
    let spec = &object["spec"];
    let signer = text(spec, "signerName");
    let mut errors = Errors(metadata::validate(object, names::path_segment));
    let name = meta::name(object);
    if signer.is_empty() {
        if name.contains(':') {
            let detail = "ClusterTrustBundle without signer name must not have \":\" in its name";
            errors.invalid("metadata.name", &json!(name), detail);
        }
        errors.faults("metadata.name", name, names::dns_subdomain(&name.replace(':', ".")));
    } else {
        let prefix = format!("{}:", signer.replace('/', ":"));
        match name.strip_prefix(&prefix) {
            None => {
                let detail =
                    format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}");
                errors.invalid("metadata.name", &json!(name), &detail);
            }
            Some(rest) => errors.faults("metadata.name", name, names::dns_subdomain(rest)),
        }
        signer_name(signer, "spec.signerName", &mut errors);
    }
    certificates(text(spec, "trustBundle"), "spec.trustBundle", &mut errors);
    errors.list()
}

/// The signer of a ClusterTrustBundle stays. Arguments: new, old.
pub fn bundle_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("spec.signerName", new, old);
    errors.list()
}

/// PEM blocks of certificates, at least one, none twice.
fn certificates(pem: &str, path: &str, errors: &mut Errors) {
    const BEGIN: &str = "-----BEGIN ";
    let hidden = json!("<value omitted>");
    let mut seen = BTreeSet::new();
    let mut rest = pem;
    let mut index = 0;
    while let Some((_, from)) = rest.split_once(BEGIN) {
        let Some((label, body)) = from.split_once("-----") else { break };
        let end = format!("-----END {label}-----");
        let Some((body, after)) = body.split_once(&end) else { break };
        rest = after;
        if label != "CERTIFICATE" {
            let detail = format!("entry {index} has bad block type: {label}");
            errors.invalid(path, &hidden, &detail);
        } else if body.contains(':') {
            errors.invalid(path, &hidden, &format!("entry {index} has PEM block headers"));
        } else {
            let packed: String = body.split_whitespace().collect();
            // A certificate is a sequence with a length of two bytes or more.
            match STANDARD.decode(&packed).ok().filter(|der| is_sequence(der)) {
                None => errors.invalid(path, &hidden, &format!("entry {index} does not parse as X.509")),
                Some(der) if !seen.insert(der.clone()) => {
                    errors.invalid(path, &hidden, "trust bundle contains duplicate entries");
                }
                Some(_) => {}
            }
        }
        index += 1;
    }
    if index == 0 {
        errors.invalid(path, &hidden, "at least one trust anchor must be provided");
    }
}

/// Why bytes in base64 are no request for a certificate (PKCS #10 in PEM, RFC 7468). Its signature is
/// for the signer to look at.
pub(super) fn request_fault(encoded: &str) -> Option<&'static str> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
    const END: &str = "-----END CERTIFICATE REQUEST-----";
    let pem = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let body = pem.as_deref().and_then(|pem| pem.split_once(BEGIN)?.1.split_once(END));
    let Some((body, _)) = body else { return Some("PEM block type must be CERTIFICATE REQUEST") };
    let packed: String = body.split_whitespace().collect();
    let whole = STANDARD.decode(packed).is_ok_and(|der| is_sequence(&der));
    (!whole).then_some("asn1: structure error: it is no certificate request")
}

/// Whether the bytes are one DER sequence, whole.
fn is_sequence(der: &[u8]) -> bool {
    let [0x30, first, rest @ ..] = der else { return false };
    let (length, content) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 if rest.len() >= usize::from(first & 0x7f) => {
            let (digits, content) = rest.split_at(usize::from(first & 0x7f));
            (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), content)
        }
        _ => return false,
    };
    content.len() == length
}

/// Errors of a PodCertificateRequest.
pub fn pod_request(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let signer = text(spec, "signerName");
    signer_name(signer, "spec.signerName", &mut errors);
    for field in ["podName", "serviceAccountName", "nodeName"] {
        required_name(spec, field, "spec", names::dns_subdomain, &mut errors);
    }
    for field in ["podUID", "serviceAccountUID", "nodeUID"] {
        match text(spec, field) {
            "" => errors.required(format!("spec.{field}"), &format!("{field} must not be empty")),
            uid if uid.len() > 128 => errors.too_long(format!("spec.{field}"), 128),
            _ => {}
        }
    }
    let path = "spec.maxExpirationSeconds";
    match spec.get("maxExpirationSeconds").and_then(Value::as_i64) {
        None => errors.required(path, "must be set"),
        Some(seconds) => {
            let kubernetes = signer.starts_with("kubernetes.io/");
            let longest = if kubernetes { LONGEST_KUBERNETES } else { LONGEST };
            if !(SHORTEST..=longest).contains(&seconds) {
                let detail = format!("must be in the range [{SHORTEST}, {longest}]");
                errors.invalid(path, &json!(seconds), &detail);
            }
        }
    }
    let bytes = |field: &str| STANDARD.decode(text(spec, field)).unwrap_or_default();
    for field in ["pkixPublicKey", "proofOfPossession", "stubPKCS10Request"] {
        if bytes(field).len() > KEY {
            errors.too_long(format!("spec.{field}"), KEY);
        }
    }
    let key = bytes("pkixPublicKey");
    if bytes("stubPKCS10Request").is_empty() && !is_sequence(&key) {
        let detail = "must be a valid PKIX-serialized public key";
        errors.invalid("spec.pkixPublicKey", &json!(text(spec, "pkixPublicKey")), detail);
    }
    let annotations = spec.get("unverifiedUserAnnotations");
    let mut found = Vec::new();
    metadata::annotations(annotations, "spec.unverifiedUserAnnotations", &mut found);
    errors.extend(found);
    errors.list()
}

/// A request stays as it was made, and is answered once. Arguments: new, old.
pub fn pod_request_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    if written == Written::Main {
        let mut errors = with_metadata(new);
        errors.immutable("spec", new, old);
        return errors.list();
    }
    let mut errors = Errors::default();
    let list = items(&new["status"], "conditions");
    conditions(list, "status.conditions", &mut errors);
    let known = ["Denied", "Failed", "Issued"];
    for (index, condition) in list.iter().enumerate() {
        let path = format!("status.conditions[{index}]");
        let kind = text(condition, "type");
        if !known.contains(&kind) {
            errors.extend([FieldError::not_supported(format!("{path}.type"), &json!(kind), &known)]);
        }
        if condition["status"] != "True" {
            errors.extend([FieldError::not_supported(
                format!("{path}.status"),
                &condition["status"],
                &["True"],
            )]);
        }
    }
    let ends = |status: &Value| -> Vec<String> {
        let all = items(status, "conditions").iter().map(|c| text(c, "type").to_owned());
        all.filter(|kind| known.contains(&kind.as_str())).collect()
    };
    let (now, before) = (ends(&new["status"]), ends(&old["status"]));
    if now.len() > 1 {
        let detail = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
        errors.invalid("status.conditions", &json!(list), detail);
    }
    if !before.is_empty() {
        errors.immutable("status", new, old);
    } else if now == ["Issued"] && text(&new["status"], "certificateChain").is_empty() {
        errors.required("status.certificateChain", "must be set when the request is issued");
    }
    errors.list()
}
