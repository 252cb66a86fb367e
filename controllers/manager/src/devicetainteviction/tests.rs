//! Tests of the plan and of the condition of rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::{ObjectKey, Projection};
use k8s_openapi::api::core::v1;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use serde_json::{Value, from_value, json};

use super::plan::{Eviction, View, rule_id};
use super::rule::{Counts, Due, due, with_condition};
use crate::device_slices::{PoolId, PoolSlice};
use crate::testing::{self, at, time};

fn taint(key: &str, effect: &str, added: Option<i64>) -> Value {
    json!({"key": key, "value": "v", "effect": effect, "timeAdded": added.and_then(time)})
}

/// Returns a slice of the pool `n` with these devices.
fn slice(name: &str, generation: i64, devices: &[(&str, &[Value])]) -> ResourceSlice {
    let device = |(name, taints): &(&str, &[Value])| json!({"name": name, "taints": taints});
    let devices: Vec<Value> = devices.iter().map(device).collect();
    from_value(
        json!({"metadata": {"name": name}, "spec": {"driver": "d", "nodeName": "n", "devices": devices,
        "pool": {"name": "n", "generation": generation, "resourceSliceCount": 1}}}),
    )
    .unwrap()
}

fn rule(name: &str, selector: Value, effect: &str, added: i64) -> Arc<DeviceTaintRule> {
    let rule = json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1},
        "spec": {"deviceSelector": selector, "taint": taint("x", effect, Some(added))}});
    Arc::new(from_value(rule).unwrap())
}

/// Returns a claim with a device that is reserved for the pod `p`.
fn claim(name: &str, device: &str, tolerations: &[Value]) -> ResourceClaim {
    let result =
        json!({"request": "r", "driver": "d", "pool": "n", "device": device, "tolerations": tolerations});
    from_value(json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {}, "status": {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}]}}))
    .unwrap()
}

fn pod(entries: Value) -> v1::Pod {
    let mut pod = testing::running("p", "n", "10.0.0.1");
    pod.spec.as_mut().unwrap().resource_claims = from_value(entries).unwrap();
    pod
}

fn user() -> v1::Pod {
    pod(json!([{"name": "gpu", "resourceClaimName": "c"}]))
}

#[derive(Default)]
struct World {
    claims: Vec<ResourceClaim>,
    slices: Vec<ResourceSlice>,
    rules: Vec<Arc<DeviceTaintRule>>,
}

impl World {
    fn eviction(&self, pod: &v1::Pod) -> Option<Eviction> {
        let claims: BTreeMap<ObjectKey, Arc<ResourceClaim>> =
            self.claims.iter().map(|claim| (ObjectKey::of(claim), Arc::new(claim.clone()))).collect();
        let slices: Vec<Arc<PoolSlice>> =
            self.slices.iter().map(|slice| Arc::new(PoolSlice::project(slice.clone()))).collect();
        let pool = |id: &PoolId| slices.iter().filter(|slice| slice.id == *id).cloned().collect::<Vec<_>>();
        let claim = |key: &ObjectKey| claims.get(key).cloned();
        View { claim: &claim, pool: &pool, rules: &self.rules }.pod_eviction(&pod.clone().into())
    }
}

/// Returns the second at which the pod leaves.
fn second(eviction: Option<Eviction>) -> Option<i64> {
    eviction.map(|eviction| eviction.at.as_second() - at(0).as_second())
}

/// A node may publish slices of itself, whatever pool they name.
#[test]
fn slices_of_another_node_evict_nobody_and_hide_nothing() {
    let evicts = [taint("x", "NoExecute", Some(7))];
    let mut foreign = slice("b", i64::MAX, &[("x", &evicts)]);
    foreign.spec.node_name = Some("hostile".to_owned());
    let eviction = |own: ResourceSlice| {
        let slices = vec![own, foreign.clone()];
        second(World { claims: vec![claim("c", "x", &[])], slices, rules: vec![] }.eviction(&user()))
    };
    assert_eq!(eviction(slice("a", 1, &[("x", &[])])), None);
    assert_eq!(eviction(slice("a", 1, &[("x", &[taint("x", "NoExecute", Some(9))])])), Some(9));
}

