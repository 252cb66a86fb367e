//! Snapshots of a running store, restores into a directory and into a running store, and verification of a
//! directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apiserver_store::disk::{Disk, Faults, RealDisk, SimDisk};
use apiserver_store::embedded::{
    Embedded, Options, Snapshot, restore_directory, restore_running, snapshot_directory, verify_directory,
    verify_snapshot,
};
use apiserver_store::limits::RESTORED_REVISION;
use apiserver_store::{Notice, Range, Store, StoreError, Watch};
use futures::StreamExt;

use crate::durability::support::{on_one_thread, open, put, put_of, small};

fn disk(directory: &Path) -> Arc<dyn Disk> {
    Arc::new(RealDisk::new(directory).unwrap())
}

async fn content(store: &Embedded) -> BTreeMap<String, Vec<u8>> {
    let page = store.list(Range::default()).await.unwrap();
    page.kvs.into_iter().map(|kv| (kv.key, kv.value.to_vec())).collect()
}

async fn marks(watch: &mut Watch, count: usize) -> Vec<String> {
    let mut marks = Vec::new();
    while marks.len() < count {
        if let Notice::Events(events) = watch.next().await.unwrap().unwrap() {
            let sign = |gone| if gone { "-" } else { "+" };
            marks.extend(events.iter().map(|e| format!("{}{}", sign(e.value.is_none()), e.key)));
        }
    }
    marks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_running_store_has_all_acknowledged_writes() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("store"), directory.path().join("snapshot"));
    let store = Embedded::open(disk(&data), small()).await.unwrap();
    let writing = tokio::spawn({
        let store = store.clone();
        async move {
            for number in 0.. {
                put(&store, &format!("/{}", number % 20), vec![b'v'; 300]).await.unwrap();
            }
        }
    });
    for _ in 0..20 {
        let before = store.revision().await.unwrap();
        let taken = snapshot_directory(&data, &file).await.unwrap();
        let after = store.revision().await.unwrap();
        assert!(before <= taken.revision && taken.revision <= after + 1, "{before} {taken:?} {after}");
        let report = verify_snapshot(&file).unwrap();
        assert_eq!((report.revision, report.keys, report.problems.len()), (taken.revision, taken.keys, 0));
        // Verification works beside a running store as well.
        let report = verify_directory(&data).await.unwrap();
        assert!(report.problems.is_empty() && report.revision >= before, "{report:?}");
    }
    writing.abort();
    let _ = writing.await;
    snapshot_directory(&data, &file).await.unwrap();
    let expected = content(&store).await;
    store.close().await.unwrap();
    let other = directory.path().join("other");
    let restored = restore_directory(&disk(&other), Snapshot::read(&file).unwrap(), Some(0)).unwrap();
    // Appended bytes invalidate the file, even if they are a second snapshot.
    let bytes = std::fs::read(&file).unwrap();
    for more in [&b"x"[..], &bytes[..], &bytes[bytes.len() - 16..]] {
        let longer = directory.path().join("longer");
        std::fs::write(&longer, [&bytes[..], more].concat()).unwrap();
        let problems = verify_snapshot(&longer).unwrap().problems;
        assert_eq!((problems.len(), problems[0].offset), (1, Some(bytes.len() as u64)));
        assert!(Snapshot::read(&longer).is_err());
    }
    let store = Embedded::open(disk(&other), small()).await.unwrap();
    assert_eq!(content(&store).await, expected);
    assert_eq!(store.revision().await.unwrap(), restored.revision);
    assert!(verify_directory(&other).await.unwrap().problems.is_empty());
}

