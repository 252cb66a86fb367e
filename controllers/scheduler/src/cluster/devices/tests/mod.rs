//! Tables of searches on one node; docs/scheduler.md counts the cases of kube-scheduler's allocator that they cover.

mod binding;
mod capacity;
mod combined;
mod extended;
mod pools;
mod requests;
mod shared;
mod state;
mod totals;
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

/// Returns the classes `c`, of all devices; `big`, of those whose attribute `size` is at least 2; `configured`, with a
/// configuration; `broken`, whose selector fails; and `shared` and `whole`, of devices that several claims can have or not.
fn classes() -> DeviceClasses {
    let mut classes = DeviceClasses::default();
    let config = json!([{"opaque": {"driver": "d", "parameters": {"of": "class"}}}]);
    for (name, spec) in [
        ("c", json!({})),
        ("big", json!({"selectors": selector("device.attributes['d'].size >= 2")})),
        ("configured", json!({"config": config})),
        ("broken", json!({"selectors": selector("device.attributes['d'].none == 1")})),
        ("shared", json!({"selectors": selector("device.allowMultipleAllocations == true")})),
        ("whole", json!({"selectors": selector("device.allowMultipleAllocations == false")})),
    ] {
        let class = json!({"metadata": {"name": name}, "spec": spec});
        classes.set(Arc::new(from_value(class).unwrap()));
    }
    classes
}

/// Returns the slice of a pool of the driver `d` with the devices of these lines: `NAME mem=4 gen:v5 units-1`, which is a
/// device with a capacity, an attribute, and units that it takes of the counters `set`; with the flags `shared` (by several
/// claims), `slow` (it has to be prepared), and `tainted` and `doomed` (by a taint that lets no pods come or stay).
fn drawn(name: &str, lines: &[&str]) -> Value {
    let device = |line: &&str| {
        let mut words = line.split(' ');
        let (mut device, mut counters) = (json!({"name": words.next().unwrap()}), json!({}));
        for word in words {
            if let Some((name, amount)) = word.split_once('=') {
                device["capacity"][name] = json!({"value": amount});
            } else if let Some((name, value)) = word.split_once(':') {
                device["attributes"][name] = json!({"string": value});
            } else if let Some((name, amount)) = word.split_once('-') {
                counters[name] = json!({"value": amount});
            } else {
                let (field, value) = match word {
                    "shared" => ("allowMultipleAllocations", json!(true)),
                    "slow" => ("bindingConditions", json!(["ready"])),
                    "tainted" => ("taints", json!([{"key": "k", "effect": "NoSchedule"}])),
                    "doomed" => ("taints", json!([{"key": "l", "effect": "NoExecute"}])),
                    _ => panic!("unknown flag {word}"),
                };
                device[field] = value;
            }
        }
        if counters.as_object().is_some_and(|counters| !counters.is_empty()) {
            device["consumesCounters"] = json!([{"counterSet": "set", "counters": counters}]);
        }
        device
    };
    let devices: Vec<Value> = lines.iter().map(device).collect();
    let fields = json!({"spec": {"pool": {"name": name}}});
    with(slice(name, "n", json!(devices)), fields)
}

/// Returns the request of a line, `NAME*COUNT:CLASS`, or of one with alternatives, `NAME / ALTERNATIVE / ALTERNATIVE`. The
/// count is 1, a number or `all`, and the class `c` unless it is given; ` admin`, ` bw=4` and ` tolerates` may follow, and
/// ` if CONDITION` in the end: `mem>=4`, `gen==v5`, or an expression.
fn asked(line: &str) -> Value {
    let one = |text: &str| {
        let (text, condition) =
            text.split_once(" if ").map_or((text, None), |(text, condition)| (text, Some(condition)));
        let mut words = text.split(' ');
        let head = words.next().unwrap();
        let (head, class) = head.split_once(':').unwrap_or((head, "c"));
        let (name, count) = head.split_once('*').unwrap_or((head, "1"));
        let mut exactly = if count == "all" { all() } else { exactly(count.parse().unwrap()) };
        exactly["deviceClassName"] = json!(class);
        for word in words {
            match word.split_once('=') {
                Some((name, amount)) => exactly["capacity"]["requests"][name] = json!(amount),
                None if word == "admin" => exactly["adminAccess"] = json!(true),
                None if word == "tolerates" => {
                    exactly["tolerations"] = json!([{"key": "l", "operator": "Exists"}])
                }
                None => panic!("unknown word {word}"),
            }
        }
        if let Some(condition) = condition {
            let expression = if let Some((name, amount)) = condition.split_once(">=") {
                format!("device.capacity['d'].{name}.compareTo(quantity('{amount}')) >= 0")
            } else if let Some((name, value)) =
                condition.split_once("==").filter(|(name, _)| !name.contains('.'))
            {
                format!("device.attributes['d'].{name} == '{value}'")
            } else {
                condition.to_owned()
            };
            exactly["selectors"] = selector(&expression);
        }
        (name.to_owned(), exactly)
    };
    let Some((name, alternatives)) = line.split_once(" / ") else {
        let (name, exactly) = one(line);
        return json!({"name": name, "exactly": exactly});
    };
    let alternative = |text: &str| {
        let (name, exactly) = one(text);
        with(exactly, json!({"name": name}))
    };
    json!({"name": name, "firstAvailable": alternatives.split(" / ").map(alternative).collect::<Vec<_>>()})
}

/// Returns claims with the requests of these lines, each of which may be several with `; ` between them.
fn asking(lines: &[&str]) -> Vec<Value> {
    let claim_of = |(index, line): (usize, &&str)| {
        let requests: Vec<Value> = line.split("; ").map(asked).collect();
        claim(&format!("x{index}"), json!(requests))
    };
    lines.iter().enumerate().map(claim_of).collect()
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
