//! StorageVersionMigrations.

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, IMMUTABLE, items, same, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::checks::conditions;
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "storagemigration.k8s.io",
    plural: "storageversionmigrations",
    needs_version: true,
    validate,
    validate_change: Some(validate_change),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Errors of a StorageVersionMigration.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let resource = &object["spec"]["resource"];
    if text(resource, "resource").is_empty() {
        errors.required("spec.resource.resource", "resource is required");
    }
    errors.list()
}

/// Returns the errors of a change: neither the resource to migrate nor a final state may change. Arguments:
/// new, old.
fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    if written == Written::Status {
        return migration_status(&new["status"], &old["status"]);
    }
    let mut errors = Errors::of(validate(new));
    for field in ["group", "resource"] {
        let (now, before) = (new["spec"]["resource"].get(field), old["spec"]["resource"].get(field));
        if !same(now, before) {
            errors.invalid(field, now.unwrap_or(&json!("")), IMMUTABLE);
        }
    }
    errors.list()
}

fn migration_status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (version, before) = (text(new, "resourceVersion"), text(old, "resourceVersion"));
    let path = "status.resourceVersion";
    if !version.is_empty() && version.parse::<u64>().is_err() {
        let detail = format!("failed to parse resource version \"{version}\"");
        errors.invalid(path, &json!(version), &detail);
    }
    if !before.is_empty() && before != version {
        errors.invalid(path, &json!(version), "cannot be updated");
    }
    let path = "status.conditions";
    let list = items(new, "conditions");
    conditions(list, path, &mut errors);
    let holds = |status: &Value, kind: &str| {
        items(status, "conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
    };
    let (done, failed, running) = (holds(new, "Succeeded"), holds(new, "Failed"), holds(new, "Running"));
    for (wrong, detail) in [
        (done && failed, "Both success and failed conditions cannot be true at the same time"),
        (done && running, "Running condition cannot be true when success condition is true"),
        (failed && running, "Running condition cannot be true when failed condition is true"),
        (holds(old, "Succeeded") && !done, "Success condition cannot be set to false once it is true"),
        (holds(old, "Failed") && !failed, "Failed condition cannot be set to false once it is true"),
    ] {
        if wrong {
            errors.invalid(path, &json!(list), detail);
        }
    }
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Resource", "string", 0, "What is written anew"), AGE],
    cells: |object, now| {
        let field = |field: &str| meta::text(object, &format!("/spec/resource/{field}"));
        let shown = match field("group") {
            "" => field("resource").to_owned(),
            group => format!("{}.{group}", field("resource")),
        };
        vec![cells::name(object), json!(shown), cells::age(object, now)]
    },
};
