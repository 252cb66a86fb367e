//! A thousand lives of a store, each of which loses power several times at any disk operation, including
//! recovery; often another failure precedes it: of an operation, of a sync, or a full disk. The seed of a
//! failure is printed; run it alone with `LIFE_SEED`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_store::disk::{Faults, SimDisk};
use apiserver_store::embedded::Embedded;
use apiserver_store::{Op, Range, Revision, Store, StoreError, Write, Written};
use bytes::Bytes;

use crate::durability::support::{Random, history, on_one_thread, open, small};

const SEEDS: u64 = 1_000;
const ROUNDS: u64 = 4;
const WRITERS: u64 = 4;
const KEYS: u64 = 6;

/// State that the writers share.
#[derive(Default)]
struct Known {
    /// Everything that was ever submitted.
    submitted: BTreeSet<(String, Option<Bytes>)>,
    /// Acknowledged writes, by revision.
    acknowledged: BTreeMap<Revision, (String, Option<Bytes>)>,
    /// Newest revision that any client has seen.
    newest: Revision,
}

#[test]
fn acknowledged_writes_survive_a_thousand_crashes() {
    let all = crate::seeded::seeds(SEEDS);
    if all.clone().count() == 1 {
        one_life(all.start);
        return;
    }
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let all = all.clone();
            std::thread::spawn(move || {
                let seeds = all.filter(|seed| seed % 2 == thread);
                seeds.map(one_life).fold(Tally::default(), Tally::plus)
            })
        })
        .collect();
    let tally = threads.into_iter().map(|thread| thread.join().unwrap()).fold(Tally::default(), Tally::plus);
    // The test is only meaningful if crashes hit all phases.
    assert!(tally.crashes_while_writing > SEEDS, "{tally:?}");
    assert!(tally.other_failures > SEEDS / 10, "{tally:?}");
    assert!(tally.crashes_while_opening > SEEDS / 10, "{tally:?}");
    assert!(tally.acknowledged > 10 * SEEDS, "{tally:?}");
    assert!(tally.unacknowledged_but_kept > SEEDS / 10, "{tally:?}");
}

#[test]
fn the_same_seed_gives_the_same_life() {
    for seed in 0..20 {
        assert_eq!(one_life(seed), one_life(seed));
    }
}

/// Counts of what happened, to check that the test is meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    crashes_while_writing: u64,
    crashes_while_opening: u64,
    /// Lives that ended, or did not begin, without a power failure.
    other_failures: u64,
    acknowledged: u64,
    unacknowledged_but_kept: u64,
    newest: Revision,
}

impl Tally {
    fn plus(self, other: Self) -> Self {
        Self {
            crashes_while_writing: self.crashes_while_writing + other.crashes_while_writing,
            crashes_while_opening: self.crashes_while_opening + other.crashes_while_opening,
            other_failures: self.other_failures + other.other_failures,
            acknowledged: self.acknowledged + other.acknowledged,
            unacknowledged_but_kept: self.unacknowledged_but_kept + other.unacknowledged_but_kept,
            newest: self.newest + other.newest,
        }
    }
}

fn one_life(seed: u64) -> Tally {
    let result = std::panic::catch_unwind(|| on_one_thread(live(seed)));
    result.unwrap_or_else(|panic| {
        eprintln!("the same life again: LIFE_SEED={seed}");
        std::panic::resume_unwind(panic)
    })
}

async fn live(seed: u64) -> Tally {
    let mut random = Random::new(seed + 1);
    let disk = SimDisk::new(seed).with_sync_time(Duration::from_micros(100));
    let known = Arc::new(Mutex::new(Known::default()));
    let mut tally = Tally::default();
    for round in 0..ROUNDS {
        let faults = plan(&disk, &mut random);
        disk.set_faults(faults.clone());
        match open(&disk, small()).await {
            Ok(store) => {
                verify(&store, &known, &mut tally).await;
                work(&store, &known, seed * ROUNDS + round).await;
                tally.crashes_while_writing += u64::from(disk.crashed());
                tally.other_failures += u64::from(!disk.crashed() && store.revision().await.is_err());
            }
            Err(_) if disk.crashed() => tally.crashes_while_opening += 1,
            Err(error) => {
                let planned = faults.fail_at.or(faults.fail_sync).or(faults.capacity);
                assert!(planned.is_some(), "{error:?}");
                tally.other_failures += 1;
            }
        }
        // Let the committer of this life notice that it is no longer needed.
        disk.crash();
        tokio::time::sleep(Duration::from_secs(1)).await;
        disk.restart();
        disk.set_faults(Faults::default());
    }
    let store = open(&disk, small()).await.unwrap();
    verify(&store, &known, &mut tally).await;
    let known = known.lock().unwrap();
    tally.acknowledged = known.acknowledged.len() as u64;
    tally.newest = known.newest;
    tally
}

