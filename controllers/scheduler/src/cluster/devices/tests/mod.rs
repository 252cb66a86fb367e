//! Tables of searches on one node. They cover about 100 of the 215 cases of upstream's table of the allocator. Of the others
//! 33 are about gates that are not as by default; the recorded cases in `tests/differential/allocations.jsonl.gz` stand for the
//! rest.

mod binding;
mod capacity;
mod extended;
mod pools;
mod requests;
mod state;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use serde_json::{Value, from_value, json};

use super::{Devices, Offer, Target, Trouble, search};
use crate::cluster::DeviceClasses;
use crate::testing::merge;

/// Returns a slice of the only pool of a node.
fn slice(name: &str, node: &str, devices: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"driver": "d", "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
}

/// Returns an object with these fields over it.
fn with(mut object: Value, fields: Value) -> Value {
    merge(&mut object, fields);
    object
}

/// Returns a request for so many devices of the class `c`.
fn request(name: &str, count: i64) -> Value {
    json!({"name": name, "exactly": exactly(count)})
}

fn exactly(count: i64) -> Value {
    json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": count})
}

fn all() -> Value {
    json!({"deviceClassName": "c", "allocationMode": "All"})
}

/// Returns a claim with these requests.
fn claim(name: &str, requests: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"devices": {"requests": requests}}})
}

fn selector(expression: &str) -> Value {
    json!([{"cel": {"expression": expression}}])
}

/// Returns the classes `c`, of all devices, and `big`, of those whose attribute `size` is at least 2.
fn classes() -> DeviceClasses {
    let mut classes = DeviceClasses::default();
    let big = "device.attributes['d'].size >= 2";
    for (name, spec) in [("c", json!({})), ("big", json!({"selectors": selector(big)}))] {
        let class = json!({"metadata": {"name": name}, "spec": spec});
        classes.set(Arc::new(from_value(class).unwrap()));
    }
    classes
}

fn devices(slices: &[Value], used: &[Value]) -> Devices {
    let mut devices = Devices::default();
    for slice in slices {
        let name = slice["metadata"]["name"].as_str().unwrap();
        devices.set_slice(name, Some(Arc::new(from_value(slice.clone()).unwrap())));
    }
    for (index, results) in used.iter().enumerate() {
        let status = json!({"allocation": {"devices": {"results": results}}});
        let claim = with(claim(&format!("used{index}"), json!([])), json!({"status": status}));
        let claim: ResourceClaim = from_value(claim).unwrap();
        devices.set_claim(&apiserver_client::ObjectKey::of(&claim), Some(Arc::new(claim)));
    }
    devices
}

/// Returns the allocations of claims on the node `n`, which has the label `zone` `a`; the error is a text.
fn allocate(devices: &Devices, claims: &[Value]) -> Result<Option<Vec<AllocationResult>>, String> {
    allocate_within(devices, claims, 100_000).0
}

/// Returns the allocations of claims as [`allocate`] does, and the steps that are left of so many.
fn allocate_within(
    devices: &Devices,
    claims: &[Value],
    steps: u64,
) -> (Result<Option<Vec<AllocationResult>>, String>, u64) {
    let claims: Vec<ResourceClaim> = claims.iter().map(|claim| from_value(claim.clone()).unwrap()).collect();
    let claims: Vec<&ResourceClaim> = claims.iter().collect();
    let classes = classes();
    devices.steps.reset();
    let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let target = Target { name: "n", labels: &labels };
    let offer = Offer { devices, classes: &classes, target, steps };
    let results = match search(offer, &claims) {
        Ok(found) => found.map(|found| found.results()).transpose(),
        Err(Trouble::Fails(why) | Trouble::OnNode(why)) => Err(why),
        Err(Trouble::TooLong) => Err("too long".to_owned()),
    };
    (results, steps.saturating_sub(devices.steps.taken()))
}

/// Returns the devices of claims on the node `n` as `request=device`, claim by claim; `none` if there is no solution.
fn found(slices: &[Value], used: &[Value], claims: &[Value]) -> String {
    match allocate(&devices(slices, used), claims) {
        Err(why) => why,
        Ok(None) => "none".to_owned(),
        Ok(Some(results)) => {
            let of = |result: &AllocationResult| {
                let results = result.devices.iter().flat_map(|devices| devices.results.iter().flatten());
                let shown = results.map(|one| format!("{}={}", one.request, one.device));
                shown.collect::<Vec<_>>().join(" ")
            };
            results.iter().map(of).collect::<Vec<_>>().join(" | ")
        }
    }
}

/// Returns a use of a device of the pool `n`.
fn used(device: &str) -> Value {
    json!([{"request": "r", "driver": "d", "pool": "n", "device": device}])
}
