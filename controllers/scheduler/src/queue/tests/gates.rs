//! Pods that a plugin refuses in PreEnqueue.

use super::*;

const GATES: &[Script] = &[
    ("First", &[NODE_ADD, OWN_UPDATE], Hint::Queue),
    ("Second", &[VOLUME_ADD], Hint::Queue),
    ("Free", &[CLAIM_ADD, NODE_ADD], Hint::Queue),
];

fn rig() -> Rig {
    Rig::configured(QueueConfig::default(), GATES, &["First", "Second"])
}

#[test]
fn a_new_pod_is_active_if_all_plugins_let_it_pass() {
    for (first, second, pool) in [
        (&["bar"][..], &["foo", "bar"][..], Pool::Active),
        (&["foo"], &["foo", "bar"], Pool::Gated),
        (&["foo", "bar"], &["foo"], Pool::Gated),
        (&[], &[], Pool::Gated),
    ] {
        let mut rig = rig();
        rig.allow("First", first);
        rig.allow("Second", second);
        rig.add_labeled("a", "bar");
        assert_eq!(rig.pool("a"), Some(pool), "{first:?}, {second:?}");
        rig.update("a", json!({"metadata": {"labels": {"bar": ""}, "annotations": {"a": "b"}}}));
        assert_eq!(rig.pool("a"), Some(pool), "an update that changes nothing changes nothing");
    }
}

#[test]
fn a_gated_pod_makes_no_attempt_until_its_gate_is_lifted() {
    let mut rig = rig();
    rig.allow("First", &["free"]);
    rig.allow("Second", &["free"]);
    rig.add("a");
    assert_eq!((rig.counts(), rig.pop()), ([0, 0, 0, 1], None));
    rig.pass(60.0);
    rig.update("a", json!({"metadata": {"labels": {"free": ""}}}));
    assert_eq!(rig.pool("a"), Some(Pool::Active));
    let attempt = rig.attempt().unwrap();
    assert_eq!((attempt.attempts, attempt.first_attempt), (1, rig.now), "time begins once it may be tried");
}

#[test]
fn scheduling_gates_keep_a_pod_until_the_last_is_gone() {
    struct SchedulingGates;
    impl Plugin for SchedulingGates {
        fn name(&self) -> &'static str {
            "SchedulingGates"
        }
        fn pre_enqueue(&self, pod: &PodInfo, _: &Cluster) -> Option<Refusal> {
            pod.spec.source.scheduling_gates.as_ref().map(|_| Refusal::unresolvable("waiting"))
        }
        fn events(&self) -> Vec<Event> {
            vec![Event::new(Resource::UnscheduledPod, Actions::POD_GATES_ELIMINATED)]
        }
    }
    let profile = Profile {
        plugins: vec![Box::new(SchedulingGates)],
        pre_enqueue: vec![0],
        ..crate::config::default_profile()
    };
    let mut rig = Rig::new();
    rig.queue = Queue::new(QueueConfig::default(), [profile].into());
    let gates = |names: &[&str]| {
        let gates: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"spec": {"schedulingGates": gates}})
    };
    rig.add_pod("a", gates(&["x", "y"]));
    rig.update("a", gates(&["y"]));
    assert_eq!(rig.pool("a"), Some(Pool::Gated));
    rig.happen(NODE_ADD);
    rig.happen(Event::WILDCARD);
    rig.activate("a");
    rig.run(1000.0);
    assert_eq!(rig.pool("a"), Some(Pool::Gated));
    rig.update("a", gates(&[]));
    assert_eq!(rig.pool("a"), Some(Pool::Active));
}

#[test]
fn an_event_concerns_a_gated_pod_only_if_the_plugin_that_gates_it_waits_for_it() {
    let mut rig = rig();
    rig.allow("First", &["free"]);
    rig.allow("Second", &["free"]);
    rig.add_labeled("a", "free");
    rig.pop();
    rig.fail("a", &["Free"], &[]);
    rig.allow("Second", &[]);
    rig.happen(NODE_ADD);
    assert_eq!((rig.pool("a"), rig.hints()), (Some(Pool::Gated), 1));
    rig.allow("Second", &["free"]);
    rig.happen(NODE_ADD);
    rig.happen(CLAIM_ADD);
    rig.happen(Event::WILDCARD);
    assert_eq!((rig.pool("a"), rig.hints()), (Some(Pool::Gated), 0), "nobody is asked");
    rig.happen(VOLUME_ADD);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff));
}