#[tokio::test]
async fn a_restored_directory_has_a_higher_revision_and_a_compacted_history() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("store"), directory.path().join("snapshot"));
    let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
    let kept = put(&store, "/kept", "1").await.unwrap();
    snapshot_directory(&data, &file).await.unwrap();
    put(&store, "/kept", "2").await.unwrap();
    let last = put(&store, "/later", "1").await.unwrap();
    let refused = restore_directory(&disk(&data), Snapshot::read(&file).unwrap(), None).unwrap_err();
    assert!(refused.to_string().contains("in use by process"), "{refused}");
    store.close().await.unwrap();
    let restored = restore_directory(&disk(&data), Snapshot::read(&file).unwrap(), None).unwrap();
    assert_eq!((restored.revision, restored.set), (last + 1, 1));
    let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
    let kv = store.get("/kept").await.unwrap().kv.unwrap();
    assert_eq!((kv.mod_revision, kv.value.as_ref()), (kept, b"1".as_ref()));
    assert_eq!(store.get("/later").await.unwrap().kv, None);
    let error = store.watch("", last + 1).await.err().unwrap();
    assert!(matches!(error, StoreError::Compacted { .. }), "{error:?}");
    assert_eq!(put(&store, "/new", "1").await.unwrap(), last + 2);
    // For an empty directory it is unknown what was seen before; the increment is large, or as requested.
    for (name, bump, expected) in [("a", None, kept + 1_000_000_000), ("b", Some(7), kept + 7)] {
        let other = disk(&directory.path().join(name));
        let snapshot = Snapshot::read(&file).unwrap();
        assert_eq!(restore_directory(&other, snapshot, bump).unwrap().revision, expected);
    }
}

#[tokio::test]
async fn a_restore_that_leaves_no_revision_for_writes_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("store"), directory.path().join("snapshot"));
    let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
    let kept = put(&store, "/kept", "1").await.unwrap();
    store.close().await.unwrap();
    snapshot_directory(&data, &file).await.unwrap();
    let restore = |bump| restore_directory(&disk(&data), Snapshot::read(&file).unwrap(), Some(bump));
    for bump in [i64::MAX, RESTORED_REVISION - kept + 1] {
        let refused = restore(bump).unwrap_err();
        assert!(refused.to_string().contains("the highest that a restore may lead to"), "{refused}");
        let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
        assert_eq!(store.revision().await.unwrap(), kept);
        store.close().await.unwrap();
    }
    assert_eq!(restore(RESTORED_REVISION - kept).unwrap().revision, RESTORED_REVISION);
    let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
    assert_eq!(put(&store, "/new", "1").await.unwrap(), RESTORED_REVISION + 1);
    store.compact(RESTORED_REVISION + 1).await.unwrap();
    assert_eq!(store.checkpoint().await.unwrap(), RESTORED_REVISION + 1);
    store.close().await.unwrap();
    let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
    assert_eq!(put(&store, "/newer", "1").await.unwrap(), RESTORED_REVISION + 2);
}

#[tokio::test]
async fn a_restore_into_a_running_store_makes_ordinary_changes() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("store"), directory.path().join("snapshot"));
    assert_eq!(restore_running(&data, &file).await.unwrap(), None);
    let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
    let control = store.listen(&data).unwrap();
    put(&store, "/changed", "1").await.unwrap();
    put(&store, "/deleted", "1").await.unwrap();
    let same = put(&store, "/same", "1").await.unwrap();
    snapshot_directory(&data, &file).await.unwrap();
    let expected = content(&store).await;
    put(&store, "/changed", "2").await.unwrap();
    let revision = store.get("/deleted").await.unwrap().kv.unwrap().mod_revision;
    let write = apiserver_store::Write {
        key: "/deleted".to_owned(),
        expected: revision,
        op: apiserver_store::Op::Delete,
    };
    store.write(write).await.unwrap();
    let last = put(&store, "/made", "1").await.unwrap();
    let mut watch = store.watch("", 0).await.unwrap();
    let restored = restore_running(&data, &file).await.unwrap().unwrap();
    assert_eq!((restored.revision, restored.set, restored.removed), (last + 3, 2, 1));
    assert_eq!(content(&store).await, expected);
    assert_eq!(marks(&mut watch, 3).await, ["-/made", "+/changed", "+/deleted"]);
    assert_eq!(store.get("/same").await.unwrap().kv.unwrap().mod_revision, same);
    // The second time there is nothing to do.
    let again = restore_running(&data, &file).await.unwrap().unwrap();
    assert_eq!((again.revision, again.set, again.removed), (last + 3, 0, 0));
    std::fs::write(&file, "no snapshot").unwrap();
    let error = restore_running(&data, &file).await.unwrap_err();
    assert!(error.to_string().contains("it is not a snapshot"), "{error}");
    drop(control);
    assert_eq!(restore_running(&data, &file).await.unwrap(), None);
    store.close().await.unwrap();
    let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
    assert_eq!(content(&store).await, expected);
}

