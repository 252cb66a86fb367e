//! The embedded store compared with a simple model: one map per revision.

use std::collections::BTreeMap;
use std::time::Duration;

use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::Embedded;
use apiserver_store::{KeyValue, Op, Range, Revision, Store, StoreError, Write, Written};
use bytes::Bytes;
use proptest::prelude::*;

use crate::durability::support::{history, on_one_thread, open, small};

#[derive(Clone, Debug)]
enum Step {
    /// A compare-and-swap; `behind` is subtracted from the correct mod revision.
    Put {
        key: u8,
        size: u16,
        behind: u8,
    },
    Delete {
        key: u8,
        behind: u8,
    },
    List {
        prefix: u8,
        after: u8,
        limit: u8,
        back: u8,
    },
    Compact {
        back: u8,
    },
    Checkpoint,
    Close,
    Kill,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let behind = || prop_oneof![6 => Just(0u8), 1 => 1..4u8];
    let step = prop_oneof![
        12 => (0..12u8, 0..600u16, behind()).prop_map(|(key, size, behind)| Step::Put { key, size, behind }),
        5 => (0..12u8, behind()).prop_map(|(key, behind)| Step::Delete { key, behind }),
        8 => (0..4u8, 0..14u8, 0..6u8, 0..30u8)
            .prop_map(|(prefix, after, limit, back)| Step::List { prefix, after, limit, back }),
        2 => (0..12u8).prop_map(|back| Step::Compact { back }),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Close),
        1 => Just(Step::Kill),
    ];
    prop::collection::vec(step, 1..120)
}

/// Returns a key of one of three groups, of which one is a prefix of another.
fn key_of(number: u8) -> String {
    format!("{}{}", ["/a/", "/a", "/b/"][usize::from(number % 3)], number)
}

#[derive(Default)]
struct Model {
    /// State after each revision, from 1 on.
    states: BTreeMap<Revision, BTreeMap<String, KeyValue>>,
    changes: BTreeMap<Revision, (String, Option<Bytes>)>,
    revision: Revision,
    compacted: Revision,
}

impl Model {
    fn new() -> Self {
        Self { states: BTreeMap::from([(1, BTreeMap::new())]), revision: 1, ..Self::default() }
    }

    fn now(&self) -> &BTreeMap<String, KeyValue> {
        &self.states[&self.revision]
    }

    fn write(&mut self, write: &Write) -> Written {
        let current = self.now().get(&write.key).cloned();
        let revision = self.revision;
        if current.as_ref().map_or(0, |kv| kv.mod_revision) != write.expected {
            return Written::Conflict { current, revision };
        }
        let mut state = self.now().clone();
        let value = match &write.op {
            Op::Put { value, .. } => {
                let create_revision = current.map_or(revision + 1, |kv| kv.create_revision);
                let kv = KeyValue {
                    key: write.key.clone(),
                    value: value.clone(),
                    create_revision,
                    mod_revision: revision + 1,
                };
                state.insert(write.key.clone(), kv);
                Some(value.clone())
            }
            Op::Delete if current.is_none() => return Written::Done { revision },
            Op::Delete => {
                state.remove(&write.key);
                None
            }
        };
        self.revision += 1;
        self.states.insert(self.revision, state);
        self.changes.insert(self.revision, (write.key.clone(), value));
        Written::Done { revision: self.revision }
    }

    /// Returns the keys of a page and whether more remain.
    fn list(&self, range: &Range) -> (Vec<KeyValue>, bool) {
        let revision = if range.revision == 0 { self.revision } else { range.revision };
        let mut kvs: Vec<KeyValue> = self.states[&revision]
            .values()
            .filter(|kv| {
                kv.key.starts_with(&range.prefix) && (range.after.is_empty() || kv.key > range.after)
            })
            .cloned()
            .collect();
        let limit = if range.limit == 0 { kvs.len() } else { range.limit.min(kvs.len()) };
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        (kvs, more)
    }
}

