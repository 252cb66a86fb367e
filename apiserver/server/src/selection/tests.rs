use std::sync::Weak;

use apiserver_kinds::builtin;
use apiserver_meta::identity::Identity;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Op, Store, Write, Written};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::clients::accounts::Accounts;
use crate::clients::budget::{Budget, Level};
use crate::query::Query;
use crate::view::View;

const OBJECTS: usize = 40;

/// A store with ConfigMaps, and what follows it.
struct Fixture {
    store: Arc<dyn Store>,
    caches: Arc<Caches>,
    cache: Arc<Cache>,
}

impl Fixture {
    async fn new() -> Self {
        let store = Embedded::open(Arc::new(SimDisk::new(1)), Options::default()).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let caches = Arc::new(Caches::new(&builtin::registry(), Arc::clone(&store)));
        let runs = Arc::clone(&caches);
        tokio::spawn(async move { runs.run(CancellationToken::new()).await });
        let cache = Arc::clone(caches.cache("", "v1", "configmaps").unwrap());
        let fixture = Self { store, caches, cache };
        for number in 0..OBJECTS {
            fixture.put(number, "first", 0).await;
        }
        fixture
    }

    /// Writes an object; gives its revision.
    async fn put(&self, number: usize, value: &str, expected: Revision) -> Revision {
        let label = if number.is_multiple_of(2) { "even" } else { "odd" };
        let text = format!(
            r#"{{"metadata":{{"name":"m{number:03}","namespace":"ns","labels":{{"is":"{label}"}}}},"data":{{"v":"{value}"}}}}"#
        );
        let key = format!("/registry/configmaps/ns/m{number:03}");
        let op = Op::Put { value: text.into(), ttl_seconds: 0 };
        let Ok(Written::Done { revision }) = self.store.write(Write { key, expected, op }).await else {
            panic!("somebody else wrote");
        };
        self.caches.reach(revision).await.unwrap();
        revision
    }

    fn select(&self, query: &str, start: &str, limit: usize) -> (Selected, Revision) {
        let filter = Filter::parse(&self.cache, "ns", "", &Query::parse(query), &Budget::default()).unwrap();
        let snapshot = self.cache.snapshot();
        (filter.select(&View::of(&self.cache, &snapshot), start, limit), snapshot.revision)
    }
}

async fn rest(entries: &mut Entries, bytes: usize) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let some = entries.fetch(bytes, 7).await.unwrap();
        if some.is_empty() {
            return all;
        }
        all.extend(some.iter().map(|entry| format!("{} {}", entry.key, entry.value(None)["data"]["v"])));
    }
}

/// The rest of an answer, read from the store after the cache dropped the state, equals that state.
#[tokio::test]
async fn an_answer_ends_as_it_began_whether_its_state_is_kept_or_not() {
    let fixture = Fixture::new().await;
    let queries = [
        ("", "", 0),
        ("", "", 11),
        ("", "m007\0", 0),
        ("", "m007", 5),
        ("labelSelector=is%3Deven", "", 0),
        ("labelSelector=is%3Dodd", "m010\0", 4),
        ("fieldSelector=metadata.name%3Dm003", "", 0),
        ("fieldSelector=metadata.name!%3Dm003", "", 0),
    ];
    let mut begun = Vec::new();
    for (query, start, limit) in queries {
        for taken in [0, 3] {
            let (selected, revision) = fixture.select(query, start, limit);
            let expected = rest(&mut selected.entries.clone(), 100).await;
            assert!(!expected.is_empty() && (limit == 0 || expected.len() == limit), "{query} {limit}");
            for forgets in [false, true] {
                let mut entries = selected.entries.clone();
                entries.release(&fixture.caches, &fixture.cache, revision);
                let first = if taken > 0 { entries.fetch(usize::MAX, taken).await.unwrap().len() } else { 0 };
                begun.push((
                    format!("{query} {start:?} {taken} {forgets}"),
                    forgets,
                    first,
                    entries,
                    expected.clone(),
                ));
            }
        }
    }
    // Keys are looked up one by one.
    let (selected, revision) = fixture.select("", "", 0);
    let keys = ["ns/m001", "ns/m00", "ns/m030"].map(Arc::from);
    for forgets in [false, true] {
        let mut entries = selected.entries.only(keys.clone().into());
        entries.release(&fixture.caches, &fixture.cache, revision);
        let expected = ["ns/m001 \"first\"", "ns/m030 \"first\""].map(str::to_owned);
        begun.push((format!("keys {forgets}"), forgets, 0, entries, expected.into()));
    }
    for number in 0..OBJECTS {
        let revision = fixture.cache.get(&format!("ns/m{number:03}")).unwrap().revision;
        fixture.put(number, "second", revision).await;
    }
    for forgets in [false, true] {
        if forgets {
            while fixture.cache.drops_oldest_state() {}
        }
        for (name, _, first, entries, expected) in begun.iter_mut().filter(|begun| begun.1 == forgets) {
            assert_eq!(entries.clone().take(1).is_err(), forgets && *first < expected.len(), "{name}");
            assert_eq!(rest(entries, 100).await, expected[*first..], "{name}");
        }
    }
}

