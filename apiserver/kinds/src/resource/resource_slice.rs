//! ResourceSlices.

use apiserver_meta::time;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, items, names, same, text, with_metadata};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::core::pod;
use crate::kind::{Kind, Shape, Version};
use crate::resource::{capacities, requests, resource_claim, sets};
use crate::shared::checks::{required_name, semantic_version};
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{each_object, fill, with_spec};
use crate::shared::gates::Gate;
use crate::shared::{cells, gates};

pub(crate) static KIND: Kind = Kind {
    group: "resource.k8s.io",
    plural: "resourceslices",
    selectable: &["spec.nodeName", "spec.driver"],
    generation: true,
    versions: &[Version {
        name: "v1beta1",
        default: None,
        shape: Some(Shape { to_stored: to_v1, from_stored: to_v1beta1 }),
    }],
    default_times: Some(default_times),
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec", GATES)),
    validate,
    validate_change: Some(validate_change),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// The field with the time at which a taint was added.
pub(crate) const TIME_ADDED: &str = "timeAdded";

/// Sets the time of taints of a ResourceSlice's devices to `now`, unless they have one.
fn default_times(value: &mut Value, now: Timestamp) {
    with_spec(value, |spec| {
        each_object(spec, "devices", |device| {
            each_object(device, "taints", |taint| fill(taint, TIME_ADDED, time::rfc3339(now)));
        });
    });
}

fn to_v1(slice: &mut Value) {
    requests::convert_requests(slice, "/spec/devices", |device| {
        if let Some(Value::Object(basic)) = device.remove("basic") {
            device.extend(basic);
        }
    });
}

fn to_v1beta1(slice: &mut Value) {
    requests::convert_requests(slice, "/spec/devices", |device| {
        let name = device.remove("name");
        let basic = std::mem::take(device);
        device.extend(name.map(|name| ("name".to_owned(), name)));
        device.insert("basic".to_owned(), Value::Object(basic));
    });
}

static GATES: &[Gate] = &[
    // DRANodeAllocatableResources
    gates::gate(&["devices.[].nodeAllocatableResourceMappings"]),
    // DRAListTypeAttributes
    gates::gate(&[
        "devices.[].attributes.{}.bools",
        "devices.[].attributes.{}.ints",
        "devices.[].attributes.{}.strings",
        "devices.[].attributes.{}.versions",
    ]),
];

const MOST_DEVICES: usize = 128;

/// The limit on devices in a slice if any has taints or consumes counters.
const MOST_ADVANCED: usize = 64;

const MOST_COUNTER_SETS: usize = 8;

const MOST_COUNTERS: usize = 32;

const MOST_PROPERTIES: usize = 32;

const MOST_TAINTS: usize = 16;

const MOST_CONSUMED: usize = 2;

/// Longest attribute value, bytes.
const VALUE: usize = 64;

const PLACEMENTS: &str =
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";

/// Longest key of attributes that a path shows whole, bytes.
const ATTRIBUTE_KEY: usize = 63 + 1 + 32;

/// Errors of a new ResourceSlice.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    spec_errors(object, &Value::Null, &mut errors);
    errors.list()
}

/// Errors of a change: pool, driver and node stay. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = with_metadata(new);
    spec_errors(new, old, &mut errors);
    errors.list()
}

/// `old` is null for a new object.
fn spec_errors(new: &Value, old: &Value, errors: &mut Errors) {
    let (spec, before) = (&new["spec"], &old["spec"]);
    requests::driver_name(text(spec, "driver"), "spec.driver", errors);
    requests::pool_name(text(&spec["pool"], "name"), "spec.pool.name", errors);
    let count = spec["pool"]["resourceSliceCount"].as_i64().unwrap_or(0);
    if count <= 0 {
        errors.invalid("spec.pool.resourceSliceCount", &json!(count), "must be greater than zero");
    }
    let generation = spec["pool"]["generation"].as_i64().unwrap_or(0);
    if generation < 0 {
        let detail = "must be greater than or equal to zero";
        errors.invalid("spec.pool.generation", &json!(generation), detail);
    }
    if old.is_object() {
        errors.immutable_text("spec.pool.name", new, old);
        errors.immutable_text("spec.driver", new, old);
        errors.immutable("spec.nodeName", new, old);
    }
    placement(spec, errors);
    if spec.get("sharedCounters").is_some() && spec.get("devices").is_some() {
        errors.invalid("spec", &json!(""), "only one of `sharedCounters` or `devices` is allowed");
    }
    devices(spec, before, errors);
    let of = (spec, "sharedCounters");
    sets::set(of, "spec", MOST_COUNTER_SETS, sets::name, errors, &mut |set, path, errors| {
        required_name(set, "name", path, names::dns_label, errors);
        counters(set, path, errors);
    });
}