#[test]
fn published_taints_evict_by_effect_device_and_generation() {
    let evicts = [taint("x", "NoExecute", Some(7))];
    let no_schedule =
        [taint("x", "NoSchedule", Some(7)), taint("x", "None", Some(7)), taint("x", "Odd", Some(7))];
    let both = [taint("y", "NoExecute", Some(9)), taint("x", "NoExecute", Some(7))];
    for (about, slices, expected) in [
        ("no slice", vec![], None),
        ("untainted", vec![slice("a", 1, &[("x", &[])])], None),
        ("tainted", vec![slice("a", 1, &[("x", &evicts)])], Some(7)),
        ("twice", vec![slice("a", 1, &[("x", &both)])], Some(7)),
        ("other effects", vec![slice("a", 1, &[("x", &no_schedule)])], None),
        ("another device", vec![slice("a", 1, &[("x", &[]), ("y", &evicts)])], None),
        ("out of date", vec![slice("a", 1, &[("x", &evicts)]), slice("b", 2, &[("x", &[])])], None),
        ("up to date", vec![slice("a", 1, &[("x", &[])]), slice("b", 2, &[("x", &evicts)])], Some(7)),
        (
            "of the same generation",
            vec![slice("a", 2, &[("y", &[])]), slice("b", 2, &[("x", &evicts)])],
            Some(7),
        ),
        ("without a time", vec![slice("a", 1, &[("x", &[taint("x", "NoExecute", None)])])], None),
    ] {
        let world = World { claims: vec![claim("c", "x", &[])], slices, ..World::default() };
        assert_eq!(second(world.eviction(&user())), expected, "{about}");
    }
}

#[test]
fn only_the_running_users_of_a_claim_are_evicted() {
    let generated = |claim: Value| {
        let mut pod = pod(json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]));
        pod.status.as_mut().unwrap().resource_claim_statuses = from_value(claim).unwrap();
        pod
    };
    let mut waiting = user();
    waiting.spec.as_mut().unwrap().node_name = None;
    let mut ended = user();
    ended.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    let mut later = user();
    later.metadata.uid = Some("uid-later".to_owned());
    let mut elsewhere = user();
    elsewhere.metadata.namespace = Some("other".to_owned());
    let mut own = claim("own", "x", &[]);
    own.metadata.owner_references = from_value(json!([{"apiVersion": "v1", "kind": "Pod", "name": "p",
        "uid": "uid-p", "controller": true}]))
    .unwrap();
    let mut idle = claim("idle", "x", &[]);
    idle.status.as_mut().unwrap().allocation = None;
    let named = |claim: &str| json!([{"name": "gpu", "resourceClaimName": claim}]);
    let world = World {
        claims: vec![claim("c", "x", &[]), own, idle],
        slices: vec![slice("a", 1, &[("x", &[taint("x", "NoExecute", Some(7))])])],
        ..World::default()
    };
    for (about, pod, is_evicted) in [
        ("user", user(), true),
        ("not scheduled", waiting, false),
        ("ended", ended, false),
        ("a later pod of the name", later, false),
        ("of another namespace", elsewhere, false),
        ("with a generated claim", generated(named("own")), true),
        ("with the claim of somebody else", generated(named("c")), false),
        ("whose claim was not generated yet", generated(json!(null)), false),
        ("that needs no claim", generated(json!([{"name": "gpu"}])), false),
        ("whose claim has no devices", pod(named("idle")), false),
        ("whose claim is missing", pod(named("missing")), false),
        ("with a claim of an unknown kind", pod(json!([{"name": "gpu"}])), false),
    ] {
        assert_eq!(second(world.eviction(&pod)).is_some(), is_evicted, "{about}");
    }
}