#[test]
fn the_plugin_that_gates_a_pod_is_asked_first_and_another_may_gate_it_then() {
    let mut rig = rig();
    rig.allow("First", &["free"]);
    rig.add_labeled("a", "free");
    rig.allow("First", &[]);
    rig.happen(VOLUME_ADD);
    rig.happen(NODE_ADD);
    rig.allow("First", &["free"]);
    assert_eq!(rig.pool("a"), Some(Pool::Gated), "`Second` gates it still, which does not wait for nodes");
    rig.allow("Second", &["free"]);
    rig.allow("First", &[]);
    rig.happen(VOLUME_ADD);
    rig.happen(VOLUME_ADD);
    assert_eq!(rig.pool("a"), Some(Pool::Gated), "`First` gates it now, which does not wait for volumes");
    rig.allow("First", &["free"]);
    rig.happen(NODE_ADD);
    assert_eq!(rig.pool("a"), Some(Pool::Active));
}

#[test]
fn pods_go_into_back_off_only_past_all_gates_and_leave_it_unasked() {
    let mut rig = rig();
    rig.allow("First", &["free"]);
    rig.allow("Second", &["free"]);
    for uid in ["gated", "backoff", "activated", "broken"] {
        rig.add_labeled(uid, "free");
        rig.pop();
    }
    for uid in ["backoff", "activated"] {
        rig.fail(uid, &["Free"], &[]);
    }
    rig.happen(CLAIM_ADD);
    rig.fail("gated", &["Free"], &[]);
    assert_eq!(rig.pool("gated"), Some(Pool::Backoff), "it was attempted when the claim came");
    assert_eq!(rig.counts(), [0, 3, 0, 0]);
    rig.allow("First", &[]);
    rig.error("broken");
    assert_eq!(rig.pool("broken"), Some(Pool::Gated));
    rig.activate("activated");
    assert_eq!(rig.pool("activated"), Some(Pool::Active));
    rig.run(2.0);
    assert_eq!(rig.counts(), [3, 0, 0, 1]);
}

#[test]
fn activation_does_not_open_a_gate() {
    let mut rig = rig();
    rig.add("gated");
    rig.activate("gated");
    assert_eq!(rig.pool("gated"), Some(Pool::Gated));
    rig.allow("First", &["free"]);
    rig.allow("Second", &["free"]);
    rig.add_labeled("lifted", "free");
    rig.pop();
    rig.fail("lifted", &["Free"], &[]);
    rig.allow("First", &[]);
    rig.activate("lifted");
    assert_eq!(rig.pool("lifted"), Some(Pool::Gated));
    rig.allow("First", &["free"]);
    rig.activate("lifted");
    assert_eq!(rig.pool("lifted"), Some(Pool::Active));
}

#[test]
fn gated_pods_count_as_such_however_they_came_to_be() {
    let mut rig = rig();
    rig.allow("First", &["free"]);
    rig.allow("Second", &["free"]);
    for number in 0..4 {
        let uid = format!("tried-{number}");
        rig.add_labeled(&uid, "free");
        rig.pop();
        rig.fail(&uid, &["Free"], &[]);
    }
    rig.add("gated-0");
    rig.add("gated-1");
    assert_eq!(rig.counts(), [0, 0, 4, 2]);
    rig.allow("First", &[]);
    rig.activate("tried-0");
    rig.activate("tried-1");
    assert_eq!(rig.counts(), [0, 0, 2, 4]);
    rig.allow("First", &["free"]);
    rig.pass(20.0);
    rig.update("gated-0", json!({"metadata": {"labels": {"free": ""}}}));
    rig.happen(NODE_ADD);
    assert_eq!(rig.counts(), [5, 0, 0, 1]);
    rig.remove("gated-1");
    assert_eq!(rig.counts(), [5, 0, 0, 0]);
}
