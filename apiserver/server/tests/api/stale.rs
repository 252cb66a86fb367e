//! Tests of servers and caches that are behind the store: their answers are true all the same.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Op, Range, Store, Write, Written};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::crds::{establish, widgets};
use crate::api::faults::{Flaky, api};
use crate::api::harness::Api;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";

/// Two servers over one store that others write too, and what the second one sees it through.
async fn two() -> (Api, Api, Arc<Flaky>) {
    let inner = Embedded::open(Arc::new(SimDisk::new(7)), Options::default()).await.unwrap();
    let (one, other) = (Flaky::over(inner.clone(), true), Flaky::over(inner, true));
    (api(&one).await, api(&other).await, other)
}

fn map(name: &str, version: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": version},
        "data": data})
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name},
        "spec": {"color": "red"}})
}

/// A server on etcd makes its changes of what its cache has, which another server may have changed.
#[tokio::test(start_paused = true)]
async fn changes_by_a_server_whose_cache_is_behind_are_made_of_what_the_store_has() {
    let (one, two, store) = two().await;
    let mut old = Vec::new();
    for name in ["merged", "same", "tested", "pinned", "gone", "again"] {
        old.push(one.config_map(name, json!({})).await);
    }
    two.get(MAPS).await.expect(200);
    store.hold_watches().await;
    let path = |name: &str| format!("{MAPS}/{name}");
    let mut new = Vec::new();
    for name in ["merged", "same", "tested", "pinned"] {
        let patch = json!({"data": {"a": "2", "b": "3"}});
        new.push(one.patch("merge", &path(name), patch).await.expect(200).version());
    }
    for name in ["gone", "again"] {
        one.delete(&path(name), Value::Null).await.expect(200);
    }
    one.config_map("again", json!({})).await;
    // The cache is behind indeed.
    let stale = two.get(&format!("{}?resourceVersion=0", path("merged"))).await.expect(200);
    assert_eq!((stale.version(), &stale.body["data"]["a"]), (old[0].clone(), &json!("1")));

    let merged = two.patch("merge", &path("merged"), json!({"data": {"c": "4"}})).await.expect(200);
    assert_eq!(merged.body["data"], json!({"a": "2", "b": "3", "c": "4"}));
    // To the cache it would change nothing.
    let same = two.patch("merge", &path("same"), json!({"data": {"a": "1"}})).await.expect(200);
    assert_eq!(same.body["data"], json!({"a": "1", "b": "3"}));
    let tests = |value: &str| json!([{"op": "test", "path": "/data/a", "value": value}]);
    two.patch("json", &path("tested"), tests("2")).await.expect(200);
    two.patch("json", &path("tested"), tests("1")).await.expect(422);
    // The client has seen more than the server, or as little.
    let put = two.put(&path("pinned"), map("pinned", &old[3], json!({"a": "5"}))).await.expect(409);
    assert!(put.message().contains("the object has been modified"), "{}", put.text);
    two.put(&path("pinned"), map("pinned", &new[3], json!({"a": "5"}))).await.expect(200);
    // A deleted object is not found, whatever version is meant.
    two.put(&path("gone"), map("gone", &old[4], json!({}))).await.expect(404);
    two.patch("merge", &path("gone"), json!({"data": {"a": "5"}})).await.expect(404);
    two.put(&path("again"), map("again", &old[5], json!({}))).await.expect(409);
    let again = two.patch("merge", &path("again"), json!({"data": {"z": "1"}})).await.expect(200);
    assert_eq!(again.body["data"], json!({"a": "1", "z": "1"}));

    store.release_watches().await;
    let names = two.get(MAPS).await.expect(200);
    assert_eq!(names.names(), ["again", "merged", "pinned", "same", "tested"]);
    assert_eq!(names.text, one.get(MAPS).await.expect(200).text);
}

/// The server that clears a definition away cannot know of objects that another one accepts that has not seen
/// the deletion: it looks a second time.
#[tokio::test(start_paused = true)]
async fn an_object_that_another_server_takes_while_its_definition_goes_is_deleted_too() {
    let (one, two, store) = two().await;
    establish(&one, widgets()).await;
    two.get(WIDGETS).await.expect(200);
    store.hold_watches().await;
    one.delete(CRD, Value::Null).await.expect(200);
    tokio::time::sleep(Duration::from_millis(500)).await;
    one.post(WIDGETS, widget("late")).await.expect(403);
    two.post(WIDGETS, widget("late")).await.expect(201);
    tokio::time::sleep(Duration::from_secs(5)).await;
    one.get(CRD).await.expect(404);
    let range = Range { prefix: "/registry/example.com/".to_owned(), ..Range::default() };
    assert_eq!(one.store.list(range).await.unwrap().kvs.len(), 0, "it would come back with the next one");
    store.release_watches().await;
    two.get(WIDGETS).await.expect(404);
}

