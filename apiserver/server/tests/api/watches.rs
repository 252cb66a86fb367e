//! Watches.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::harness::{Api, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_without_gap_or_repetition() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({})).await;
    api.config_map("b", json!({})).await;
    let mut watch = api.watch(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    assert_eq!(watch.brief().await, "ADDED b");
    api.patch("merge", &format!("{MAPS}/b"), json!({"data": {"x": "y"}})).await.expect(200);
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["data"]["x"]), (&json!("MODIFIED"), &json!("y")));
    api.delete(&format!("{MAPS}/a"), Value::Null).await.expect(200);
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    let version = event["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(version, api.store.revision().await.unwrap().to_string());
    assert!(watch.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn watch_deletes_on_mismatch_and_adds_on_match() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({"x": "1"})).await;
    let mut watch = api.watch(&format!("{MAPS}?watch=1&labelSelector=x%3D1&resourceVersion={from}")).await;
    api.config_map("other", json!({"x": "2"})).await;
    for (labels, brief) in [("2", "DELETED a"), ("3", ""), ("1", "ADDED a"), ("1", "MODIFIED a")] {
        let patch = json!({"metadata": {"labels": {"x": labels}}, "data": {"n": brief}});
        api.patch("merge", &format!("{MAPS}/a"), patch).await.expect(200);
        if brief.is_empty() {
            assert!(watch.is_quiet().await);
        } else {
            assert_eq!(watch.brief().await, brief);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_hears_of_its_pods_alone() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let mut one = api.watch("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1").await;
    let mut two = api.watch("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn2").await;
    for name in ["a", "b"] {
        api.post(pods, pod(name)).await.expect(201);
    }
    api.post(&format!("{pods}/a/binding"), json!({"target": {"name": "n1"}})).await.expect(201);
    api.post(&format!("{pods}/b/binding"), json!({"target": {"name": "n2"}})).await.expect(201);
    assert_eq!(one.brief().await, "ADDED a");
    assert_eq!(two.brief().await, "ADDED b");
    api.delete(&format!("{pods}/a"), json!({"gracePeriodSeconds": 0})).await.expect(200);
    assert_eq!(one.brief().await, "DELETED a");
    assert!(two.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn one_object_or_namespace_is_watched() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({})).await;
    let by_name = format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Da&resourceVersion={from}");
    let mut one = api.watch(&by_name).await;
    let mut other = api.watch("/api/v1/namespaces/kube-system/configmaps?watch=1").await;
    let mut old_path =
        api.watch(&format!("/api/v1/watch/namespaces/default/configmaps?resourceVersion={from}")).await;
    api.config_map("b", json!({})).await;
    api.delete(&format!("{MAPS}/a"), Value::Null).await.expect(200);
    assert_eq!(one.brief().await, "DELETED a");
    assert_eq!(old_path.brief().await, "ADDED b");
    assert!(other.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_a_version_begins_with_the_state() {
    let api = Api::start().await;
    api.config_map("a", json!({})).await;
    for query in ["watch=1", "watch=1&resourceVersion=0"] {
        let mut watch = api.watch(&format!("{MAPS}?{query}")).await;
        assert_eq!(watch.brief().await, "ADDED a");
        assert!(watch.is_quiet().await);
    }
}

#[tokio::test(start_paused = true)]
async fn initial_events_end_with_a_marked_bookmark() {
    let api = Api::start().await;
    api.config_map("a", json!({})).await;
    let last = api.config_map("b", json!({})).await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = api.watch(&format!("{MAPS}?{query}")).await;
    assert_eq!(watch.brief().await, "ADDED a");
    assert_eq!(watch.brief().await, "ADDED b");
    let mark = watch.next().await.unwrap();
    assert_eq!((&mark["type"], &mark["object"]["kind"]), (&json!("BOOKMARK"), &json!("ConfigMap")));
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let version: i64 = mark["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(version >= last.parse().unwrap());
    api.get(&format!("{MAPS}?watch=1&sendInitialEvents=true")).await.expect(422);
    api.get(&format!("{MAPS}?watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=1")).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_before_the_end() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({})).await;
    let path = format!("{MAPS}?watch=1&resourceVersion={from}&allowWatchBookmarks=true&timeoutSeconds=90");
    let mut watch = api.watch(&path).await;
    // A change elsewhere moves the bookmark.
    api.post("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await.expect(201);
    let begun = tokio::time::Instant::now();
    let mark = watch.next().await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 60);
    assert_eq!(mark["type"], "BOOKMARK");
    let version: i64 = mark["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert_eq!(version, api.store.revision().await.unwrap());
    assert_eq!(watch.brief().await, "BOOKMARK ");
    assert_eq!(begun.elapsed().as_secs(), 88);
    assert_eq!(watch.brief().await, "END");
    assert_eq!(begun.elapsed().as_secs(), 90);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_version_is_an_error_event_and_a_future_one_is_waited_for() {
    let api = Api::start().await;
    let mut watch = api.watch(&format!("{MAPS}?watch=1&resourceVersion=1")).await;
    let from = api.config_map("a", json!({})).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    for i in 0..150 {
        api.patch("merge", &format!("{MAPS}/a"), json!({"data": {"i": i.to_string()}})).await.expect(200);
    }
    tokio::time::sleep(Duration::from_secs(100)).await;
    api.patch("merge", &format!("{MAPS}/a"), json!({"data": {"i": "last"}})).await.expect(200);
    drop(watch.next().await);
    let mut late = api.watch(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    let event = late.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(late.next().await, None);
    // The watch waits for changes that have not happened yet, and does not report earlier ones.
    let next = api.store.revision().await.unwrap() + 2;
    let path = format!("{MAPS}?watch=1&allowWatchBookmarks=1&timeoutSeconds=70&resourceVersion={next}");
    let mut early = api.watch(&path).await;
    api.config_map("b", json!({})).await;
    api.config_map("c", json!({})).await;
    api.config_map("d", json!({})).await;
    assert_eq!(early.brief().await, "ADDED d");
    assert_eq!(early.brief().await, "BOOKMARK ");
    let mut far = api
        .watch(&format!("{MAPS}?watch=1&allowWatchBookmarks=1&timeoutSeconds=70&resourceVersion=100000"))
        .await;
    assert_eq!(far.brief().await, "END");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_does_not_read_is_cut_off_and_others_are_not() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({})).await;
    let path = format!("{MAPS}?watch=1&resourceVersion={from}");
    let mut slow = api.watch(&path).await;
    let mut quick = api.watch(&path).await;
    let count = apiserver_cache::limits::WATCHER_QUEUE + 10;
    for i in 0..count {
        api.patch("merge", &format!("{MAPS}/a"), json!({"data": {"i": i.to_string()}})).await.expect(200);
        assert_eq!(quick.brief().await, "MODIFIED a");
    }
    let mut seen = 0;
    while slow.next().await.is_some() {
        seen += 1;
    }
    assert_eq!(seen, apiserver_cache::limits::WATCHER_QUEUE);
}

#[tokio::test(start_paused = true)]
async fn tables_and_metadata_are_watched() {
    let api = Api::start().await;
    api.config_map("a", json!({})).await;
    let mut table =
        api.watch_as(&format!("{MAPS}?watch=1"), "application/json;as=Table;g=meta.k8s.io;v=v1").await;
    let event = table.next().await.unwrap();
    assert_eq!(event["object"]["kind"], "Table");
    assert_eq!(event["object"]["columnDefinitions"][0]["name"], "Name");
    assert_eq!(event["object"]["rows"][0]["cells"][0], "a");
    let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let mut watch = api.watch_as(&format!("{MAPS}?watch=1"), metadata).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(event["object"].get("data"), None);
}
