//! Disks that fail, fill up or come back damaged, and invalid directories.

use std::sync::Arc;
use std::time::Duration;

use apiserver_store::disk::{Disk, Faults, RealDisk, SimDisk};
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::limits::WATCH_BUFFER_EVENTS;
use apiserver_store::{Store, StoreError};
use futures::StreamExt;

use crate::durability::support::{history, open, put, put_of, small};

#[tokio::test(start_paused = true)]
async fn a_failed_sync_stops_the_store_and_nothing_is_acknowledged() {
    let disk = SimDisk::new(3);
    let store = open(&disk, Options::default()).await.unwrap();
    let first = put(&store, "/a", "1").await.unwrap();
    let mut watch = store.watch("/", 0).await.unwrap();
    disk.set_faults(Faults { fail_sync: Some(disk.syncs() + 1), ..Faults::default() });
    let error = put(&store, "/a", "2").await.unwrap_err();
    assert!(matches!(error, StoreError::Broken { .. }), "{error:?}");
    // From now on everything fails, including reads: what they return might not be durable.
    assert!(matches!(put(&store, "/b", "1").await, Err(StoreError::Broken { .. })));
    assert!(matches!(store.get("/a").await, Err(StoreError::Broken { .. })));
    assert!(matches!(store.compact(first).await, Err(StoreError::Broken { .. })));
    assert!(matches!(store.watch("/", 0).await, Err(StoreError::Broken { .. })));
    assert!(matches!(watch.next().await, Some(Err(StoreError::Broken { .. }))));
    assert!(watch.next().await.is_none());
    assert!(matches!(store.close().await, Err(StoreError::Broken { .. })));
    // After a restart the store makes the cache durable before it shows it; then power is lost.
    disk.kill_process();
    let store = open(&disk, Options::default()).await.unwrap();
    let seen = store.get("/a").await.unwrap().kv.unwrap();
    assert!(seen.mod_revision >= first);
    disk.crash();
    drop(store);
    tokio::time::sleep(Duration::from_secs(1)).await;
    disk.restart();
    let store = open(&disk, Options::default()).await.unwrap();
    assert_eq!(store.get("/a").await.unwrap().kv.unwrap(), seen);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_writes_until_there_is_room() {
    let disk = SimDisk::new(3);
    let store = open(&disk, small()).await.unwrap();
    disk.set_faults(Faults { capacity: Some(20 << 10), ..Faults::default() });
    let mut revision = 1;
    let error = loop {
        match put(&store, &format!("/{revision}"), vec![7; 1_000]).await {
            Ok(written) => revision = written,
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, StoreError::Unavailable { cause: Some(_), .. }), "{error:?}");
    assert!(revision > 5);
    // Reads continue, and the refused write left no trace.
    assert_eq!(store.revision().await.unwrap(), revision);
    assert_eq!(store.get(&format!("/{revision}")).await.unwrap().kv, None);
    disk.set_faults(Faults::default());
    assert_eq!(put(&store, "/more", "1").await.unwrap(), revision + 1);
    store.close().await.unwrap();
    let store = open(&disk, small()).await.unwrap();
    assert_eq!(store.revision().await.unwrap(), revision + 1);
    assert_eq!(history(&store).await.len() as i64, revision);
}

#[tokio::test(start_paused = true)]
async fn a_store_starts_on_a_full_disk_and_writes_when_there_is_room() {
    let disk = SimDisk::new(3);
    let store = open(&disk, small()).await.unwrap();
    let mut revision = 1;
    for number in 0..30 {
        revision = put(&store, &format!("/{number}"), vec![7; 1_000]).await.unwrap();
    }
    store.close().await.unwrap();
    // Closed or killed, repeatedly: existing data is readable, and nothing is written.
    for round in 0..4 {
        disk.set_faults(Faults { capacity: Some(0), ..Faults::default() });
        for _ in 0..2 {
            let store = open(&disk, small()).await.unwrap();
            assert_eq!(store.revision().await.unwrap(), revision);
            assert!(store.get("/29").await.unwrap().kv.is_some());
            let error = put(&store, "/more", "1").await.unwrap_err();
            assert!(matches!(&error, StoreError::Unavailable { cause: Some(_), .. }), "{error:?}");
            assert!(store.get("/more").await.unwrap().kv.is_none());
            store.close().await.unwrap();
        }
        let store = open(&disk, small()).await.unwrap();
        put(&store, "/more", "1").await.unwrap_err();
        disk.set_faults(Faults::default());
        revision = put(&store, &format!("/round-{round}"), vec![1; 20_000]).await.unwrap();
        if round % 2 == 0 {
            store.close().await.unwrap();
        } else {
            drop(store);
            tokio::time::sleep(Duration::from_secs(1)).await;
            disk.crash();
            disk.restart();
        }
        let store = open(&disk, small()).await.unwrap();
        assert_eq!(store.revision().await.unwrap(), revision);
        history(&store).await;
        assert_eq!(store.stats().keys as i64, revision - 1, "round {round}");
        store.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_stops_the_store_and_is_gone_after_a_restart() {
    for attempt in 0..40 {
        let disk = SimDisk::new(attempt);
        let store = open(&disk, small()).await.unwrap();
        let revision = put(&store, "/a", vec![1; 900]).await.unwrap();
        disk.set_faults(Faults { fail_at: Some(disk.operations() + 1), ..Faults::default() });
        let error = put(&store, "/a", vec![2; 900]).await.unwrap_err();
        assert!(matches!(error, StoreError::Broken { .. }), "{error:?}");
        // Later writes are refused too, although the disk would accept them.
        let error = put(&store, "/b", "1").await.unwrap_err();
        assert!(error.to_string().contains("the store has stopped"), "{error}");
        drop(store);
        disk.kill_process();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let store = open(&disk, small()).await.unwrap();
        assert_eq!(store.get("/a").await.unwrap().kv.unwrap().mod_revision, revision);
        assert_eq!(put(&store, "/b", "1").await.unwrap(), revision + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_disk_delays_writes_but_not_reads() {
    let disk = SimDisk::new(3).with_sync_time(Duration::from_micros(100));
    let store = open(&disk, small()).await.unwrap();
    let first = put(&store, "/a", "1").await.unwrap();
    let mut watch = store.watch("", 0).await.unwrap();
    disk.pause(Duration::from_secs(30));
    let writing = tokio::spawn({
        let store = store.clone();
        async move { put(&store, "/a", "2").await.unwrap() }
    });
    tokio::time::sleep(Duration::from_secs(20)).await;
    // A write that is not durable yet is neither read nor watched.
    assert!(!writing.is_finished());
    assert_eq!(store.get("/a").await.unwrap().kv.unwrap().mod_revision, first);
    assert!(tokio::time::timeout(Duration::from_secs(5), watch.next()).await.is_err());
    assert_eq!(writing.await.unwrap(), first + 1);
    assert!(watch.next().await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_file_is_reported_and_nothing_is_changed() {
    let disk = SimDisk::new(3);
    let store = open(&disk, small()).await.unwrap();
    let revision = put(&store, "/a", "1").await.unwrap();
    store.close().await.unwrap();
    let names = disk.list().unwrap();
    for name in &names {
        disk.set_faults(Faults { unreadable: Some(name.clone()), ..Faults::default() });
        let error = open(&disk, small()).await.err().unwrap();
        assert!(matches!(error, StoreError::Broken { cause: Some(_), .. }), "{error:?}");
        assert_eq!(disk.list().unwrap(), names);
    }
    disk.set_faults(Faults::default());
    assert_eq!(open(&disk, small()).await.unwrap().revision().await.unwrap(), revision);
}

#[tokio::test(start_paused = true)]
async fn damage_to_acknowledged_data_is_reported_and_not_truncated() {
    for target in 0..2 {
        let disk = SimDisk::new(3);
        let options = Options { segment_bytes: 4_096, ..Options::default() };
        let store = open(&disk, options.clone()).await.unwrap();
        for number in 0..20 {
            put(&store, &format!("/{number}"), vec![7; 600]).await.unwrap();
        }
        store.close().await.unwrap();
        let logs: Vec<String> =
            disk.list().unwrap().into_iter().filter(|name| name.starts_with("log-")).collect();
        assert!(logs.len() > 2);
        // Once in the middle of the log, once early in its last segment.
        let name = if target == 0 { &logs[1] } else { logs.last().unwrap() };
        disk.corrupt(name, 100);
        let error = open(&disk, options).await.err().unwrap();
        let StoreError::Broken { why, .. } = &error else { panic!("{error:?}") };
        assert!(why.starts_with(&format!("{name} is damaged at byte 32")), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_checkpoint_and_a_missing_segment_are_reported() {
    let disk = SimDisk::new(3);
    let store = open(&disk, small()).await.unwrap();
    for number in 0..30 {
        put(&store, "/a", format!("{number}")).await.unwrap();
    }
    store.compact(20).await.unwrap();
    assert_eq!(store.checkpoint().await.unwrap(), 20);
    store.close().await.unwrap();
    let names = disk.list().unwrap();
    let checkpoint = names.iter().find(|name| name.starts_with("checkpoint-")).unwrap();
    disk.corrupt(checkpoint, 40);
    let error = open(&disk, small()).await.err().unwrap();
    assert!(error.to_string().contains(&format!("{checkpoint} is damaged")), "{error}");
    disk.corrupt(checkpoint, 40);
    open(&disk, small()).await.unwrap().close().await.unwrap();
    disk.remove(checkpoint).unwrap();
    let error = open(&disk, small()).await.err();
    let first_is_there = names.contains(&"log-0000000000000001".to_owned());
    assert_eq!(error.is_none(), first_is_there, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn other_formats_and_foreign_directories_are_refused() {
    let disk = SimDisk::new(3);
    open(&disk, small()).await.unwrap().close().await.unwrap();
    let mut file = disk.open("FORMAT").unwrap();
    file.write_at(0, b"hawser-store 2\n").unwrap();
    let error = open(&disk, small()).await.err().unwrap();
    let expected = "open the store in the simulated disk: it has the format \"hawser-store 2\", \
                    this program needs \"hawser-store 1\"";
    assert_eq!(error.to_string(), expected);

    let disk = SimDisk::new(3);
    disk.open("holiday.jpg").unwrap();
    let error = open(&disk, small()).await.err().unwrap();
    assert!(error.to_string().ends_with("it holds holiday.jpg but no file FORMAT: not a store"), "{error}");
    assert_eq!(disk.list().unwrap(), ["holiday.jpg"]);
}

#[tokio::test]
async fn a_directory_in_use_is_refused_and_names_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(directory.path()).unwrap());
    let store = Embedded::open(Arc::clone(&disk), Options::default()).await.unwrap();
    let error = Embedded::open(Arc::clone(&disk), Options::default()).await.err().unwrap();
    let place = directory.path().display();
    let expected = format!("open the store in {place}: in use by process {}", std::process::id());
    assert_eq!(error.to_string(), expected);
    let revision = put(&store, "/a", "1").await.unwrap();
    store.close().await.unwrap();
    assert!(matches!(store.get("/a").await, Err(StoreError::Unavailable { .. })));
    assert!(matches!(put(&store, "/a", "2").await, Err(StoreError::Unavailable { .. })));
    let store = Embedded::open(disk, Options::default()).await.unwrap();
    assert_eq!(store.revision().await.unwrap(), revision);
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_does_not_read_is_cut_off_and_others_are_not() {
    let store = open(&SimDisk::new(3), Options::default()).await.unwrap();
    let mut slow = store.watch("/", 0).await.unwrap();
    let mut quick = store.watch("/", 0).await.unwrap();
    let mut elsewhere = store.watch("/elsewhere/", 0).await.unwrap();
    let reader = tokio::spawn(async move {
        let mut count = 0;
        while count <= WATCH_BUFFER_EVENTS {
            if let apiserver_store::Notice::Events(events) = quick.next().await.unwrap().unwrap() {
                count += events.len();
            }
        }
        count
    });
    let mut pending = Vec::new();
    for number in 0..=WATCH_BUFFER_EVENTS {
        pending.push(store.write(put_of(&format!("/{number}"), "v", 0)));
        if pending.len() == 2_000 || number == WATCH_BUFFER_EVENTS {
            futures::future::try_join_all(pending.drain(..)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(reader.await.unwrap(), WATCH_BUFFER_EVENTS + 1);
    let error = slow.next().await.unwrap().unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable { attempted, .. } if attempted.contains("too slow")),
        "{error:?}"
    );
    assert!(slow.next().await.is_none());
    put(&store, "/elsewhere/a", "v").await.unwrap();
    assert!(elsewhere.next().await.unwrap().is_ok());
    drop((slow, elsewhere));
    assert_eq!(store.stats().watches, 0);
}
