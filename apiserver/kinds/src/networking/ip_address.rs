//! IPAddresses.

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, IMMUTABLE, given, metadata, names, same, text};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells::NONE;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::{cells, ip};

pub(crate) static KIND: Kind = Kind {
    group: "networking.k8s.io",
    plural: "ipaddresses",
    short_names: &["ip"],
    selectable: &["spec.parentRef.namespace", "spec.parentRef.name"],
    validate,
    validate_update,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Returns the errors of an IPAddress, whose name is its address.
fn validate(object: &Value) -> Vec<FieldError> {
    let canonical = |name: &str| ip::canonical_fault(name).into_iter().collect();
    let mut errors = Errors::of(metadata::of_builtin(object, canonical));
    let Some(parent) = given(&object["spec"], "parentRef") else {
        errors.required("spec.parentRef", "");
        return errors.list();
    };
    let path = "spec.parentRef";
    errors.name_if_set(&format!("{path}.group"), text(parent, "group"), names::dns_subdomain);
    for field in ["resource", "name"] {
        errors.name(&format!("{path}.{field}"), text(parent, field), names::path_segment);
    }
    errors.name_if_set(&format!("{path}.namespace"), text(parent, "namespace"), names::path_segment);
    errors.list()
}

/// Validates that the parent of an IPAddress does not change. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (now, was) = (new["spec"].get("parentRef"), old["spec"].get("parentRef"));
    if !same(now, was) {
        errors.invalid("spec.parentRef", now.unwrap_or(&Value::Null), IMMUTABLE);
    }
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("ParentRef", "string", 0, "Object that has the address"), AGE],
    cells: |object, now| {
        let parent = object.pointer("/spec/parentRef").map_or(NONE.to_owned(), |p| {
            let dot = if meta::text(p, "/group").is_empty() { "" } else { "." };
            let kind =
                format!("{}{dot}{}", meta::text(p, "/resource"), meta::text(p, "/group")).to_lowercase();
            let parts = [kind.as_str(), meta::text(p, "/namespace"), meta::text(p, "/name")];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
        });
        vec![cells::name(object), json!(parent), cells::age(object, now)]
    },
};
