//! Objects that are nested as deep as can be.

use serde_json::{Value, json};

use crate::api::bad_rules::{FROBS, definition, frob};
use crate::api::crds::establish;
use crate::api::harness::Api;

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!({ "a": inner }))
}

#[tokio::test(start_paused = true)]
async fn deep_objects_can_be_read_changed_and_deleted() {
    let api = Api::start().await;
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    establish(&api, definition(json!({"type": "object", "properties": {"spec": open}}))).await;
    let mut deepest = 0;
    for depth in 90..140 {
        let path = format!("{FROBS}/n{depth}");
        let object = frob(json!({"metadata": {"name": format!("n{depth}")}, "spec": nested(depth)}));
        let made = api.post(FROBS, object).await;
        if made.code != 201 {
            assert_eq!(made.code, 400, "{depth}: {}", made.text);
            continue;
        }
        deepest = depth;
        api.get(&path).await.expect(200);
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        api.patch("merge", &path, label).await.expect(200);
        assert_eq!(api.get(&path).await.expect(200).body["metadata"]["labels"]["a"], "b", "{depth}");
        api.get(FROBS).await.expect(200);
        api.delete(&path, json!({})).await.expect(200);
        api.get(&path).await.expect(404);
    }
    assert!(deepest >= 90);
    // A patch puts one deep value into another.
    api.post(FROBS, frob(json!({"metadata": {"name": "a"}, "spec": nested(80)}))).await.expect(201);
    let path = format!("{FROBS}/a");
    let place = format!("/spec{}", "/a".repeat(80));
    let patch = json!([{"op": "replace", "path": place, "value": nested(80)}]);
    let refused = api.patch("json", &path, patch).await;
    assert!(refused.code == 422 || refused.code == 400 || refused.code == 200, "{}", refused.text);
    api.get(&path).await.expect(200);
    api.patch("merge", &path, json!({"spec": {"b": 1}})).await.expect(200);
    api.delete(&path, json!({})).await.expect(200);
}
