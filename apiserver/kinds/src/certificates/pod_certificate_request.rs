//! PodCertificateRequests (KEP-4317).

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, given, items, metadata, names, same, text, with_metadata};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature;
use serde_json::{Value, json};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::certificates::pem::{self, Block};
use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::checks::{conditions, signer_name};
use crate::shared::columns::{Columns, NAME};
use crate::shared::defaults::{fill, with_spec};

pub(crate) static KIND: Kind = Kind {
    group: "certificates.k8s.io",
    plural: "podcertificaterequests",
    selectable: &["spec.signerName", "spec.podName", "spec.nodeName"],
    needs_version: true,
    default,
    validate,
    validate_change: Some(validate_change),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// The default lifetime of a pod's certificate in seconds.
const DAY: i64 = 86_400;

/// Defaults of a PodCertificateRequest.
fn default(value: &mut Value) {
    with_spec(value, |spec| fill(spec, "maxExpirationSeconds", DAY));
}

/// Shortest and longest life that may be asked for, seconds: an hour, and 91 days. Signers of
/// Kubernetes give a day at most.
const SHORTEST: i64 = 3600;

const LONGEST: i64 = 91 * 86_400;

const LONGEST_KUBERNETES: i64 = 86_400;

/// Longest public key and proof, bytes.
const KEY: usize = 10 * 1024;

/// Longest chain of certificates, bytes.
const CHAIN: usize = 100 * 1024;

/// Least time between a certificate's ends and its renewal, seconds.
const MARGIN: i64 = 600;

const OUTCOMES: [&str; 3] = ["Issued", "Denied", "Failed"];

const KEY_PATH: &str = "spec.pkixPublicKey";

const CHAIN_PATH: &str = "status.certificateChain";

/// Errors of a new PodCertificateRequest.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    signer_name(text(spec, "signerName"), "spec.signerName", &mut errors);
    annotations(spec, &mut errors);
    for (name, uid) in
        [("podName", "podUID"), ("serviceAccountName", "serviceAccountUID"), ("nodeName", "nodeUID")]
    {
        let value = text(spec, name);
        errors.faults(&format!("spec.{name}"), value, names::dns_subdomain(value));
        match text(spec, uid) {
            "" => errors.invalid(format!("spec.{uid}"), &json!(""), "must not be empty"),
            value if value.len() > 128 => errors.too_long(format!("spec.{uid}"), 128),
            _ => {}
        }
    }
    if lifetime(spec, &mut errors) {
        key(spec, &mut errors);
    }
    errors.list()
}

/// Annotations for the signer, whose keys have the form of annotations and a domain.
fn annotations(spec: &Value, errors: &mut Errors) {
    let path = "spec.unverifiedUserAnnotations";
    metadata::annotations(spec.get("unverifiedUserAnnotations"), path, errors);
}

/// The longest life of a certificate by a signer, seconds.
pub(crate) fn longest_lifetime(signer: &str) -> i64 {
    let domain = signer.split('/').next().unwrap_or_default();
    let kubernetes = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    if kubernetes { LONGEST_KUBERNETES } else { LONGEST }
}

/// Validates the requested lifetime of the certificate, and returns true if one is set.
fn lifetime(spec: &Value, errors: &mut Errors) -> bool {
    let path = "spec.maxExpirationSeconds";
    let Some(seconds) = spec["maxExpirationSeconds"].as_i64() else {
        errors.required(path, "must be set");
        return false;
    };
    let longest = longest_lifetime(text(spec, "signerName"));
    if !(SHORTEST..=longest).contains(&seconds) {
        let detail = format!("must be in the range [{SHORTEST}, {longest}]");
        errors.invalid(path, &json!(seconds), &detail);
    }
    true
}

