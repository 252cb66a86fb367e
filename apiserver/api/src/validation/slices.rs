//! ResourceSlice, DeviceTaintRule, ResourcePoolStatusRequest: which devices there are.

use serde_json::{Value, json};

use super::devices::{driver_name, pool_name, qualified};
use super::shared::{at_most, conditions, distinct, required_name, semantic_version};
use super::{Errors, items, names, scheduling, text, with_metadata};
use crate::error::FieldError;
use crate::quantity;
use crate::registry::Written;

const MOST_DEVICES: usize = 128;
/// Of devices with taints or counters.
const MOST_ADVANCED: usize = 64;
const MOST_COUNTER_SETS: usize = 8;
const MOST_COUNTERS: usize = 32;
const MOST_PROPERTIES: usize = 32;
const MOST_TAINTS: usize = 16;
const MOST_CONSUMED: usize = 2;
/// Longest attribute value, bytes.
const VALUE: usize = 64;
const PLACES: &str =
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";

/// Errors of a ResourceSlice.
pub fn slice(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    driver_name(text(spec, "driver"), "spec.driver", &mut errors);
    pool_name(text(&spec["pool"], "name"), "spec.pool.name", &mut errors);
    let count = spec["pool"]["resourceSliceCount"].as_i64().unwrap_or(0);
    if count <= 0 {
        errors.invalid("spec.pool.resourceSliceCount", &json!(count), "must be greater than zero");
    }
    let generation = spec["pool"]["generation"].as_i64().unwrap_or(0);
    if generation < 0 {
        let detail = "must be greater than or equal to zero";
        errors.invalid("spec.pool.generation", &json!(generation), detail);
    }
    place(spec, &mut errors);
    devices(spec, &mut errors);
    at_most(spec, "sharedCounters", "spec", MOST_COUNTER_SETS, &mut errors);
    let sets = items(spec, "sharedCounters");
    for (index, set) in sets.iter().enumerate() {
        let path = format!("spec.sharedCounters[{index}]");
        required_name(set, "name", &path, names::dns_label, &mut errors);
        counters(set, &path, &mut errors);
    }
    distinct(sets, "name", "spec.sharedCounters", &mut errors);
    if spec.get("sharedCounters").is_some() && spec.get("devices").is_some() {
        errors.invalid("spec", &json!(""), "only one of `sharedCounters` or `devices` is allowed");
    }
    errors.list()
}

/// The pool, driver and node of a ResourceSlice stay. Arguments: new, old.
pub fn slice_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    for path in ["spec.pool.name", "spec.driver", "spec.nodeName"] {
        errors.immutable(path, new, old);
    }
    errors.list()
}

/// Where the devices are: on one node, on some, on all, or each on its own.
fn place(spec: &Value, errors: &mut Errors) {
    let mut set = Vec::new();
    if let Some(name) = spec.get("nodeName").and_then(Value::as_str) {
        if name.is_empty() {
            let detail = "must be either unset or set to a non-empty string";
            errors.invalid("spec.nodeName", &json!(name), detail);
        } else {
            set.push("`nodeName`");
            errors.faults("spec.nodeName", name, names::dns_subdomain(name));
        }
    }
    if let Some(selector) = spec.get("nodeSelector").filter(|s| !s.is_null()) {
        set.push("`nodeSelector`");
        one_term(selector, "spec.nodeSelector", errors);
    }
    for (field, shown) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")]
    {
        match spec.get(field).and_then(Value::as_bool) {
            Some(true) => set.push(shown),
            Some(false) => {
                let detail = "must be either unset or set to true";
                errors.invalid(format!("spec.{field}"), &json!(false), detail);
            }
            None => {}
        }
    }
    match set.len() {
        0 => errors.required("spec", PLACES),
        1 => {}
        _ => {
            let shown = format!("{{{}}}", set.join(", "));
            errors.invalid("spec", &json!(shown), &format!("{PLACES}, but multiple fields are set"));
        }
    }
}

fn one_term(selector: &Value, path: &str, errors: &mut Errors) {
    scheduling::node_selector(selector, path, errors);
    let terms = items(selector, "nodeSelectorTerms");
    if terms.len() != 1 {
        let detail = "must have exactly one node selector term";
        errors.invalid(format!("{path}.nodeSelectorTerms"), &json!(terms), detail);
    }
}

fn devices(spec: &Value, errors: &mut Errors) {
    let list = items(spec, "devices");
    let has = |field: &str| list.iter().any(|device| !items(device, field).is_empty());
    let most = if has("taints") || has("consumesCounters") { MOST_ADVANCED } else { MOST_DEVICES };
    at_most(spec, "devices", "spec", most, errors);
    let alone = spec["perDeviceNodeSelection"] == true;
    for (index, one) in list.iter().enumerate() {
        device(one, &format!("spec.devices[{index}]"), alone, errors);
    }
    distinct(list, "name", "spec.devices", errors);
}

