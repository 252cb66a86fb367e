//! A store that has reached its quota.

use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::limits::KEY_OVERHEAD;
use apiserver_store::{Op, Range, Store, StoreError, Write, Written};

use crate::durability::support::{open, put};

const QUOTA: u64 = 100_000;

fn options() -> Options {
    Options { quota_bytes: QUOTA, vital: vec!["/vital/".to_owned()], ..Options::default() }
}

async fn is_refused(store: &Embedded, key: &str, bytes: usize) -> bool {
    match put(store, key, vec![b'v'; bytes]).await {
        Ok(_) => false,
        Err(StoreError::NoSpace { used, quota, .. }) => {
            assert!(used <= QUOTA * 17 / 16 && quota == QUOTA, "{used} {quota}");
            true
        }
        Err(other) => panic!("{other}"),
    }
}

async fn delete(store: &Embedded, key: &str) {
    let kv = store.get(key).await.unwrap().kv.unwrap();
    let write = Write { key: key.to_owned(), expected: kv.mod_revision, op: Op::Delete };
    assert!(matches!(store.write(write).await.unwrap(), Written::Done { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_full_store_allows_reads_and_deletions_and_then_writes_again() {
    let disk = SimDisk::new(3);
    let store = open(&disk, options()).await.unwrap();
    let mut keys = 0;
    while !is_refused(&store, &format!("/k{keys}"), 10_000).await {
        keys += 1;
    }
    assert_eq!(keys, 9);
    let used = store.stats().used;
    assert_eq!(used, keys * (10_000 + KEY_OVERHEAD as u64 + 3));
    let mut watch = store.watch("/k", 0).await.unwrap();
    // Refusals leave no trace.
    assert_eq!(store.revision().await.unwrap(), 1 + keys as i64);
    assert_eq!(store.list(Range::default()).await.unwrap().kvs.len(), 9);
    let full = async |store: &Embedded| {
        assert_eq!(store.stats().used, used);
        assert!(is_refused(store, "/new", 10_000).await);
        assert!(!is_refused(store, "/k0", 10_000).await, "it does not grow");
        assert!(is_refused(store, "/k0", 19_000).await, "it grows");
    };
    full(&store).await;
    assert!(futures::StreamExt::next(&mut watch).await.unwrap().is_ok());
    store.close().await.unwrap();
    let store = open(&disk, options()).await.unwrap();
    full(&store).await;
    delete(&store, "/k0").await;
    assert!(!is_refused(&store, "/new", 10_000).await, "there is room without anybody's compaction");
    assert!(is_refused(&store, "/newer", 10_000).await);
}

#[tokio::test(start_paused = true)]
async fn vital_keys_and_deletion_marks_fit_into_a_full_store() {
    let store = open(&SimDisk::new(3), options()).await.unwrap();
    let mut keys = 0;
    while !is_refused(&store, &format!("/k{keys}"), 5_000).await {
        keys += 1;
    }
    assert!(!is_refused(&store, "/vital/lease", 300).await);
    assert!(!is_refused(&store, "/vital/lease", 400).await);
    assert!(!is_refused(&store, "/k0", 5_100).await, "such as a time of deletion");
    // The reserve cannot be filled by small steps.
    let mut length = 5_000;
    while length < 20_000 && !is_refused(&store, "/k1", length).await {
        length += 1_000;
    }
    assert!(length < 20_000);
    assert!(!is_refused(&store, "/vital/lease", 500).await);
}

#[tokio::test(start_paused = true)]
async fn only_the_current_state_counts_towards_the_quota() {
    let disk = SimDisk::new(3);
    let small = Options { segment_bytes: 4_096, checkpoint_bytes: 8_192, history_revisions: 20, ..options() };
    let store = open(&disk, small.clone()).await.unwrap();
    for round in 0..300_usize {
        let key = format!("/{}", round % 7);
        if round % 5 == 4 && store.get(&key).await.unwrap().kv.is_some() {
            delete(&store, &key).await;
        } else {
            put(&store, &key, vec![b'v'; round * 37 % 900]).await.unwrap();
        }
        if round % 50 == 49 {
            let _ = store.checkpoint().await;
        }
    }
    let expected = |kvs: &[apiserver_store::KeyValue]| {
        kvs.iter().map(|kv| (KEY_OVERHEAD + kv.key.len() + kv.value.len()) as u64).sum::<u64>()
    };
    let kvs = store.list(Range::default()).await.unwrap().kvs;
    assert_eq!(store.stats().used, expected(&kvs));
    store.close().await.unwrap();
    let store = open(&disk, small).await.unwrap();
    assert_eq!(store.stats().used, expected(&kvs));
}