/// Validates the placement of the devices: on one node, on some, on all, or each on its own.
fn placement(spec: &Value, errors: &mut Errors) {
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
        single_term(selector, "spec.nodeSelector", errors);
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
        0 => errors.required("spec", PLACEMENTS),
        1 => {}
        _ => {
            let shown = format!("{{{}}}", set.join(", "));
            errors.invalid("spec", &json!(shown), &format!("{PLACEMENTS}, but multiple fields are set"));
        }
    }
}

fn single_term(selector: &Value, path: &str, errors: &mut Errors) {
    pod::scheduling::node_selector(selector, path, errors);
    let terms = items(selector, "nodeSelectorTerms");
    if terms.len() != 1 {
        let path = format!("{path}.nodeSelectorTerms");
        errors.invalid(path, &selector["nodeSelectorTerms"], "must have exactly one node selector term");
    }
}

fn devices(spec: &Value, before: &Value, errors: &mut Errors) {
    let list = items(spec, "devices");
    let has = |field: &str| list.iter().any(|device| !items(device, field).is_empty());
    let most = if has("taints") || has("consumesCounters") { MOST_ADVANCED } else { MOST_DEVICES };
    let alone = spec["perDeviceNodeSelection"] == true;
    sets::set((spec, "devices"), "spec", most, sets::name, errors, &mut |one, path, errors| {
        let was = items(before, "devices").iter().find(|other| other["name"] == one["name"]);
        device(one, was, path, errors);
        device_placement(one, alone, path, errors);
        resource_claim::status::binding(one, path, errors);
    });
}

/// `was` is the device of this name before, if there was one.
fn device(device: &Value, was: Option<&Value>, path: &str, errors: &mut Errors) {
    let name = text(device, "name");
    errors.faults(&format!("{path}.name"), name, names::dns_label(name));
    let map = |field: &str| device.get(field).and_then(Value::as_object).into_iter().flatten();
    let count = map("attributes").count() + map("capacity").count();
    if count > MOST_PROPERTIES {
        let detail =
            format!("the total number of attributes and capacities must not exceed {MOST_PROPERTIES}");
        errors.invalid(path, &json!(count), &detail);
    }
    for (name, attribute) in map("attributes") {
        // Errors of keys are reported at the map, errors of values at their keys.
        let map = format!("{path}.attributes");
        requests::qualified(name, &map, errors);
        let path = format!("{map}[{}]", sets::shown_key(name, ATTRIBUTE_KEY));
        value(attribute, &path, errors);
    }
    let shared = device["allowMultipleAllocations"] == true;
    for (name, capacity) in map("capacity") {
        let map = format!("{path}.capacity");
        requests::qualified(name, &map, errors);
        let path = format!("{map}[{}]", sets::shown_key(name, ATTRIBUTE_KEY));
        capacities::capacity(capacity, shared, &path, errors);
    }
    if was.is_none_or(|was| !same(was.get("taints"), device.get("taints"))) {
        sets::list(device, "taints", path, MOST_TAINTS, errors, &mut |one, path, errors| {
            taint(one, None, path, errors);
        });
    }
    let key = |consumed: &Value| consumed["counterSet"].clone();
    let of = (device, "consumesCounters");
    sets::set(of, path, MOST_CONSUMED, key, errors, &mut |consumed, path, errors| {
        required_name(consumed, "counterSet", path, names::dns_label, errors);
        counters(consumed, path, errors);
    });
}

