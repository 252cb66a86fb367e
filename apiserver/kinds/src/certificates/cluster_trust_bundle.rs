//! ClusterTrustBundles.

use std::collections::BTreeMap;

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, metadata, names, text};
use serde_json::{Value, json};

use crate::certificates::pem::{self, Block};
use crate::kind::Kind;
use crate::shared::cells::{self, NONE};
use crate::shared::checks::signer_name;
use crate::shared::columns::{Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "certificates.k8s.io",
    plural: "clustertrustbundles",
    selectable: &["spec.signerName"],
    needs_version: true,
    validate,
    validate_change: Some(validate_change),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Errors of a ClusterTrustBundle; one with a signer is called `SIGNER:NAME` with a colon for a slash.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = bundle_name(object);
    certificates(text(&object["spec"], "trustBundle"), "spec.trustBundle", &mut errors);
    errors.list()
}

fn bundle_name(object: &Value) -> Errors {
    let signer = text(&object["spec"], "signerName");
    let mut errors = Errors::of(metadata::of_builtin(object, |_| Vec::new()));
    for (field, name) in [("generateName", meta::generate_name(object)), ("name", meta::name(object))] {
        if !name.is_empty() {
            let faults = bundle_faults(name, signer, field == "generateName");
            errors.faults(&format!("metadata.{field}"), name, faults);
        }
    }
    if !signer.is_empty() {
        signer_name(signer, "spec.signerName", &mut errors);
    }
    errors
}

/// Returns the faults of a reference to a bundle by name; the part before the last colon is its signer.
pub(crate) fn reference_faults(name: &str) -> names::Faults {
    let signer = name.rsplit_once(':').map_or_else(String::new, |(signer, _)| signer.replace(':', "/"));
    bundle_faults(name, &signer, false)
}

/// Returns the faults of a bundle's name, or of the prefix (`beginning`) of a generated one.
fn bundle_faults(name: &str, signer: &str, beginning: bool) -> names::Faults {
    let subdomain =
        |name: &str| names::dns_subdomain(if beginning { name.trim_end_matches('-') } else { name });
    if signer.is_empty() {
        if name.contains(':') {
            return vec!["ClusterTrustBundle without signer name must not have \":\" in its name".to_owned()];
        }
        return subdomain(name);
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => subdomain(rest),
        None => {
            vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")]
        }
    }
}

/// Returns the errors of a change of a ClusterTrustBundle; unchanged certificates are not validated.
/// Arguments: new, old, the part that is written.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = bundle_name(new);
    let bundle = text(&new["spec"], "trustBundle");
    if bundle != text(&old["spec"], "trustBundle") {
        certificates(bundle, "spec.trustBundle", &mut errors);
    }
    errors.immutable("spec.signerName", new, old);
    errors.list()
}

/// Most bytes of a bundle.
const BUNDLE: usize = 1024 * 1024;

/// PEM blocks of certificates of authorities, at least one, none twice.
fn certificates(text: &str, path: &str, errors: &mut Errors) {
    if text.len() > BUNDLE {
        return errors.too_long(path, BUNDLE);
    }
    let hidden = json!("<value omitted>");
    let mut seen: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    let before = errors.count();
    for (index, block) in pem::blocks(text).into_iter().enumerate() {
        let fault = block_fault(&block);
        match fault {
            Some(fault) => errors.invalid(path, &hidden, &format!("entry {index} {fault}")),
            None => seen.entry(block.bytes).or_default().push(index),
        }
    }
    if errors.count() > before {
        return;
    }
    if seen.is_empty() {
        errors.invalid(path, &hidden, "at least one trust anchor must be provided");
    }
    for indices in seen.values().filter(|indices| indices.len() > 1) {
        let list = indices.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        errors.invalid(path, &hidden, &format!("duplicate trust anchor (indices [{list}])"));
    }
}

fn block_fault(block: &Block) -> Option<String> {
    if block.kind != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.kind));
    }
    if block.headers {
        return Some("has PEM block headers".to_owned());
    }
    match x509_parser::parse_x509_certificate(&block.bytes) {
        Ok(([], certificate)) => (!certificate.is_ca()).then(|| "does not have the CA bit set".to_owned()),
        _ => Some("does not parse as X.509".to_owned()),
    }
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("SignerName", "string", 0, "Signer that the certificates belong to")],
    cells: |object, _| vec![cells::name(object), cells::text_or(object, "/spec/signerName", NONE)],
};
