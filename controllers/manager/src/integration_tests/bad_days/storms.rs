//! An API server that is overloaded for a minute: nobody asks in a hot loop, nothing wrong is done, and everything is
//! finished soon after.

use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use super::world::World;
use super::{Failure, Fault, most};

/// The minute.
const STORM: Range<u64> = 10..70;
/// Equal requests of controllers in that minute: some kinds are watched for three of them, and `Retry-After` is a second.
const EQUAL: usize = 120;
/// Requests of controllers in that minute: 14 controllers, about 60 lists and watches, and 30 objects.
const ALL: usize = 4500;
/// Time after which all is done: that of the longest pause after a minute of failures.
const AFTER: u64 = 100;

/// Lets others change things during the storm; checks what was done in it and after it.
async fn weather(name: &str, faults: &[Fault], retries: bool) {
    let world = World::begin(faults, retries).await;
    let since = Instant::now();
    world.line.until(STORM.start + 2).await;
    world.change().await;
    world.line.until(STORM.end).await;
    let asked = world.line.asked(STORM);
    let most = most(&asked);
    assert!(most[0].0 <= EQUAL, "{name}: {:?}", &most[..most.len().min(8)]);
    assert!(asked.len() <= ALL, "{name}: {} requests, {:?}", asked.len(), &most[..most.len().min(30)]);
    tokio::time::sleep(Duration::from_secs(AFTER)).await;
    assert_eq!((world.unfinished(), world.wrongs(since)), (vec![], vec![]), "{name}");
}

const WRITES: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
const READS: &[&str] = &["list", "watch"];
const INTERNAL: Failure = Failure::Refused(500, "InternalError", "etcdserver: request timed out");

#[tokio::test(start_paused = true)]
async fn an_api_that_answers_429_is_asked_rarely_and_all_is_done_afterwards() {
    for (name, failure, verbs, retries) in [
        ("kubeconfig, Retry-After", Failure::Busy(Some(1)), &[][..], true),
        ("kubeconfig, without", Failure::Busy(None), &[][..], true),
        ("in process, Retry-After", Failure::Busy(Some(1)), &[][..], false),
        ("writes", Failure::Busy(None), WRITES, true),
        ("lists and watches", Failure::Busy(Some(5)), READS, false),
    ] {
        let fault = Fault { verbs, ..Fault::of(failure, STORM) };
        // The storm begins with the end of all connections.
        let cut = Fault { verbs: &["watch"], ..Fault::of(Failure::Broken, STORM.start..STORM.start + 1) };
        weather(name, &[cut, fault], retries).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_that_answers_500_is_asked_rarely_and_all_is_done_afterwards() {
    for (name, verbs, one_of) in [
        ("all", &[][..], 1),
        ("every second", &[][..], 2),
        ("writes", WRITES, 1),
        ("lists and watches", READS, 1),
    ] {
        let fault = Fault { verbs, one_of, ..Fault::of(INTERNAL, STORM) };
        let cut = Fault { verbs: &["watch"], ..Fault::of(Failure::Broken, STORM.start..STORM.start + 1) };
        weather(name, &[cut, fault], false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_or_have_expired_are_not_repeated_in_a_hot_loop() {
    let expired = Failure::Refused(410, "Expired", "too old resource version");
    for (name, failure) in [("ended", Failure::Ended), ("expired", expired)] {
        let cut = Fault { verbs: &["watch"], ..Fault::of(Failure::Broken, STORM.start..STORM.start + 1) };
        let fault = Fault { verbs: &["watch"], ..Fault::of(failure, STORM) };
        weather(name, &[cut, fault], false).await;
    }
}
