//! Events that wake unschedulable pods.

use super::*;

/// A script in which plugins `A` to `D` wait for nodes.
fn waiting_for_nodes(hints: &[Hint]) -> Vec<Script> {
    const EVENTS: &[Event] = &[NODE_ADD];
    ["A", "B", "C", "D"].into_iter().zip(hints).map(|(name, hint)| (name, EVENTS, *hint)).collect()
}

#[test]
fn a_hint_decides_whether_and_when_a_pod_is_woken() {
    for (plugins, pending, seconds, pool) in [
        (&[][..], &["Queues"][..], 0.0, Pool::Active),
        (&["Queues"], &[], 0.0, Pool::Backoff),
        (&["Queues"], &[], 2.0, Pool::Active),
        (&["Skips"], &[], 20.0, Pool::Unschedulable),
        (&["Volumes"], &[], 20.0, Pool::Unschedulable),
        (&["Deaf"], &[], 20.0, Pool::Unschedulable),
        (&["Skips", "Queues"], &[], 2.0, Pool::Active),
        // A plugin for which the pod waits says no, one that has refused it says yes.
        (&["Queues"], &["Skips"], 0.0, Pool::Backoff),
        (&["Skips"], &["Queues"], 0.0, Pool::Active),
    ] {
        let mut rig = Rig::new();
        rig.refused("a", plugins, pending);
        rig.pass(seconds);
        rig.happen(NODE_ADD);
        assert_eq!(rig.pool("a"), Some(pool), "{plugins:?} and {pending:?} after {seconds} s");
    }
}

#[test]
fn hints_are_asked_of_the_plugins_that_have_refused_and_registered_until_one_helps() {
    use Hint::{Queue, Skip};
    for (hints, plugins, pending, asked, pool) in [
        (&[Queue, Queue, Queue, Skip][..], &["A", "C"][..], &["B"][..], 1, Pool::Active),
        (&[Queue, Skip, Queue, Skip], &["A", "C"], &["B"], 2, Pool::Backoff),
        (&[Skip, Queue], &["A", "B"], &[], 2, Pool::Backoff),
        (&[Skip, Skip, Queue], &["A", "B"], &[], 2, Pool::Unschedulable),
        (&[Queue, Queue], &["A", "B"], &[], 1, Pool::Backoff),
    ] {
        let mut rig = Rig::with(&waiting_for_nodes(hints));
        rig.refused("a", plugins, pending);
        rig.happen(NODE_ADD);
        assert_eq!((rig.hints(), rig.pool("a")), (asked, Some(pool)), "{hints:?}");
    }
}

#[test]
fn events_match_registrations_that_are_as_general_or_more_so() {
    const LABEL: Event = Event::new(Resource::Node, Actions::NODE_LABEL);
    const UPDATE: Event = Event::new(Resource::Node, Actions::UPDATE);
    const ANY_ADD: Event = Event::new(Resource::Any, Actions::ADD);
    const OTHER: Event = Event::new(Resource::Node, Actions::OTHER_UPDATE);
    for (registered, happened, is_woken) in [
        (&[ASSIGNED_ADD][..], NODE_ADD, false),
        (&[LABEL, UPDATE, NODE_ADD], LABEL, true),
        (&[UPDATE], LABEL, true),
        (&[UPDATE], OTHER, true),
        (&[LABEL], OTHER, false),
        (&[ANY_ADD], NODE_ADD, true),
        (&[ANY_ADD], LABEL, false),
        (&[Event::WILDCARD], LABEL, true),
        (&[ASSIGNED_ADD], Event::new(Resource::UnscheduledPod, Actions::ADD), false),
    ] {
        let registered: &'static [Event] = registered;
        let mut rig = Rig::with(&[("A", registered, Hint::Queue)]);
        rig.refused("a", &["A"], &[]);
        rig.happen(happened);
        let is_backing_off = rig.pool("a") == Some(Pool::Backoff);
        assert_eq!((is_backing_off, rig.hints()), (is_woken, usize::from(is_woken)), "{registered:?}");
    }
}

#[test]
fn an_event_that_no_plugin_of_the_pod_waits_for_asks_nobody() {
    let mut rig = Rig::new();
    for number in 0..100 {
        rig.refused(&format!("fit-{number}"), &["Queues", "Skips"], &[]);
        rig.refused(&format!("volumes-{number}"), &["Volumes"], &[]);
    }
    rig.happen(ASSIGNED_DELETE);
    rig.happen(CSI_NODE_UPDATE);
    assert_eq!((rig.hints(), rig.counts()), (0, [0, 0, 200, 0]));
    rig.happen(VOLUME_ADD);
    assert_eq!((rig.hints(), rig.counts()), (100, [0, 100, 100, 0]), "only those that wait for volumes");
}

#[test]
fn the_wildcard_wakes_all_without_asking_or_the_one_that_it_is_meant_for() {
    let mut rig = Rig::new();
    for uid in ["a", "b"] {
        rig.refused(uid, &["Skips", "Deaf"], &[]);
    }
    let target = Arc::clone(&rig.pods["a"]);
    let change = Change::Pod(Versions { old: None, new: Some(&target) });
    rig.queue.happened(Event::WILDCARD, &change, &rig.cluster, rig.now);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff));
    assert_eq!(rig.pool("b"), Some(Pool::Unschedulable));
    rig.happen(Event::WILDCARD);
    assert_eq!(rig.pool("b"), Some(Pool::Backoff));
    assert_eq!(rig.hints(), 0);
}

