//! Pauses after failures, and the end of the wait for events.

use super::super::backoff::pause;
use super::*;

#[test]
fn pauses_double_up_to_the_longest() {
    let config = |initial, max| QueueConfig {
        initial_backoff: Duration::from_nanos(initial),
        max_backoff: Duration::from_nanos(max),
        ..QueueConfig::default()
    };
    let longest = u64::from(u32::MAX);
    for (initial, max, failures, expected) in [
        (1, 32, 1, 1),
        (3, 1000, 5, 48),
        (1, 32, 6, 32),
        (1, 32, 16, 32),
        (1, longest, 33, longest),
        (1, u64::MAX, 65, u64::MAX),
        (1, u64::MAX, u32::MAX, u64::MAX),
    ] {
        let pause = pause(&config(initial, max), failures);
        assert_eq!(pause, Duration::from_nanos(expected), "{failures} failures from {initial} to {max}");
    }
}

/// Lets a pod fail `failures` times in a row, and returns after how many seconds an active pod would have been left alone.
fn paused(rig: &mut Rig, plugins: &[&'static str]) -> u64 {
    rig.fail("a", plugins, &[]);
    rig.happen(Event::WILDCARD);
    let from = rig.now;
    while rig.pool("a") == Some(Pool::Backoff) {
        let deadline = rig.queue.deadline().expect("a back-off ends");
        rig.now = deadline;
        rig.queue.flush(&rig.cluster, deadline);
    }
    assert_eq!(rig.pop().as_deref(), Some("a"));
    (rig.now - from).as_secs()
}

#[test]
fn the_back_off_grows_with_each_refusal_and_lasts_to_the_end_of_a_window() {
    let mut rig = Rig::new();
    rig.add("a");
    rig.pop();
    let pauses: Vec<u64> = (0..7).map(|_| paused(&mut rig, &["Queues"])).collect();
    assert_eq!(pauses, [2, 3, 5, 9, 11, 11, 11]);
}

#[test]
fn errors_are_counted_apart_from_refusals_and_from_the_last_one_on() {
    let mut rig = Rig::new();
    rig.add("a");
    rig.pop();
    assert_eq!(paused(&mut rig, &["Queues"]), 2);
    assert_eq!(paused(&mut rig, &["Queues"]), 3);
    assert_eq!(paused(&mut rig, &[]), 2, "the first error");
    assert_eq!(paused(&mut rig, &[]), 3, "the second");
    assert_eq!(paused(&mut rig, &["Queues"]), 5, "the third refusal");
    assert_eq!(paused(&mut rig, &[]), 2, "errors are counted anew");
}

#[test]
fn an_attempt_that_failed_by_an_error_is_repeated_whatever_plugins_were_named() {
    let mut rig = Rig::new();
    rig.add("a");
    let pod = rig.attempt().unwrap().pod;
    let failure = Failure { plugins: ["Skips"].into(), is_error: true, ..Failure::default() };
    rig.queue.failed(&pod, failure, &rig.cluster, rig.now);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff));
    assert_eq!(rig.pop(), None);
    rig.run(2.0);
    assert_eq!(rig.pop().as_deref(), Some("a"));
}

#[test]
fn without_a_longest_pause_there_is_none() {
    let config = QueueConfig { max_backoff: Duration::ZERO, ..QueueConfig::default() };
    let mut rig = Rig::configured(config, USUAL, &[]);
    rig.refused("refused", &["Queues"], &[]);
    rig.happen(NODE_ADD);
    assert_eq!(rig.pool("refused"), Some(Pool::Active));
    assert_eq!(rig.pop().as_deref(), Some("refused"));
    rig.refused("broken", &[], &[]);
    assert_eq!(rig.pool("broken"), Some(Pool::Active));
}

#[test]
fn settings_of_the_back_off_are_used() {
    let (initial_backoff, max_backoff) = (Duration::from_secs(2), Duration::from_secs(20));
    let config = QueueConfig { initial_backoff, max_backoff, ..QueueConfig::default() };
    let mut rig = Rig::configured(config, USUAL, &[]);
    rig.add("a");
    rig.pop();
    let pauses: Vec<u64> = (0..5).map(|_| paused(&mut rig, &["Queues"])).collect();
    assert_eq!(pauses, [3, 5, 9, 17, 21]);
}

