//! Events as `events.k8s.io/v1` shows them: they are stored as `v1`, which has other names for some fields.

use apiserver_registry::{Dependents, Written};
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, IMMUTABLE, metadata, names, same, text};
use serde_json::{Value, json};

use crate::core::event;
use crate::kind::{Kind, Shape, Version};

pub(crate) static KIND: Kind = Kind {
    group: "events.k8s.io",
    plural: "events",
    short_names: &["ev"],
    selectable: &[
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "type",
    ],
    create_on_update: true,
    versions: &[Version {
        name: "v1",
        default: None,
        shape: Some(Shape { to_stored: to_core, from_stored: from_core }),
    }],
    validate,
    validate_change: Some(validate_change),
    columns: event::COLUMNS,
    dependents: Dependents::Absent,
    expires: true,
    errors_name_core_group: true,
    ..Kind::DEFAULT
};

/// Fields that differ: core, events.k8s.io.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn from_core(object: &mut Value) {
    rename(object, NAMES.iter().copied());
}

fn to_core(object: &mut Value) {
    rename(object, NAMES.iter().map(|(core, new)| (*new, *core)));
}

fn rename<'a>(object: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(map) = object.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}

/// The controller of an Event in `events.k8s.io/v1`.
const CONTROLLER: &str = "reportingController";

/// Errors of a new Event of `events.k8s.io/v1`.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(event::common_errors(object, CONTROLLER));
    errors.extend(metadata::of_builtin(object, names::dns_subdomain));
    series(object, &mut errors);
    if text(object, "eventTime").is_empty() {
        errors.required("eventTime", "");
    }
    let kind = text(object, "type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid("type", &json!(""), &format!("has invalid value: {kind}"));
    }
    for field in ["firstTimestamp", "lastTimestamp"] {
        if !text(object, field).is_empty() {
            errors.invalid(field, &json!(""), "needs to be unset");
        }
    }
    if object["count"].as_i64().unwrap_or(0) != 0 {
        errors.invalid("count", &json!(""), "needs to be unset");
    }
    let source = &object["source"];
    if !text(source, "component").is_empty() || !text(source, "host").is_empty() {
        errors.invalid("source", &json!(""), "needs to be unset");
    }
    errors.list()
}

fn series(object: &Value, errors: &mut Errors) {
    let Some(series) = object.get("series").filter(|s| !s.is_null()) else { return };
    if series["count"].as_i64().unwrap_or(0) < 2 {
        errors.invalid("series.count", &json!(""), "should be at least 2");
    }
    if text(series, "lastObservedTime").is_empty() {
        errors.required("series.lastObservedTime", "");
    }
}

/// Returns the errors of a change through `events.k8s.io/v1`: only the series may change. Arguments: new,
/// old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::of(event::common_errors(new, CONTROLLER));
    if !same(new.get("series"), old.get("series")) {
        series(new, &mut errors);
    }
    let fields = [
        ("involvedObject", json!({})),
        ("reason", json!("")),
        ("message", json!("")),
        ("source", json!({})),
        ("firstTimestamp", Value::Null),
        ("lastTimestamp", Value::Null),
        ("count", json!(0)),
        // Twice, as Kubernetes does.
        ("reason", json!("")),
        ("type", json!("")),
        ("eventTime", Value::Null),
        ("action", json!("")),
        ("related", Value::Null),
        ("reportingComponent", json!("")),
        ("reportingInstance", json!("")),
    ];
    for (field, unset) in &fields {
        if !same(new.get(field), old.get(field)) {
            let path = if *field == "reportingComponent" { "reportingController" } else { field };
            let now = new.get(field).filter(|value| !value.is_null()).unwrap_or(unset);
            errors.invalid(path, now, IMMUTABLE);
        }
    }
    errors.list()
}
