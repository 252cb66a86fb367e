//! Compares the devices that are chosen with those that kube-scheduler chooses, node by node.
//!
//! `allocations.jsonl.gz` has cases with the answers of the allocator of kube-scheduler 1.36.2, one `{"case", "allocations"}` a
//! line: for each node the results of all claims, null if there are none, or a text if the allocator fails. Pools
//! of devices that are shared have ` shared` at the end of their names, in place of an id for the share.
//! `SCHEDULER_ALLOCATIONS=FILE` replays another file.

use apiserver_client::ObjectKey;
use controllers_scheduler::cluster::devices::{Offer, Target, Trouble, allocation, search};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use serde_json::{Value, json};

use crate::judge::cluster;
use crate::{replay_lines, variable};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential/allocations.jsonl.gz");

/// Least number of cases that are compared.
const LEAST: usize = 420;

/// Returns allocations in the form of the answers.
fn shown(results: Vec<AllocationResult>) -> Value {
    let mut shown = json!(results);
    for result in shown.as_array_mut().unwrap() {
        let Some(devices) = result["devices"]["results"].as_array_mut() else { continue };
        for device in devices {
            if device.as_object_mut().unwrap().remove("shareID").is_some() {
                let pool = format!("{} shared", device["pool"].as_str().unwrap());
                device["pool"] = json!(pool);
            }
        }
    }
    shown
}

/// Returns what we choose on each node.
fn choose(case: &Value) -> Value {
    let cluster = cluster(case);
    let names = case["pod"]["spec"]["resourceClaims"].as_array().unwrap();
    let key = |name: &Value| ObjectKey::new("ns", name["resourceClaimName"].as_str().unwrap());
    let claims: Vec<&ResourceClaim> =
        names.iter().map(|name| cluster.devices.claim(&key(name)).unwrap().as_ref()).collect();
    let open: Vec<&ResourceClaim> = claims.into_iter().filter(|claim| allocation(claim).is_none()).collect();
    let mut answer = json!({});
    for node in cluster.nodes() {
        let target = Target { name: &node.name, labels: &node.labels };
        cluster.devices.steps.reset();
        let (devices, classes) = (&cluster.devices, &cluster.device_classes);
        let offer = Offer { devices, classes, target, steps: 1_000_000 };
        answer[&*node.name] = match search(offer, &open) {
            Ok(found) => found.map_or(Value::Null, |found| shown(found.results().unwrap())),
            Err(Trouble::OnNode(why)) => json!(format!("node: {why}")),
            Err(Trouble::Fails(why)) => json!(format!("error: {why}")),
            Err(Trouble::TooLong) => json!("too long"),
        };
    }
    answer
}

/// Removes what is written differently though it is the same: empty lists, and the value of an unset timestamp.
fn plain(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(plain);
            fields.retain(|_, value| {
                !value.is_null()
                    && !value.as_array().is_some_and(Vec::is_empty)
                    && !value.as_object().is_some_and(serde_json::Map::is_empty)
            });
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}

/// Returns `true` if a node has written a newer slice into a pool that others have slices of too. In kube-scheduler it may hide
/// the devices of those, which is meant to differ.
fn is_hidden_by_a_node(case: &Value) -> bool {
    let slices: Vec<&Value> =
        case["resourceSlices"].as_array().into_iter().flatten().map(|s| &s["spec"]).collect();
    let generation = |slice: &Value| slice["pool"]["generation"].as_i64();
    slices.iter().filter(|newer| newer["nodeName"].is_string()).any(|newer| {
        slices.iter().any(|older| {
            (&older["driver"], &older["pool"]["name"]) == (&newer["driver"], &newer["pool"]["name"])
                && older["nodeName"] != newer["nodeName"]
                && generation(older) < generation(newer)
        })
    })
}

#[test]
fn devices_are_chosen_as_kube_scheduler_chooses_them() {
    let given = variable("SCHEDULER_ALLOCATIONS");
    let least = if given.is_some() { 1 } else { LEAST };
    let (mut cases, mut found, mut meant, mut different) = (0, 0, 0, Vec::new());
    replay_lines(&given.unwrap_or_else(|| RECORDED.to_owned()), |mut line| {
        let case = line["case"].take();
        let (mut expected, mut actual) = (line["allocations"].take(), choose(&case));
        found += expected.as_object().unwrap().values().filter(|answer| answer.is_array()).count();
        cases += 1;
        plain(&mut expected);
        plain(&mut actual);
        if expected != actual && is_hidden_by_a_node(&case) {
            meant += 1;
        } else if expected != actual {
            different.push(format!("{}\n  kube-scheduler {expected}\n  ours           {actual}", case["id"]));
        }
    });
    assert!(cases >= least && found > 0, "only {cases} cases were compared");
    assert!(
        meant <= cases / 100,
        "{meant} of {cases} cases differ because of what a node says of others' pools"
    );
    let (count, first) = (different.len(), different.iter().take(5).cloned().collect::<Vec<_>>().join("\n"));
    assert_eq!(count, 0, "{count} of {cases} cases differ:\n{first}");
}
