//! ResourcePoolStatusRequests.

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, items, metadata, names, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::resource::requests::POOL_NAME;
use crate::shared::checks::conditions;
use crate::shared::defaults::{fill, with_spec};

pub(crate) static KIND: Kind = Kind {
    group: "resource.k8s.io",
    plural: "resourcepoolstatusrequests",
    needs_version: true,
    default,
    validate,
    validate_change: Some(validate_change),
    prepare_create,
    ..Kind::DEFAULT
};

/// The default number of pools that a ResourcePoolStatusRequest asks about.
const POOLS: i64 = 100;

/// Defaults of a ResourcePoolStatusRequest.
fn default(value: &mut Value) {
    with_spec(value, |spec| fill(spec, "limit", POOLS));
}

/// A new ResourcePoolStatusRequest has no status, not even an empty one.
fn prepare_create(value: &mut Value) {
    if let Value::Object(map) = value
        && map.get("status").and_then(Value::as_object).is_some_and(|status| status.is_empty())
    {
        map.remove("status");
    }
}

/// Errors of a ResourcePoolStatusRequest.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    errors.name("spec.driver", text(spec, "driver"), names::dns_subdomain_of_any_case);
    if let Some(name) = spec.get("poolName").and_then(Value::as_str) {
        wanted_pool(name, "spec.poolName", &mut errors);
    }
    if let Some(limit) = spec.get("limit").and_then(Value::as_i64) {
        if limit < 1 {
            errors.invalid("spec.limit", &json!(limit), "must be greater than or equal to 1");
        } else if limit > 1000 {
            errors.invalid("spec.limit", &json!(limit), "must be less than or equal to 1000");
        }
    }
    errors.list()
}

/// Validates the name of a pool; each fault is reported with its segment.
fn wanted_pool(name: &str, path: &str, errors: &mut Errors) {
    if name.len() > POOL_NAME {
        errors.too_long(path, POOL_NAME);
    }
    for (index, segment) in name.split('/').enumerate() {
        if segment.is_empty() {
            errors.invalid(path, &json!(name), &format!("segment {index}: must not be empty"));
            continue;
        }
        for fault in names::dns_subdomain_in_bytes(segment) {
            errors.invalid(path, &json!(segment), &format!("segment {index}: {fault}"));
        }
    }
}

/// Validates that neither the request nor a completed answer changes. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if written == Written::Status {
        let before = &old["status"];
        if before["poolCount"].as_i64().unwrap_or(0) > 0 || !items(before, "conditions").is_empty() {
            errors.immutable("status", new, old);
        }
        conditions(items(&new["status"], "conditions"), "status.conditions", &mut errors);
        return errors.list();
    }
    errors.extend(metadata::subdomain_name(new));
    // Kubernetes gives no value here.
    errors.immutable_shown("spec", new, old, "null");
    errors.list()
}
