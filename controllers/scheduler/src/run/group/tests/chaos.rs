//! Turns in which everything happens that can happen between their pods: nothing is left behind by any of them.

use k8s_openapi::api::core::v1;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use serde_json::from_value;

use super::super::super::bind::Outcome as Bound;
use super::super::super::follow::{Fact, Update};
use super::crowds::{Loop, pod};
use super::*;
use crate::limits;
use crate::testing::sized;

const PODS: usize = 6;
const NAMES: [&str; PODS] = ["p0", "p1", "p2", "p3", "p4", "p5"];

fn node(name: &str, cores: usize) -> Update {
    Update::Node(sized(name, json!({"cpu": cores.to_string()})))
}

/// Returns a claim of one device.
fn claim() -> Arc<ResourceClaim> {
    let exactly = json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1});
    let object = json!({"metadata": {"name": "x", "namespace": "ns", "uid": "x"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}});
    Arc::new(from_value(object).unwrap())
}

/// Returns a loop with two nodes, of which one has devices, and with a gang, half of whose pods share a claim.
fn world(dice: &mut fastrand::Rng) -> Loop {
    let mut one = Loop::new();
    one.scheduler.apply(node("n", 4));
    one.scheduler.apply(node("m", 4));
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "m", "devices": [{"name": "dev"}],
        "pool": {"name": "m", "generation": 1, "resourceSliceCount": 1}}});
    let slice: Arc<ResourceSlice> = Arc::new(from_value(slice).unwrap());
    let class: Arc<DeviceClass> =
        Arc::new(from_value(json!({"metadata": {"name": "c"}, "spec": {}})).unwrap());
    let key = |name: &str| ObjectKey::new("ns", name);
    one.scheduler.apply(Update::Fact(Fact::DeviceSlice(ObjectKey::new("", "s"), Some(slice))));
    one.scheduler.apply(Update::Fact(Fact::DeviceClass(ObjectKey::new("", "c"), Some(class))));
    one.scheduler.apply(Update::Fact(Fact::DeviceClaim(key("x"), Some(claim()))));
    one.add_group("g", 1 + dice.usize(..PODS));
    for (index, name) in NAMES.iter().enumerate() {
        one.apply(member(name, index, json!({})));
    }
    one
}

fn member(name: &str, index: usize, fields: Value) -> v1::Pod {
    let claims = if index < PODS / 2 { json!([{"name": "x", "resourceClaimName": "x"}]) } else { json!([]) };
    let mut all = json!({"spec": {"priority": index, "resourceClaims": claims}});
    crate::testing::merge(&mut all, fields);
    pod(name, Some("g"), all)
}

/// Lets something happen.
fn happen(one: &mut Loop, dice: &mut fastrand::Rng, written: &mut BTreeMap<&'static str, Arc<PodInfo>>) {
    let index = dice.usize(..PODS);
    let name = NAMES[index];
    match dice.usize(..12) {
        0 => one.delete(name),
        1 => {
            let ending =
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "2"}});
            if one.scheduler.pods.get(&ObjectKey::new("ns", name)).is_some() {
                one.apply(member(name, index, ending));
            }
        }
        2 => {
            let bound = json!({"metadata": {"resourceVersion": "3"}, "spec": {"nodeName": "m"}});
            if one.scheduler.pods.get(&ObjectKey::new("ns", name)).is_some() {
                one.apply(member(name, index, bound));
            }
        }
        3 => one.scheduler.apply(Update::NodeGone("n".to_owned())),
        4 => one.scheduler.apply(node("n", 3)),
        5 => fail_binding(one, written.remove(name)),
        _ => {}
    }
}

/// Remembers the pods whose bindings are being written.
fn note(one: &Loop, written: &mut BTreeMap<&'static str, Arc<PodInfo>>) {
    for name in NAMES.into_iter().filter(|name| !one.scheduler.waiting.contains(&(*name).into())) {
        if let Some(pod) = one.scheduler.binding.get(&name.into()) {
            written.insert(name, Arc::clone(pod));
        }
    }
}

/// Answers the binding of a pod, which may be gone by now.
fn fail_binding(one: &mut Loop, pod: Option<Arc<PodInfo>>) {
    if let Some(pod) = pod {
        one.scheduler.apply(Update::Binding(pod, Bound::Failed("refused".to_owned())));
    }
}

/// Asserts that what is counted is held by a pod.
fn check(one: &Loop, written: &BTreeMap<&'static str, Arc<PodInfo>>, seed: u64) {
    let scheduler = &one.scheduler;
    assert!(scheduler.turn.is_none());
    for name in NAMES {
        let is_there = scheduler.pods.get(&ObjectKey::new("ns", name));
        let is_bound = is_there.as_ref().is_some_and(|pod| pod.node.is_some());
        let is_placed = one.node_of(name).is_some();
        let is_to_be = one.is_bound(name) || is_bound;
        // One that is being deleted leaves its node before its binding has ended.
        let is_ending = is_there.as_ref().is_some_and(|pod| pod.is_terminating());
        assert!(is_placed == is_to_be || is_ending && !is_placed, "{name} of {seed}");
        assert!(is_there.is_some() || !scheduler.queue.knows(&name.into()), "{name} of {seed}");
    }
    let mut users = NAMES[..PODS / 2].iter();
    let is_used = users.any(|name| one.is_bound(name) || written.contains_key(name));
    assert!(is_used || !scheduler.cluster.devices.is_in_flight(&claim()), "{seed}");
}

#[tokio::test(start_paused = true)]
async fn turns_leave_nothing_behind_whatever_happens_between_their_pods() {
    let (mut bound, mut shared) = (0, 0);
    for seed in 0..400 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let (mut one, mut written) = (world(&mut dice), BTreeMap::new());
        for _ in 0..3 {
            while one.scheduler.step(Instant::now()) {
                note(&one, &mut written);
                happen(&mut one, &mut dice, &mut written);
            }
            check(&one, &written, seed);
            bound += NAMES.iter().filter(|name| one.is_bound(name)).count();
            shared += usize::from(NAMES[..PODS / 2].iter().filter(|name| one.is_bound(name)).count() > 1);
            tokio::time::advance(limits::MAX_BACKOFF).await;
        }
        for name in NAMES {
            one.delete(name);
            fail_binding(&mut one, written.remove(name));
        }
        one.finish();
        check(&one, &written, seed);
        assert!(one.scheduler.binding.is_empty() && one.scheduler.waiting.len() == 0);
        assert!(NAMES.iter().all(|name| one.node_of(name).is_none()), "{seed}");
        assert!(!one.scheduler.cluster.devices.is_in_flight(&claim()), "{seed}");
        assert!(one.scheduler.cluster.groups.members(&ObjectKey::new("ns", "g")).is_none(), "{seed}");
    }
    assert!(bound > 1000 && shared > 50, "{bound} pods were placed, and {shared} times some shared a claim");
}