fn device(device: &Value, path: &str, alone: bool, errors: &mut Errors) {
    required_name(device, "name", path, names::dns_label, errors);
    let map = |field: &str| device.get(field).and_then(Value::as_object).into_iter().flatten();
    let count = map("attributes").count() + map("capacity").count();
    if count > MOST_PROPERTIES {
        let detail =
            format!("the total number of attributes and capacities must not exceed {MOST_PROPERTIES}");
        errors.invalid(path, &json!(count), &detail);
    }
    for (name, attribute) in map("attributes") {
        let path = format!("{path}.attributes[{name}]");
        qualified(name, &path, errors);
        value(attribute, &path, errors);
    }
    for (name, capacity) in map("capacity") {
        let path = format!("{path}.capacity[{name}]");
        qualified(name, &path, errors);
        if capacity.get("value").is_none_or(|amount| quantity::parse_value(amount).is_err()) {
            errors.required(format!("{path}.value"), "");
        }
    }
    at_most(device, "taints", path, MOST_TAINTS, errors);
    for (index, one) in items(device, "taints").iter().enumerate() {
        taint(one, &format!("{path}.taints[{index}]"), errors);
    }
    at_most(device, "consumesCounters", path, MOST_CONSUMED, errors);
    for (index, consumed) in items(device, "consumesCounters").iter().enumerate() {
        let path = format!("{path}.consumesCounters[{index}]");
        required_name(consumed, "counterSet", &path, names::dns_label, errors);
        counters(consumed, &path, errors);
    }
    let placed = ["nodeName", "nodeSelector", "allNodes"];
    let set: Vec<&str> =
        placed.into_iter().filter(|f| device.get(*f).is_some_and(|v| !v.is_null())).collect();
    for field in &set {
        if !alone {
            let detail = format!("`{field}` may only be set when `perDeviceNodeSelection` is true");
            errors.forbidden(format!("{path}.{field}"), &detail);
        }
    }
    let needed = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is \
                  set to true";
    match set.as_slice() {
        [] if alone => errors.required(path, needed),
        [_, _, ..] if alone => errors.invalid(path, &json!(set.join(", ")), needed),
        _ => {}
    }
    if let Some(selector) = device.get("nodeSelector").filter(|s| !s.is_null()) {
        one_term(selector, &format!("{path}.nodeSelector"), errors);
    }
}

fn value(attribute: &Value, path: &str, errors: &mut Errors) {
    const KINDS: [&str; 8] = ["bool", "int", "string", "version", "bools", "ints", "strings", "versions"];
    let set: Vec<&str> =
        KINDS.into_iter().filter(|kind| attribute.get(*kind).is_some_and(|v| !v.is_null())).collect();
    if set.len() != 1 {
        match set.len() {
            0 => errors.required(path, "exactly one value must be specified"),
            _ => errors.invalid(path, attribute, "exactly one value must be specified"),
        }
        return;
    }
    let texts = |one: &str, many: &str| -> Vec<String> {
        let list = items(attribute, many).iter().chain(attribute.get(one));
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for text in texts("string", "strings") {
        if text.len() > VALUE {
            errors.too_long(format!("{path}.string"), VALUE);
        }
    }
    for version in texts("version", "versions") {
        if version.len() > VALUE {
            errors.too_long(format!("{path}.version"), VALUE);
        }
        if semantic_version(&version).is_none() {
            let detail = "must be a string compatible with semver.org spec 2.0.0";
            errors.invalid(format!("{path}.version"), &json!(version), detail);
        }
    }
}

fn counters(set: &Value, path: &str, errors: &mut Errors) {
    let path = format!("{path}.counters");
    let map = set.get("counters").and_then(Value::as_object);
    let count = map.map_or(0, serde_json::Map::len);
    if count == 0 {
        errors.required(path.as_str(), "");
    } else if count > MOST_COUNTERS {
        errors.too_many(path.as_str(), count, MOST_COUNTERS);
    }
    for name in map.into_iter().flatten().map(|(name, _)| name) {
        errors.faults(&path, name, names::dns_label(name));
    }
}

fn taint(taint: &Value, path: &str, errors: &mut Errors) {
    required_name(taint, "key", path, names::qualified_name, errors);
    let value = text(taint, "value");
    errors.faults(&format!("{path}.value"), value, names::label_value(value));
    let effects = ["NoExecute", "NoSchedule", "None"];
    errors.one_of(&format!("{path}.effect"), taint.get("effect"), &effects);
}

/// Errors of a DeviceTaintRule.
pub fn taint_rule(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let (selector, path) = (&spec["deviceSelector"], "spec.deviceSelector");
    if let Some(name) = selector.get("driver").and_then(Value::as_str) {
        driver_name(name, &format!("{path}.driver"), &mut errors);
    }
    if let Some(name) = selector.get("pool").and_then(Value::as_str) {
        pool_name(name, &format!("{path}.pool"), &mut errors);
    }
    if selector.get("device").is_some_and(|d| !d.is_null()) {
        required_name(selector, "device", path, names::dns_label, &mut errors);
    }
    taint(&spec["taint"], "spec.taint", &mut errors);
    errors.list()
}

/// Errors of a change of a DeviceTaintRule.
pub fn taint_rule_change(new: &Value, _: &Value, written: Written) -> Vec<FieldError> {
    if written == Written::Main {
        return taint_rule(new);
    }
    let mut errors = Errors::default();
    at_most(&new["status"], "conditions", "status", 8, &mut errors);
    conditions(items(&new["status"], "conditions"), "status.conditions", &mut errors);
    errors.list()
}

/// Errors of a ResourcePoolStatusRequest.
pub fn pool_request(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    driver_name(text(spec, "driver"), "spec.driver", &mut errors);
    if let Some(name) = spec.get("poolName").and_then(Value::as_str) {
        pool_name(name, "spec.poolName", &mut errors);
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

/// What was asked stays, and so does what was answered. Arguments: new, old.
pub fn pool_request_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if written == Written::Status {
        if old.get("status").is_some_and(|s| s.as_object().is_some_and(|map| !map.is_empty())) {
            errors.immutable("status", new, old);
        }
        conditions(items(&new["status"], "conditions"), "status.conditions", &mut errors);
        return errors.list();
    }
    errors.extend(super::subdomain_name(new));
    errors.immutable("spec", new, old);
    errors.list()
}