/// Validates the placement of one device, which it must have exactly if placement is per device (`alone`).
fn device_placement(device: &Value, alone: bool, path: &str, errors: &mut Errors) {
    let found = |field: &str| device.get(field).filter(|v| !v.is_null());
    if !alone {
        if ["nodeName", "nodeSelector", "allNodes"].into_iter().any(|field| found(field).is_some()) {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is \
                          set to true in the ResourceSlice spec";
            errors.invalid(path, &Value::Null, detail);
        }
        return;
    }
    let mut set = Vec::new();
    if let Some(name) = found("nodeName").and_then(Value::as_str) {
        if name.is_empty() {
            errors.invalid(format!("{path}.nodeName"), &json!(""), "must not be empty");
        } else {
            set.push("`nodeName`");
            errors.faults(&format!("{path}.nodeName"), name, names::dns_subdomain(name));
        }
    }
    if let Some(selector) = found("nodeSelector") {
        set.push("`nodeSelector`");
        pod::scheduling::node_selector(selector, &format!("{path}.nodeSelector"), errors);
    }
    match found("allNodes").and_then(Value::as_bool) {
        Some(true) => set.push("`allNodes`"),
        Some(false) => {
            let detail = "must be either unset or set to true";
            errors.invalid(format!("{path}.allNodes"), &json!(false), detail);
        }
        None => {}
    }
    let needed = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is \
                  set to true in the ResourceSlice spec";
    match set.as_slice() {
        [] => errors.required(path, needed),
        [_] => {}
        several => errors.invalid(path, &json!(format!("{{{}}}", several.join(", "))), needed),
    }
}

fn value(attribute: &Value, path: &str, errors: &mut Errors) {
    const KINDS: [&str; 8] = ["bool", "int", "string", "version", "bools", "ints", "strings", "versions"];
    for (one, many) in [("string", "strings"), ("version", "versions")] {
        let single = attribute.get(one).and_then(Value::as_str).map(|text| (format!("{path}.{one}"), text));
        let list = items(attribute, many).iter().filter_map(Value::as_str).enumerate();
        let list = list.map(|(index, text)| (format!("{path}.{many}[{index}]"), text));
        for (path, text) in single.into_iter().chain(list) {
            if one == "version" && semantic_version(text).is_none() {
                let detail = "must be a string compatible with semver.org spec 2.0.0";
                errors.invalid(path.as_str(), &json!(text), detail);
            }
            if text.len() > VALUE {
                errors.too_long(path, VALUE);
            }
        }
    }
    let detail = "exactly one value must be specified";
    match KINDS.into_iter().filter(|kind| attribute.get(*kind).is_some_and(|v| !v.is_null())).count() {
        0 => errors.invalid(path, &json!(""), detail),
        1 => {}
        _ => errors.invalid(path, attribute, detail),
    }
}

fn counters(set: &Value, path: &str, errors: &mut Errors) {
    let path = format!("{path}.counters");
    let map = set.get("counters").and_then(Value::as_object);
    match map.map_or(0, serde_json::Map::len) {
        0 => return errors.required(path, ""),
        count if count > MOST_COUNTERS => return errors.too_many(path, count, MOST_COUNTERS),
        _ => {}
    }
    for name in map.into_iter().flatten().map(|(name, _)| name) {
        errors.faults(&path, name, names::dns_label(name));
    }
}

/// An effect that was there before may stay.
pub(crate) fn taint(taint: &Value, was: Option<&Value>, path: &str, errors: &mut Errors) {
    let (key, value) = (text(taint, "key"), text(taint, "value"));
    errors.faults(&format!("{path}.key"), key, names::qualified_name(key));
    errors.faults(&format!("{path}.value"), value, names::label_value(value));
    if was.is_none_or(|was| was["effect"] != taint["effect"]) {
        let effects = ["NoExecute", "NoSchedule", "None"];
        errors.one_of(&format!("{path}.effect"), taint.get("effect"), &effects);
    }
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Node", "string", 0, "Node that the devices belong to"),
        ("Driver", "string", 0, "Driver that manages them"),
        ("Pool", "string", 0, "Pool that they belong to"),
        AGE,
    ],
    cells: |object, now| {
        let node = match object.pointer("/spec/allNodes") {
            Some(Value::Bool(true)) => "<all>",
            _ if object.pointer("/spec/nodeSelector").is_some() => "<some>",
            _ => "<unset>",
        };
        vec![
            cells::name(object),
            cells::text_or(object, "/spec/nodeName", node),
            cells::text_or(object, "/spec/driver", ""),
            cells::text_or(object, "/spec/pool/name", ""),
            cells::age(object, now),
        ]
    },
};
