//! Events. Those written through `events.k8s.io/v1` are held to more than those of `v1`; both are
//! seen in the shape of `v1`.

use serde_json::{Value, json};

use super::{Errors, IMMUTABLE, metadata, names, same, text};
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;

/// Longest reporting instance, action and reason, bytes.
const WORD: usize = 128;
/// The controller of an Event in `events.k8s.io/v1`.
const CONTROLLER: &str = "reportingController";
/// Longest message, bytes.
const NOTE: usize = 1024;

/// Errors of an Event of `v1`, whose metadata is left to the rules of all kinds.
pub fn event(object: &Value) -> Vec<FieldError> {
    judged(object, "reportingComponent")
}

/// Errors of an Event whose controller has that name in its version.
fn judged(object: &Value, controller: &str) -> Vec<FieldError> {
    let mut errors = Errors::default();
    placed(object, &mut errors);
    if !text(object, "eventTime").is_empty() {
        told_by(object, controller, &mut errors);
    }
    errors.list()
}

/// Events about objects without a namespace are kept in `default`, new ones in `kube-system` too.
fn placed(object: &Value, errors: &mut Errors) {
    let involved = text(&object["involvedObject"], "namespace");
    let namespace = meta::namespace(object);
    let new = !text(object, "eventTime").is_empty();
    let fits = match involved {
        "" => namespace.is_empty() || namespace == "default" || (new && namespace == "kube-system"),
        involved => new || involved == namespace,
    };
    if !fits {
        errors.invalid("involvedObject.namespace", &json!(involved), "does not match event.namespace");
    }
}

fn told_by(object: &Value, field: &str, errors: &mut Errors) {
    let controller = text(object, "reportingComponent");
    if controller.is_empty() {
        errors.required(field, "");
    }
    errors.faults(field, controller, names::qualified_name(controller));
    for (field, limit, required) in [
        ("reportingInstance", WORD, true),
        ("action", WORD, true),
        ("reason", WORD, true),
        ("message", NOTE, false),
    ] {
        let value = text(object, field);
        if required && value.is_empty() {
            errors.required(field, "");
        }
        if value.len() > limit {
            errors.invalid(field, &json!(""), &format!("can have at most {limit} characters"));
        }
    }
}

/// Errors of a new Event of `events.k8s.io/v1`.
pub fn new_event(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(judged(object, CONTROLLER));
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
pub fn new_event_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::of(judged(new, CONTROLLER));
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
