//! CertificateSigningRequests.

pub(crate) mod status;

use std::collections::BTreeSet;

use apiserver_meta::time;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::repeats::repeats;
use apiserver_schema::validation::{Errors, items, metadata, same, text};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::prelude::FromDer as _;

use crate::certificates::pem;
use crate::kind::Kind;
use crate::shared::cells::{self, NONE};
use crate::shared::checks::signer_name;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::restore_spec;

pub(crate) static KIND: Kind = Kind {
    group: "certificates.k8s.io",
    plural: "certificatesigningrequests",
    short_names: &["csr"],
    selectable: &["spec.signerName"],
    prepare_update: restore_spec,
    validate,
    validate_change: Some(validate_change),
    columns: COLUMNS,
    unowned: status::UNOWNED,
    set_requester: Some(status::set_requester),
    retain_status: Some(status::retain_status),
    ..Kind::DEFAULT
};

/// The usages that a certificate may be requested for, in the order in which errors list them.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// The legacy signer, which no new request may name.
const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// Shortest life that may be asked for, seconds.
const SHORTEST: i64 = 600;

/// Conditions that hold or are not there.
const VERDICTS: [&str; 3] = ["Approved", "Denied", "Failed"];

const CONDITION_TYPES: &str = "status.conditions";

/// Errors of a new CertificateSigningRequest.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(metadata::of_builtin(object, |_| Vec::new()));
    check(object, &Value::Null, &mut errors);
    errors.list()
}

/// Returns the errors of a change: verdicts and a certificate cannot change; faults that existed before may
/// stay. [`status::apply_status`] has checked before that each writer writes its own part of the status. Arguments:
/// new, old, the part that is written.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::common(new, &mut errors);
    check(new, old, &mut errors);
    let count = |object: &Value, kind: &str| {
        let all = items(&object["status"], "conditions").iter();
        all.filter(|condition| text(condition, "type") == kind).count()
    };
    for kind in VERDICTS {
        if count(new, kind) < count(old, kind) {
            let detail = format!("updates may not remove a condition of type {kind:?}");
            errors.forbidden(CONDITION_TYPES, &detail);
        }
    }
    let (now, was) = (text(&new["status"], "certificate"), text(&old["status"], "certificate"));
    if now != was && !was.is_empty() {
        let detail = "updates may not modify existing certificate content";
        errors.forbidden("status.certificate", detail);
    }
    errors.list()
}

/// `old` is null for a new object.
fn check(object: &Value, old: &Value, errors: &mut Errors) {
    let (spec, before) = (&object["spec"], &old["spec"]);
    let request = text(spec, "request");
    if let Some(fault) = request_fault(request) {
        errors.invalid("spec.request", &json!(request), &fault);
    }
    let usages = items(spec, "usages");
    if usages.is_empty() {
        errors.required("spec.usages", "");
    }
    let known = |usage: &Value| usage.as_str().is_some_and(|usage| USAGES.contains(&usage));
    let had = items(before, "usages");
    if had.iter().all(known) {
        for (index, usage) in usages.iter().enumerate().filter(|(_, usage)| !known(usage)) {
            errors.not_supported(format!("spec.usages[{index}]"), usage, &USAGES);
        }
    }
    if repeats(had).next().is_none() {
        for index in repeats(usages) {
            errors.duplicate(format!("spec.usages[{index}]"), &usages[index]);
        }
    }
    let signer = text(spec, "signerName");
    if signer == LEGACY && text(before, "signerName") != LEGACY {
        let detail = "the legacy signerName is not allowed via this API version";
        errors.invalid("spec.signerName", &json!(signer), detail);
    } else {
        signer_name(signer, "spec.signerName", errors);
    }
    if let Some(seconds) = spec["expirationSeconds"].as_i64().filter(|seconds| *seconds < SHORTEST) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.invalid("spec.expirationSeconds", &json!(seconds), detail);
    }
    conditions(items(&object["status"], "conditions"), items(&old["status"], "conditions"), errors);
    certificate(&object["status"], &old["status"], errors);
}

