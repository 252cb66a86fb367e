//! Namespaces.

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, is_new, items, metadata, names, text};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{object_or_insert, restore_spec};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "namespaces",
    short_names: &["ns"],
    selectable: &["status.phase"],
    default,
    prepare_create,
    // The finalize subresource alone changes `spec.finalizers`.
    prepare_update: restore_spec,
    validate,
    validate_status: Some(validate_status),
    columns: COLUMNS,
    spec_finalizers: true,
    ..Kind::DEFAULT
};

/// The label that selects a namespace by its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Defaults of a Namespace: the label that carries its name.
pub(crate) fn default(value: &mut Value) {
    let name = meta::name(value).to_owned();
    if name.is_empty() {
        return;
    }
    if let Some(labels) = object_or_insert(meta::metadata_mut(value), "labels") {
        labels.insert(NAME_LABEL.into(), name.into());
    }
}

/// Makes a new Namespace active, and gives it the finalizer that its deletion waits for.
pub(crate) fn prepare_create(value: &mut Value) {
    if let Value::Object(map) = value {
        // Set regardless of the request: only the finalize subresource changes them.
        let mut finalizers = map
            .get("spec")
            .and_then(|s| s.get("finalizers"))
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        if !finalizers.contains(&json!("kubernetes")) {
            finalizers.push(json!("kubernetes"));
        }
        map.insert("spec".into(), json!({"finalizers": finalizers}));
        map.insert("status".into(), json!({"phase": "Active"}));
    }
}

/// Errors of a Namespace.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(metadata::of_builtin(object, names::dns_label));
    for (index, finalizer) in
        items(&object["spec"], "finalizers").iter().filter_map(Value::as_str).enumerate()
    {
        // When a Namespace is created, only the list as a whole is reported.
        let new = is_new(object);
        let path = if new { "spec.finalizers".to_owned() } else { format!("spec.finalizers[{index}]") };
        errors.faults(&path, finalizer, names::qualified_name(finalizer));
        let standard = matches!(finalizer, "kubernetes" | "orphan" | "foregroundDeletion");
        if !finalizer.contains('/') && !standard {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid(path, &json!(finalizer), detail);
        }
    }
    errors.list()
}

fn validate_status(new: &Value, _: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let phase = text(&new["status"], "phase");
    let going = apiserver_schema::meta::deletion_timestamp(new).is_some();
    let (wanted, when) = if going {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    };
    if phase != wanted {
        errors.invalid("status.Phase", &json!(phase), when);
    }
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Status", "string", 0, "Active or Terminating"), AGE],
    cells: |object, now| {
        vec![cells::name(object), cells::text_or(object, "/status/phase", ""), cells::age(object, now)]
    },
};