#[test]
fn shortest_toleration_counts() {
    let exists = |seconds: Option<i64>| json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let equal = |key: &str, value: &str, seconds: Option<i64>| json!({"key": key, "operator": "Equal", "value": value, "effect": "NoExecute", "tolerationSeconds": seconds});
    let of_effect = |effect: &str| json!({"key": "x", "operator": "Exists", "effect": effect});
    for (about, tolerations, expected) in [
        ("none", vec![], Some(7)),
        ("for a time", vec![equal("x", "v", Some(60))], Some(67)),
        ("forever", vec![equal("x", "v", None)], None),
        ("everything", vec![exists(None)], None),
        ("another key", vec![equal("y", "v", Some(60))], Some(7)),
        ("another value", vec![equal("x", "w", Some(60))], Some(7)),
        ("the default operator", vec![json!({"key": "x", "value": "v", "effect": "NoExecute"})], None),
        (
            "an unknown operator",
            vec![json!({"key": "x", "operator": "Near", "effect": "NoExecute"})],
            Some(7),
        ),
        ("several", vec![equal("y", "v", Some(20)), exists(Some(60)), exists(Some(30))], Some(37)),
        ("one of several forever", vec![exists(Some(60)), exists(None)], None),
        ("no time", vec![exists(Some(0))], Some(7)),
        ("less than no time", vec![exists(Some(-5))], Some(7)),
        ("longer than the calendar", vec![exists(Some(i64::MAX))], None),
        ("scheduling", vec![of_effect("NoSchedule")], Some(7)),
        ("scheduling, every effect", vec![of_effect("")], Some(7)),
    ] {
        let world = World {
            claims: vec![claim("c", "x", &tolerations)],
            slices: vec![slice("a", 1, &[("x", &[taint("x", "NoExecute", Some(7))])])],
            ..World::default()
        };
        assert_eq!(second(world.eviction(&user())), expected, "{about}");
    }
}

#[test]
fn rules_taint_the_devices_that_they_select() {
    for (about, selector, is_evicted) in [
        ("driver", json!({"driver": "d"}), true),
        ("another driver", json!({"driver": "e"}), false),
        ("pool", json!({"pool": "n"}), true),
        ("another pool", json!({"driver": "d", "pool": "m"}), false),
        ("device", json!({"driver": "d", "pool": "n", "device": "x"}), true),
        ("another device", json!({"driver": "d", "pool": "n", "device": "y"}), false),
        ("everything", json!({}), true),
        ("nothing", json!(null), false),
    ] {
        let rules = vec![rule("r", selector, "NoExecute", 7)];
        let world = World { claims: vec![claim("c", "x", &[])], rules: rules.clone(), ..World::default() };
        let expected = is_evicted.then(|| Eviction { at: at(7), rules: [rule_id(&rules[0])].into() });
        assert_eq!(world.eviction(&user()), expected, "{about}");
    }
}

#[test]
fn earliest_reason_counts_and_all_rules_are_among_the_reasons() {
    let both =
        pod(json!([{"name": "gpu", "resourceClaimName": "c"}, {"name": "nic", "resourceClaimName": "e"}]));
    let mut world = World {
        claims: vec![claim("c", "x", &[]), claim("e", "y", &[])],
        slices: vec![slice("a", 1, &[("x", &[taint("x", "NoExecute", Some(30))]), ("y", &[])])],
        rules: vec![
            rule("late", json!({"device": "y"}), "NoExecute", 40),
            rule("early", json!({"device": "x"}), "NoExecute", 20),
        ],
    };
    let ids: Vec<_> = world.rules.iter().map(|rule| rule_id(rule)).collect();
    let rules = ids.iter().cloned().collect();
    assert_eq!(world.eviction(&both), Some(Eviction { at: at(20), rules }));
    world.rules.pop();
    assert_eq!(
        world.eviction(&both),
        Some(Eviction { at: at(30), rules: ids[..1].iter().cloned().collect() })
    );
    world.slices.clear();
    assert_eq!(second(world.eviction(&both)), Some(40));
    let tolerant = json!({"key": "x", "operator": "Exists", "effect": "NoExecute"});
    world.claims = vec![claim("c", "x", &[]), claim("e", "y", &[tolerant])];
    assert_eq!(world.eviction(&both), None, "a tolerated rule is no reason");
}

