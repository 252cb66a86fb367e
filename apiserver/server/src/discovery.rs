//! Discovery: `/api`, `/apis` and the paths below, in the old form and in the aggregated one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use apiserver_registry::definition::version_order;
use apiserver_registry::{Resource, Subresource, Verb};
use apiserver_schema::error::ApiError;
use apiserver_schema::protobuf;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::bootstrap::api_services::group_priority;
use crate::errors::no_such_resource;
use crate::negotiate;
use crate::respond;

/// A document with its hash.
#[derive(Clone)]
pub struct Document {
    pub bytes: Bytes,
    /// Without quotes.
    pub etag: String,
    /// `bytes` compressed, once it has been requested.
    packed: OnceLock<Bytes>,
    /// The document in protobuf, once it has been requested.
    protobuf: OnceLock<Arc<Document>>,
}

impl Document {
    /// Returns a document in JSON.
    pub fn new(value: &Value) -> Self {
        Self::of(Bytes::from(respond::line(value)))
    }

    /// Returns a document of these bytes.
    pub fn of(bytes: Bytes) -> Self {
        let digest = Sha256::digest(&bytes);
        let etag = digest.iter().map(|byte| format!("{byte:02X}")).collect();
        Self { bytes, etag, packed: OnceLock::new(), protobuf: OnceLock::new() }
    }

    /// Returns the document compressed.
    pub fn packed(&self) -> Result<Bytes, ApiError> {
        if let Some(packed) = self.packed.get() {
            return Ok(Bytes::clone(packed));
        }
        let packed = respond::gzip(&self.bytes)
            .map_err(|error| ApiError::internal(format!("the document cannot be packed: {error}")))?;
        Ok(Bytes::clone(self.packed.get_or_init(|| Bytes::from(packed))))
    }

    fn protobuf(&self, make: impl FnOnce() -> Result<Self, ApiError>) -> Result<Arc<Self>, ApiError> {
        if let Some(made) = self.protobuf.get() {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(make()?);
        Ok(Arc::clone(self.protobuf.get_or_init(|| made)))
    }
}

/// The version of the aggregated form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregated {
    V2,
    V2Beta1,
}

impl Aggregated {
    /// Returns the version as in `v=`.
    pub fn version(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V2Beta1 => "v2beta1",
        }
    }

    /// Returns the media type of an answer.
    pub fn media(self) -> &'static str {
        match self {
            Self::V2 => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            Self::V2Beta1 => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        }
    }

    /// Returns the media type of an answer in protobuf.
    pub fn protobuf_media(self) -> &'static str {
        match self {
            Self::V2 => {
                "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            }
            Self::V2Beta1 => {
                "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
            }
        }
    }
}

/// All discovery documents, made once for a registry.
pub struct Discovery {
    /// The documents by path.
    legacy: BTreeMap<String, Document>,
    /// `/api` and `/apis`, in both versions.
    aggregated: BTreeMap<(String, &'static str), Document>,
}

/// Returns a document of the old form in protobuf.
pub fn in_protobuf(document: &Document) -> Result<Arc<Document>, ApiError> {
    document.protobuf(|| encoded(document))
}

fn encoded(document: &Document) -> Result<Document, ApiError> {
    let failed = |why: &dyn std::error::Error| ApiError::internal(format!("discovery in protobuf: {why}"));
    let mut value: Value = serde_json::from_slice(&document.bytes).map_err(|error| failed(&error))?;
    // The list of core versions does not contain its own.
    value["apiVersion"] = "v1".into();
    protobuf::to_envelope(&value)
        .map(|bytes| Document::of(Bytes::from(bytes)))
        .map_err(|error| failed(&error))
}

struct Group<'a> {
    name: &'a str,
    /// In the order of preference.
    versions: Vec<(&'a str, Vec<&'a Resource>)>,
}

