//! DeviceTaintRules.

use apiserver_meta::time;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, items, names, with_metadata};
use jiff::Timestamp;
use serde_json::Value;

use crate::kind::Kind;
use crate::resource::resource_slice::TIME_ADDED;
use crate::resource::{requests, resource_slice};
use crate::shared::checks::conditions;
use crate::shared::defaults::{fill, object, with_spec};

pub(crate) static KIND: Kind = Kind {
    group: "resource.k8s.io",
    plural: "devicetaintrules",
    generation: true,
    default_times: Some(default_times),
    prepare_times: Some(prepare_times),
    validate,
    validate_change: Some(validate_change),
    ..Kind::DEFAULT
};

/// Sets the time of a DeviceTaintRule's taint to `now`, unless it has one.
fn default_times(value: &mut Value, now: Timestamp) {
    with_spec(value, |spec| {
        if let Some(taint) = object(spec, "taint") {
            fill(taint, TIME_ADDED, time::rfc3339(now));
        }
    });
}

/// Sets the time of a taint whose effect changed to `now`, unless it has a new one. Arguments: new, old, now.
fn prepare_times(new: &mut Value, old: &Value, now: Timestamp) {
    let before = &old["spec"]["taint"];
    let Some(Value::Object(taint)) = new.pointer_mut("/spec/taint") else { return };
    if taint.get("effect") != before.get("effect") && taint.get(TIME_ADDED) == before.get(TIME_ADDED) {
        taint.insert(TIME_ADDED.to_owned(), time::rfc3339(now).into());
    }
}

const MOST_CONDITIONS: usize = 8;

/// Errors of a new DeviceTaintRule.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    rule_spec(&object["spec"], None, &mut errors);
    errors.list()
}

fn rule_spec(spec: &Value, before: Option<&Value>, errors: &mut Errors) {
    let (selector, path) = (&spec["deviceSelector"], "spec.deviceSelector");
    if let Some(name) = selector.get("driver").and_then(Value::as_str) {
        requests::driver_name(name, &format!("{path}.driver"), errors);
    }
    if let Some(name) = selector.get("pool").and_then(Value::as_str) {
        requests::pool_name(name, &format!("{path}.pool"), errors);
    }
    if let Some(name) = selector.get("device").and_then(Value::as_str) {
        errors.faults(&format!("{path}.device"), name, names::dns_label(name));
    }
    resource_slice::taint(&spec["taint"], before.map(|spec| &spec["taint"]), "spec.taint", errors);
}

/// Returns the errors of a change of a DeviceTaintRule. Arguments: new, old, the part that is written.
fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    if written == Written::Main {
        let mut errors = with_metadata(new);
        rule_spec(&new["spec"], Some(&old["spec"]), &mut errors);
        return errors.list();
    }
    let mut errors = Errors::default();
    let (list, path) = (items(&new["status"], "conditions"), "status.conditions");
    conditions(list, path, &mut errors);
    if list.len() > MOST_CONDITIONS {
        errors.too_many(path, list.len(), MOST_CONDITIONS);
    }
    errors.list()
}
