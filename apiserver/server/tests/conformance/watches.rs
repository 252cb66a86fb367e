//! Watchers.

use serde_json::{Value, json};

use crate::api::harness::{Api, Watching};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn watch(api: &Api, selector: &str) -> Watching {
    api.watch(&format!("{MAPS}?watch=true&labelSelector={selector}")).await
}

async fn change(api: &Api, name: &str, value: &str) -> String {
    api.patch("merge", &format!("{MAPS}/{name}"), json!({"data": {"mutation": value}}))
        .await
        .expect(200)
        .version()
}

#[tokio::test]
async fn watchers_see_what_their_selectors_match() {
    let api = Api::start().await;
    let mut a = watch(&api, "watch%3Da").await;
    let mut b = watch(&api, "watch%3Db").await;
    let mut both = watch(&api, "watch%20in%20(a,b)").await;
    api.config_map("first", json!({"watch": "a"})).await;
    assert_eq!((a.brief().await, both.brief().await), ("ADDED first".into(), "ADDED first".into()));
    for value in ["1", "2"] {
        change(&api, "first", value).await;
        assert_eq!((a.brief().await, both.brief().await), ("MODIFIED first".into(), "MODIFIED first".into()));
    }
    api.delete(&format!("{MAPS}/first"), Value::Null).await.expect(200);
    assert_eq!((a.brief().await, both.brief().await), ("DELETED first".into(), "DELETED first".into()));
    api.config_map("second", json!({"watch": "b"})).await;
    assert_eq!((b.brief().await, both.brief().await), ("ADDED second".into(), "ADDED second".into()));
    api.delete(&format!("{MAPS}/second"), Value::Null).await.expect(200);
    assert_eq!((b.brief().await, both.brief().await), ("DELETED second".into(), "DELETED second".into()));
    assert!(a.is_quiet().await);
}

#[tokio::test]
async fn a_watch_starts_from_a_version() {
    let api = Api::start().await;
    api.config_map("m", json!({})).await;
    let first = change(&api, "m", "1").await;
    change(&api, "m", "2").await;
    api.delete(&format!("{MAPS}/m"), Value::Null).await.expect(200);
    let mut watch = api.watch(&format!("{MAPS}?watch=true&resourceVersion={first}")).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["data"]["mutation"]), (&json!("MODIFIED"), &json!("2")));
    assert_eq!(watch.brief().await, "DELETED m");
}

#[tokio::test]
async fn a_watch_goes_on_where_another_ended() {
    let api = Api::start().await;
    let mut watch = api.watch(&format!("{MAPS}?watch=true")).await;
    api.config_map("m", json!({})).await;
    change(&api, "m", "1").await;
    assert_eq!(watch.brief().await, "ADDED m");
    let last =
        watch.next().await.unwrap()["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    drop(watch);
    change(&api, "m", "2").await;
    api.delete(&format!("{MAPS}/m"), Value::Null).await.expect(200);
    let mut again = api.watch(&format!("{MAPS}?watch=true&resourceVersion={last}")).await;
    assert_eq!(again.next().await.unwrap()["object"]["data"]["mutation"], "2");
    assert_eq!(again.brief().await, "DELETED m");
}

#[tokio::test]
async fn object_that_stops_matching_is_deleted_for_the_watcher() {
    let api = Api::start().await;
    let mut watch = watch(&api, "changes%3Dno").await;
    api.config_map("m", json!({"changes": "no"})).await;
    change(&api, "m", "1").await;
    let label = async |value: &str| {
        let patch = json!({"metadata": {"labels": {"changes": value}}});
        api.patch("merge", &format!("{MAPS}/m"), patch).await.expect(200);
    };
    label("yes").await;
    change(&api, "m", "2").await;
    label("no").await;
    change(&api, "m", "3").await;
    api.delete(&format!("{MAPS}/m"), Value::Null).await.expect(200);
    for expected in ["ADDED m", "MODIFIED m", "DELETED m", "ADDED m", "MODIFIED m", "DELETED m"] {
        assert_eq!(watch.brief().await, expected);
    }
    assert!(watch.is_quiet().await);
}

#[tokio::test]
async fn concurrent_watches_see_one_order() {
    const CHANGES: usize = 60;
    let api = Api::start().await;
    let start = api.get(MAPS).await.version();
    let writer = Api { server: api.server.clone(), store: api.store.clone(), identity: api.identity.clone() };
    let writing = tokio::spawn(async move {
        for number in 0..CHANGES / 3 {
            let name = format!("m-{number}");
            writer.config_map(&name, json!({})).await;
            change(&writer, &name, "1").await;
            writer.delete(&format!("{MAPS}/{name}"), Value::Null).await.expect(200);
        }
    });
    let version = |event: &Value| event["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut first = api.watch(&format!("{MAPS}?watch=true&resourceVersion={start}")).await;
    let mut versions = Vec::new();
    let mut others: Vec<(usize, Watching)> = Vec::new();
    for seen in 1..=CHANGES {
        let event = first.next().await.unwrap();
        versions.push(version(&event));
        let from = format!("{MAPS}?watch=true&resourceVersion={}", versions[seen - 1]);
        others.push((seen, api.watch(&from).await));
    }
    writing.await.unwrap();
    for (from, mut other) in others {
        for expected in &versions[from..] {
            assert_eq!(&version(&other.next().await.unwrap()), expected);
        }
    }
}