impl Discovery {
    /// Returns the documents of the kinds, in their order. `address` is where clients reach the server, with
    /// its port; empty if that is not known.
    pub fn new<'a>(kinds: impl Iterator<Item = &'a Resource>, address: &str) -> Self {
        let groups = groups(kinds);
        let mut legacy = BTreeMap::new();
        let mut add = |path: String, value: &Value| drop(legacy.insert(path, Document::new(value)));
        add(
            "/api".to_owned(),
            &json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
            }),
        );
        let named: Vec<&Group<'_>> = groups.iter().filter(|g| !g.name.is_empty()).collect();
        let list: Vec<Value> = named.iter().map(|g| group_value(g)).collect();
        add("/apis".to_owned(), &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list}));
        for group in &groups {
            if !group.name.is_empty() {
                let mut value = group_value(group);
                value["kind"] = "APIGroup".into();
                value["apiVersion"] = "v1".into();
                add(format!("/apis/{}", group.name), &value);
            }
            for (version, resources) in &group.versions {
                let path = if group.name.is_empty() {
                    format!("/api/{version}")
                } else {
                    format!("/apis/{}/{version}", group.name)
                };
                add(path, &resource_list(group.name, version, resources));
            }
        }
        let mut aggregated = BTreeMap::new();
        for version in [Aggregated::V2, Aggregated::V2Beta1] {
            for (path, core) in [("/api", true), ("/apis", false)] {
                let items: Vec<Value> =
                    groups.iter().filter(|g| g.name.is_empty() == core).map(aggregated_group).collect();
                let value = json!({
                    "kind": "APIGroupDiscoveryList",
                    "apiVersion": format!("apidiscovery.k8s.io/{}", version.version()),
                    "metadata": {}, "items": items,
                });
                aggregated.insert((path.to_owned(), version.version()), Document::new(&value));
            }
        }
        Self { legacy, aggregated }
    }

    /// Returns the paths that have an old form.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.legacy.keys().map(String::as_str)
    }

    /// Returns the old form of a path.
    pub fn legacy(&self, path: &str) -> Option<&Document> {
        self.legacy.get(path.strip_suffix('/').unwrap_or(path))
    }

    /// Returns the aggregated form of `/api` or `/apis`.
    pub fn aggregated(&self, path: &str, version: Aggregated) -> Option<&Document> {
        let path = path.strip_suffix('/').unwrap_or(path);
        self.aggregated.get(&(path.to_owned(), version.version()))
    }

    /// Returns the aggregated form in protobuf.
    pub fn aggregated_protobuf(&self, path: &str, version: Aggregated) -> Result<Arc<Document>, ApiError> {
        let document = self.aggregated(path, version).ok_or_else(no_such_resource)?;
        document.protobuf(|| aggregated_encoded(document, version))
    }
}

fn aggregated_encoded(document: &Document, version: Aggregated) -> Result<Document, ApiError> {
    let failed = |why: &dyn std::error::Error| ApiError::internal(format!("discovery in protobuf: {why}"));
    let value: Value = serde_json::from_slice(&document.bytes).map_err(|error| failed(&error))?;
    let kind = "APIGroupDiscoveryList";
    // The message of the older version is the same.
    let message = protobuf::of_kind("apidiscovery.k8s.io/v2", kind).ok_or_else(negotiate::not_acceptable)?;
    let mut out = protobuf::Backward::default();
    let object = protobuf::Object::of(message, &value).map_err(|error| failed(&error))?;
    protobuf::encode_into(&mut out, &object).map_err(|error| failed(&error))?;
    protobuf::close_envelope(&mut out, &format!("apidiscovery.k8s.io/{}", version.version()), kind);
    Ok(Document::of(Bytes::from(out.finish())))
}

fn groups<'a>(kinds: impl Iterator<Item = &'a Resource>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for resource in kinds {
        let at = *places.entry(&resource.group).or_insert_with(|| {
            groups.push(Group { name: &resource.group, versions: Vec::new() });
            groups.len() - 1
        });
        let versions = &mut groups[at].versions;
        match versions.iter_mut().find(|(version, _)| *version == resource.version) {
            Some((_, resources)) => resources.push(resource),
            None => versions.push((&resource.version, vec![resource])),
        }
    }
    groups.sort_by_key(|group| Reverse(group_priority(group.name)));
    // The table of built-in kinds has its own order.
    for group in &mut groups {
        if group.versions.iter().flat_map(|(_, kinds)| kinds).any(|kind| kind.custom.is_some()) {
            group.versions.sort_by(|(a, _), (b, _)| version_order(a, b));
        }
    }
    groups
}

fn group_value(group: &Group<'_>) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|(version, _)| json!({"groupVersion": format!("{}/{version}", group.name), "version": version}))
        .collect();
    json!({"name": group.name, "versions": versions, "preferredVersion": versions.first()})
}

/// Returns the verbs: of built-in kinds alphabetically, of others in the order of Kubernetes.
fn verbs_of(resource: &Resource) -> Vec<&'static str> {
    if resource.custom.is_some() {
        return resource.verbs.iter().map(|verb| verb.as_str()).collect();
    }
    verbs(&resource.verbs)
}

fn verbs(verbs: &[Verb]) -> Vec<&'static str> {
    let mut names: Vec<_> = verbs.iter().map(|v| v.as_str()).collect();
    names.sort_unstable();
    names
}