/// Regression: an object written between the read of a custom kind and the read of everything else was in
/// neither, and nothing brought it back.
#[tokio::test(start_paused = true)]
async fn a_custom_kind_that_is_read_while_all_is_read_again_misses_nothing() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    establish(&api, widgets()).await;
    // Until its APIService is there too.
    tokio::time::sleep(Duration::from_secs(2)).await;
    store.compacted.store(true, Ordering::SeqCst);
    store.late.store(1_000, Ordering::SeqCst);
    store.hold_watches().await;
    // By now everything is about to be read again.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let any = format!("{WIDGETS}?resourceVersion=0");
    assert!(api.get(&any).await.expect(200).names().is_empty());
    api.post(WIDGETS, widget("a")).await.expect(201);
    tokio::time::sleep(Duration::from_secs(5)).await;
    store.late.store(0, Ordering::SeqCst);
    store.release_watches().await;
    assert_eq!(api.get(WIDGETS).await.expect(200).names(), ["a"]);
    let found = api.get(&format!("{WIDGETS}/a?resourceVersion=0")).await.expect(200);
    assert_eq!(found.body["spec"]["color"], "red");
}

/// A get that waits for a revision may find that the cache it waited for has been replaced.
#[tokio::test(start_paused = true)]
async fn a_get_finds_an_object_that_came_with_a_change_of_its_definition() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    establish(&api, widgets()).await;
    api.get(WIDGETS).await.expect(200);
    // Two revisions from now.
    let next = store.inner.revision().await.unwrap() + 2;
    let path = format!("{WIDGETS}/a?resourceVersion={next}");
    let change = async {
        let mut definition = api.get(CRD).await.expect(200).body;
        definition["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.size"}]);
        api.put(CRD, definition).await.expect(200);
        api.post(WIDGETS, widget("a")).await.expect(201);
    };
    let (found, ()) = futures::future::join(api.get(&path), change).await;
    assert_eq!(found.expect(200).body["metadata"]["name"], "a");
}

/// An object that becomes unreadable is not served in its former state.
#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_any_more_is_gone() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    let from = api.config_map("a", json!({})).await;
    let mut watch = api.watch(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    let key = "/registry/configmaps/default/a".to_owned();
    let op = |text: &'static str| Op::Put { value: text.into(), ttl_seconds: 0 };
    let write = Write { key: key.clone(), expected: from.parse().unwrap(), op: op("k8s:enc:aescbc:v1:x") };
    let Written::Done { revision } = api.store.write(write).await.unwrap() else { panic!("not written") };
    assert_eq!(watch.brief().await, "DELETED a");
    assert!(api.get(MAPS).await.expect(200).names().is_empty());
    let readable = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default"}}"#;
    api.store.write(Write { key, expected: revision, op: op(readable) }).await.unwrap();
    assert_eq!(watch.brief().await, "ADDED a");
    assert_eq!(api.get(MAPS).await.expect(200).names(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_path_that_means_nothing_is_told_so_soon_by_a_server_whose_store_hangs() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    store.hung.store(true, Ordering::SeqCst);
    for most in [505, 5] {
        let from = Instant::now();
        api.get("/apis/nothing.example.com/v1/things").await.expect(404);
        assert!(from.elapsed() <= Duration::from_millis(most), "{:?}", from.elapsed());
    }
}

/// A watch on which there is always something to send ends in time.
#[tokio::test(start_paused = true)]
async fn a_busy_watch_ends_too() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({})).await;
    let mut watch = api.watch(&format!("{MAPS}?watch=1&resourceVersion={from}&timeoutSeconds=5")).await;
    for number in 0..20 {
        api.patch("merge", &format!("{MAPS}/a"), json!({"data": {"n": number.to_string()}}))
            .await
            .expect(200);
        tokio::time::sleep(Duration::from_secs(1)).await;
        if watch.next().await.is_none() {
            assert!(number >= 3, "{number}");
            return;
        }
    }
    panic!("it does not end");
}

/// Builds before these rules, and clusters with other feature gates, stored what a new object may not be.
#[tokio::test]
async fn objects_of_older_rules_can_be_changed_and_deleted() {
    let api = Api::start().await;
    let template = json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {
        "containers": [{"name": "a", "image": "i", "imagePullPolicy": "Always",
            "resources": {"requests": {"cpu": "1m"}}, "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File"}]}});
    api.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    api.post("/api/v1/namespaces/default/pods", template).await.expect(201);
    let key = "/registry/pods/default/p";
    let stored = api.store.get(key).await.unwrap().kv.unwrap();
    let mut pod = api.get("/api/v1/namespaces/default/pods/p").await.expect(200).body;
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("100u");
    pod["spec"]["securityContext"]["seLinuxChangePolicy"] = json!("MountOption");
    pod["metadata"]["finalizers"] = json!(["example.com/kept"]);
    let op = Op::Put { value: pod.to_string().into(), ttl_seconds: 0 };
    let write = Write { key: key.to_owned(), expected: stored.mod_revision, op };
    api.store.write(write).await.unwrap();
    let path = "/api/v1/namespaces/default/pods/p";
    let annotation = json!({"metadata": {"annotations": {"a": "b"}}});
    api.patch("merge", path, annotation).await.expect(200);
    api.delete(&format!("{path}?gracePeriodSeconds=0"), Value::Null).await.expect(200);
    api.patch("merge", path, json!({"metadata": {"finalizers": null}})).await.expect(200);
    api.get(path).await.expect(404);
}