/// Returns status, reason and message of the condition.
fn condition(rule: &DeviceTaintRule) -> (&str, &str, &str) {
    let conditions = rule.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let condition = conditions.iter().find(|one| one.type_ == "EvictionInProgress").unwrap();
    (&condition.status, &condition.reason, &condition.message)
}

#[test]
fn condition_has_the_words_of_kubernetes() {
    let counts = |pods, namespaces| Counts { published: 3, allocated: 1, pods, namespaces };
    let once =
        "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.";
    let one = format!(
        "3 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace if the effect \
         was NoExecute. {once}"
    );
    let none = format!(
        "1 published device selected. 2 allocated devices selected. 0 pods would be evicted in 0 different namespaces if \
         the effect was NoExecute. {once}"
    );
    for (effect, counts, evicted, expected) in [
        ("NoExecute", counts(0, 0), 0, ("False", "NotStarted", "")),
        (
            "NoExecute",
            counts(0, 0),
            1,
            ("False", "Completed", "1 pod evicted since starting the controller."),
        ),
        (
            "NoExecute",
            counts(0, 0),
            2,
            ("False", "Completed", "2 pods evicted since starting the controller."),
        ),
        (
            "NoExecute",
            counts(1, 1),
            0,
            ("True", "PodsPendingEviction", "1 pod needs to be evicted in 1 namespace."),
        ),
        (
            "NoExecute",
            counts(2, 1),
            0,
            ("True", "PodsPendingEviction", "2 pods need to be evicted in 1 namespace."),
        ),
        (
            "NoExecute",
            counts(3, 2),
            1,
            (
                "True",
                "PodsPendingEviction",
                "3 pods need to be evicted in 2 different namespaces. 1 pod evicted since starting the controller.",
            ),
        ),
        ("None", counts(1, 1), 0, ("False", "NoEffect", one.as_str())),
        (
            "None",
            Counts { published: 1, allocated: 2, pods: 0, namespaces: 0 },
            0,
            ("False", "NoEffect", none.as_str()),
        ),
        (
            "NoSchedule",
            Counts::default(),
            0,
            ("False", "OtherEffect", "Eviction only happens for the NoExecute effect."),
        ),
    ] {
        let rule = rule("r", json!({"driver": "d"}), effect, 0);
        let new = with_condition(&rule, counts, evicted, at(5));
        assert_eq!(condition(&new), expected);
    }
}

#[test]
fn condition_keeps_its_time_while_it_says_the_same() {
    let held = |rule: &DeviceTaintRule| rule.status.clone().unwrap().conditions.unwrap();
    let mut old = DeviceTaintRule::clone(&rule("r", json!({"driver": "d"}), "NoExecute", 0));
    let other = json!({"type": "Other", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": time(1)});
    old.status = from_value(json!({"conditions": [other]})).unwrap();
    let first = with_condition(&old, Counts::default(), 0, at(5));
    assert_eq!(held(&first).len(), 2, "the condition of somebody else stays");
    assert_eq!(
        (held(&first)[1].last_transition_time.0, held(&first)[1].observed_generation),
        (at(5), Some(1))
    );
    assert_eq!(with_condition(&first, Counts::default(), 0, at(50)), first);
    let second = with_condition(&first, Counts::default(), 1, at(50));
    assert_eq!((held(&second).len(), held(&second)[1].last_transition_time.0), (2, at(50)));
}

#[test]
fn condition_changes_at_most_once_in_a_while() {
    let bare = rule("r", json!({"driver": "d"}), "NoExecute", 0);
    assert_eq!(due(&bare, at(5)), Due::Now);
    let mut written = with_condition(&bare, Counts::default(), 0, at(5));
    assert_eq!(due(&written, at(8)), Due::After(Duration::from_secs(7)));
    assert_eq!(due(&written, at(15)), Due::Now);
    written.metadata.generation = Some(2);
    assert_eq!(due(&written, at(8)), Due::Now, "the rule has changed");
    let prospect = with_condition(&rule("r", json!({"driver": "d"}), "None", 0), Counts::default(), 0, at(5));
    assert_eq!(due(&prospect, at(500)), Due::Never);
}
