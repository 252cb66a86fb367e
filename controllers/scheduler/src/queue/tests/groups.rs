//! Pods that are popped with others of their group, and that go back after the attempt.

use super::*;
use crate::cluster::groups::Groups;

fn rig() -> Rig {
    let mut rig = Rig::configured(QueueConfig::default(), USUAL, &["Queues"]);
    rig.cluster.groups = Groups::new(true);
    rig
}

fn pop_this(rig: &mut Rig, uid: &str) -> Option<u32> {
    let popped = rig.queue.pop_this(&uid.into(), &rig.cluster, rig.now)?;
    assert_eq!(popped.pod.uid, Uid::from(uid));
    Some(popped.attempts)
}

#[test]
fn certain_pod_is_popped_from_wherever_it_waits() {
    let mut rig = rig();
    rig.allow("Queues", &["free"]);
    for uid in ["broken", "parked"] {
        rig.add_labeled(uid, "free");
    }
    rig.pop_all();
    rig.error("broken");
    rig.fail("parked", &["Deaf"], &[]);
    rig.add_labeled("active", "free");
    assert_eq!(rig.pool("active"), Some(Pool::Active));
    assert_eq!(rig.pool("broken"), Some(Pool::Backoff));
    assert_eq!(rig.pool("parked"), Some(Pool::Unschedulable));
    for (uid, attempts) in [("active", 1), ("broken", 2), ("parked", 2)] {
        assert_eq!(pop_this(&mut rig, uid), Some(attempts), "{uid}");
        assert_eq!(rig.pool(uid), None);
        assert_eq!(pop_this(&mut rig, uid), None, "{uid} is being attempted");
    }
    // The attempts go on as others do.
    rig.happen(NODE_ADD);
    assert_eq!(rig.queue.flights.events(), 1);
    rig.fail("parked", &["Deaf"], &[]);
    assert_eq!(rig.pool("parked"), Some(Pool::Unschedulable));
}

#[test]
fn pods_that_are_gated_or_not_known_are_not_popped() {
    let mut rig = rig();
    rig.add_labeled("gated", "free");
    assert_eq!((pop_this(&mut rig, "gated"), pop_this(&mut rig, "unknown")), (None, None));
    assert_eq!(rig.pool("gated"), Some(Pool::Gated));
    rig.allow("Queues", &["free"]);
    assert_eq!(pop_this(&mut rig, "gated"), Some(1), "it is gated no longer");
}

#[test]
fn pods_of_groups_are_tried_again_after_their_back_off_whatever_happens_and_not_before() {
    let mut rig = rig();
    rig.allow("Queues", &["free"]);
    let fields =
        json!({"metadata": {"labels": {"free": ""}}, "spec": {"schedulingGroup": {"podGroupName": "g"}}});
    rig.add_pod("member", fields);
    rig.add_labeled("alone", "free");
    rig.pop_all();
    rig.fail("member", &["Deaf"], &[]);
    rig.fail("alone", &["Deaf"], &[]);
    assert_eq!((rig.pool("member"), rig.pool("alone")), (Some(Pool::Backoff), Some(Pool::Unschedulable)));
    assert_eq!(rig.pop(), None, "not though there is nothing else to do");
    rig.pass(3.0);
    assert_eq!(rig.pop().as_deref(), Some("member"));
}

#[test]
fn displaced_pod_wakes_others_and_not_itself() {
    let mut rig = Rig::with(&[("Frees", &[ASSIGNED_DELETE], Hint::Queue)]);
    for uid in ["displaced", "other"] {
        rig.refused(uid, &["Frees"], &[]);
    }
    let pod = Arc::clone(&rig.pods["displaced"]);
    rig.queue.displaced(&pod, &rig.cluster, rig.now);
    assert_eq!(rig.pool("displaced"), Some(Pool::Unschedulable));
    assert_eq!(rig.pool("other"), Some(Pool::Backoff));
}

/// Adds a pod of a group, or of none, that is gated.
fn add_gated(rig: &mut Rig, uid: &str, group: Option<&str>) {
    let group = group.map(|group| json!({"podGroupName": group}));
    rig.add_pod(uid, json!({"spec": {"schedulingGroup": group}}));
    assert_eq!(rig.pool(uid), Some(Pool::Gated));
}

#[test]
fn change_of_a_pod_asks_for_no_hint_about_pods_that_it_cannot_help() {
    let scripts = [(BY_GROUP, [ASSIGNED_ADD].as_slice(), Hint::Skip)];
    let mut rig = Rig::configured(QueueConfig::default(), &scripts, &[BY_GROUP]);
    for (uid, group) in [("a1", Some("a")), ("a2", Some("a")), ("b", Some("b")), ("alone", None)] {
        add_gated(&mut rig, uid, group);
    }
    for (group, expected) in [(Some("a"), 2), (Some("b"), 1), (Some("c"), 0), (None, 0)] {
        let group = group.map(|group| json!({"podGroupName": group}));
        let bound = Arc::new(pod("bound", json!({"spec": {"schedulingGroup": group, "nodeName": "n"}})));
        let change = Change::Pod(Versions { old: None, new: Some(&bound) });
        rig.queue.happened(ASSIGNED_ADD, &change, &rig.cluster, rig.now);
        assert_eq!(rig.hints(), expected, "{group:?}");
    }
    rig.happen(ASSIGNED_ADD);
    assert_eq!(rig.hints(), 4, "a change that may help all");
    rig.remove("a1");
    rig.allow(BY_GROUP, &["free"]);
    rig.update(
        "a2",
        json!({"metadata": {"labels": {"free": ""}}, "spec": {"schedulingGroup": {"podGroupName": "a"}}}),
    );
    rig.activate("a2");
    assert_eq!(rig.counts(), [1, 0, 0, 2], "pods leave the index as they have come");
    rig.happen(ASSIGNED_ADD);
    assert_eq!(rig.hints(), 2);
}

#[test]
fn pods_of_one_group_are_activated_but_for_gated_ones() {
    let mut rig = rig();
    rig.allow("Queues", &["free"]);
    let in_group = |group: &str| json!({"metadata": {"labels": {"free": ""}}, "spec": {"schedulingGroup": {"podGroupName": group}}});
    for uid in ["a", "b", "bound"] {
        rig.add_pod(uid, in_group("g"));
    }
    rig.add_pod("other", in_group("h"));
    rig.pop_all();
    for uid in ["a", "b", "other"] {
        rig.fail(uid, &["Deaf"], &[]);
    }
    rig.done("bound");
    add_gated(&mut rig, "gated", Some("g"));
    assert_eq!(rig.counts(), [0, 3, 0, 1]);
    let activate = |rig: &mut Rig| {
        rig.queue.activate_group(&ObjectKey::new("default", "g"), &rig.cluster, rig.now);
    };
    activate(&mut rig);
    assert_eq!(rig.counts(), [2, 1, 0, 1]);
    assert_eq!(rig.pool("other"), Some(Pool::Backoff));
    activate(&mut rig);
    assert_eq!(rig.counts(), [2, 1, 0, 1], "a second time changes nothing");
    assert_eq!(rig.pop_all(), ["a", "b"]);
}
