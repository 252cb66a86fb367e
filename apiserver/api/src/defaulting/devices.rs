//! ResourceClaim, ResourceClaimTemplate, ResourceSlice, DeviceTaintRule, ResourcePoolStatusRequest.

use serde_json::Value;

use super::{Object, each, fill, fill_zero, is, object, with_spec};

/// How many pools a ResourcePoolStatusRequest is about where it does not say.
const POOLS: i64 = 100;

/// Defaults of a ResourceClaim.
pub fn claim(value: &mut Value) {
    with_spec(value, claim_spec);
}

/// Defaults of a ResourceClaimTemplate.
pub fn template(value: &mut Value) {
    with_spec(value, |spec| {
        if let Some(spec) = object(spec, "spec") {
            claim_spec(spec);
        }
    });
}

fn claim_spec(spec: &mut Object) {
    let Some(devices) = object(spec, "devices") else { return };
    each(devices, "requests", |request| {
        if let Some(exactly) = object(request, "exactly") {
            device(exactly);
        }
        each(request, "firstAvailable", device);
    });
}

/// One device, unless the request says otherwise.
fn device(request: &mut Object) {
    fill(request, "allocationMode", "ExactCount");
    if is(request, "allocationMode", "ExactCount") {
        fill_zero(request, "count", 1);
    }
    each(request, "tolerations", |toleration| fill(toleration, "operator", "Equal"));
}

/// Defaults of a ResourcePoolStatusRequest.
pub fn pool_request(value: &mut Value) {
    with_spec(value, |spec| fill(spec, "limit", POOLS));
}
