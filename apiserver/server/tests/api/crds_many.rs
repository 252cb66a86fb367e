//! Many definitions: none has a task of its own, and kinds that are not requested keep no objects.

use std::time::{Duration, Instant};

use apiserver_store::Range;
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};

use crate::api::bad_rules::CRDS;
use crate::api::harness::Api;

/// The number of kinds in one group, as in common installations.
const GROUP: usize = 20;

fn group(index: usize) -> String {
    let together = std::env::var("HAWSER_TOGETHER").ok().and_then(|text| text.parse().ok()).unwrap_or(GROUP);
    format!("g{}.example.com", index / together)
}

/// Some 4 KiB, with rules, lists and defaults.
fn definition(index: usize) -> Value {
    let text = json!({"type": "string", "maxLength": 64, "description": "What it is called, as long as a label may be."});
    let item = json!({"type": "object", "required": ["name"], "properties": {"name": text, "weight": {"type": "integer", "default": 1}}});
    let fields: serde_json::Map<String, Value> =
        (0..12).map(|i| (format!("field{i}"), text.clone())).collect();
    let spec = json!({
        "type": "object",
        "properties": {
            "items": {"type": "array", "maxItems": 16, "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            "nested": {"type": "object", "properties": fields},
            "count": {"type": "integer", "minimum": 0},
        },
        "x-kubernetes-validations": [{"rule": "!has(self.count) || self.count < 10", "message": "too many"}],
    });
    let status = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("kind{index}s.{}", group(index))},
        "spec": {
            "group": group(index), "scope": "Namespaced",
            "names": {"plural": format!("kind{index}s"), "kind": format!("Kind{index}")},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
            }],
        },
    })
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True")
}

/// `HAWSER_MANY=2000` measures as many as that, and `HAWSER_TOGETHER=2000` all of them in one group.
#[tokio::test]
async fn definitions_need_no_tasks_and_little_memory() {
    let count: usize = std::env::var("HAWSER_MANY").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let api = Api::start().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (before, memory, begun) = (tasks(), resident(), Instant::now());
    let make = |index| {
        let api = &api;
        async move { api.post(CRDS, definition(index)).await.expect(201) }
    };
    stream::iter(0..count).map(make).buffer_unordered(32).collect::<Vec<_>>().await;
    let created = begun.elapsed();
    loop {
        let all = api.get(CRDS).await.expect(200).body;
        let items = all["items"].as_array().unwrap();
        if items.len() == count && items.iter().all(established) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (ready, grown) = (begun.elapsed(), resident().saturating_sub(memory));
    // Discovery knows them all, and any of them can be used.
    let groups = api.get("/apis").await.expect(200).body["groups"].as_array().unwrap().len();
    assert!(groups > (count - 1) / GROUP || std::env::var("HAWSER_TOGETHER").is_ok(), "{groups}");
    let last = format!("/apis/{}/v1/namespaces/default/kind{}s", group(count - 1), count - 1);
    let (version, kind) = (format!("{}/v1", group(count - 1)), format!("Kind{}", count - 1));
    let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": {"items": [{"name": "x"}], "count": 3}});
    let made = api.post(&last, object).await.expect(201).body;
    assert_eq!(made["spec"]["items"][0]["weight"], 1);
    let object =
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": "b"}, "spec": {"count": 11}});
    api.post(&last, object).await.expect(422);
    let after = tasks();
    assert!(after < before + 10, "{before} tasks before, {after} after");
    eprintln!(
        "{count} definitions: created in {created:?}, served in {ready:?}, {} bytes each",
        grown / count as u64
    );
}

/// The condition `NamesAccepted` of a definition, once it is as wanted.
async fn named(api: &Api, name: &str, status: &str) -> Value {
    for _ in 0..500 {
        let found = api.get(&format!("{CRDS}/{name}")).await.expect(200).body;
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if let Some(condition) =
            conditions.iter().find(|c| c["type"] == "NamesAccepted" && c["status"] == status)
        {
            return condition.clone();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{name} is not {status}");
}

/// The first definition has the names; a later one gets them when they are free again.
#[tokio::test(start_paused = true)]
async fn a_name_is_granted_once_and_again_when_it_is_free() {
    let api = Api::start().await;
    let with = |index: usize, short: &str| {
        let mut definition = definition(index);
        definition["spec"]["names"]["shortNames"] = json!([short]);
        definition
    };
    let name = |index: usize| format!("kind{index}s.{}", group(index));
    api.post(CRDS, with(0, "kk")).await.expect(201);
    named(&api, &name(0), "True").await;
    for (index, short, field) in [(1, "kk", "ShortNamesConflict"), (2, "kind0s", "ShortNamesConflict")] {
        api.post(CRDS, with(index, short)).await.expect(201);
        let refused = named(&api, &name(index), "False").await;
        assert_eq!(refused["reason"], field);
        assert_eq!(refused["message"], format!("\"{short}\" is already in use"));
    }
    // Another group has names of its own.
    api.post(CRDS, with(GROUP, "kk")).await.expect(201);
    named(&api, &name(GROUP), "True").await;
    let other = json!({"spec": {"names": {"shortNames": ["other"]}}});
    api.patch("merge", &format!("{CRDS}/{}", name(0)), other).await.expect(200);
    named(&api, &name(1), "True").await;
    api.delete(&format!("{CRDS}/{}", name(0)), Value::Null).await.expect(200);
    named(&api, &name(2), "True").await;
}

/// An object that is being created while its definition is deleted is refused, or deleted with it.
#[tokio::test(start_paused = true)]
async fn nothing_outlives_its_definition() {
    let api = Api::start().await;
    let path = format!("/apis/{}/v1/namespaces/default/kind0s", group(0));
    let crd = format!("{CRDS}/kind0s.{}", group(0));
    let prefix = format!("/registry/{}/kind0s/", group(0));
    let (mut made, mut refused) = (0, 0);
    for round in 0..8 {
        api.post(CRDS, definition(0)).await.expect(201);
        for _ in 0..500 {
            if established(&api.get(&crd).await.expect(200).body) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(api.get(&path).await.expect(200).names().is_empty(), "round {round}");
        let clients = (0..40).map(|client| {
            let (api, path) = (&api, &path);
            async move {
                let mut codes = Vec::new();
                for number in 0..40 {
                    let object = json!({"apiVersion": format!("{}/v1", group(0)), "kind": "Kind0",
                        "metadata": {"name": format!("a{client}-{number}")}, "spec": {}});
                    codes.push(api.post(path, object).await.code);
                    tokio::task::yield_now().await;
                }
                codes
            }
        });
        let deletion = async {
            for _ in 0..round * 5 {
                tokio::task::yield_now().await;
            }
            api.delete(&crd, Value::Null).await.expect(200);
        };
        let (codes, ()) = futures::future::join(futures::future::join_all(clients), deletion).await;
        for code in codes.into_iter().flatten() {
            match code {
                201 => made += 1,
                403 | 404 | 405 | 503 => refused += 1,
                other => panic!("{other}"),
            }
        }
        for _ in 0..500 {
            if api.get(&crd).await.code == 404 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        api.get(&crd).await.expect(404);
        let range = Range { prefix: prefix.clone(), ..Range::default() };
        let left = api.store.list(range).await.unwrap().kvs;
        assert!(left.is_empty(), "round {round}: {} are left", left.len());
    }
    // Both happened, or nothing was tested.
    assert!(made > 0 && refused > 0, "{made} {refused}");
}
