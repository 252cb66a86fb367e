//! In which order pods are handed out.

use super::*;

#[test]
fn higher_priority_goes_first_then_earlier_arrival() {
    let mut rig = Rig::new();
    rig.add_with_priority("old", 0);
    rig.pass(1.0);
    rig.add_with_priority("young", 0);
    rig.add_with_priority("twin", 0);
    rig.add_with_priority("urgent", 10);
    rig.add_with_priority("humble", -1);
    assert_eq!(rig.pop_all(), ["urgent", "old", "young", "twin", "humble"]);
    assert_eq!(rig.pop(), None);
}

#[test]
fn a_pod_that_has_failed_goes_behind_others_of_its_priority() {
    let mut rig = Rig::new();
    for uid in ["a", "b", "c"] {
        rig.add(uid);
    }
    rig.pass(0.1);
    assert_eq!(rig.pop().as_deref(), Some("a"));
    rig.fail("a", &["Queues"], &[]);
    rig.pass(10.0);
    rig.happen(Event::WILDCARD);
    assert_eq!(rig.pop_all(), ["b", "c", "a"]);
}

#[test]
fn a_pod_that_fails_again_and_again_does_not_keep_a_newer_one_waiting() {
    let mut rig = Rig::new();
    rig.add("failing");
    rig.pop();
    rig.fail("failing", &["Queues"], &[]);
    rig.pass(2.0);
    rig.happen(Event::WILDCARD);
    assert_eq!(rig.pop().as_deref(), Some("failing"));
    rig.add("newer");
    rig.pass(0.1);
    rig.fail("failing", &["Queues"], &[]);
    rig.pass(3.0);
    rig.happen(Event::WILDCARD);
    assert_eq!(rig.pop().as_deref(), Some("newer"));
}

#[test]
fn a_pod_in_back_off_goes_behind_active_ones_of_lower_priority() {
    let mut rig = Rig::new();
    rig.add_with_priority("low", 1);
    rig.add_with_priority("high", 2);
    assert_eq!(rig.pop().as_deref(), Some("high"));
    rig.fail("high", &["Queues"], &[]);
    rig.happen(Event::WILDCARD);
    assert_eq!(rig.pop().as_deref(), Some("low"));
}

#[test]
fn if_nothing_is_active_a_refused_pod_is_taken_out_of_back_off_but_none_that_failed_by_an_error() {
    let mut rig = Rig::new();
    rig.refused("refused", &["Queues"], &[]);
    rig.happen(NODE_ADD);
    rig.refused("broken", &[], &[]);
    rig.refused("parked", &["Queues"], &[]);
    rig.add_with_priority("active", -1);
    assert_eq!(rig.counts(), [1, 2, 1, 0]);
    assert_eq!(rig.pop_all(), ["active", "refused"]);
    assert_eq!(rig.pool("broken"), Some(Pool::Backoff));
    assert_eq!(rig.pool("parked"), Some(Pool::Unschedulable));
}

#[test]
fn a_change_of_priority_moves_an_active_pod() {
    let mut rig = Rig::new();
    rig.add("first");
    rig.add("second");
    rig.update("second", json!({"spec": {"priority": 1}}));
    assert_eq!(rig.pop_all(), ["second", "first"]);
}

#[test]
fn a_removed_pod_is_not_handed_out_from_any_pool() {
    let mut rig = Rig::configured(QueueConfig::default(), USUAL, &["Deaf"]);
    rig.add("gated");
    rig.allow("Deaf", &["free"]);
    for uid in ["active", "backoff", "broken", "parked", "attempted"] {
        rig.add_labeled(uid, "free");
        assert_eq!(rig.pop().as_deref(), Some(uid));
    }
    rig.fail("active", &[], &["Queues"]);
    rig.fail("backoff", &["Queues"], &[]);
    rig.happen(NODE_ADD);
    rig.fail("parked", &["Skips"], &[]);
    rig.error("broken");
    assert_eq!(rig.counts(), [1, 2, 1, 1], "{:?}", rig.queue.counts());
    for uid in ["gated", "active", "backoff", "broken", "parked", "attempted", "unknown"] {
        rig.remove(uid);
        assert_eq!(rig.pool(uid), None);
    }
    rig.error("attempted");
    assert_eq!(rig.counts(), [0; 4]);
    assert_eq!(rig.queue.refusals().count(), 0);
    assert_eq!(rig.queue.deadline(), None);
    rig.happen(Event::WILDCARD);
    assert_eq!(rig.pop(), None);
}

#[test]
fn attempts_and_the_time_of_the_first_are_counted() {
    let mut rig = Rig::new();
    rig.add("a");
    rig.pass(3.0);
    let first = rig.attempt().unwrap();
    assert_eq!((first.attempts, first.first_attempt), (1, rig.start));
    rig.fail("a", &["Queues"], &[]);
    rig.run(300.0);
    rig.update("a", json!({"metadata": {"generation": 1}}));
    let second = rig.attempt().unwrap();
    assert_eq!((second.attempts, second.first_attempt), (2, rig.start));
    rig.done("a");
    assert_eq!(rig.counts(), [0; 4]);
}
