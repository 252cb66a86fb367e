//! The kinds that both servers have, and the manifests that cases begin with.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::server::Server;

/// A kind as discovery tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    pub api_version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    pub updates: bool,
    pub deletes: bool,
    /// Right objects; the first does no harm where it is really created.
    pub manifests: Vec<Value>,
}

impl Kind {
    /// The path of the collection, in a namespace if the kind lies in one.
    pub fn collection(&self, namespace: &str) -> String {
        let root = if self.api_version.contains('/') { "apis" } else { "api" };
        let scope = if self.namespaced { format!("namespaces/{namespace}/") } else { String::new() };
        format!("/{root}/{}/{scope}{}", self.api_version, self.plural)
    }
}

/// Groups and versions that a server has, in the order of its discovery.
pub async fn versions(server: &Server) -> Result<Vec<String>> {
    let groups = server.get("/apis").await?;
    let all = groups["groups"].as_array().into_iter().flatten();
    let versions = all.flat_map(|group| group["versions"].as_array().into_iter().flatten());
    let named = versions.filter_map(|version| version["groupVersion"].as_str().map(str::to_owned));
    Ok(std::iter::once("v1".to_owned()).chain(named).collect())
}

/// The kinds of some versions that can be created.
pub async fn discover(server: &Server, versions: &[String]) -> Result<Vec<Kind>> {
    let manifests = Manifests::read()?;
    let mut kinds = Vec::new();
    for version in versions {
        let root = if version.contains('/') { "apis" } else { "api" };
        let list = server.get(&format!("/{root}/{version}")).await?;
        for resource in list["resources"].as_array().into_iter().flatten() {
            let word = |field: &str| resource[field].as_str().unwrap_or_default().to_owned();
            let can =
                |verb: &str| resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!(verb)));
            if word("name").contains('/') || !can("create") {
                continue;
            }
            let manifests = manifests.of(version, &word("name"), &word("kind"));
            kinds.push(Kind {
                api_version: version.clone(),
                plural: word("name"),
                kind: word("kind"),
                namespaced: resource["namespaced"] == true,
                updates: can("update") && can("patch"),
                deletes: can("delete"),
                manifests,
            });
        }
    }
    Ok(kinds)
}

/// The manifests of the repository, by resource, or by version and resource.
struct Manifests {
    rich: BTreeMap<String, Vec<Value>>,
    minimal: BTreeMap<String, Value>,
}

impl Manifests {
    fn read() -> Result<Self> {
        let rich = serde_json::from_str(include_str!("../manifests.json")).context("manifests.json")?;
        let minimal = serde_json::from_str(include_str!("../../../apiserver/server/tests/api/objects.json"))
            .context("objects.json")?;
        Ok(Self { rich, minimal })
    }

    fn of(&self, version: &str, plural: &str, kind: &str) -> Vec<Value> {
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let keys =
            [format!("{version}/{plural}"), format!("{group}/{plural}").trim_start_matches('/').to_owned()];
        let rich = keys.iter().find_map(|key| self.rich.get(key)).into_iter().flatten().cloned();
        let minimal = keys.iter().find_map(|key| self.minimal.get(key)).map(|sample| {
            let mut manifest = sample.get("object").or(sample.get("review")).cloned().unwrap_or(json!({}));
            if let Some(name) = sample.get("name") {
                manifest["metadata"] = json!({ "name": name });
            }
            manifest
        });
        let complete = |mut manifest: Value| {
            manifest["apiVersion"] = json!(version);
            manifest["kind"] = json!(kind);
            if manifest["metadata"]["name"].is_null() {
                manifest["metadata"]["name"] = json!("name-of-none");
            }
            manifest
        };
        rich.chain(minimal).map(complete).collect()
    }
}

/// Stands in manifests for the namespace of the run.
const NAMESPACE: &str = "@namespace@";

/// A manifest in a namespace of this run and under a name; names that have a form of their own stay as they are.
pub fn named(manifest: &Value, namespace: &str, name: &str) -> Value {
    let mut manifest = manifest.clone();
    placed(&mut manifest, namespace);
    if manifest["metadata"]["name"] == "name-of-none" {
        manifest["metadata"]["name"] = json!(name);
    }
    manifest
}

fn placed(value: &mut Value, namespace: &str) {
    match value {
        Value::String(text) if text == NAMESPACE => namespace.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(|item| placed(item, namespace)),
        Value::Object(fields) => fields.values_mut().for_each(|value| placed(value, namespace)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Manifests, named};

    #[test]
    fn a_manifest_is_placed_and_named() {
        let manifest = json!({"metadata": {"name": "name-of-none"}, "a": [{"namespace": "@namespace@"}]});
        let expected = json!({"metadata": {"name": "x"}, "a": [{"namespace": "n"}]});
        assert_eq!(named(&manifest, "n", "x"), expected);
        let fixed = json!({"metadata": {"name": "192.0.2.3"}});
        assert_eq!(named(&fixed, "n", "x"), fixed);
    }

    #[test]
    fn every_kind_that_can_be_created_has_a_manifest() {
        let manifests = Manifests::read().unwrap();
        let table: Vec<serde_json::Value> =
            serde_json::from_str(include_str!("../../../apiserver/schema/data/resources.json")).unwrap();
        for entry in
            table.iter().filter(|entry| entry["verbs"].as_array().unwrap().contains(&"create".into()))
        {
            let word = |field: &str| entry[field].as_str().unwrap().to_owned();
            let version = match word("group").as_str() {
                "" => word("version"),
                group => format!("{group}/{}", word("version")),
            };
            assert!(
                !manifests.of(&version, &word("plural"), &word("kind")).is_empty(),
                "{version} {}",
                word("plural")
            );
        }
    }
}
