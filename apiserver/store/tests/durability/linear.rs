//! Clients that concurrently compare and swap, read and list while the store crashes and restarts and the
//! disk hangs, fails or fills up. One order of writes must explain everything that they saw, and a watch that
//! continues after each restart must have seen every revision once and in order.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use apiserver_store::disk::{Faults, SimDisk};
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{KeyValue, Notice, Op, Range, Store, StoreError, Write, Written};
use bytes::Bytes;
use futures::StreamExt;
use tokio::task::LocalSet;

use crate::durability::history::{Action, History, Listing, Operation, Outcome, Version};
use crate::durability::support::{Random, on_one_thread, open};
use crate::seeded;

const LIVES: u64 = 300;
const ROUNDS: u64 = 4;
const CLIENTS: u64 = 5;
const OPERATIONS: u64 = 40;
const KEYS: u64 = 4;

/// Returns options without compaction, so that the watch can be compared with the whole history.
fn options() -> Options {
    Options { segment_bytes: 8_192, checkpoint_bytes: 16_384, ..Options::default() }
}

#[test]
fn client_histories_are_linearizable_through_faults_and_restarts() {
    let mut tally = (0, 0, 0);
    for seed in seeded::seeds(LIVES) {
        let history = std::panic::catch_unwind(|| on_one_thread(live(seed))).unwrap_or_else(|panic| {
            eprintln!("the same life again: LIFE_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
        if let Err(why) = history.check() {
            panic!("LIFE_SEED={seed}: {why}");
        }
        let unknown = |o: &&Operation| matches!(o.action, Action::Write { outcome: Outcome::Unknown, .. });
        let refused = |o: &&Operation| matches!(o.action, Action::Write { outcome: Outcome::Refused(_), .. });
        tally.0 += history.operations.len();
        tally.1 += history.operations.iter().filter(unknown).count();
        tally.2 += history.operations.iter().filter(refused).count();
    }
    // Otherwise the test is meaningless.
    if std::env::var("LIFE_SEED").is_err() {
        let lives = LIVES as usize;
        assert!(tally.0 > lives * 200 && tally.1 > lives && tally.2 > lives, "{tally:?}");
    }
}

/// State shared by the clients of all rounds.
#[derive(Default)]
struct Seen {
    clock: Cell<u64>,
    history: RefCell<History>,
    /// Newest revision that the watch delivered.
    watched: Cell<i64>,
}

impl Seen {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn operation(&self, key: &str, called: u64, action: Action) {
        let returned = self.tick();
        self.history.borrow_mut().operations.push(Operation {
            key: key.to_owned(),
            called,
            returned,
            action,
        });
    }
}

async fn live(seed: u64) -> History {
    let mut random = Random::new(seed + 1);
    let disk = SimDisk::new(seed).with_sync_time(Duration::from_micros(100));
    let seen = Rc::new(Seen { watched: Cell::new(1), ..Seen::default() });
    for round in 0..ROUNDS {
        let Ok(store) = open(&disk, options()).await else {
            disk.crash();
            tokio::time::sleep(Duration::from_secs(1)).await;
            disk.restart();
            continue;
        };
        assert!(store.revision().await.unwrap() >= seen.watched.get(), "the revision went back");
        plan(&disk, &mut random);
        LocalSet::new().run_until(work(&store, &disk, &seen, seed * ROUNDS + round)).await;
        drop(store);
        // The power fails, or only the process is killed.
        if random.below(3) > 0 {
            disk.crash();
            tokio::time::sleep(Duration::from_secs(1)).await;
            disk.restart();
        } else {
            disk.kill_process();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        disk.set_faults(Faults::default());
    }
    let store = open(&disk, options()).await.unwrap();
    let newest = store.revision().await.unwrap();
    let local = LocalSet::new();
    local.run_until(follow(store.clone(), Rc::clone(&seen), newest)).await;
    let mut history = seen.history.take();
    history.gapless_after = Some(1);
    let page = store.list(Range::default()).await.unwrap();
    let (called, returned) = (seen.tick(), seen.tick());
    history.listings.push(Listing { called, returned, revision: page.revision, found: versions(page.kvs) });
    history
}

/// Plans the failures of a round.
fn plan(disk: &SimDisk, random: &mut Random) {
    let at = disk.operations() + 1 + random.below(200);
    let none = Faults::default();
    disk.set_faults(match random.below(5) {
        0 => Faults { crash_at: Some(at), ..none },
        1 => Faults { fail_at: Some(at), ..none },
        2 => Faults { fail_sync: Some(disk.syncs() + 1 + random.below(80)), ..none },
        3 => Faults { capacity: Some(24_000 + random.below(40_000)), ..none },
        _ => none,
    });
}

async fn work(store: &Embedded, disk: &SimDisk, seen: &Rc<Seen>, seed: u64) {
    let watching = tokio::task::spawn_local(follow(store.clone(), Rc::clone(seen), i64::MAX));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (store, disk, seen) = (store.clone(), disk.clone(), Rc::clone(seen));
            tokio::task::spawn_local(async move {
                let mut random = Random::new(seed * CLIENTS + client + 1);
                for number in 0..OPERATIONS {
                    if random.below(60) == 0 {
                        disk.pause(Duration::from_secs(3));
                    }
                    let unique = format!("{seed}-{client}-{number}");
                    if one(&store, &seen, &mut random, &unique).await.is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    watching.abort();
    if let Err(ended) = watching.await
        && ended.is_panic()
    {
        std::panic::resume_unwind(ended.into_panic());
    }
}

/// Performs one operation; an error means that the store has stopped.
async fn one(store: &Embedded, seen: &Seen, random: &mut Random, unique: &str) -> Result<(), StoreError> {
    let key = format!("/registry/{}", random.below(KEYS));
    let called = seen.tick();
    if random.below(10) == 0 {
        let page = store.list(Range::default()).await?;
        let listing =
            Listing { called, returned: seen.tick(), revision: page.revision, found: versions(page.kvs) };
        seen.history.borrow_mut().listings.push(listing);
        return Ok(());
    }
    let got = store.get(&key).await?;
    let expected = got.kv.as_ref().map_or(0, |kv| kv.mod_revision);
    seen.operation(&key, called, Action::Read { found: got.kv.map(version), revision: Some(got.revision) });
    tokio::time::sleep(Duration::from_micros(random.below(400))).await;
    let value = match random.below(4) {
        0 if expected != 0 => None,
        1 => Some(format!("{unique}{}", "x".repeat(random.below(2_000) as usize))),
        _ => Some(unique.to_owned()),
    };
    let op = match &value {
        Some(value) => Op::Put { value: Bytes::from(value.clone()), ttl_seconds: 0 },
        None => Op::Delete,
    };
    let called = seen.tick();
    let written = store.write(Write { key: key.clone(), expected, op }).await;
    let (outcome, stopped) = match written {
        Ok(Written::Done { revision }) => (Outcome::Done(Some(revision)), None),
        Ok(Written::Conflict { current, .. }) => (Outcome::Refused(Some(current.map(version))), None),
        // The disk is full: nothing happened, and the store continues.
        Err(StoreError::Unavailable { .. }) => (Outcome::Unknown, None),
        Err(error) => (Outcome::Unknown, Some(error)),
    };
    seen.operation(&key, called, Action::Write { expected, value, outcome });
    stopped.map_or(Ok(()), Err)
}

/// Watches from where the previous round ended up to `until`.
async fn follow(store: Embedded, seen: Rc<Seen>, until: i64) {
    let Ok(mut watch) = store.watch("", seen.watched.get() + 1).await else { return };
    while seen.watched.get() < until {
        let Some(Ok(notice)) = watch.next().await else { return };
        let Notice::Events(events) = notice else { continue };
        for event in events {
            assert_eq!(
                event.revision,
                seen.watched.get() + 1,
                "a watch left out a revision, or had one twice"
            );
            seen.watched.set(event.revision);
            let value = event.value.map(text);
            seen.history.borrow_mut().events.insert(event.revision, (event.key, value));
        }
    }
}

fn text(bytes: Bytes) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn version(kv: KeyValue) -> Version {
    (text(kv.value), kv.mod_revision)
}

fn versions(kvs: Vec<KeyValue>) -> BTreeMap<String, Version> {
    kvs.into_iter().map(|kv| (kv.key.clone(), version(kv))).collect()
}
