//! Get and list: selectors, pages, resource versions, tables.

use serde_json::{Value, json};

use crate::api::harness::{Api, as_item, deployment, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

#[tokio::test(start_paused = true)]
async fn lists_select_by_label_field_and_namespace() {
    let api = Api::start().await;
    for (name, labels) in [("a", json!({"x": "1", "y": "1"})), ("b", json!({"x": "2"})), ("c", json!({}))] {
        api.config_map(name, labels).await;
    }
    api.post("/api/v1/namespaces/kube-system/configmaps", json!({"metadata": {"name": "z"}}))
        .await
        .expect(201);
    let table = [
        ("labelSelector=x%3D1", vec!["a"]),
        ("labelSelector=x%20in%20(1,2)", vec!["a", "b"]),
        ("labelSelector=!x", vec!["c"]),
        ("labelSelector=x,y!%3D1", vec!["b"]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
        ("fieldSelector=metadata.name!%3Db,metadata.namespace%3Ddefault", vec!["a", "c"]),
        ("", vec!["a", "b", "c"]),
    ];
    for (query, names) in table {
        assert_eq!(api.get(&format!("{MAPS}?{query}")).await.expect(200).names(), names, "{query}");
    }
    assert_eq!(api.get("/api/v1/configmaps").await.expect(200).names(), ["a", "b", "c", "z"]);
    let of = "/api/v1/configmaps?fieldSelector=metadata.namespace%3Dkube-system";
    assert_eq!(api.get(of).await.expect(200).names(), ["z"]);
    assert_eq!(api.get(&format!("{MAPS}?labelSelector=a%3D%3D%3D")).await.code, 400);
    for name in ["..", "a%2Fb", "a%25"] {
        api.get(&format!("{MAPS}/{name}")).await.expect(400);
    }
    let unknown = api.get(&format!("{MAPS}?fieldSelector=data.a%3D1")).await.expect(400);
    assert_eq!(
        unknown.message(),
        r#""data.a" is not a known field selector: only "metadata.name", "metadata.namespace""#
    );
    let list = api.get(MAPS).await.expect(200).body;
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
}

/// Kubernetes writes version and kind of built-in objects once for a list; watches have them in each event.
#[tokio::test(start_paused = true)]
async fn items_of_built_in_lists_leave_version_and_kind_to_the_list() {
    let api = Api::start().await;
    let map = json!({"metadata": {"name": "m"}, "data": {"kind": "x", "apiVersion": "y"}});
    api.post(MAPS, map).await.expect(201);
    let reference = json!({"kind": "Pod", "name": "p", "namespace": "default"});
    let event = json!({"metadata": {"name": "e"}, "involvedObject": reference, "message": "m", "count": 1});
    let events = "/api/v1/namespaces/default/events";
    api.post(events, event).await.expect(201);
    for (path, kind) in [(MAPS, "ConfigMap"), (events, "Event")] {
        let list = api.get(path).await.expect(200).body;
        assert_eq!(list["kind"], format!("{kind}List"));
        let item = &list["items"][0];
        let whole = api.get(&format!("{path}/{}", item["metadata"]["name"].as_str().unwrap())).await.body;
        assert_eq!((&whole["kind"], item), (&json!(kind), &as_item(&whole)));
        let yaml = api.get_as(path, "application/yaml").await.expect(200).text;
        assert!(!yaml.contains(&format!("kind: {kind}\n")), "{yaml}");
        let mut watch = api.watch(&format!("{path}?watch=1")).await;
        assert_eq!(watch.next().await.unwrap()["object"]["kind"], kind);
    }
}

#[tokio::test(start_paused = true)]
async fn pages_belong_to_one_state() {
    let api = Api::start().await;
    for i in 0..10 {
        api.config_map(&format!("m{i}"), json!({})).await;
    }
    let first = api.get(&format!("{MAPS}?limit=4")).await.expect(200);
    assert_eq!(first.names(), ["m0", "m1", "m2", "m3"]);
    assert_eq!(first.body["metadata"]["remainingItemCount"], 6);
    // Changes between pages are not visible.
    api.delete(&format!("{MAPS}/m5"), Value::Null).await.expect(200);
    api.config_map("m55", json!({})).await;
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let second = api.get(&format!("{MAPS}?limit=4&continue={token}")).await.expect(200);
    assert_eq!(second.names(), ["m4", "m5", "m6", "m7"]);
    assert_eq!(second.version(), first.version());
    let token = second.body["metadata"]["continue"].as_str().unwrap();
    let third = api.get(&format!("{MAPS}?limit=4&continue={token}")).await.expect(200);
    assert_eq!(third.names(), ["m8", "m9"]);
    assert_eq!(third.body["metadata"].get("continue"), None);
    assert_eq!(api.get(&format!("{MAPS}?continue=nonsense")).await.code, 400);
    // Every state since the start can be asked for.
    let exact =
        api.get(&format!("{MAPS}?resourceVersion={}&resourceVersionMatch=Exact", first.version())).await;
    assert_eq!(exact.expect(200).names().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn an_expired_page_is_410_with_a_token_that_goes_on() {
    let api = Api::start().await;
    for i in 0..4 {
        api.config_map(&format!("m{i}"), json!({})).await;
    }
    let first = api.get(&format!("{MAPS}?limit=2")).await.expect(200);
    // More changes than are kept, long after.
    tokio::time::sleep(std::time::Duration::from_secs(200)).await;
    for i in 0..120 {
        api.patch("merge", &format!("{MAPS}/m3"), json!({"data": {"i": i.to_string()}})).await.expect(200);
    }
    tokio::time::sleep(std::time::Duration::from_secs(200)).await;
    for i in 0..120 {
        api.patch("merge", &format!("{MAPS}/m3"), json!({"data": {"j": i.to_string()}})).await.expect(200);
    }
    let revision = api.store.revision().await.unwrap();
    api.store.compact(revision).await.unwrap();
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let expired = api.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(410);
    assert_eq!(expired.reason(), "Expired");
    let token = expired.body["metadata"]["continue"].as_str().unwrap();
    let rest = api.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(rest.names(), ["m2", "m3"]);
}

#[tokio::test(start_paused = true)]
async fn resource_versions_mean_what_they_should() {
    let api = Api::start().await;
    let old: i64 = api.config_map("a", json!({})).await.parse().unwrap();
    let new: i64 = api.config_map("b", json!({})).await.parse().unwrap();
    let table: [(String, u16, usize); 9] = [
        ("resourceVersion=0".into(), 200, 2),
        (format!("resourceVersion={old}"), 200, 2),
        (format!("resourceVersion={old}&resourceVersionMatch=NotOlderThan"), 200, 2),
        (format!("resourceVersion={old}&resourceVersionMatch=Exact"), 200, 1),
        (format!("resourceVersion={old}&limit=5"), 200, 1),
        (format!("resourceVersion={new}&resourceVersionMatch=Exact"), 200, 2),
        ("resourceVersionMatch=Exact".into(), 422, 0),
        ("resourceVersion=0&resourceVersionMatch=Exact".into(), 422, 0),
        ("resourceVersion=abc".into(), 400, 0),
    ];
    for (query, code, count) in table {
        let reply = api.get(&format!("{MAPS}?{query}")).await.expect(code);
        if code == 200 {
            assert_eq!(reply.names().len(), count, "{query}");
        }
    }
    for path in
        [format!("{MAPS}?resourceVersion={}", new + 1000), format!("{MAPS}/a?resourceVersion={}", new + 1000)]
    {
        let late = api.get(&path).await.expect(504);
        assert!(late.message().contains("Too large resource version"), "{}", late.text);
        assert_eq!(late.headers["retry-after"], "1");
    }
    api.get(&format!("{MAPS}/a?resourceVersion=0")).await.expect(200);
    api.get(&format!("{MAPS}/a?resourceVersion={new}")).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn pods_and_nodes_are_selected_by_their_fields() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["a", "b"] {
        api.post(pods, pod(name)).await.expect(201);
    }
    api.post(&format!("{pods}/b/binding"), json!({"target": {"name": "n1"}})).await.expect(201);
    for (query, names) in [
        ("spec.nodeName%3Dn1", vec!["b"]),
        ("spec.nodeName%3D", vec!["a"]),
        ("status.phase%3DPending", vec!["a", "b"]),
        ("status.phase%3DPending,spec.nodeName!%3Dn1", vec!["a"]),
    ] {
        let list = api.get(&format!("/api/v1/pods?fieldSelector={query}")).await.expect(200);
        assert_eq!(list.names(), names, "{query}");
    }
    api.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.expect(201);
    let list = api.get("/api/v1/nodes?fieldSelector=spec.unschedulable%3Dfalse").await.expect(200);
    assert_eq!(list.names(), ["n1"]);
}

#[tokio::test(start_paused = true)]
async fn tables_and_metadata() {
    let api = Api::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    api.post(path, deployment("web")).await.expect(201);
    let table = api.get_as(path, TABLE).await.expect(200).body;
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["rows"][0]["cells"][0], "web");
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap().len(),
        table["columnDefinitions"].as_array().unwrap().len()
    );
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let none = api.get_as(&format!("{path}?includeObject=None"), TABLE).await.expect(200).body;
    assert_eq!(none["rows"][0]["object"], Value::Null);
    let whole = api.get_as(&format!("{path}/web?includeObject=Object"), TABLE).await.expect(200).body;
    assert_eq!(whole["rows"][0]["object"]["kind"], "Deployment");
    api.get_as(&format!("{path}?includeObject=Foo"), TABLE).await.expect(400);
    let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = api.get_as(path, metadata).await.expect(200).body;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0].get("spec"), None);
    assert_eq!(list["items"][0]["metadata"]["name"], "web");
}

#[tokio::test(start_paused = true)]
async fn large_lists_come_in_pieces_and_compressed_if_wanted() {
    let api = Api::start().await;
    for i in 0..40 {
        let map = json!({"metadata": {"name": format!("m{i:02}")}, "data": {"x": "x".repeat(20_000)}});
        api.post(MAPS, map).await.expect(201);
    }
    let plain = api.get(MAPS).await.expect(200);
    assert_eq!(plain.names().len(), 40);
    let zipped = api
        .send(
            http::Request::builder()
                .uri(MAPS)
                .header("accept-encoding", "gzip")
                .body(bytes::Bytes::new())
                .unwrap(),
        )
        .await;
    assert_eq!(zipped.headers()["content-encoding"], "gzip");
    let bytes = http_body_util::BodyExt::collect(zipped.into_body()).await.unwrap().to_bytes();
    assert!(bytes.len() < plain.text.len() / 10);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut text).unwrap();
    assert_eq!(text, plain.text);
}
