use super::follow::{apply_events, prepare};
use super::*;
use crate::media::Encoding;
use crate::readable::Readable;
use crate::source::Event;
use k8s_openapi::api::core::v1::ConfigMap;

fn config_map(name: &str, version: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.namespace = Some("ns".to_owned());
    object.metadata.name = Some(name.to_owned());
    object.metadata.resource_version = Some(version.to_owned());
    object
}

fn listing(read: Vec<ConfigMap>) -> Listing<ConfigMap> {
    let read = read.into_iter().map(|object| {
        let version = version_of(&object.metadata);
        (Arc::new(object), version)
    });
    Listing { read: read.collect(), ..Listing::default() }
}

#[test]
fn versions_are_seen_when_handlers_run_for_objects_lists_and_deletions() {
    let cache = Cache::<ConfigMap>::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, view) = (Arc::clone(&seen), cache.clone());
    cache.on_change(move |change| lock(&log).push(view.has_seen(version_of(&change.object().metadata))));
    let object = |version: &str| Readable::Object(Box::new(config_map("a", version)));
    apply_events(&cache, vec![Event::Applied(object("7"))], Encoding::Json);
    assert_eq!((cache.has_seen(7), cache.has_seen(8)), (true, false));
    let mut list = Listing::new();
    list.add(object("9"), Encoding::Json);
    cache.replace(list);
    assert_eq!((cache.has_seen(9), cache.has_seen(10)), (true, false));
    apply_events(&cache, vec![Event::Deleted(object("12"))], Encoding::Json);
    assert!(cache.has_seen(12));
    apply_events(
        &cache,
        vec![Event::Bookmark { version: "15".to_owned(), ends_state: false }],
        Encoding::Json,
    );
    assert!(cache.has_seen(15));
    cache.replace(Listing { version: 17, ..Listing::new() });
    assert!(cache.has_seen(17));
    assert_eq!(*lock(&seen), [true, true, true]);
}

#[tokio::test(start_paused = true)]
async fn a_list_shows_what_was_answered_before_it_was_requested() {
    let cache = Cache::<ConfigMap>::default();
    let pass = async || tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let before = Instant::now();
    pass().await;
    let list = Listing::new();
    pass().await;
    let meanwhile = Instant::now();
    assert!(!cache.has_listed_since(before), "it has not arrived");
    cache.replace(list);
    assert!(cache.has_listed_since(before) && !cache.has_listed_since(meanwhile));
}

#[test]
fn an_unreadable_object_keeps_its_last_state() {
    let cache = Cache::<ConfigMap>::default();
    cache.apply(config_map("a", "1"));
    cache.apply(config_map("b", "1"));
    let unreadable = || {
        let metadata = Box::new(config_map("a", "2").metadata);
        Readable::Unreadable { metadata, why: "data is a number".to_owned() }
    };
    apply_events(&cache, vec![Event::Applied(unreadable())], Encoding::Json);
    let mut listing = Listing::new();
    listing.add(unreadable(), Encoding::Json);
    cache.replace(listing);
    let names: Vec<_> = cache.list().iter().map(|object| object.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, ["a"]);
    apply_events(&cache, vec![Event::Deleted(unreadable())], Encoding::Json);
    assert!(cache.is_empty());
}

fn recorded(cache: &Cache<ConfigMap>) -> Arc<Mutex<Vec<String>>> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&log);
    cache.on_change(move |change| {
        let text = match change {
            Change::Applied { old: None, .. } => format!("add {}", change.key()),
            Change::Applied { .. } => format!("update {}", change.key()),
            Change::Deleted(_) => format!("delete {}", change.key()),
        };
        lock(&writer).push(text);
    });
    log
}

#[test]
fn a_second_list_deletes_missing_objects_and_ignores_unchanged_versions() {
    let cache = Cache::<ConfigMap>::default();
    let log = recorded(&cache);
    cache.replace(listing(vec![config_map("a", "1"), config_map("b", "2")]));
    cache.replace(listing(vec![config_map("b", "2"), config_map("c", "3")]));
    assert_eq!(*lock(&log), ["add ns/a", "add ns/b", "delete ns/a", "add ns/c"]);
    assert!(cache.has_synced());
}

#[test]
fn newest_object_of_a_list_is_shown_when_all_are_stored_and_indexed() {
    struct ByNamespace;
    impl IndexBy<ConfigMap> for ByNamespace {
        type Value = String;
        fn values(object: &ConfigMap) -> Vec<String> {
            object.metadata.namespace.clone().into_iter().collect()
        }
    }
    let cache = Cache::<ConfigMap>::default();
    cache.apply(config_map("gone", "3"));
    let (index, view) = (cache.index::<ByNamespace>(), cache.clone());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    cache.on_change(move |_| {
        lock(&log).push((view.has_seen(9), view.len(), index.count(&"ns".to_owned())));
    });
    lock(&seen).clear();
    cache.replace(listing(vec![config_map("a", "9"), config_map("b", "8")]));
    assert_eq!(*lock(&seen), [(true, 2, 2); 3], "one that is gone and two that came");
}