fn resource_list(group: &str, version: &str, resources: &[&Resource]) -> Value {
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut list = Vec::new();
    for resource in resources {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": verbs_of(resource),
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        if resource.stored {
            entry["storageVersionHash"] = storage_hash(resource).into();
        }
        list.push(entry);
        for sub in &resource.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
                "namespaced": resource.namespaced, "kind": kind_of(resource, sub), "verbs": verbs(&sub.verbs),
            });
            // Said where it is not that of the list.
            if !sub.version.is_empty() && (sub.group, sub.version) != (group, version) {
                entry["group"] = sub.group.into();
                entry["version"] = sub.version.into();
            }
            list.push(entry);
        }
    }
    list.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    let mut value = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list});
    // The legacy group is older than the version of the list.
    if !group.is_empty() {
        value["apiVersion"] = "v1".into();
    }
    value
}

/// Names the version that objects are kept in, as Kubernetes does: clients compare it and no more.
fn storage_hash(resource: &Resource) -> String {
    let (group, version) = match (resource.group.as_str(), resource.plural.as_str()) {
        ("events.k8s.io", "events") => ("", "v1"),
        ("autoscaling", "horizontalpodautoscalers") => ("autoscaling", "v2"),
        // Kubernetes still keeps them in the version that it no longer serves.
        ("apiextensions.k8s.io", "customresourcedefinitions") => ("apiextensions.k8s.io", "v1beta1"),
        (group, _) => (group, stored_version(resource)),
    };
    let digest = Sha256::digest(format!("{group}/{version}/{}", resource.kind));
    STANDARD.encode(&digest[..8])
}

fn stored_version(resource: &Resource) -> &str {
    resource.custom.as_ref().map_or(&resource.version, |custom| &custom.definition.storage)
}

fn kind_of<'a>(resource: &'a Resource, sub: &'a Subresource) -> &'a str {
    if sub.kind.is_empty() { &resource.kind } else { sub.kind }
}

fn aggregated_group(group: &Group<'_>) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|(version, resources)| {
            let mut resources = resources.clone();
            resources.sort_by(|a, b| a.plural.cmp(&b.plural));
            let list: Vec<Value> = resources.into_iter().map(aggregated_resource).collect();
            json!({"version": version, "resources": list, "freshness": "Current"})
        })
        .collect();
    let mut metadata = json!({});
    if !group.name.is_empty() {
        metadata["name"] = group.name.into();
    }
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let mut value = json!({
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": verbs_of(resource),
    });
    if !resource.short_names.is_empty() {
        value["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        value["categories"] = json!(resource.categories);
    }
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|sub| {
            let own = sub.version.is_empty();
            json!({
                "subresource": sub.name,
                "responseKind": {
                    "group": if own { resource.group.as_str() } else { sub.group },
                    "version": if own { resource.version.as_str() } else { sub.version },
                    "kind": kind_of(resource, sub),
                },
                "verbs": verbs(&sub.verbs),
            })
        })
        .collect();
    if !subresources.is_empty() {
        value["subresources"] = Value::Array(subresources);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver_kinds::builtin;

    fn value(document: &Document) -> Value {
        serde_json::from_slice(&document.bytes).unwrap()
    }

    #[test]
    fn the_old_and_the_aggregated_form_name_the_same_kinds() {
        let discovery = Discovery::new(builtin::registry().iter().map(|r| &**r), "");
        let old = value(discovery.legacy("/apis/apps/v1").unwrap());
        let names: Vec<&str> =
            old["resources"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
        assert!(names.contains(&"deployments") && names.contains(&"deployments/scale"), "{names:?}");
        let new = value(discovery.aggregated("/apis", Aggregated::V2).unwrap());
        let apps = new["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "apps").unwrap();
        let plural = |r: &Value| r["resource"].as_str().unwrap().to_owned();
        let kinds: Vec<String> =
            apps["versions"][0]["resources"].as_array().unwrap().iter().map(plural).collect();
        assert_eq!(
            kinds,
            ["controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"]
        );
        let core = value(discovery.aggregated("/api", Aggregated::V2Beta1).unwrap());
        assert_eq!(core["items"].as_array().unwrap().len(), 1);
        assert_eq!(core["apiVersion"], "apidiscovery.k8s.io/v2beta1");
    }

    #[test]
    fn the_root_of_the_core_group_says_where_the_server_is() {
        let discovery = Discovery::new(builtin::registry().iter().map(|r| &**r), "[fd00::1]:6443");
        let root = value(discovery.legacy("/api").unwrap());
        let addresses = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": "[fd00::1]:6443"}]);
        assert_eq!(root["serverAddressByClientCIDRs"], addresses);
    }

    #[test]
    fn groups_prefer_their_first_version() {
        let discovery = Discovery::new(builtin::registry().iter().map(|r| &**r), "");
        let group = value(discovery.legacy("/apis/autoscaling").unwrap());
        assert_eq!(group["preferredVersion"]["version"], "v2");
    }
}
