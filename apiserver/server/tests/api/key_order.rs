//! The order of keys in JSON answers. `key_order.txt` has what kube-apiserver 1.36.2 answered for the
//! objects of `objects.json`, their values left out: a line for each, its path and its keys.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use crate::api::crds::{establish, widgets};
use crate::api::harness::{Api, Reply, deployment};
use crate::api::normal::both;
use crate::api::resources::every_object;

/// A JSON text of which nothing but its keys is known, in their order.
#[derive(Debug, PartialEq)]
enum Keys {
    Object(Vec<(String, Keys)>),
    List(Vec<Keys>),
    Value,
}

impl Keys {
    fn of(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn get(&self, key: &str) -> &Self {
        match self {
            Self::Object(fields) => fields.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
        .unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }

    fn item(&self, at: usize) -> &Self {
        match self {
            Self::List(items) => &items[at],
            other => panic!("{other:?} is no list"),
        }
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Self::Object(fields) => fields.iter().map(|(name, _)| name.as_str()).collect(),
            other => panic!("{other:?} is no object"),
        }
    }
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
        let mut fields = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = match name.as_str() {
                // They depend on who wrote the object, and how.
                "managedFields" => map.next_value::<IgnoredAny>().map(|_| Keys::Value)?,
                _ => map.next_value()?,
            };
            fields.push((name, value));
        }
        Ok(Keys::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Keys, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Keys::List(items))
    }

    fn visit_unit<E>(self) -> Result<Keys, E> {
        Ok(Keys::Value)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Keys, E> {
        Ok(Keys::Value)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Keys, E> {
        Ok(Keys::Value)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Keys, E> {
        Ok(Keys::Value)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Keys, E> {
        Ok(Keys::Value)
    }

    fn visit_str<E>(self, _: &str) -> Result<Keys, E> {
        Ok(Keys::Value)
    }
}

/// Fails unless the keys that two texts have in common are in the same order.
#[track_caller]
fn assert_same_order(ours: &Keys, theirs: &Keys, place: &str) {
    match (ours, theirs) {
        (Keys::Object(a), Keys::Object(b)) => {
            let common = |one: &Keys, other: &Keys| -> Vec<String> {
                let other = other.names();
                one.names().into_iter().filter(|name| other.contains(name)).map(str::to_owned).collect()
            };
            assert_eq!(common(ours, theirs), common(theirs, ours), "{place}");
            for (name, value) in a {
                if let Some((_, wanted)) = b.iter().find(|(other, _)| other == name) {
                    assert_same_order(value, wanted, &format!("{place}.{name}"));
                }
            }
        }
        (Keys::List(a), Keys::List(b)) => {
            a.iter().zip(b).enumerate().for_each(|(i, (a, b))| {
                assert_same_order(a, b, &format!("{place}[{i}]"));
            });
        }
        _ => {}
    }
}

/// The answer of kube-apiserver for the object at this path.
fn recorded(path: &str) -> Option<Keys> {
    let all = include_str!("key_order.txt");
    all.lines().find_map(|line| line.strip_prefix(path)?.strip_prefix(' ')).map(Keys::of)
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_every_built_in_kind_have_the_order_of_kubernetes_types() {
    for api in both().await {
        let mut compared = 0;
        for (collection, object) in every_object() {
            let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap());
            let Some(wanted) = recorded(&path) else { continue };
            let created = api.post(&collection, object).await;
            assert!(matches!(created.code, 201 | 409), "{}", created.text);
            if created.code == 201 {
                assert_same_order(&Keys::of(&created.text), &wanted, &format!("POST {path}"));
            }
            let read = api.get(&path).await.expect(200);
            assert_same_order(&Keys::of(&read.text), &wanted, &format!("GET {path}"));
            let name = read.body["metadata"]["name"].as_str().unwrap();
            let list =
                api.get(&format!("{collection}?fieldSelector=metadata.name%3D{name}")).await.expect(200);
            let list = Keys::of(&list.text);
            assert_eq!(list.names(), ["kind", "apiVersion", "metadata", "items"]);
            assert_same_order(list.get("items").item(0), &wanted, &format!("LIST {path}"));
            let label = json!({"metadata": {"labels": {"z": "a"}}});
            let patched = api.patch("merge", &format!("{path}?dryRun=All"), label).await;
            if patched.code == 200 {
                assert_same_order(&Keys::of(&patched.text), &wanted, &format!("PATCH {path}"));
            }
            compared += 1;
        }
        assert!(compared >= 75, "{compared}");
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_have_the_order_of_their_type_wherever_the_version_is_put_in() {
    let order = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "labels",
        "annotations",
        "finalizers",
        "managedFields",
    ];
    let metadata =
        json!({"name": "d", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e.f/g"]});
    for api in both().await {
        let mut object = deployment("d");
        object["metadata"] = metadata.clone();
        let deployments = "/apis/apps/v1/namespaces/default/deployments";
        let one = format!("{deployments}/d");
        let of =
            |keys: &Keys| keys.get("metadata").names().into_iter().map(str::to_owned).collect::<Vec<_>>();
        // An object that is not stored has no version.
        let dry = api.post(&format!("{deployments}?dryRun=All"), object.clone()).await.expect(201);
        let expected: Vec<&str> = order.into_iter().filter(|name| *name != "resourceVersion").collect();
        assert_eq!(of(&Keys::of(&dry.text)), expected, "{}", dry.text);
        for reply in [
            api.post(deployments, object).await.expect(201),
            api.get(&one).await.expect(200),
            api.patch("strategic-merge", &one, json!({"spec": {"replicas": 1}})).await.expect(200),
            api.patch("merge", &format!("{one}/status"), json!({"status": {"replicas": 1}}))
                .await
                .expect(200),
            api.get_as(&one, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
                .await
                .expect(200),
            api.delete(&one, Value::Null).await.expect(200),
        ] {
            let found = of(&Keys::of(&reply.text));
            let found: Vec<&str> =
                found.iter().map(String::as_str).filter(|name| !name.starts_with("deletion")).collect();
            assert_eq!(found, order, "{}", reply.text);
        }
        let mut watch = api.watch(&format!("{deployments}?watch=true&resourceVersion=0")).await;
        let event = Keys::of(&watch.next_line().await.unwrap());
        assert_eq!(event.names(), ["type", "object"]);
        assert_eq!(of(event.get("object"))[..4], order[..4]);
    }
}

#[tokio::test(start_paused = true)]
async fn keys_of_custom_objects_are_sorted_and_so_are_those_of_their_lists() {
    for api in both().await {
        establish(&api, widgets()).await;
        let widgets = "/apis/example.com/v1/namespaces/default/widgets";
        let object = json!({"apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": "w", "labels": {"z": "y"}}, "spec": {"color": "red"}});
        let sorted = |reply: &Reply| {
            let keys = Keys::of(&reply.text);
            assert!(keys.names().is_sorted(), "{}", reply.text);
            let metadata = keys.get("metadata").names().join(" ");
            assert_eq!(
                metadata,
                "creationTimestamp generation labels managedFields name namespace resourceVersion uid"
            );
        };
        sorted(&api.post(widgets, object).await.expect(201));
        sorted(&api.get(&format!("{widgets}/w")).await.expect(200));
        let list = api.get(widgets).await.expect(200);
        assert_eq!(Keys::of(&list.text).names(), ["apiVersion", "items", "kind", "metadata"]);
        assert_eq!(list.body["metadata"]["continue"], "");
        let table = api.get_as(widgets, "application/json;as=Table;g=meta.k8s.io;v=v1").await.expect(200);
        let keys = Keys::of(&table.text);
        assert_eq!(keys.names(), ["kind", "apiVersion", "metadata", "columnDefinitions", "rows"]);
        assert_eq!(
            keys.get("columnDefinitions").item(0).names(),
            ["name", "type", "format", "description", "priority"]
        );
        let row = keys.get("rows").item(0);
        assert_eq!(row.names(), ["cells", "object"]);
        assert_eq!(row.get("object").names(), ["kind", "apiVersion", "metadata"]);
        assert_eq!(row.get("object").get("metadata").names()[..3], ["name", "namespace", "uid"]);
    }
}

#[tokio::test(start_paused = true)]
async fn discovery_and_other_answers_have_the_order_of_their_types() {
    let api = Api::start().await;
    api.post("/apis/apps/v1/namespaces/default/deployments", deployment("d")).await.expect(201);
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let scale = "/apis/apps/v1/namespaces/default/deployments/d/scale";
    for (path, accept, wanted) in [
        ("/api", "", "kind versions serverAddressByClientCIDRs"),
        ("/apis", "", "kind apiVersion groups"),
        ("/apis/apps", "", "kind apiVersion name versions preferredVersion"),
        ("/api/v1", "", "kind groupVersion resources"),
        ("/apis/apps/v1", "", "kind apiVersion groupVersion resources"),
        ("/apis", aggregated, "kind apiVersion metadata items"),
        (scale, "", "kind apiVersion metadata spec status"),
        ("/api/v1/namespaces/none", "", "kind apiVersion metadata status message reason details code"),
        (
            "/version",
            "",
            "major minor emulationMajor emulationMinor minCompatibilityMajor minCompatibilityMinor gitVersion \
             gitCommit gitTreeState buildDate goVersion compiler platform",
        ),
    ] {
        let accept = if accept.is_empty() { "application/json" } else { accept };
        let reply = api.get_as(path, accept).await;
        assert_eq!(Keys::of(&reply.text).names().join(" "), wanted, "{path}");
    }
    let keys = Keys::of(&api.get("/apis/apps/v1").await.text);
    let resource = keys.get("resources").item(0);
    let wanted = "name singularName namespaced kind verbs shortNames categories storageVersionHash";
    let known: Vec<&str> = resource.names().into_iter().filter(|name| wanted.contains(name)).collect();
    assert!(known.len() > 4 && wanted.contains(&known[..3].join(" ")), "{known:?}");
}
