//! Counts of the queue.

use super::*;

/// Returns how many pods came into which pool for which reason.
fn incoming(rig: &Rig) -> Vec<(&'static str, String, u64)> {
    rig.queue.incoming().iter().map(|(pool, cause, pods)| (pool.label(), cause.label(), pods)).collect()
}

fn gauge(rig: &Rig, plugin: &str) -> usize {
    rig.queue.refusals().filter(|(_, name, _)| *name == plugin).map(|(_, _, pods)| pods).sum()
}

fn refuse_three(rig: &mut Rig, plugins: &[&'static str]) {
    for uid in ["a", "b", "c"] {
        rig.add(uid);
    }
    rig.pop_all();
    for uid in ["a", "b", "c"] {
        rig.fail(uid, plugins, &[]);
    }
}

#[test]
fn incoming_pods_are_counted_by_pool_and_reason() {
    let added = ("active", "UnschedulablePodAdd".to_owned(), 3);
    let failed = ("unschedulable", "ScheduleAttemptFailure".to_owned(), 3);
    let mut rig = Rig::new();
    refuse_three(&mut rig, &["Deaf"]);
    assert_eq!(incoming(&rig), [added.clone(), failed.clone()]);
    rig.run(300.0);
    assert_eq!(
        incoming(&rig),
        [added.clone(), ("active", "UnschedulableTimeout".to_owned(), 3), failed.clone()]
    );

    let mut rig = Rig::new();
    refuse_three(&mut rig, &["Queues"]);
    rig.happen(NODE_ADD);
    let woken = ("backoff", "NodeAdd".to_owned(), 3);
    assert_eq!(incoming(&rig), [added.clone(), woken.clone(), failed.clone()]);
    rig.pop();
    rig.activate("b");
    rig.activate("unknown");
    let popped = ("active", "PopFromBackoffQ".to_owned(), 1);
    let activated = ("active", "ForceActivate".to_owned(), 1);
    assert_eq!(incoming(&rig), [added.clone(), popped, activated, woken, failed]);

    let mut rig = Rig::new();
    refuse_three(&mut rig, &[]);
    rig.run(3.0);
    let completed = ("active", "BackoffComplete".to_owned(), 3);
    assert_eq!(incoming(&rig), [added, completed, ("backoff", "ScheduleAttemptFailure".to_owned(), 3)]);
}

#[test]
fn incoming_gated_pods_count_as_unschedulable() {
    let mut rig = Rig::configured(QueueConfig::default(), USUAL, &["Deaf"]);
    rig.add("a");
    assert_eq!(incoming(&rig), [("unschedulable", "UnschedulablePodAdd".to_owned(), 1)]);
    assert_eq!(Pool::Gated.label(), "gated");
}

#[test]
fn pods_are_counted_by_the_plugins_that_refuse_them_until_they_are_tried_again() {
    let mut rig = Rig::new();
    rig.refused("a", &["Queues", "Skips"], &["Volumes"]);
    rig.refused("b", &["Queues"], &[]);
    assert_eq!((gauge(&rig, "Queues"), gauge(&rig, "Skips"), gauge(&rig, "Volumes")), (2, 1, 1));
    rig.happen(NODE_ADD);
    assert_eq!(gauge(&rig, "Queues"), 2, "they wait still");
    rig.pop();
    assert_eq!((gauge(&rig, "Queues"), gauge(&rig, "Skips"), gauge(&rig, "Volumes")), (1, 0, 0));
    rig.remove("b");
    rig.error("a");
    assert_eq!(rig.queue.refusals().count(), 0);
}

#[test]
fn gated_pods_are_counted_once_for_each_plugin_that_has_gated_them() {
    const SCRIPTS: &[Script] =
        &[("First", &[Event::WILDCARD], Hint::Queue), ("Second", &[Event::WILDCARD], Hint::Queue)];
    let rig = || {
        let rig = Rig::configured(QueueConfig::default(), SCRIPTS, &["First", "Second"]);
        rig.allow("Second", &["a"]);
        rig
    };
    let gauges = |rig: &Rig| (gauge(rig, "First"), gauge(rig, "Second"));

    let mut once = rig();
    once.add_labeled("a", "a");
    once.happen(Event::WILDCARD);
    once.happen(NODE_ADD);
    assert_eq!(gauges(&once), (1, 0), "it was gated again by the same plugin");
    once.allow("First", &["a"]);
    once.happen(Event::WILDCARD);
    assert_eq!(once.pop().as_deref(), Some("a"));
    assert_eq!(gauges(&once), (0, 0));

    for is_removed in [false, true] {
        let mut twice = rig();
        twice.add_labeled("a", "a");
        twice.allow("First", &["a"]);
        twice.allow("Second", &[]);
        twice.happen(Event::WILDCARD);
        assert_eq!((gauges(&twice), twice.counts()), ((1, 1), [0, 0, 0, 1]));
        if is_removed {
            twice.remove("a");
        } else {
            twice.allow("Second", &["a"]);
            twice.happen(Event::WILDCARD);
            assert_eq!(twice.pop().as_deref(), Some("a"));
        }
        assert_eq!(gauges(&twice), (0, 0));
    }

    let mut open = rig();
    open.allow("First", &["a"]);
    open.add_labeled("a", "a");
    open.remove("a");
    assert_eq!(gauges(&open), (0, 0));
}