#[test]
fn events_that_arrive_together_are_all_stored_when_the_first_handler_runs() {
    let cache = Cache::<ConfigMap>::default();
    cache.apply(config_map("gone", "3"));
    let (seen, view) = (Arc::new(Mutex::new(Vec::new())), cache.clone());
    let log = Arc::clone(&seen);
    cache.on_change(move |change| lock(&log).push((change.key().name, view.has_seen(7), view.len())));
    lock(&seen).clear();
    let object = |name, version| Readable::Object(Box::new(config_map(name, version)));
    let events = vec![
        Event::Applied(object("a", "5")),
        Event::Deleted(object("gone", "6")),
        Event::Applied(object("b", "7")),
    ];
    apply_events(&cache, events, Encoding::Json);
    let named = |name: &str| (name.to_owned(), true, 2);
    assert_eq!(*lock(&seen), ["a", "gone", "b"].map(named));
}

#[test]
fn unchanged_objects_of_a_list_are_not_stored_again() {
    let cache = Cache::<ConfigMap>::default();
    cache.apply(config_map("a", "1"));
    let before = cache.get(&ObjectKey::new("ns", "a")).unwrap();
    cache.replace(listing(vec![config_map("a", "1")]));
    assert!(Arc::ptr_eq(&before, &cache.get(&ObjectKey::new("ns", "a")).unwrap()));
}

/// A projection: the name, and the number of entries that the object has.
struct Size(ObjectKey, usize);

impl Projection for Size {
    type Object = ConfigMap;

    fn project(object: ConfigMap) -> Self {
        Self(ObjectKey::of(&object), object.data.map_or(0, |data| data.len()))
    }

    fn names(&self) -> (&str, &str) {
        (&self.0.namespace, &self.0.name)
    }

    fn is_version_of(&self, _: &Self) -> bool {
        false
    }
}

#[test]
fn a_cache_may_hold_a_projection() {
    let cache = Cache::<Size>::default();
    let mut object = config_map("a", "1");
    object.data = Some([("one".to_owned(), "1".to_owned())].into());
    let mut listed = Listing::new();
    listed.add(Readable::Object(Box::new(object)), Encoding::Json);
    cache.replace(listed);
    cache.apply(config_map("b", "2"));
    let sizes: Vec<_> = cache.list().iter().map(|size| (size.0.name.clone(), size.1)).collect();
    assert_eq!(sizes, [("a".to_owned(), 1), ("b".to_owned(), 0)]);
}

#[test]
fn a_late_handler_gets_existing_objects() {
    let cache = Cache::<ConfigMap>::default();
    cache.apply(config_map("a", "1"));
    let log = recorded(&cache);
    cache.apply(config_map("a", "2"));
    assert_eq!(*lock(&log), ["add ns/a", "update ns/a"]);
}

#[test]
fn a_namespace_is_listed_without_others() {
    let cache = Cache::<ConfigMap>::default();
    for namespace in ["a", "b", "ba"] {
        let mut object = config_map("x", "1");
        object.metadata.namespace = Some(namespace.to_owned());
        cache.apply(object);
    }
    assert_eq!(cache.list_namespace("b").len(), 1);
}

#[test]
fn objects_are_stored_without_managed_fields() {
    let mut object = config_map("a", "1");
    object.metadata.managed_fields = Some(Vec::new());
    object.immutable = Some(true);
    let cache = Cache::<ConfigMap>::default();
    apply_events(&cache, vec![Event::Applied(Readable::Object(Box::new(object)))], Encoding::Json);
    let stored = cache.get(&ObjectKey::new("ns", "a")).unwrap();
    assert_eq!((stored.metadata.managed_fields.is_none(), stored.immutable), (true, Some(true)));
}

#[test]
fn vectors_of_stored_objects_have_no_room_to_spare() {
    let mut object = config_map("a", "1");
    let mut finalizers = Vec::with_capacity(64);
    finalizers.push("example.com/one".to_owned());
    object.metadata.finalizers = Some(finalizers);
    let mut object = Readable::Object(Box::new(object));
    prepare::<ConfigMap>(&mut object, Encoding::Json);
    let finalizers = object.object().unwrap().metadata.finalizers;
    assert_eq!(finalizers.map(|all| all.capacity()), Some(1));
}