/// Validates the key, and the proof that the requester has it: a signature over the uid of the pod.
fn key(spec: &Value, errors: &mut Errors) {
    let bytes = |field: &str| STANDARD.decode(text(spec, field)).unwrap_or_default();
    for field in ["pkixPublicKey", "proofOfPossession", "stubPKCS10Request"] {
        if bytes(field).len() > KEY {
            return errors.too_long(format!("spec.{field}"), KEY);
        }
    }
    if !bytes("stubPKCS10Request").is_empty() {
        return;
    }
    let der = bytes("pkixPublicKey");
    let shown = json!(text(spec, "pkixPublicKey"));
    let Some(info) = SubjectPublicKeyInfo::from_der(&der).ok().filter(|(rest, _)| rest.is_empty()) else {
        return errors.invalid(KEY_PATH, &shown, "must be a valid PKIX-serialized public key");
    };
    let info = info.1;
    let (public, proof) = (&*info.subject_public_key.data, bytes("proofOfPossession"));
    let curve = info.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
    let curve = curve.map(|oid| oid.to_id_string()).unwrap_or_default();
    let algorithm: &dyn signature::VerificationAlgorithm =
        match (info.algorithm.algorithm.to_id_string().as_str(), curve.as_str()) {
            ("1.3.101.112", _) => &signature::ED25519,
            ("1.2.840.10045.2.1", "1.2.840.10045.3.1.7") => &signature::ECDSA_P256_SHA256_ASN1,
            ("1.2.840.10045.2.1", "1.3.132.0.34") => &signature::ECDSA_P384_SHA256_ASN1,
            // Keys that cannot be verified here are left to the signer.
            ("1.2.840.10045.2.1", "1.3.132.0.35") => return,
            ("1.2.840.10045.2.1", _) => {
                let detail = "elliptic public keys must use curve P256 or P384";
                return errors.invalid(KEY_PATH, &json!(format!("curve {curve}")), detail);
            }
            ("1.2.840.113549.1.1.1", _) => return modulus(&info, errors),
            _ => {
                let detail = "unknown public key type; supported types are Ed25519, ECDSA, and RSA";
                return errors.invalid(KEY_PATH, &shown, detail);
            }
        };
    let pod = text(spec, "podUID").as_bytes();
    if signature::UnparsedPublicKey::new(algorithm, public).verify(pod, &proof).is_err() {
        errors.invalid_bare("spec.proofOfPossession", "could not verify proof-of-possession signature");
    }
}

/// Validates the size of RSA keys, which is one of two. Their proofs, which are salted at will, are left to
/// the signer.
fn modulus(info: &SubjectPublicKeyInfo<'_>, errors: &mut Errors) {
    let bits = info.parsed().map_or(0, |key| key.key_size());
    if bits != 3072 && bits != 4096 {
        let shown = json!(format!("{bits}-bit modulus"));
        errors.invalid(KEY_PATH, &shown, "RSA keys must have modulus size 3072 or 4096");
    }
}

/// A request stays as it was made, and is answered once. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::common(new, &mut errors);
    if written == Written::Main {
        errors.immutable("spec", new, old);
    } else {
        status(new, &old["status"], &mut errors);
    }
    errors.list()
}

fn outcome(status: &Value) -> Option<&str> {
    let holds =
        |condition: &&Value| condition["status"] == "True" && OUTCOMES.contains(&text(condition, "type"));
    items(status, "conditions").iter().find(holds).map(|condition| text(condition, "type"))
}

fn status(new: &Value, before: &Value, errors: &mut Errors) {
    let status = &new["status"];
    let list = items(status, "conditions");
    let mut known = 0;
    let found = errors.count();
    for (index, condition) in list.iter().enumerate() {
        // The dot before the index is Kubernetes' own.
        let path = format!("status.conditions.[{index}]");
        let kind = text(condition, "type");
        if !OUTCOMES.contains(&kind) {
            errors.not_supported(format!("{path}.type"), &json!(kind), &OUTCOMES);
            continue;
        }
        known += 1;
        if known > 1 {
            let detail = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            errors.invalid(format!("{path}.type"), &json!(kind), detail);
        }
        if condition["status"] != "True" {
            errors.not_supported(format!("{path}.status"), &condition["status"], &["True"]);
        }
    }
    conditions(list, "status.conditions", errors);
    if errors.count() > found {
        return;
    }
    let same_as = |other: &Value| same(Some(status), Some(other));
    let why = match outcome(status) {
        _ if outcome(before).is_some() => {
            (!same_as(before)).then_some("immutable after PodCertificateRequest is issued, denied, or failed")
        }
        Some("Issued") => return issued_certificate(new, errors),
        Some(_) => (!same_as(&json!({"conditions": list}))).then_some(
            "non-condition status fields must be empty when denying or failing the PodCertificateRequest",
        ),
        None => (!same_as(before))
            .then_some("status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\""),
    };
    if let Some(why) = why {
        errors.invalid_bare("status", why);
    }
}

