//! Tests of the bounds on the past states that are kept.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use apiserver_kinds::builtin;

use super::*;
use crate::form::{Format, Shape, Wanted};

const LARGE: usize = 740 * 1024;

fn cache(kind: &str, totals: &Totals) -> Arc<Cache> {
    let resource = Arc::clone(builtin::registry().lookup("", "v1", kind).unwrap());
    let cache = Cache::within(resource, None, totals);
    cache.reset(&[], 1);
    Arc::new(cache)
}

fn config_maps() -> Arc<Cache> {
    cache("configmaps", &Totals::default())
}

/// Writes objects and knows which of their versions are still in memory.
#[derive(Default)]
struct Writer(Vec<Weak<Entry>>);

impl Writer {
    fn put(&mut self, cache: &Cache, name: &str, revision: Revision, value: usize) {
        let value = "x".repeat(value);
        self.write(
            cache,
            name,
            revision,
            &format!(r#"{{"metadata":{{"name":"a"}},"data":{{"a":"{value}"}}}}"#),
        );
    }

    fn write(&mut self, cache: &Cache, name: &str, revision: Revision, text: &str) {
        let key: Arc<str> = format!("ns/{name}").into();
        let stored = Bytes::copy_from_slice(text.as_bytes());
        let entry = Arc::new(Entry::read(Arc::clone(&key), revision, stored, &cache.fields).unwrap());
        self.0.push(Arc::downgrade(&entry));
        cache.apply([(key, revision, Some(entry))].into_iter());
    }

    /// Bytes of the versions that are in memory.
    fn bytes(&self) -> usize {
        self.0.iter().filter_map(Weak::upgrade).map(|entry| entry.object_len()).sum()
    }
}

/// One ConfigMap of 740 KB, replaced in a loop, took 750 MB in 22 seconds.
#[tokio::test(start_paused = true)]
async fn many_updates_of_a_large_object_keep_the_history_below_its_bound() {
    let (cache, mut writer) = (config_maps(), Writer::default());
    let (_, mut follows) = cache.subscribe_now(Trigger::All);
    let (_, mut slow) = cache.subscribe_now(Trigger::All);
    for revision in 2..400 {
        writer.put(&cache, "a", revision, LARGE);
        let change = follows.next().await.unwrap();
        assert_eq!(change.revision, revision, "a watch that follows misses nothing");
        let bytes = writer.bytes();
        assert!(bytes <= limits::HISTORY_BYTES, "{bytes} bytes at {revision}");
        assert!(
            bytes <= cache.held.own() + 2 * LARGE,
            "{bytes} bytes, of which {} are counted",
            cache.held.own()
        );
    }
    assert!(writer.bytes() > limits::HISTORY_BYTES / 2, "the bound is used");
    // One that did not read kept nothing alive. It ends, rather than going on behind a gap.
    assert!(slow.next().await.is_none() && slow.next().await.is_none());
    assert!(matches!(slow.ready(), Err(tokio::sync::mpsc::error::TryRecvError::Disconnected)));
    // A watcher that resumes receives everything, or an error that it is too late.
    assert_eq!(cache.subscribe(300, Trigger::All).err(), Some(TooOld));
    let mut resumed = cache.subscribe(380, Trigger::All).unwrap();
    for revision in 381..400 {
        assert_eq!(resumed.ready().unwrap().revision, revision);
    }
    drop(cache);
}

#[tokio::test(start_paused = true)]
async fn a_resumed_watch_that_does_not_read_keeps_nothing_alive() {
    let (cache, mut writer) = (config_maps(), Writer::default());
    let mut resumed = Vec::new();
    for revision in 2..200 {
        writer.put(&cache, "a", revision, LARGE);
        resumed.extend(cache.subscribe(cache.oldest(), Trigger::All));
    }
    assert!(writer.bytes() <= limits::HISTORY_BYTES, "{}", writer.bytes());
    assert_eq!(resumed.len(), 198);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_nothing_happens_to_forgets_its_past() {
    let (cache, mut writer) = (config_maps(), Writer::default());
    for revision in 2..5_000 {
        writer.put(&cache, &format!("{}", revision % 10), revision, 1_000);
    }
    cache.age();
    let (most, places) = (writer.bytes(), lock(&cache.inner).history.capacity());
    tokio::time::advance(limits::HISTORY_AGE + Duration::from_secs(1)).await;
    cache.age();
    assert!(writer.bytes() * 20 < most, "{} bytes of {most}", writer.bytes());
    assert!(lock(&cache.inner).history.capacity() * 8 < places);
    assert!(
        cache.subscribe(cache.oldest(), Trigger::All).is_ok(),
        "who resumes late enough hears the last ones"
    );
}

#[tokio::test(start_paused = true)]
async fn labels_of_old_objects_count_as_what_they_take() {
    let (cache, mut writer) = (config_maps(), Writer::default());
    for revision in 2..60 {
        let labels: Vec<String> = (0..20_000).map(|label| format!(r#""{revision}-{label}":"""#)).collect();
        let text = format!(r#"{{"metadata":{{"name":"a","labels":{{{}}}}}}}"#, labels.join(","));
        writer.write(&cache, "a", revision, &text);
    }
    let kept = writer.0.iter().filter(|entry| entry.strong_count() > 0).count();
    // Each is 280 KB of text, and 2 MB of labels.
    assert!(kept * 20_000 * 100 <= limits::HISTORY_BYTES, "{kept}");
}

#[tokio::test(start_paused = true)]
async fn frames_count_and_are_made_anew_where_there_is_no_room() {
    let (cache, mut writer) = (config_maps(), Writer::default());
    for revision in 2..200 {
        writer.put(&cache, "a", revision, LARGE);
    }
    let changes: Vec<_> = lock(&cache.inner).history.iter().cloned().collect();
    let wanted = |shape| Wanted { format: Format::Json, shape, meta: "meta.k8s.io/v1" };
    for change in &changes {
        let new = change.new.as_deref().unwrap();
        for _ in 0..2 {
            assert_eq!(change.modified(new), new.modified());
            assert_eq!(change.added(new), new.added());
            for second in 0..20 {
                let form = Form {
                    event: EventType::Added,
                    wanted: wanted(Shape::Metadata),
                    include: None,
                    columns: false,
                    second,
                };
                assert_eq!(change.shaped(form, || Bytes::from(vec![1; LARGE])).len(), LARGE);
            }
        }
        assert!(cache.held.own() <= limits::HISTORY_BYTES, "{}", cache.held.own());
    }
    let frames: usize = changes.iter().map(|change| change.frame_bytes()).sum();
    assert!(frames > LARGE && frames < limits::HISTORY_BYTES / 2, "{frames}");
    drop(changes);
    // They go with their changes.
    cache.idle();
    assert_eq!(cache.held.own(), 0);
}

#[tokio::test(start_paused = true)]
async fn all_histories_together_have_a_bound_and_a_small_one_is_left_alone() {
    let store = apiserver_store::embedded::Embedded::open(
        Arc::new(apiserver_store::disk::SimDisk::new(1)),
        apiserver_store::embedded::Options::default(),
    );
    let caches = Caches::new(&builtin::registry(), Arc::new(store.await.unwrap()));
    let mut writer = Writer::default();
    let small = Arc::clone(caches.cache("", "v1", "namespaces").unwrap());
    let mut revision = 1;
    for _ in 0..20 {
        revision += 1;
        writer.put(&small, "a", revision, 1024);
    }
    let kinds = ["configmaps", "secrets", "pods", "services", "endpoints", "nodes"];
    for _ in 0..100 {
        for kind in kinds {
            revision += 1;
            writer.put(caches.cache("", "v1", kind).unwrap(), "a", revision, LARGE);
        }
        caches.bound_past();
        assert!(caches.totals.history.load(Ordering::SeqCst) <= limits::HISTORY_BYTES_ALL);
        assert!(writer.bytes() <= limits::HISTORY_BYTES_ALL + kinds.len() * LARGE, "{}", writer.bytes());
    }
    assert!(caches.totals.history.load(Ordering::SeqCst) > limits::HISTORY_BYTES_ALL / 4);
    let mut resumed = small.subscribe(2, Trigger::All).unwrap();
    assert_eq!(resumed.ready().unwrap().revision, 3);
}

#[tokio::test(start_paused = true)]
async fn states_kept_for_paging_are_bounded_under_writes() {
    let totals = Totals::default();
    let (cache, mut writer) = (cache("configmaps", &totals), Writer::default());
    let mut revision = 1;
    for round in 0..2 * limits::SNAPSHOTS {
        // Each state has 20 objects of its own.
        for name in 0..20 {
            revision += 1;
            writer.put(&cache, &name.to_string(), revision, LARGE);
        }
        cache.retain(revision, &cache.past(&cache.snapshot()), "ns/1", None);
        // States of before that were asked for by their revisions are kept too.
        let before = revision - 7;
        cache.retain(before, &cache.at(before).unwrap(), "ns/1", None);
        let bytes = writer.bytes();
        let most = limits::HISTORY_BYTES + limits::SNAPSHOT_BYTES + 21 * LARGE;
        assert!(bytes <= most, "{bytes} bytes in round {round}");
    }
    assert!(cache.states.paged(revision).is_some(), "the newest is there");
    assert!(cache.states.bytes() > limits::SNAPSHOT_BYTES / 4);
    tokio::time::advance(limits::SNAPSHOT_AGE).await;
    cache.states.age();
    assert_eq!(totals.snapshots.load(Ordering::SeqCst), 0);
    // Nothing is kept that is not counted.
    cache.idle();
    cache.retain(revision, &cache.past(&cache.snapshot()), "ns/1", None);
    assert!(cache.states.paged(revision).is_none());
}
