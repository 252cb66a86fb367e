//! Events during an attempt count when it has failed.

use super::*;

const WAITS: &[Script] = &[
    ("Queues", &[VOLUME_ADD, NODE_ADD, CLAIM_ADD, CSI_NODE_UPDATE, ASSIGNED_ADD], Hint::Queue),
    ("Skips", &[VOLUME_ADD, NODE_ADD, ASSIGNED_ADD], Hint::Skip),
    ("Claims", &[CLAIM_ADD], Hint::Queue),
];

fn attempting(uids: &[&str]) -> Rig {
    let mut rig = Rig::with(WAITS);
    for uid in uids {
        rig.add(uid);
    }
    rig
}

#[test]
fn events_are_remembered_while_pods_are_attempted_if_a_plugin_waits_for_them() {
    let mut rig = attempting(&["a"]);
    rig.happen(CLAIM_ADD);
    assert_eq!(rig.queue.flights.events(), 0, "nothing is attempted");
    rig.pop();
    rig.happen(VOLUME_ADD);
    rig.happen(Event::new(Resource::PersistentVolume, Actions::UPDATE));
    assert_eq!(rig.queue.flights.events(), 1);
    rig.done("a");
    assert_eq!(rig.queue.flights.events(), 0);
}

#[test]
fn with_extenders_all_events_are_remembered() {
    let config = QueueConfig { has_extenders: true, ..QueueConfig::default() };
    let mut rig = Rig::configured(config, WAITS, &[]);
    rig.add("a");
    rig.pop();
    rig.happen(Event::new(Resource::StorageClass, Actions::ADD));
    rig.fail("a", &[EXTENDER], &[]);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff));
}

#[test]
fn events_are_forgotten_once_the_attempts_before_them_have_ended() {
    let mut rig = attempting(&["a", "b", "c"]);
    rig.happen(CLAIM_ADD);
    rig.pop();
    rig.happen(VOLUME_ADD);
    rig.pop();
    rig.happen(NODE_ADD);
    rig.pop();
    rig.happen(ASSIGNED_ADD);
    rig.error("b");
    assert_eq!((rig.pool("b"), rig.queue.flights.events()), (Some(Pool::Backoff), 3), "`a` needs all");
    rig.error("a");
    assert_eq!(rig.queue.flights.events(), 1, "`c` needs the last");
    rig.happen(CSI_NODE_UPDATE);
    rig.remove("c");
    assert_eq!((rig.counts(), rig.queue.flights.events()), ([0, 2, 0, 0], 0));
}

#[test]
fn events_before_the_attempt_do_not_help() {
    let mut rig = attempting(&["a", "b"]);
    rig.pop();
    rig.happen(Event::WILDCARD);
    rig.happen(NODE_ADD);
    rig.pop();
    rig.fail("a", &["Skips"], &[]);
    rig.fail("b", &["Queues"], &[]);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff), "the wildcard helps all");
    assert_eq!(rig.pool("b"), Some(Pool::Unschedulable));
}

#[test]
fn a_failed_pod_goes_where_what_happened_during_its_attempt_sends_it() {
    for (event, plugins, pending, pool) in [
        (ASSIGNED_ADD, &[][..], &[][..], Pool::Backoff),
        (NODE_ADD, &["Claims"], &[], Pool::Unschedulable),
        (ASSIGNED_ADD, &["Skips"], &[], Pool::Unschedulable),
        (ASSIGNED_ADD, &["Skips", "Claims"], &["Queues"], Pool::Active),
        (ASSIGNED_ADD, &["Queues", "Skips"], &[], Pool::Backoff),
        (ASSIGNED_ADD, &["Queues"], &["Skips"], Pool::Backoff),
        (ASSIGNED_ADD, &["Queues"], &["Claims"], Pool::Backoff),
        (CLAIM_ADD, &["Queues"], &["Claims"], Pool::Active),
        (Event::WILDCARD, &["Skips"], &[], Pool::Backoff),
        (Event::WILDCARD, &[], &["Skips"], Pool::Backoff),
        (CSI_NODE_UPDATE, &[EXTENDER], &[], Pool::Backoff),
    ] {
        let mut rig = attempting(&["a"]);
        rig.pop();
        rig.happen(event);
        rig.fail("a", plugins, pending);
        assert_eq!(rig.pool("a"), Some(pool), "{event:?} for {plugins:?} and {pending:?}");
        assert_eq!(rig.queue.flights.events(), 0);
    }
}

#[test]
fn an_event_during_the_attempt_of_another_pod_helps_a_pod_that_waits_for_it() {
    let mut rig = attempting(&["a", "b"]);
    rig.pop();
    rig.happen(NODE_ADD);
    rig.pop();
    rig.happen(ASSIGNED_ADD);
    rig.error("a");
    rig.fail("b", &["Skips", "Claims"], &["Queues"]);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff));
    assert_eq!(rig.pool("b"), Some(Pool::Active));
}

#[test]
fn ten_pods_that_fail_after_all_were_woken_go_into_back_off() {
    let uids: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
    let mut rig = attempting(&uids.iter().map(String::as_str).collect::<Vec<_>>());
    rig.pop_all();
    rig.happen(Event::WILDCARD);
    uids.iter().for_each(|uid| rig.fail(uid, &["Skips"], &[]));
    assert_eq!(rig.counts(), [0, 10, 0, 0]);
}

#[test]
fn a_pod_whose_attempt_took_too_long_to_remember_everything_is_tried_again() {
    let mut rig = attempting(&["a"]);
    rig.pop();
    for _ in 0..=limits::FLIGHT_EVENTS {
        rig.happen(ASSIGNED_ADD);
    }
    assert_eq!(rig.queue.flights.events(), limits::FLIGHT_EVENTS);
    rig.fail("a", &["Skips"], &[]);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff));
}

#[test]
fn only_a_pod_that_is_attempted_comes_back() {
    let mut rig = attempting(&["a"]);
    rig.error("a");
    assert_eq!(rig.pool("a"), Some(Pool::Active), "it was not handed out");
    rig.pop();
    rig.fail("a", &["Skips"], &[]);
    rig.fail("a", &["Queues"], &[]);
    rig.done("a");
    assert_eq!(rig.pool("a"), Some(Pool::Unschedulable), "its attempt had ended already");
    rig.happen(NODE_ADD);
    assert_eq!(rig.pool("a"), Some(Pool::Unschedulable), "nor has the second report counted");
}

#[test]
fn a_pod_that_is_attempted_is_not_handed_out_again_by_a_second_add() {
    let mut rig = attempting(&["a"]);
    rig.pop();
    rig.add("a");
    assert_eq!(rig.pop(), None);
    rig.add("b");
    assert_eq!(rig.pop().as_deref(), Some("b"));
    rig.error("a");
    rig.error("b");
    assert_eq!((rig.counts(), rig.queue.flights.events()), ([0, 2, 0, 0], 0));
}