#[test]
fn pods_leave_back_off_when_their_time_has_come_and_others_stay() {
    for (failed, expected) in [
        (&[][..], &[][..]),
        (&["refused-early", "refused-late"], &["refused-early"]),
        (&["broken-early", "broken-late"], &["broken-early"]),
        (
            &["refused-early", "broken-early", "refused-late", "broken-late"],
            &["refused-early", "broken-early"],
        ),
        (&["refused-early", "broken-early"], &["refused-early", "broken-early"]),
        (&["refused-late", "broken-late"], &[]),
    ] {
        let mut rig = Rig::new();
        failed.iter().for_each(|uid| rig.add(uid));
        rig.pop_all();
        for (time, is_now) in [(0, "early"), (2500, "late")] {
            rig.now = rig.start + Duration::from_millis(time);
            for uid in failed.iter().filter(|uid| uid.ends_with(is_now)) {
                let plugins: &[_] = if uid.starts_with("refused") { &["Queues"] } else { &[] };
                rig.fail(uid, plugins, &[]);
            }
            rig.happen(NODE_ADD);
        }
        rig.now = rig.start + Duration::from_secs(3);
        rig.queue.flush(&rig.cluster, rig.now);
        let mut left = failed.to_vec();
        left.retain(|uid| rig.pool(uid) == Some(Pool::Active));
        assert_eq!(left, expected, "{failed:?}");
    }
}

#[test]
fn pods_whose_back_off_ends_in_the_same_window_are_ordered_by_priority() {
    let mut rig = Rig::new();
    let millis = |rig: &Rig, millis| rig.start + Duration::from_millis(millis);
    // Windows begin with the first pod.
    for (uid, priority, failed_at) in
        [("first", 1, 100), ("third", 1, 1000), ("second", 2, 1001), ("too-late", 2, 2000)]
    {
        rig.now = rig.start;
        rig.add_with_priority(uid, priority);
        rig.pop();
        rig.now = millis(&rig, failed_at);
        rig.fail(uid, &["Queues"], &[]);
    }
    rig.now = millis(&rig, 2000);
    rig.happen(NODE_ADD);
    assert_eq!(rig.counts(), [1, 3, 0, 0], "the back-off of the first has ended meanwhile");
    assert_eq!(rig.pop_all(), ["first", "second", "third", "too-late"]);
}

#[test]
fn unschedulable_pods_are_tried_again_after_the_longest_wait() {
    for max_parked in [300, 30] {
        let config = QueueConfig { max_parked: Duration::from_secs(max_parked), ..QueueConfig::default() };
        let mut rig = Rig::configured(config, USUAL, &["Volumes"]);
        rig.add("gated");
        rig.allow("Volumes", &["free"]);
        for (uid, priority) in [("high", 2), ("low", 1)] {
            rig.add_pod(uid, json!({"metadata": {"labels": {"free": ""}}, "spec": {"priority": priority}}));
            rig.pop();
        }
        rig.fail("low", &["Deaf"], &[]);
        rig.fail("high", &["Skips"], &[]);
        rig.run(max_parked as f64 - 0.5);
        assert_eq!(rig.counts(), [0, 0, 2, 1]);
        rig.run(0.5);
        assert_eq!(rig.counts(), [2, 0, 0, 1], "gated pods go on waiting");
        assert_eq!(rig.pop_all(), ["high", "low"]);
    }
}

#[test]
fn an_attempt_after_the_longest_wait_is_marked() {
    let mut rig = Rig::new();
    rig.add("a");
    assert!(!rig.attempt().unwrap().was_flushed);
    rig.fail("a", &["Deaf"], &[]);
    rig.run(300.0);
    assert!(rig.attempt().unwrap().was_flushed);
    rig.fail("a", &["Queues"], &[]);
    rig.pass(20.0);
    rig.happen(NODE_ADD);
    assert!(!rig.attempt().unwrap().was_flushed);
}

#[test]
fn a_wait_that_is_shorter_than_the_back_off_ends_in_back_off() {
    let config = QueueConfig {
        initial_backoff: Duration::from_secs(20),
        max_backoff: Duration::from_secs(20),
        max_parked: Duration::from_secs(5),
        ..QueueConfig::default()
    };
    let mut rig = Rig::configured(config, USUAL, &[]);
    rig.refused("a", &["Deaf"], &[]);
    rig.run(5.0);
    assert_eq!(rig.pool("a"), Some(Pool::Backoff));
    rig.run(16.0);
    assert_eq!(rig.pool("a"), Some(Pool::Active));
}
