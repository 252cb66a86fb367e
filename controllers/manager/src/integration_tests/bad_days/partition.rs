//! Controllers that are cut off from the API server for a minute, while others change objects.

use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use super::world::World;
use super::{Failure, Fault, most};

const PARTITION: Range<u64> = 10..70;
/// Time after which all is done: that of the longest pause after a minute of failures.
const AFTER: u64 = 100;
/// Equal requests of controllers in that minute.
const EQUAL: usize = 60;

#[tokio::test(start_paused = true)]
async fn after_a_partition_caches_come_to_the_truth_and_nothing_wrong_was_done() {
    let watches = |failure| Fault { verbs: &["watch"], ..Fault::of(failure, PARTITION) };
    for (name, fault) in [
        ("requests hang", Fault::of(Failure::Silence, PARTITION)),
        ("requests fail", Fault::of(Failure::Broken, PARTITION)),
        ("requests arrive late", Fault::of(Failure::Late, PARTITION)),
        // Writes arrive meanwhile, and the caches show nothing of them.
        ("watches are silent", watches(Failure::Silence)),
        ("watches are late", watches(Failure::Late)),
        // The Job is seen, and its pods are not.
        ("watches of pods are silent", Fault { resources: &["pods"], ..watches(Failure::Silence) }),
    ] {
        let world = World::begin(&[fault], false).await;
        let since = Instant::now();
        world.line.until(PARTITION.start + 2).await;
        world.change().await;
        world.line.until(PARTITION.end).await;
        let most = most(&world.line.asked(PARTITION));
        assert!(
            most.first().is_none_or(|(count, _)| *count <= EQUAL),
            "{name}: {:?}",
            &most[..most.len().min(8)]
        );
        tokio::time::sleep(Duration::from_secs(AFTER)).await;
        assert_eq!((world.unfinished(), world.wrongs(since)), (vec![], vec![]), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_whose_answers_are_lost_end_in_the_truth() {
    let writes = &["create", "update", "patch", "delete", "deletecollection"];
    let world =
        World::begin(&[Fault { verbs: writes, ..Fault::of(Failure::AnswerLost, PARTITION) }], false).await;
    world.line.until(PARTITION.start + 2).await;
    world.change().await;
    world.line.until(PARTITION.end + AFTER).await;
    assert_eq!(world.unfinished(), Vec::<String>::new());
    // Pods whose names the server chooses may be there once more for a moment; sizes are known.
    assert_eq!(world.oversized(), Vec::<String>::new());
    assert_eq!(world.lost_nodes(), Vec::<String>::new());
}
