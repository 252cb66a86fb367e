//! ResourceClaim, ResourceClaimTemplate, ResourceSlice, DeviceTaintRule, ResourcePoolStatusRequest.

use jiff::Timestamp;
use serde_json::Value;

use super::{Object, each, fill, fill_zero, is, is_empty, object, with_spec};
use apiserver_meta::time;

/// The default number of pools that a ResourcePoolStatusRequest asks about.
const POOLS: i64 = 100;

/// Defaults of a ResourceClaim.
pub fn claim(value: &mut Value) {
    with_spec(value, |spec| claim_spec(spec, device));
}

/// Defaults of a ResourceClaim in `v1beta1`.
pub fn older_claim(value: &mut Value) {
    with_spec(value, |spec| claim_spec(spec, older_device));
}

/// Defaults of a ResourceClaimTemplate.
pub fn template(value: &mut Value) {
    template_spec(value, device);
}

/// Defaults of a ResourceClaimTemplate in `v1beta1`.
pub fn older_template(value: &mut Value) {
    template_spec(value, older_device);
}

fn template_spec(value: &mut Value, exact: fn(&mut Object)) {
    with_spec(value, |spec| {
        if let Some(spec) = object(spec, "spec") {
            claim_spec(spec, exact);
        }
    });
}

/// `exact` fills in a request for one class of devices.
fn claim_spec(spec: &mut Object, exact: fn(&mut Object)) {
    let Some(devices) = object(spec, "devices") else { return };
    each(devices, "requests", |request| {
        if let Some(exactly) = object(request, "exactly") {
            exact(exactly);
        }
        each(request, "firstAvailable", device);
    });
}

/// Sets the default of one device in a request.
fn device(request: &mut Object) {
    fill(request, "allocationMode", "ExactCount");
    if is(request, "allocationMode", "ExactCount") {
        fill_zero(request, "count", 1);
    }
    tolerations(request);
}

/// The same in `v1beta1`, where a request without a class is taken for one with alternatives.
fn older_device(request: &mut Object) {
    if is_empty(request, "deviceClassName") {
        tolerations(request);
    } else {
        device(request);
    }
}

fn tolerations(request: &mut Object) {
    each(request, "tolerations", |toleration| fill(toleration, "operator", "Equal"));
}

/// The field with the time at which a taint was added.
const ADDED: &str = "timeAdded";

/// Sets the time of taints of a ResourceSlice's devices to `now`, unless they have one.
pub fn slice_times(value: &mut Value, now: Timestamp) {
    with_spec(value, |spec| {
        each(spec, "devices", |device| {
            each(device, "taints", |taint| fill(taint, ADDED, time::rfc3339(now)));
        });
    });
}

/// Sets the time of a DeviceTaintRule's taint to `now`, unless it has one.
pub fn rule_times(value: &mut Value, now: Timestamp) {
    with_spec(value, |spec| {
        if let Some(taint) = object(spec, "taint") {
            fill(taint, ADDED, time::rfc3339(now));
        }
    });
}

/// Sets the time of a taint whose effect changed to `now`, unless it has a new one. Arguments: new, old, now.
pub fn changed_effect(new: &mut Value, old: &Value, now: Timestamp) {
    let before = &old["spec"]["taint"];
    let Some(Value::Object(taint)) = new.pointer_mut("/spec/taint") else { return };
    if taint.get("effect") != before.get("effect") && taint.get(ADDED) == before.get(ADDED) {
        taint.insert(ADDED.to_owned(), time::rfc3339(now).into());
    }
}

/// Defaults of a ResourcePoolStatusRequest.
pub fn pool_request(value: &mut Value) {
    with_spec(value, |spec| fill(spec, "limit", POOLS));
}

/// A new ResourcePoolStatusRequest has no status, not even an empty one.
pub fn prepare_create_pool_request(value: &mut Value) {
    if let Value::Object(map) = value
        && map.get("status").and_then(Value::as_object).is_some_and(Object::is_empty)
    {
        map.remove("status");
    }
}