/// A client that connects and sends nothing does not block others.
#[tokio::test]
async fn a_silent_client_of_the_control_socket_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("store"), directory.path().join("snapshot"));
    let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
    let _control = store.listen(&data).unwrap();
    put(&store, "/a", "1").await.unwrap();
    snapshot_directory(&data, &file).await.unwrap();
    let silent = tokio::net::UnixStream::connect(data.join("control.sock")).await.unwrap();
    let restored = tokio::time::timeout(Duration::from_secs(30), restore_running(&data, &file)).await;
    assert_eq!(restored.expect("its turn comes").unwrap().unwrap().set, 0);
    drop(silent);
    store.close().await.unwrap();
}

/// The power fails at every operation of a restore in turn: afterwards the state is either the old one or the
/// snapshot, never a mixture.
#[test]
fn a_restore_is_atomic_across_power_failures() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("store"), directory.path().join("snapshot"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
        for number in 0..40 {
            put(&store, &format!("/{number}"), vec![b's'; 700]).await.unwrap();
        }
        snapshot_directory(&data, &file).await.unwrap();
    });
    let (mut before, mut after) = (0, 0);
    for seed in 0..200 {
        on_one_thread(async {
            let disk = SimDisk::new(seed);
            let store = open(&disk, small()).await.unwrap();
            for number in 20..60 {
                put(&store, &format!("/{number}"), vec![b'x'; 10]).await.unwrap();
            }
            let newest = store.revision().await.unwrap();
            disk.set_faults(Faults {
                crash_at: Some(disk.operations() + 1 + seed % 14),
                ..Faults::default()
            });
            let outcome = store.restore(Snapshot::read(&file).unwrap()).await;
            disk.crash();
            drop(store);
            tokio::time::sleep(Duration::from_secs(1)).await;
            disk.restart();
            let store = open(&disk, small()).await.unwrap();
            let present = content(&store).await;
            assert!(store.revision().await.unwrap() >= newest);
            let restored = present.values().all(|value| value[0] == b's');
            assert!(restored || outcome.is_err());
            assert!(restored || present.values().all(|value| value[0] == b'x'), "seed {seed}: a mixture");
            assert_eq!(present.len(), 40);
            if restored { after += 1 } else { before += 1 }
        });
    }
    assert!(before > 10 && after > 10, "{before} {after}");
}

#[tokio::test]
async fn verification_reports_damage_with_file_and_offset() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("store");
    let store = Embedded::open(disk(&data), small()).await.unwrap();
    for number in 0..30 {
        let writes = (0..2).map(|half| store.write(put_of(&format!("/{number}.{half}"), vec![7; 300], 0)));
        futures::future::try_join_all(writes).await.unwrap();
    }
    store.compact(20).await.unwrap();
    store.checkpoint().await.unwrap();
    store.close().await.unwrap();
    let sound = verify_directory(&data).await.unwrap();
    assert_eq!((sound.revision, sound.keys, sound.checkpoint), (61, 60, 20), "{sound:?}");
    assert!(sound.problems.is_empty() && sound.segments > 2, "{sound:?}");
    let names = disk(&data).list().unwrap();
    let flip = |name: &str, at: usize| {
        let path = data.join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    };
    // Two places in the middle of the log, and one in the checkpoint: all of them are found.
    let logs: Vec<&String> = names.iter().filter(|name| name.starts_with("log-")).collect();
    let checkpoint = names.iter().find(|name| name.starts_with("checkpoint-")).unwrap();
    let (first, second) = (logs[logs.len() - 2], logs[logs.len() - 3]);
    flip(first, 100);
    flip(second, 1_500);
    flip(checkpoint, 60);
    let report = verify_directory(&data).await.unwrap();
    let places: Vec<(&str, Option<u64>)> =
        report.problems.iter().map(|problem| (problem.file.as_str(), problem.offset)).collect();
    assert_eq!(places.len(), 3, "{report:?}");
    assert!(places.contains(&(first, Some(32))), "{places:?}");
    assert!(places.iter().any(|(name, at)| name == second && at.unwrap() <= 1_500), "{places:?}");
    assert!(places.contains(&(checkpoint, Some(24))), "{places:?}");
    assert!(report.problems.iter().all(|problem| problem.advice.contains("hawser store restore")));
    // A restore works on a store that refuses to start, and the revision does not go back.
    let error = Embedded::open(disk(&data), small()).await.err().unwrap();
    assert!(matches!(error, StoreError::Broken { .. }), "{error:?}");
    flip(first, 100);
    flip(second, 1_500);
    flip(checkpoint, 60);
    let file = directory.path().join("snapshot");
    snapshot_directory(&data, &file).await.unwrap();
    flip(first, 100);
    let restored = restore_directory(&disk(&data), Snapshot::read(&file).unwrap(), None).unwrap();
    assert!(restored.revision > sound.revision);
    assert!(verify_directory(&data).await.unwrap().problems.is_empty());
    // A missing segment, and a directory that is not a store.
    std::fs::remove_file(data.join("FORMAT")).unwrap();
    assert!(verify_directory(&data).await.is_err());
    assert!(verify_directory(&directory.path().join("nowhere")).await.is_err());
}

