//! ResourceClaims.

pub(crate) mod status;

use super::admin_access;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::metadata::subdomain_name;
use apiserver_schema::validation::{Errors, IMMUTABLE, with_metadata};
use serde_json::{Value, json};

use crate::kind::{Kind, Shape, Version};
use crate::resource::requests;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::with_spec;

pub(crate) static KIND: Kind = Kind {
    group: "resource.k8s.io",
    plural: "resourceclaims",
    versions: &[Version {
        name: "v1beta1",
        default: Some(default_v1beta1),
        shape: Some(Shape { to_stored: to_v1, from_stored: to_v1beta1 }),
    }],
    default,
    validate,
    validate_change: Some(validate_change),
    drop_disabled_status: Some(status::drop_deallocated),
    columns: COLUMNS,
    admin_access: Some(admin_access::of_claim),
    ..Kind::DEFAULT
};

/// Defaults of a ResourceClaim.
fn default(value: &mut Value) {
    with_spec(value, |spec| requests::default_spec(spec, requests::default_device));
}

/// Defaults of a ResourceClaim in `v1beta1`.
fn default_v1beta1(value: &mut Value) {
    with_spec(value, |spec| requests::default_spec(spec, requests::default_older_device));
}

fn to_v1(claim: &mut Value) {
    requests::convert_requests(claim, "/spec/devices/requests", requests::nest_request);
}

fn to_v1beta1(claim: &mut Value) {
    requests::convert_requests(claim, "/spec/devices/requests", requests::flatten_request);
}

/// Errors of a ResourceClaim.
fn validate(object: &Value) -> Vec<FieldError> {
    apiserver_cel::on_large_stack(|| apiserver_cel::bounded(|| errors(object)))
}

fn errors(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    requests::spec_errors(&object["spec"], "spec", &mut errors);
    errors.list()
}

/// Returns the errors of a change of a ResourceClaim: neither its request nor its allocation may change.
/// Arguments: new, old.
fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    if written == Written::Status {
        let mut errors = Errors::default();
        status::validate(new, &old["status"], &mut errors);
        return errors.list();
    }
    let mut errors = Errors::of(subdomain_name(new));
    if !requests::same_spec("ResourceClaim", new, old) {
        errors.invalid("spec", &new["spec"], IMMUTABLE);
    }
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("State", "string", 0, "Whether devices were allocated, and to whom they are reserved"),
        AGE,
    ],
    cells: |object, now| vec![cells::name(object), json!(state(object)), cells::age(object, now)],
};

fn state(claim: &Value) -> String {
    let mut states = Vec::new();
    if meta::deletion_timestamp(claim).is_some() {
        states.push("deleted");
    }
    if claim.pointer("/status/allocation").is_some_and(|a| !a.is_null()) {
        states.push("allocated");
        if cells::count(claim, "/status/reservedFor") > 0 {
            states.push("reserved");
        }
    } else if states.is_empty() {
        states.push("pending");
    }
    states.join(",")
}