/// Validates the certificate that was issued; only the first fault is reported.
fn issued_certificate(object: &Value, errors: &mut Errors) {
    let chain = text(&object["status"], "certificateChain");
    if chain.len() > CHAIN {
        return errors.too_long(CHAIN_PATH, CHAIN);
    }
    let blocks = pem::blocks(chain);
    let refuse = |errors: &mut Errors, detail: &str| errors.invalid(CHAIN_PATH, &json!(chain), detail);
    let Some((leaf, others)) = blocks.split_first() else {
        return refuse(errors, "issued certificate chain must contain at least one certificate");
    };
    if leaf.kind != "CERTIFICATE" {
        return refuse(errors, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks");
    }
    let Some(leaf) = parse_certificate(leaf) else {
        return refuse(errors, "leaf certificate does not parse as valid X.509");
    };
    let asked = STANDARD.decode(text(&object["spec"], "pkixPublicKey")).unwrap_or_default();
    if !asked.is_empty() && leaf.public_key().raw != asked {
        return refuse(errors, "leaf certificate was not issued to the requested public key");
    }
    if !times(object, &leaf, errors) {
        return;
    }
    for block in others {
        if block.kind != "CERTIFICATE" {
            // The missing letter is Kubernetes' own.
            return refuse(errors, "issued certificate chain must consist entirely of CERTFICATE PEM blocks");
        }
        if parse_certificate(block).is_none() {
            return refuse(errors, "intermediate certificate does not parse as valid X.509");
        }
    }
}

fn parse_certificate(block: &Block) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(&block.bytes).ok().filter(|(rest, _)| rest.is_empty()).map(|(_, one)| one)
}

/// Validates that the times in the status are those of the certificate and are sensible; returns true if they
/// are.
fn times(object: &Value, leaf: &X509Certificate<'_>, errors: &mut Errors) -> bool {
    let status = &object["status"];
    let agree = "must be present and consistent with the issued certificate";
    let range = "must be present and in the range [notbefore+10min, notafter-10min]";
    let before = errors.count();
    for (field, detail) in [("notBefore", agree), ("notAfter", agree), ("beginRefreshAt", range)] {
        if given(status, field).is_none() {
            errors.required(format!("status.{field}"), detail);
        }
    }
    if errors.count() > before {
        return false;
    }
    let seconds = |field: &str| {
        text(status, field).parse::<jiff::Timestamp>().map_or(i64::MIN, jiff::Timestamp::as_second)
    };
    let validity = leaf.validity();
    let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let longest = object["spec"]["maxExpirationSeconds"].as_i64().unwrap_or(0);
    let refresh = seconds("beginRefreshAt");
    let nanoseconds = json!((to - from).saturating_mul(1_000_000_000));
    let faults = [
        (seconds("notBefore") != from, "status.notBefore", &status["notBefore"], NOT_BEFORE.to_owned()),
        (seconds("notAfter") != to, "status.notAfter", &status["notAfter"], NOT_AFTER.to_owned()),
        (
            to - from < SHORTEST,
            CHAIN_PATH,
            &nanoseconds,
            "leaf certificate lifetime must be >= 1 hour".to_owned(),
        ),
        (
            to - from > longest,
            CHAIN_PATH,
            &nanoseconds,
            format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({longest})"),
        ),
        (
            refresh < from + MARGIN,
            "status.beginRefreshAt",
            &status["beginRefreshAt"],
            "must be at least 10 minutes after status.notBefore".to_owned(),
        ),
        (
            refresh > to - MARGIN,
            "status.beginRefreshAt",
            &status["beginRefreshAt"],
            "must be at least 10 minutes before status.notAfter".to_owned(),
        ),
    ];
    let first = faults.into_iter().find(|(wrong, ..)| *wrong);
    let fine = first.is_none();
    if let Some((_, path, shown, detail)) = first {
        errors.invalid(path, shown, &detail);
    }
    fine
}

const NOT_BEFORE: &str = "must be set to the NotBefore time encoded in the leaf certificate";

const NOT_AFTER: &str = "must be set to the NotAfter time encoded in the leaf certificate";

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("PodName", "string", 0, "Pod that the certificate is for"),
        ("ServiceAccountName", "string", 0, "ServiceAccount of the pod"),
        ("NodeName", "string", 0, "Node that asks"),
        ("SignerName", "string", 0, "Who is asked to sign"),
        ("State", "string", 0, "Pending, Issued, Denied or Failed"),
    ],
    cells: |object, _| {
        let ends = ["Issued", "Denied", "Failed"];
        let state =
            ends.into_iter().find(|kind| cells::condition(object, kind).is_some()).unwrap_or("Pending");
        let text = |field: &str| cells::text_or(object, &format!("/spec/{field}"), "");
        vec![
            cells::name(object),
            text("podName"),
            text("serviceAccountName"),
            text("nodeName"),
            text("signerName"),
            json!(state),
        ]
    },
};
