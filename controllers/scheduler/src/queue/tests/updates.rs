//! Updates of pods in the queue.

use super::*;

fn labeled() -> Value {
    json!({"metadata": {"labels": {"changed": ""}}})
}

fn version_of(rig: &mut Rig) -> Arc<PodInfo> {
    rig.attempt().expect("a pod is active").pod
}

#[test]
fn an_unknown_pod_is_added_by_its_update() {
    let mut rig = Rig::new();
    rig.pod("a", json!({}));
    rig.update("a", labeled());
    assert_eq!(rig.pool("a"), Some(Pool::Active));
    assert!(version_of(&mut rig).labels().contains_key("changed"));
}

#[test]
fn a_pod_that_waits_for_its_turn_or_its_time_stays_there_in_its_new_version() {
    let mut rig = Rig::new();
    rig.refused("refused", &["Queues"], &[]);
    rig.happen(NODE_ADD);
    rig.refused("broken", &[], &[]);
    rig.add("active");
    for uid in ["active", "refused", "broken"] {
        rig.update(uid, labeled());
    }
    assert_eq!(rig.counts(), [1, 2, 0, 0]);
    rig.run(2.0);
    for _ in 0..3 {
        assert!(version_of(&mut rig).labels().contains_key("changed"));
    }
}

#[test]
fn an_update_wakes_an_unschedulable_pod_if_its_plugins_say_so() {
    for (plugins, pending, seconds, pool) in [
        (&["Queues"][..], &[][..], 0.0, Pool::Backoff),
        (&["Queues"], &[], 10.0, Pool::Active),
        (&[], &["Queues"], 0.0, Pool::Active),
        (&["Skips"], &[], 10.0, Pool::Unschedulable),
        (&["Volumes"], &[], 10.0, Pool::Unschedulable),
        (&[EXTENDER], &[], 10.0, Pool::Active),
    ] {
        let mut rig = Rig::new();
        rig.refused("a", plugins, pending);
        rig.refused("other", plugins, pending);
        rig.pass(seconds);
        rig.update("a", labeled());
        assert_eq!(rig.pool("a"), Some(pool), "{plugins:?} and {pending:?} after {seconds} s");
        assert_eq!(rig.pool("other"), Some(Pool::Unschedulable), "the update is that of one pod");
        rig.activate("a");
        assert!(version_of(&mut rig).labels().contains_key("changed"));
    }
}

#[test]
fn each_of_the_events_that_an_update_is_may_wake() {
    const TOLERATION: Event = Event::new(Resource::UnscheduledPod, Actions::POD_TOLERATION);
    const SCALE_DOWN: Event = Event::new(Resource::UnscheduledPod, Actions::POD_SCALE_DOWN);
    let scripts: &[Script] = &[
        ("Taints", &[TOLERATION], Hint::Queue),
        ("Fit", &[SCALE_DOWN], Hint::Queue),
        ("Other", &[OWN_UPDATE], Hint::Skip),
    ];
    let tolerant =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"tolerations": [{"operator": "Exists"}]}});
    for (plugin, fields, pool) in [
        ("Taints", &tolerant, Pool::Backoff),
        ("Fit", &tolerant, Pool::Unschedulable),
        ("Other", &tolerant, Pool::Unschedulable),
        ("Taints", &labeled(), Pool::Unschedulable),
    ] {
        let mut rig = Rig::with(scripts);
        rig.refused("a", &[plugin], &[]);
        rig.update("a", fields.clone());
        assert_eq!(rig.pool("a"), Some(pool), "{plugin} by {fields}");
    }
}

#[test]
fn an_update_during_an_attempt_counts_when_it_fails_and_for_this_pod_alone() {
    for (plugin, pool) in
        [("Queues", Pool::Backoff), ("Skips", Pool::Unschedulable), ("Volumes", Pool::Unschedulable)]
    {
        let mut rig = Rig::new();
        rig.add("a");
        rig.add("other");
        rig.pop_all();
        rig.update("a", labeled());
        assert_eq!((rig.pool("a"), rig.pop()), (None, None));
        rig.fail("other", &[plugin], &[]);
        rig.fail("a", &[plugin], &[]);
        assert_eq!(rig.pool("a"), Some(pool), "{plugin}");
        assert_eq!(rig.pool("other"), Some(Pool::Unschedulable));
        rig.activate("a");
        assert!(version_of(&mut rig).labels().contains_key("changed"), "the new version is tried");
    }
}

#[test]
fn many_updates_during_an_attempt_are_not_all_remembered() {
    let mut rig = Rig::new();
    rig.add("a");
    rig.pop();
    for number in 0..=limits::OWN_EVENTS {
        rig.update("a", json!({"metadata": {"labels": {"number": number.to_string()}}}));
    }
    rig.fail("a", &["Deaf"], &[]);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff), "it is tried again to be safe");
}