/// Regression: a list of which no second piece was read kept every object of its state alive, whatever was
/// written since, and so did the first state of a watch.
#[tokio::test]
async fn answers_that_nobody_takes_keep_no_more_alive_than_there_is_room_for() {
    let fixture = Fixture::new().await;
    let large = "x".repeat(1 << 20);
    let (mut unread, mut written): (Vec<Entries>, Vec<Weak<Entry>>) = Default::default();
    let mut revision = fixture.cache.get("ns/m000").unwrap().revision;
    for _ in 0..300 {
        let (mut selected, state) = fixture.select("", "", 500);
        selected.entries.release(&fixture.caches, &fixture.cache, state);
        unread.push(selected.entries);
        revision = fixture.put(0, &large, revision).await;
        written.push(Arc::downgrade(&fixture.cache.get("ns/m000").unwrap()));
    }
    let alive = written.iter().filter(|entry| entry.strong_count() > 0).count() << 20;
    assert!(
        alive <= apiserver_cache::limits::HISTORY_BYTES + apiserver_cache::limits::SNAPSHOT_BYTES,
        "{alive} bytes"
    );
    assert!(
        alive >= apiserver_cache::limits::SNAPSHOT_BYTES,
        "what there is room for is kept: {alive} bytes"
    );
    let value = |entries: Vec<Arc<Entry>>| entries[0].value(None)["data"]["v"].as_str().map(str::len);
    assert_eq!(value(unread[200].fetch(1, 1).await.unwrap()), Some(1 << 20), "it can still be read");
    drop(unread);
    assert!(!fixture.cache.drops_oldest_state());
}

/// 64 KiB of selectors take 5 MB once they are parsed, and a stream that is not read costs next to nothing
/// else.
#[tokio::test]
async fn selectors_are_charged_as_long_as_an_answer_has_them() {
    let fixture = Fixture::new().await;
    let connection = Arc::new(Level::new(1 << 20));
    let account = Accounts::new([4, 4]).of(&Identity::authenticated("bob", &[]));
    let budget = Budget::new(Arc::clone(&connection), account);
    let query = |terms: usize| Query::parse(&format!("labelSelector={}", vec!["a=b"; terms].join("%2C")));
    let filter = |terms| Filter::parse(&fixture.cache, "ns", "", &query(terms), &budget);
    let mut selected =
        filter(1000).unwrap().select(&View::of(&fixture.cache, &fixture.cache.snapshot()), "", 0);
    assert!(connection.used() > 300_000, "{}", connection.used());
    selected.entries.release(&fixture.caches, &fixture.cache, 1);
    assert_eq!(filter(4000).err().map(|error| error.code), Some(429));
    assert!(connection.used() > 300_000, "{}", connection.used());
    drop(selected);
    assert_eq!(connection.used(), 0);
}
