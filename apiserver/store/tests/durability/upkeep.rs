//! The log and the history do not grow without bounds, and times to live survive a restart.

use std::sync::Arc;
use std::time::Duration;

use apiserver_store::disk::{Disk, RealDisk, SimDisk};
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Op, Range, Store, Write};
use bytes::Bytes;

use crate::durability::support::{open, put, small};

fn size(disk: &dyn Disk) -> usize {
    disk.list().unwrap().iter().map(|name| disk.read(name).unwrap().len()).sum()
}

#[tokio::test(start_paused = true)]
async fn the_log_stays_small_without_manual_compaction() {
    let disk = SimDisk::new(5);
    let options = Options {
        segment_bytes: 32 << 10,
        checkpoint_bytes: 64 << 10,
        history_revisions: 100,
        history_bytes: 1 << 20,
        ..Options::default()
    };
    let store = open(&disk, options.clone()).await.unwrap();
    for number in 0..3_000 {
        put(&store, &format!("/{}", number % 10), vec![b'v'; 500]).await.unwrap();
        let stats = store.stats();
        assert!(stats.history <= 101 + 1_024, "{stats:?}");
        assert!(stats.log_bytes < 300 << 10, "{stats:?}");
    }
    assert!(size(&disk) < 400 << 10, "{}", size(&disk));
    let stats = store.stats();
    assert!(stats.compacted >= stats.revision - 101, "{stats:?}");
    let before = store.list(Range::default()).await.unwrap().kvs;
    store.close().await.unwrap();
    let store = open(&disk, options).await.unwrap();
    assert_eq!(store.list(Range::default()).await.unwrap().kvs, before);
    assert_eq!(store.revision().await.unwrap(), 3_001);
    // All revisions that were readable and watchable before the restart still are.
    assert_eq!(store.stats().compacted, stats.compacted);
}

#[tokio::test(start_paused = true)]
async fn large_values_compact_the_history_by_its_bytes() {
    let options = Options { history_bytes: 1 << 20, ..Options::default() };
    let store = open(&SimDisk::new(5), options).await.unwrap();
    for _ in 0..200 {
        put(&store, "/a", vec![b'v'; 50_000]).await.unwrap();
        assert!(store.stats().history_bytes < 2 << 20, "{:?}", store.stats());
    }
    assert!(store.stats().compacted > 100);
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_times_to_live() {
    let disk = SimDisk::new(5);
    let store = open(&disk, small()).await.unwrap();
    let op = Op::Put { value: Bytes::from_static(b"v"), ttl_seconds: 100 };
    store.write(Write { key: "/old".to_owned(), expected: 0, op: op.clone() }).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    // A checkpoint contains the remaining time, the log the full time.
    store.compact(2).await.unwrap();
    assert_eq!(store.checkpoint().await.unwrap(), 2);
    store.write(Write { key: "/new".to_owned(), expected: 0, op }).await.unwrap();
    store.close().await.unwrap();
    let store = open(&disk, small()).await.unwrap();
    let keys = async || {
        let page = store.list(Range::default()).await.unwrap();
        page.kvs.into_iter().map(|kv| kv.key).collect::<Vec<_>>()
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(keys().await, ["/new", "/old"]);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(keys().await, ["/new"]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(keys().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoints_on_a_real_disk_remove_old_segments() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        segment_bytes: 64 << 10,
        checkpoint_bytes: 128 << 10,
        history_revisions: 200,
        history_bytes: 1 << 20,
        ..Options::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(directory.path()).unwrap());
    let store = Embedded::open(Arc::clone(&disk), options.clone()).await.unwrap();
    for number in 0..2_000 {
        put(&store, &format!("/{}", number % 50), vec![b'v'; 500]).await.unwrap();
    }
    let before = store.list(Range::default()).await.unwrap().kvs;
    store.close().await.unwrap();
    assert!(size(disk.as_ref()) < 600 << 10, "{:?}", disk.list());
    assert!(!disk.list().unwrap().contains(&"log-0000000000000001".to_owned()));
    let store = Embedded::open(disk, options).await.unwrap();
    assert_eq!(store.list(Range::default()).await.unwrap().kvs, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_store_completes_submitted_writes_and_releases_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(directory.path()).unwrap());
    let store = Embedded::open(Arc::clone(&disk), Options::default()).await.unwrap();
    let revision = put(&store, "/a", "1").await.unwrap();
    drop(store);
    let store = loop {
        match Embedded::open(Arc::clone(&disk), Options::default()).await {
            Ok(store) => break store,
            Err(error) => assert!(error.to_string().contains("in use by process"), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(store.revision().await.unwrap(), revision);
}
