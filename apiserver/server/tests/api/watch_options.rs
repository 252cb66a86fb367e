//! The options of watches, their refusals, the older paths, shapes of events.

use serde_json::{Value, json};

use crate::api::harness::{Api, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

#[tokio::test(start_paused = true)]
async fn contradictory_options_are_422_in_kubernetes_words() {
    let api = Api::start().await;
    let rule = |why: &str| format!("resourceVersionMatch: Forbidden: {why}");
    let requires = rule("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    let unless = rule("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
    let continued = rule("resourceVersionMatch is forbidden when continue is provided");
    let unsupported =
        r#"resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan""#.to_owned();
    let table = [
        ("sendInitialEvents=true", vec![&requires]),
        ("sendInitialEvents=false&resourceVersion=1", vec![&requires]),
        ("resourceVersionMatch=NotOlderThan", vec![&unless]),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=0", vec![&unless]),
        ("resourceVersionMatch=Exact&resourceVersion=1", vec![&unless, &unsupported]),
        ("sendInitialEvents=true&resourceVersionMatch=Exact", vec![&requires, &unsupported]),
        ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x", vec![&continued]),
    ];
    for (query, errors) in table {
        let reply = api.get(&format!("{MAPS}?watch=1&{query}")).await.expect(422);
        let texts: Vec<&str> = errors.into_iter().map(String::as_str).collect();
        let list = if texts.len() == 1 { texts[0].to_owned() } else { format!("[{}]", texts.join(", ")) };
        assert_eq!(reply.message(), format!("ListOptions.meta.k8s.io \"\" is invalid: {list}"), "{query}");
    }
    api.get(&format!("{MAPS}?watch=1&resourceVersion=x")).await.expect(500);
    api.get(&format!("{MAPS}?watch=1&timeoutSeconds=x")).await.expect(400);
    let yaml = api.get_as(&format!("{MAPS}?watch=1"), "application/yaml").await.expect(406);
    assert_eq!(
        yaml.message(),
        "only the following media types are accepted: application/json;stream=watch, \
         application/vnd.kubernetes.protobuf;stream=watch"
    );
}

/// The events before the first change.
#[tokio::test(start_paused = true)]
async fn each_beginning_sends_what_it_should() {
    let api = Api::start().await;
    api.config_map("a", json!({})).await;
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let without = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let marks = "allowWatchBookmarks=true";
    let both = vec!["ADDED a", "ADDED b"];
    let marked = vec!["ADDED a", "ADDED b", "BOOKMARK "];
    let table: [(String, Vec<&str>); 13] = [
        (String::new(), both.clone()),
        ("resourceVersion=0".into(), both.clone()),
        ("resourceVersion=FROM".into(), vec!["ADDED b"]),
        // The same events as if the client had asked for the state in the newer way.
        (marks.into(), marked.clone()),
        (format!("resourceVersion=0&{marks}"), marked.clone()),
        (format!("resourceVersion=FROM&{marks}"), vec!["ADDED b"]),
        (initial.into(), both.clone()),
        (format!("{initial}&{marks}"), marked.clone()),
        (format!("{initial}&{marks}&resourceVersion=0"), marked.clone()),
        (format!("{initial}&{marks}&resourceVersion=FROM"), marked.clone()),
        (without.into(), vec![]),
        (format!("{without}&resourceVersion=0"), vec![]),
        (format!("{without}&resourceVersion=FROM"), vec!["ADDED b"]),
    ];
    for (query, expected) in table {
        let from = api.store.revision().await.unwrap().to_string();
        api.config_map("b", json!({})).await;
        let query = query.replace("FROM", &from);
        let mut watch = api.watch(&format!("{MAPS}?watch=1&{query}")).await;
        for event in expected {
            assert_eq!(watch.brief().await, event, "{query}");
        }
        assert!(watch.is_quiet().await, "{query}");
        api.delete(&format!("{MAPS}/b"), Value::Null).await.expect(200);
        assert_eq!(watch.brief().await, "DELETED b", "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_that_is_not_reached_is_an_error_event() {
    let api = Api::start().await;
    let path = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=100000"
    );
    let mut watch = api.watch(&path).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(504)));
    let details = &event["object"]["details"];
    assert_eq!(details["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_bookmarks_gets_none_and_ends_in_time() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({})).await;
    for (seconds, lasts) in [(90, 90), (1, 1)] {
        let begun = tokio::time::Instant::now();
        let path = format!("{MAPS}?watch=1&resourceVersion={from}&timeoutSeconds={seconds}");
        let mut watch = api.watch(&path).await;
        assert_eq!(watch.brief().await, "END");
        assert_eq!(begun.elapsed().as_secs(), lasts);
    }
    let begun = tokio::time::Instant::now();
    let mut watch = api.watch(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    assert_eq!(watch.next().await, None);
    assert!((1800..3600).contains(&begun.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn one_object_is_watched_by_its_path_or_its_name() {
    let api = Api::start().await;
    for name in ["a", "b"] {
        api.config_map(name, json!({"x": "1"})).await;
    }
    let from = api.store.revision().await.unwrap();
    let paths = [
        format!("/api/v1/watch/namespaces/default/configmaps/a?resourceVersion={from}"),
        format!(
            "/api/v1/watch/namespaces/default/configmaps/a?fieldSelector=metadata.name%3Da&resourceVersion={from}"
        ),
        format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Da&resourceVersion={from}"),
        format!(
            "/api/v1/configmaps?watch=1&fieldSelector=metadata.name%3Da,metadata.namespace%3Ddefault&resourceVersion={from}"
        ),
        format!("/api/v1/configmaps?watch=1&fieldSelector=metadata.name%3Da&resourceVersion={from}"),
    ];
    let mut watches = Vec::new();
    for path in &paths {
        watches.push(api.watch(path).await);
    }
    for name in ["b", "a"] {
        api.patch("merge", &format!("{MAPS}/{name}"), json!({"data": {"n": "1"}})).await.expect(200);
        api.delete(&format!("{MAPS}/{name}"), Value::Null).await.expect(200);
    }
    api.config_map("a", json!({})).await;
    for (watch, path) in watches.iter_mut().zip(&paths) {
        for event in ["MODIFIED a", "DELETED a", "ADDED a"] {
            assert_eq!(watch.brief().await, event, "{path}");
        }
        assert!(watch.is_quiet().await);
    }
    let path = "/api/v1/watch/namespaces/default/configmaps/a?fieldSelector=metadata.name%3Db";
    let reply = api.get(path).await.expect(400);
    assert_eq!(reply.message(), "fieldSelector metadata.name doesn't match requested name");
    let mut own = api.watch("/api/v1/watch/namespaces/default?resourceVersion=0").await;
    assert_eq!(own.brief().await, "ADDED default");
    assert!(own.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn the_older_paths_of_collections() {
    let api = Api::start().await;
    api.config_map("a", json!({})).await;
    api.post("/apis/apps/v1/namespaces/default/deployments", crate::api::harness::deployment("d"))
        .await
        .expect(201);
    for (path, first) in [
        ("/api/v1/watch/namespaces/default/configmaps", "ADDED a"),
        ("/api/v1/watch/configmaps?labelSelector=!none", "ADDED a"),
        ("/apis/apps/v1/watch/deployments", "ADDED d"),
        ("/apis/apps/v1/watch/namespaces/default/deployments/d?allowWatchBookmarks=1", "ADDED d"),
    ] {
        let mut watch = api.watch(path).await;
        assert_eq!(watch.brief().await, first, "{path}");
        assert!(watch.is_quiet().await, "{path}");
    }
    // The older rule is that of lists.
    let reply = api.get("/api/v1/watch/configmaps?sendInitialEvents=true").await.expect(422);
    assert!(reply.message().contains("sendInitialEvents is forbidden for list"), "{}", reply.text);
}

/// A pod that moves into and out of a node's view, and the state it is last seen in.
#[tokio::test(start_paused = true)]
async fn objects_that_start_and_stop_matching_a_field() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, pod("p")).await.expect(201);
    let from = api.store.revision().await.unwrap();
    let of = |selector: &str| format!("/api/v1/pods?watch=1&fieldSelector={selector}&resourceVersion={from}");
    let mut unbound = api.watch(&of("spec.nodeName%3D")).await;
    let mut bound = api.watch(&of("spec.nodeName%3Dn1")).await;
    let mut alias = api.watch(&of("spec.host%3Dn1")).await;
    let mut pending = api.watch(&of("status.phase%3DPending,spec.nodeName%3Dn1")).await;
    api.post(&format!("{pods}/p/binding"), json!({"target": {"name": "n1"}})).await.expect(201);
    let revision = api.store.revision().await.unwrap().to_string();
    let gone = unbound.next().await.unwrap();
    assert_eq!((&gone["type"], &gone["object"]["spec"]["nodeName"]), (&json!("DELETED"), &Value::Null));
    assert_eq!(gone["object"]["metadata"]["resourceVersion"], revision);
    for watch in [&mut bound, &mut alias, &mut pending] {
        assert_eq!(watch.brief().await, "ADDED p");
    }
    let running = json!({"status": {"phase": "Running"}});
    api.patch("merge", &format!("{pods}/p/status"), running).await.expect(200);
    let last = pending.next().await.unwrap();
    assert_eq!((&last["type"], &last["object"]["status"]["phase"]), (&json!("DELETED"), &json!("Pending")));
    assert_eq!(bound.brief().await, "MODIFIED p");
    api.delete(&format!("{pods}/p"), json!({"gracePeriodSeconds": 0})).await.expect(200);
    let revision = api.store.revision().await.unwrap().to_string();
    for watch in [&mut bound, &mut alias] {
        let mut event = watch.next().await.unwrap();
        while event["type"] == "MODIFIED" {
            event = watch.next().await.unwrap();
        }
        assert_eq!(
            (&event["type"], &event["object"]["status"]["phase"]),
            (&json!("DELETED"), &json!("Running"))
        );
        assert_eq!(event["object"]["metadata"]["resourceVersion"], revision);
    }
    assert!(pending.is_quiet().await && unbound.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn tables_name_their_columns_once_and_mark_the_end_of_the_beginning() {
    let api = Api::start().await;
    api.config_map("a", json!({})).await;
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for include in ["None", "Metadata", "Object"] {
        let path = format!("{MAPS}?watch=1&{initial}&includeObject={include}");
        let mut watch = api.watch_as(&path, TABLE).await;
        let first = watch.next().await.unwrap();
        assert_eq!(first["object"]["columnDefinitions"][0]["name"], "Name");
        let version = &first["object"]["metadata"]["resourceVersion"];
        let object = &first["object"]["rows"][0]["object"];
        match include {
            "None" => assert_eq!(*object, Value::Null),
            "Object" => assert_eq!(
                (&object["data"]["a"], &object["metadata"]["resourceVersion"]),
                (&json!("1"), version)
            ),
            _ => assert_eq!((&object["kind"], object.get("data")), (&json!("PartialObjectMetadata"), None)),
        }
        let mark = watch.next().await.unwrap();
        assert_eq!((&mark["type"], &mark["object"]["kind"]), (&json!("BOOKMARK"), &json!("Table")));
        assert_eq!(mark["object"]["columnDefinitions"], Value::Null);
        let row = &mark["object"]["rows"][0]["object"];
        assert_eq!(row["metadata"]["annotations"]["k8s.io/initial-events-end"], "true", "{include}");
    }
    let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let mut watch = api.watch_as(&format!("{MAPS}?watch=1&{initial}"), metadata).await;
    assert_eq!(watch.next().await.unwrap()["object"]["metadata"]["name"], "a");
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}