/// Plans a power failure, and in every second round another failure, mostly before it.
fn plan(disk: &SimDisk, random: &mut Random) -> Faults {
    let crash_at = Some(disk.operations() + 1 + random.below(150));
    let none = Faults { crash_at, ..Faults::default() };
    let at = disk.operations() + 1 + random.below(80);
    match random.below(6) {
        0 => Faults { fail_at: Some(at), ..none },
        1 => Faults { fail_sync: Some(disk.syncs() + 1 + random.below(40)), ..none },
        2 => Faults { capacity: Some(8_000 + random.below(40_000)), ..none },
        _ => none,
    }
}

/// Runs several concurrent writers until they are done or the disk is gone.
async fn work(store: &Embedded, known: &Arc<Mutex<Known>>, seed: u64) {
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (store, known) = (store.clone(), Arc::clone(known));
            tokio::spawn(async move {
                let mut random = Random::new(seed * WRITERS + writer + 1);
                for number in 0..60 {
                    let unique = format!("{seed}-{writer}-{number}");
                    match one_operation(&store, &known, &mut random, &unique).await {
                        // The disk is full: nothing happened, and the store continues.
                        Ok(()) | Err(StoreError::Unavailable { .. }) => {}
                        Err(StoreError::Broken { .. }) => return,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

async fn one_operation(
    store: &Embedded,
    known: &Mutex<Known>,
    random: &mut Random,
    unique: &str,
) -> Result<(), StoreError> {
    let key = format!("/registry/{}", random.below(KEYS));
    let got = store.get(&key).await?;
    {
        let mut known = known.lock().unwrap();
        known.newest = known.newest.max(got.revision);
    }
    let expected = got.kv.map_or(0, |kv| kv.mod_revision);
    let value = match random.below(12) {
        0 if got.revision > 10 => {
            return match store.compact(got.revision - random.below(8) as i64).await {
                Err(StoreError::Compacted { .. }) => Ok(()),
                result => result,
            };
        }
        1..=3 if expected != 0 => None,
        // Some values span several sectors, so that a crash tears them.
        4 => Some(Bytes::from(format!("{unique}{}", "x".repeat(random.below(3_000) as usize)))),
        _ => Some(Bytes::from(unique.to_owned())),
    };
    known.lock().unwrap().submitted.insert((key.clone(), value.clone()));
    let op = match &value {
        Some(value) => Op::Put { value: value.clone(), ttl_seconds: 0 },
        None => Op::Delete,
    };
    if let Written::Done { revision } = store.write(Write { key: key.clone(), expected, op }).await? {
        let mut known = known.lock().unwrap();
        known.newest = known.newest.max(revision);
        // Deleting a key that another writer deleted changes nothing and has no revision.
        let replaced = known.acknowledged.insert(revision, (key, value));
        assert_eq!(replaced, None, "revision {revision} was given twice");
    }
    Ok(())
}

/// Checks that recovery restored all acknowledged writes, and otherwise only complete ones.
async fn verify(store: &Embedded, known: &Mutex<Known>, tally: &mut Tally) {
    let stats = store.stats();
    let events = history(store).await;
    let mut state = content(store, stats.compacted).await;
    let present = content(store, 0).await;
    let mut known = known.lock().unwrap();
    assert!(stats.revision >= known.newest, "revision {} was seen, now {}", known.newest, stats.revision);
    for (event, revision) in events.iter().zip(stats.compacted.max(1) + 1..) {
        assert_eq!(event.revision, revision);
        let change = (event.key.clone(), event.value.clone());
        assert!(known.submitted.contains(&change), "nobody wrote {change:?}");
        match known.acknowledged.get(&revision) {
            Some(acknowledged) => assert_eq!(*acknowledged, change, "revision {revision}"),
            None => {
                tally.unacknowledged_but_kept += 1;
                known.acknowledged.insert(revision, change);
            }
        }
        let before = match &event.value {
            Some(value) => state.insert(event.key.clone(), value.clone()),
            None => state.remove(&event.key),
        };
        if event.previous.is_some() || before.is_none() {
            assert_eq!(event.previous, before, "revision {revision}");
        }
    }
    assert_eq!(state, present);
    let mut newest = BTreeMap::new();
    for (revision, (key, value)) in &known.acknowledged {
        newest.insert(key.clone(), (*revision, value.clone()));
    }
    for (key, (revision, value)) in newest {
        assert_eq!(present.get(&key), value.as_ref(), "{key}, last written at {revision}");
    }
    known.newest = known.newest.max(stats.revision);
}

async fn content(store: &Embedded, revision: Revision) -> BTreeMap<String, Bytes> {
    let page = store.list(Range { revision, ..Range::default() }).await.unwrap();
    page.kvs.into_iter().map(|kv| (kv.key, kv.value)).collect()
}
