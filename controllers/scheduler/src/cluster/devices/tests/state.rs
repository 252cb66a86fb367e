//! The devices in use, as claims change.

use std::sync::Arc;

use apiserver_client::ObjectKey;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, from_value, json};

use super::{allocate, claim, devices, request, slice, used, with};
use crate::testing::pod_of;

fn object(claim: Value) -> Arc<ResourceClaim> {
    Arc::new(from_value(claim).unwrap())
}

fn free(devices: &super::Devices) -> bool {
    allocate(devices, &[claim("y", json!([request("r", 1)]))]).unwrap().is_some()
}

#[test]
fn devices_in_flight_are_in_use_until_their_claim_has_them_or_nobody_writes_them() {
    let mut devices = devices(&[slice("s", "n", json!([{"name": "a"}]))], &[]);
    let pod = pod_of("p", json!({}));
    let open = object(claim("x", json!([request("r", 1)])));
    let key = ObjectKey::of(open.as_ref());
    devices.set_claim(&key, Some(Arc::clone(&open)));
    let allocation = allocate(&devices, &[json!(open.as_ref())]).unwrap().unwrap().remove(0);
    devices.reserve(&pod, &open, allocation.clone());
    assert!(devices.is_in_flight(&open) && !free(&devices));
    devices.unreserve(&pod);
    assert!(!devices.is_in_flight(&open) && free(&devices));
    devices.reserve(&pod, &open, allocation.clone());
    devices.are_written(&pod);
    devices.unreserve(&pod);
    assert!(!free(&devices), "a write is under way");
    let status = json!({"status": {"allocation": allocation}});
    devices.set_claim(&key, Some(object(with(json!(open.as_ref()), status))));
    assert!(!devices.is_in_flight(&open) && !free(&devices), "the claim has the device");
    devices.settle(&pod);
    assert!(!free(&devices));
    devices.set_claim(&key, Some(open));
    assert!(free(&devices), "the claim was deallocated");
}

#[test]
fn pods_of_a_group_share_devices_in_flight_within_one_turn() {
    let member = |name: &str, group: &str| pod_of(name, json!({"schedulingGroup": {"podGroupName": group}}));
    let (a, b, foreign, alone) =
        (member("a", "g"), member("b", "g"), member("c", "h"), pod_of("d", json!({})));
    let mut devices = devices(&[slice("s", "n", json!([{"name": "a"}]))], &[]);
    let (open, early) = (object(claim("x", json!([request("r", 1)]))), object(claim("z", json!([]))));
    let allocation = allocate(&devices, &[json!(open.as_ref())]).unwrap().unwrap().remove(0);
    devices.reserve(&a, &early, Default::default());
    let group = ObjectKey::new(a.namespace(), "g");
    devices.begin_turn(group.clone());
    assert!(devices.shares(&a) && !devices.shares(&foreign) && !devices.shares(&alone));
    assert!(
        devices.shared(&b, &open).is_none() && devices.shared(&b, &early).is_none(),
        "of an earlier turn"
    );
    devices.reserve(&a, &open, allocation.clone());
    assert_eq!(devices.shared(&b, &open), Some(&allocation));
    assert!(devices.shared(&foreign, &open).is_none() && devices.shared(&alone, &open).is_none());
    devices.reserve(&b, &open, allocation.clone());
    devices.end_turn();
    assert!(devices.shared(&b, &open).is_none() && devices.is_in_flight(&open));
    devices.unreserve(&a);
    assert!(!devices.is_in_flight(&early) && devices.is_in_flight(&open) && !free(&devices), "b has it");
    devices.are_written(&b);
    devices.unreserve(&b);
    assert!(!free(&devices), "a write is under way");
    devices.settle(&b);
    assert!(!devices.is_in_flight(&open) && free(&devices));
    // The next turn finds devices anew.
    devices.begin_turn(group);
    devices.reserve(&b, &open, allocation.clone());
    devices.reserve(&a, &open, allocation.clone());
    let status = json!({"status": {"allocation": allocation}});
    let given = object(with(json!(open.as_ref()), status));
    devices.set_claim(&ObjectKey::of(open.as_ref()), Some(given));
    assert!(devices.shared(&a, &open).is_none() && !devices.is_in_flight(&open), "the claim has them");
    devices.settle(&a);
    devices.settle(&b);
    assert!(!free(&devices));
    devices.set_claim(&ObjectKey::of(open.as_ref()), None);
    assert!(free(&devices), "they were counted once");
}

#[test]
fn devices_are_free_when_their_claim_is_gone() {
    let mut devices = devices(&[slice("s", "n", json!([{"name": "a"}]))], &[used("a")]);
    assert!(!free(&devices));
    devices.set_claim(&ObjectKey::new("ns", "used0"), None);
    assert!(free(&devices));
    devices.set_slice("s", None);
    assert!(!free(&devices));
}

#[test]
fn older_versions_of_a_claim_are_told_from_newer_ones() {
    let mut devices = super::Devices::default();
    let version = |version: &str, uid: &str| {
        let fields = json!({"metadata": {"resourceVersion": version, "uid": uid}});
        object(with(claim("x", json!([])), fields))
    };
    devices.set_claim(&ObjectKey::new("ns", "x"), Some(version("5", "u")));
    assert!(devices.is_outdated(&version("4", "u")));
    assert!(!devices.is_outdated(&version("5", "u")) && !devices.is_outdated(&version("4", "v")));
}

#[test]
fn capacity_of_claims_in_flight_is_taken_as_that_of_others() {
    let device = json!({"name": "a", "allowMultipleAllocations": true, "capacity": {"bw": {"value": "3"}}});
    let share = |amount: &str| {
        json!([{"request": "r", "driver": "d", "pool": "n", "device": "a", "shareID": "i",
            "consumedCapacity": {"bw": amount}}])
    };
    let mut devices = devices(&[slice("s", "n", json!([device]))], &[share("1")]);
    let asking = |amount: &str| {
        let wanted = json!({"exactly": {"capacity": {"requests": {"bw": amount}}}});
        claim("x", json!([with(request("r", 1), wanted)]))
    };
    let fits = |devices: &super::Devices, amount| allocate(devices, &[asking(amount)]).unwrap().is_some();
    assert!(fits(&devices, "2") && !fits(&devices, "3"));
    let (pod, open) = (pod_of("p", json!({})), object(claim("y", json!([]))));
    devices.reserve(&pod, &open, from_value(json!({"devices": {"results": share("1")}})).unwrap());
    assert!(fits(&devices, "1") && !fits(&devices, "2"), "two of three are taken");
    devices.unreserve(&pod);
    assert!(fits(&devices, "2"));
}