fn conditions(list: &[Value], before: &[Value], errors: &mut Errors) {
    let had: BTreeSet<&str> = before.iter().map(|condition| text(condition, "type")).collect();
    let both = had.contains("Approved") && had.contains("Denied");
    let repeated = had.len() < before.len();
    let mut seen = BTreeSet::new();
    for (index, condition) in list.iter().enumerate() {
        let path = format!("{CONDITION_TYPES}[{index}]");
        let kind = text(condition, "type");
        if kind.is_empty() && !had.contains("") {
            errors.required(format!("{path}.type"), "");
        }
        let states: &[&str] =
            if VERDICTS.contains(&kind) { &["True"] } else { &["False", "True", "Unknown"] };
        errors.one_of(&format!("{path}.status"), condition.get("status"), states);
        let other = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "-",
        };
        if !both && seen.contains(other) {
            let detail = "Approved and Denied conditions are mutually exclusive";
            errors.invalid(CONDITION_TYPES, &json!(kind), detail);
        }
        if !repeated && seen.contains(kind) {
            errors.duplicate(format!("{path}.type"), &json!(kind));
        }
        seen.insert(kind);
    }
}

/// Validates that the certificate written by the signer is one or several certificates in PEM.
fn certificate(status: &Value, before: &Value, errors: &mut Errors) {
    let (now, was) = (status.get("certificate"), before.get("certificate"));
    let fault = |status: &Value| certificate_fault(text(status, "certificate"));
    if (before.is_object() && same(now, was)) || fault(before).is_some() {
        return;
    }
    if let Some(why) = fault(status) {
        errors.invalid("status.certificate", &json!("<certificate data>"), &why);
    }
}

fn certificate_fault(encoded: &str) -> Option<String> {
    if encoded.is_empty() {
        return None;
    }
    let bytes = STANDARD.decode(encoded).unwrap_or_default();
    let blocks = pem::blocks(&String::from_utf8_lossy(&bytes));
    for block in &blocks {
        if block.kind != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.kind));
        }
        if block.headers {
            return Some("no PEM block headers are permitted".to_owned());
        }
        if x509_parser::parse_x509_certificate(&block.bytes).is_err() {
            return Some("x509: malformed certificate".to_owned());
        }
    }
    blocks.is_empty().then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}

/// Returns the reason why base64 text is not a certificate signing request: PKCS #10 in PEM (RFC 2986, RFC
/// 7468), signed with the key that it is about.
fn request_fault(encoded: &str) -> Option<String> {
    let bytes = STANDARD.decode(encoded).unwrap_or_default();
    let blocks = pem::blocks(&String::from_utf8_lossy(&bytes));
    let Some(block) = blocks.first().filter(|block| block.kind == "CERTIFICATE REQUEST") else {
        return Some("PEM block type must be CERTIFICATE REQUEST".to_owned());
    };
    let Ok((rest, request)) = X509CertificationRequest::from_der(&block.bytes) else {
        return Some("asn1: structure error: malformed certificate request".to_owned());
    };
    if !rest.is_empty() {
        return Some("asn1: syntax error: trailing data".to_owned());
    }
    match request.verify_signature() {
        Err(X509Error::SignatureVerificationError) => {
            let algorithm = request.signature_algorithm.algorithm.to_id_string();
            Some(signature_fault(&algorithm).to_owned())
        }
        // Algorithms that cannot be verified here are left to the signer.
        _ => None,
    }
}

/// Returns the error text for a failed signature, by the object identifier of the algorithm.
fn signature_fault(algorithm: &str) -> &'static str {
    match algorithm {
        "1.3.101.112" => "x509: Ed25519 verification failure",
        rsa if rsa.starts_with("1.2.840.113549.1.1.") => "crypto/rsa: verification error",
        _ => "x509: ECDSA verification failure",
    }
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        AGE,
        ("SignerName", "string", 0, "Who is asked to sign"),
        ("Requestor", "string", 0, "Who asks"),
        ("RequestedDuration", "string", 0, "How long the certificate should hold"),
        ("Condition", "string", 0, "Approved, Denied, Failed, Issued or Pending"),
    ],
    cells: |object, now| {
        let seconds = object.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
        vec![
            cells::name(object),
            cells::age(object, now),
            cells::text_or(object, "/spec/signerName", NONE),
            cells::text_or(object, "/spec/username", ""),
            json!(seconds.map_or(NONE.to_owned(), time::human)),
            json!(signing_state(object)),
        ]
    },
};

fn signing_state(object: &Value) -> String {
    let has = |kind: &str| cells::condition(object, kind).is_some();
    let decision = ["Denied", "Approved"].into_iter().find(|kind| has(kind)).unwrap_or("Pending");
    let mut states = vec![decision];
    if has("Failed") {
        states.push("Failed");
    }
    if !meta::text(object, "/status/certificate").is_empty() {
        states.push("Issued");
    }
    states.join(",")
}