#[tokio::test]
async fn damage_covered_by_a_checkpoint_is_not_reported_as_loss() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("store");
    let store = Embedded::open(disk(&data), Options::default()).await.unwrap();
    let mut revision = 0;
    for number in 0..40 {
        revision = put(&store, &format!("/{number}"), vec![7; 200]).await.unwrap();
    }
    let compacted = revision - 10;
    store.compact(compacted).await.unwrap();
    // The segment stays, because it is being written to.
    store.checkpoint().await.unwrap();
    store.close().await.unwrap();
    let log = disk(&data).list().unwrap().into_iter().find(|name| name.starts_with("log-")).unwrap();
    let path = data.join(&log);
    let flip = |at: usize| {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    };
    let found = async || verify_directory(&data).await.unwrap().problems.remove(0).what;
    let length = std::fs::metadata(&path).unwrap().len() as usize;
    flip(length / 4);
    let what = found().await;
    assert!(what.contains(&format!("the checkpoint of revision {compacted} has")), "{what}");
    assert!(!what.contains("are lost"), "{what}");
    flip(length / 4);
    // Only this segment has the writes after the checkpoint's revision.
    let names = std::fs::read(&path).unwrap();
    let late = names.windows(3).rposition(|window| window == b"/35").unwrap();
    flip(late);
    let what = found().await;
    assert!(what.contains("are lost") && !what.contains("checkpoint"), "{what}");
}

#[tokio::test]
async fn a_checkpoint_that_contradicts_the_log_and_a_missing_segment_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let (data, other) = (directory.path().join("store"), directory.path().join("other"));
    for (path, value) in [(&data, "1"), (&other, "2")] {
        let store = Embedded::open(disk(path), Options::default()).await.unwrap();
        let revision = put(&store, "/a", value).await.unwrap();
        store.compact(revision).await.unwrap();
        // The segment stays, because it is being written to.
        store.checkpoint().await.unwrap();
        store.close().await.unwrap();
        assert!(verify_directory(path).await.unwrap().problems.is_empty());
    }
    let names = disk(&data).list().unwrap();
    let checkpoint = names.iter().find(|name| name.starts_with("checkpoint-")).unwrap();
    std::fs::copy(other.join(checkpoint), data.join(checkpoint)).unwrap();
    let report = verify_directory(&data).await.unwrap();
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(report.problems[0].what.contains("/a"), "{report:?}");

    let store = Embedded::open(disk(&other), small()).await.unwrap();
    for number in 0..30 {
        put(&store, &format!("/{number}"), vec![7; 400]).await.unwrap();
    }
    store.close().await.unwrap();
    let logs: Vec<String> =
        disk(&other).list().unwrap().into_iter().filter(|name| name.starts_with("log-")).collect();
    std::fs::remove_file(other.join(&logs[logs.len() - 2])).unwrap();
    let report = verify_directory(&other).await.unwrap();
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(report.problems[0].what.contains("is missing"), "{report:?}");
}