proptest! {
    #![proptest_config(crate::seeded::config(300))]

    #[test]
    fn the_store_behaves_like_one_map_per_revision(steps in steps()) {
        on_one_thread(run(steps));
    }
}

async fn run(steps: Vec<Step>) {
    let disk = SimDisk::new(7);
    let mut store = open(&disk, small()).await.unwrap();
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Put { key, size, behind } => {
                let value = Bytes::from(vec![key; usize::from(size)]);
                write(&store, &mut model, key, behind, Op::Put { value, ttl_seconds: 0 }).await;
            }
            Step::Delete { key, behind } => write(&store, &mut model, key, behind, Op::Delete).await,
            Step::List { prefix, after, limit, back } => {
                let revision = if back == 0 { 0 } else { (model.revision - i64::from(back) + 1).max(1) };
                let prefix = ["", "/a", "/a/", "/b/"][usize::from(prefix)].to_owned();
                let after = if after < 12 { key_of(after) } else { String::new() };
                list(&store, &model, Range { prefix, after, limit: usize::from(limit), revision }).await;
            }
            Step::Compact { back } => compact(&store, &mut model, i64::from(back)).await,
            Step::Checkpoint => {
                store.checkpoint().await.unwrap();
            }
            Step::Close => {
                store.close().await.unwrap();
                store = open(&disk, small()).await.unwrap();
            }
            Step::Kill => {
                disk.kill_process();
                drop(store);
                tokio::time::sleep(Duration::from_millis(1)).await;
                store = open(&disk, small()).await.unwrap();
            }
        }
        // The store also compacts automatically; the model follows it.
        let compacted = store.stats().compacted;
        assert!(compacted >= model.compacted && compacted <= model.revision);
        model.compacted = compacted;
        assert_eq!(store.revision().await.unwrap(), model.revision);
        assert_eq!(store.stats().keys, model.now().len() as u64);
    }
    check_history(&store, &model).await;
}

async fn write(store: &Embedded, model: &mut Model, key: u8, behind: u8, op: Op) {
    let key = key_of(key);
    let right = model.now().get(&key).map_or(0, |kv| kv.mod_revision);
    let write = Write { key, expected: (right - i64::from(behind)).max(0), op };
    let expected = model.write(&write);
    match (store.write(write).await.unwrap(), expected) {
        (Written::Done { revision }, Written::Done { revision: expected }) => assert_eq!(revision, expected),
        (
            Written::Conflict { current, revision },
            Written::Conflict { current: expected, revision: expected_revision },
        ) => {
            assert_eq!((current, revision), (expected, expected_revision));
        }
        (written, expected) => panic!("{written:?}, expected {expected:?}"),
    }
}

async fn list(store: &Embedded, model: &Model, range: Range) {
    match store.list(range.clone()).await {
        Ok(page) => {
            let (kvs, more) = model.list(&range);
            assert_eq!((page.kvs, page.more), (kvs, more), "{range:?}");
        }
        Err(StoreError::Compacted { asked, oldest }) => {
            assert!(range.revision != 0 && asked == range.revision && asked < oldest);
            assert_eq!(oldest, model.compacted);
        }
        Err(error) => panic!("{error:?}"),
    }
}

async fn compact(store: &Embedded, model: &mut Model, back: i64) {
    let revision = model.revision - back;
    match store.compact(revision).await {
        Ok(()) => model.compacted = model.compacted.max(revision),
        Err(StoreError::Compacted { .. }) => assert!(revision <= model.compacted),
        Err(error) => panic!("{error:?}"),
    }
}

async fn check_history(store: &Embedded, model: &Model) {
    let events = history(store).await;
    let expected: Vec<_> = model.changes.range(model.compacted + 1..).collect();
    assert_eq!(events.len(), expected.len());
    for (event, (revision, (key, value))) in events.iter().zip(expected) {
        assert_eq!((event.revision, &event.key, &event.value), (*revision, key, value));
        let before = model.states[&(revision - 1)].get(key).map(|kv| kv.value.clone());
        assert_eq!(event.previous, before, "revision {revision}");
    }
}