#[test]
fn an_extender_or_an_unknown_plugin_is_woken_by_any_event() {
    for plugin in [EXTENDER, "Unknown"] {
        let mut rig = Rig::new();
        rig.refused("a", &["Skips", plugin], &[]);
        rig.refused("b", &["Skips"], &[]);
        rig.happen(CSI_NODE_UPDATE);
        assert_eq!(rig.pool("a"), Some(Pool::Backoff));
        assert_eq!(rig.pool("b"), Some(Pool::Unschedulable));
    }
}

#[test]
fn each_profile_has_plugins_of_its_own() {
    let mut rig = Rig::new();
    for (uid, scheduler) in [("first", "default-scheduler"), ("second", "second"), ("third", "none-such")] {
        rig.add_pod(uid, json!({"spec": {"schedulerName": scheduler}}));
        rig.pop();
    }
    rig.fail("first", &["Skips"], &[]);
    rig.fail("second", &["Queues"], &[]);
    rig.fail("third", &["Skips"], &[]);
    rig.happen(NODE_ADD);
    assert_eq!(rig.pool("first"), Some(Pool::Unschedulable));
    assert_eq!(rig.pool("second"), Some(Pool::Backoff));
    assert_eq!(rig.pool("third"), Some(Pool::Backoff), "nobody can tell what may help");
    let refusals: Vec<_> = rig.queue.refusals().collect();
    assert_eq!(refusals, [("", "Skips", 1), ("default-scheduler", "Skips", 1), ("second", "Queues", 1)]);
}

#[test]
fn a_released_nomination_wakes_pods_of_its_priority_and_below() {
    let mut rig = Rig::with(&[("A", &[ASSIGNED_DELETE], Hint::Queue), ("B", &[NODE_ADD], Hint::Queue)]);
    for priority in 0..5 {
        let uid = format!("p{priority}");
        rig.add_with_priority(&uid, priority);
        rig.pop();
        rig.fail(&uid, &["A"], &[]);
    }
    rig.add("other");
    rig.pop();
    rig.fail("other", &["B"], &[]);
    let released = Arc::new(pod("released", json!({"spec": {"priority": 2}})));
    rig.queue.nomination_ended(&released, &rig.cluster, rig.now);
    let woken: Vec<_> = rig.pods.keys().filter(|uid| rig.pool(uid) == Some(Pool::Backoff)).cloned().collect();
    assert_eq!(woken, ["p0", "p1", "p2"]);
}

#[test]
fn activation_makes_pods_active_whatever_has_refused_them() {
    let mut rig = Rig::new();
    rig.refused("parked", &["Deaf"], &[]);
    rig.refused("refused", &["Queues"], &[]);
    rig.happen(NODE_ADD);
    rig.refused("broken", &[], &[]);
    rig.add("active");
    for uid in ["parked", "refused", "broken", "active", "unknown"] {
        rig.activate(uid);
    }
    assert_eq!(rig.counts(), [4, 0, 0, 0]);
    assert_eq!(rig.pool("unknown"), None);
}

#[test]
fn activation_of_a_pod_that_is_attempted_is_remembered_for_it_alone() {
    let mut rig = Rig::new();
    for uid in ["a", "b", "done"] {
        rig.add(uid);
        rig.pop();
    }
    rig.activate("a");
    rig.activate("done");
    rig.done("done");
    rig.fail("a", &["Deaf"], &[]);
    rig.fail("b", &["Deaf"], &[]);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff));
    assert_eq!(rig.pool("b"), Some(Pool::Unschedulable));
    assert_eq!(rig.pool("done"), None);
}

#[test]
fn pods_are_moved_by_events_through_all_pools() {
    let mut rig = Rig::new();
    for (uid, priority) in [("low", 0), ("high", 2), ("volumes", 2), ("broken", 2)] {
        rig.add_with_priority(uid, priority);
        rig.pop();
    }
    rig.fail("low", &["Queues"], &[]);
    rig.fail("high", &["Queues"], &[]);
    rig.fail("volumes", &["Volumes"], &[]);
    rig.error("broken");
    assert_eq!(rig.counts(), [0, 1, 3, 0]);
    rig.happen(NODE_ADD);
    rig.add_with_priority("new", 1);
    assert_eq!(rig.counts(), [1, 3, 1, 0]);
    assert_eq!(rig.pop().as_deref(), Some("new"));
    rig.run(10.0);
    assert_eq!(rig.counts(), [3, 0, 1, 0]);
    for uid in ["high", "broken", "low"] {
        assert_eq!(rig.pop().as_deref(), Some(uid));
        rig.fail(uid, &["Queues"], &[]);
    }
    assert_eq!(rig.counts(), [0, 0, 4, 0]);
    rig.run(10.0);
    rig.happen(NODE_ADD);
    assert_eq!(rig.counts(), [3, 0, 1, 0], "their back-off is over, so that they are active at once");
}
