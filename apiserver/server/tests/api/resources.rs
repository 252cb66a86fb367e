//! Tests of every resource of the table, with every verb and subresource that the table gives it. The table
//! is the one that the server is made of, `apiserver/schema/data/resources.json`; a minimal object of each
//! kind is in `objects.json`. A line of the table that is neither exercised nor excused fails.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apiserver_meta::finalizers;
use apiserver_schema::protobuf;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::deletions::ANSWERED_WITH_OBJECT;
use crate::api::harness::Api;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
/// The selector of the test's own objects in a list.
const OURS: &str = "labelSelector=test%3Dtable";

#[derive(Clone, Deserialize)]
pub struct Entry {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: BTreeSet<String>,
    pub subresources: BTreeMap<String, BTreeSet<String>>,
    pub stored: Option<String>,
}

#[derive(Deserialize)]
struct Sample {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    object: Option<Value>,
    #[serde(default)]
    status: Option<Value>,
    #[serde(default)]
    review: Option<Value>,
}

/// Subresources that are not exercised here, and why.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("nodes", "proxy", "needs a kubelet: streams.rs"),
    ("pods", "attach", "needs a kubelet: streams.rs"),
    ("pods", "exec", "needs a kubelet: streams.rs"),
    ("pods", "log", "needs a kubelet: streams.rs"),
    ("pods", "portforward", "needs a kubelet: streams.rs"),
    ("pods", "proxy", "needs a pod that serves: streams.rs"),
    ("services", "proxy", "needs a pod that serves: streams.rs"),
    ("serviceaccounts", "token", "needs a signing key: tls.rs"),
];

impl Entry {
    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    pub fn root(&self) -> String {
        let prefix = if self.group.is_empty() { "/api" } else { "/apis" };
        format!("{prefix}/{}", self.api_version())
    }

    fn collection(&self) -> String {
        let scope = if self.namespaced { "/namespaces/default" } else { "" };
        format!("{}{scope}/{}", self.root(), self.plural)
    }

    fn has(&self, verb: &str) -> bool {
        self.verbs.contains(verb)
    }

    fn is_kept(&self) -> bool {
        self.has("create") && self.has("get")
    }

    /// Takes more than one step to go.
    fn lingers(&self) -> bool {
        matches!(self.plural.as_str(), "namespaces" | "customresourcedefinitions" | "servicecidrs")
    }
}

pub fn table() -> Vec<Entry> {
    serde_json::from_str(include_str!("../../../schema/data/resources.json")).unwrap()
}

fn sample(entry: &Entry) -> Sample {
    let all: BTreeMap<String, Value> = serde_json::from_str(include_str!("objects.json")).unwrap();
    let own = format!("{}/{}", entry.api_version(), entry.plural);
    let shared = format!("{}/{}", entry.group, entry.plural);
    let found = all.get(&own).or_else(|| all.get(shared.trim_start_matches('/')));
    serde_json::from_value(found.unwrap_or_else(|| panic!("no object for {own}")).clone()).unwrap()
}

/// The object of a kind, as a client sends it.
pub fn object(api_version: &str, plural: &str) -> Value {
    let entry = table().into_iter().find(|e| e.api_version() == api_version && e.plural == plural).unwrap();
    let mut object = sample(&entry).object.unwrap();
    object["metadata"] = json!({"name": "test"});
    object
}

/// Returns the status of a kind that has one, or the spec of a kind that is only created, such as a
/// TokenReview.
pub fn status_or_review(api_version: &str, plural: &str) -> Option<Value> {
    let entry = table().into_iter().find(|e| e.api_version() == api_version && e.plural == plural)?;
    if !entry.has("create") || plural == "bindings" {
        return None;
    }
    let Sample { status, review, .. } = sample(&entry);
    review.or_else(|| status.filter(|_| entry.subresources.contains_key("status")))
}

/// The collection and the object of every kind that is created and read, in every version.
pub fn every_object() -> Vec<(String, Value)> {
    let mut named = BTreeSet::new();
    let kept = table().into_iter().filter(Entry::is_kept);
    let made = kept.filter_map(|entry| {
        let sample = sample(&entry);
        let mut object = sample.object.unwrap_or_else(|| panic!("{}: no object", entry.plural));
        // Versions of the same objects must not meet, nor two that cannot have another name.
        if sample.name.is_some() && !named.insert((entry.group.clone(), entry.plural.clone())) {
            return None;
        }
        let name = sample.name.unwrap_or_else(|| format!("test-{}{}", entry.version, entry.group));
        object["metadata"] = json!({"name": name});
        Some((entry.collection(), object))
    });
    made.collect()
}

/// One kind under test.
struct Subject<'a> {
    api: &'a Api,
    entry: &'a Entry,
    name: String,
    object: Value,
    status: Option<Value>,
}

impl<'a> Subject<'a> {
    fn new(api: &'a Api, entry: &'a Entry) -> Self {
        let sample = sample(entry);
        let name = sample.name.unwrap_or_else(|| "test".to_owned());
        let mut object = sample.object.unwrap_or_else(|| panic!("{}: no object", entry.plural));
        object["metadata"] = json!({"name": name, "labels": {"test": "table"}});
        object["apiVersion"] = entry.api_version().into();
        object["kind"] = entry.kind.clone().into();
        Self { api, entry, name, object, status: sample.status }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.entry.collection(), self.name)
    }

    fn what(&self) -> String {
        format!("{}/{}", self.entry.api_version(), self.entry.plural)
    }

    async fn expect(&self, what: &str, reply: crate::api::harness::Reply, code: u16) -> Value {
        assert_eq!(reply.code, code, "{what} {}: {}", self.what(), reply.text);
        reply.body
    }

    async fn read(&self) -> Value {
        let object = self.expect("get", self.api.get(&self.path()).await, 200).await;
        assert_eq!(object["apiVersion"], self.entry.api_version(), "{}", self.what());
        assert_eq!(object["kind"], self.entry.kind, "{}", self.what());
        object
    }

    async fn create(&self) -> Value {
        let reply = self.api.post(&self.entry.collection(), self.object.clone()).await;
        let made = self.expect("create", reply, 201).await;
        if self.entry.lingers() {
            // The server has something to add to it.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(made["metadata"]["name"], self.name, "{}", self.what());
        assert_eq!(self.read().await["metadata"]["uid"], made["metadata"]["uid"], "{}", self.what());
        made
    }

    /// Lists, with and without selector, in all namespaces; as a table, whose rows fill its columns.
    async fn lists(&self) {
        let path = format!("{}?{OURS}", self.entry.collection());
        let list = self.expect("list", self.api.get(&path).await, 200).await;
        assert_eq!(list["kind"], format!("{}List", self.entry.kind), "{}", self.what());
        assert_eq!(list["apiVersion"], self.entry.api_version(), "{}", self.what());
        assert_eq!(list["items"][0]["metadata"]["name"], self.name, "{}", self.what());
        let everywhere = format!("{}/{}?{OURS}", self.entry.root(), self.entry.plural);
        let list = self.expect("list all", self.api.get(&everywhere).await, 200).await;
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "{}", self.what());
        let named = format!("{}?fieldSelector=metadata.name%3D{}", self.entry.collection(), self.name);
        let list = self.expect("list by field", self.api.get(&named).await, 200).await;
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "{}", self.what());
        let table = self.expect("table", self.api.get_as(&path, TABLE).await, 200).await;
        assert_eq!(table["kind"], "Table", "{}", self.what());
        let columns = table["columnDefinitions"].as_array().unwrap();
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(columns.len(), cells.len(), "{}", self.what());
        assert!(columns.iter().any(|column| column["format"] == "name"), "{}", self.what());
        assert!(cells.iter().all(|cell| !cell.is_null()), "{}: {cells:?}", self.what());
    }

    /// Reads the object in protobuf and writes it back, which changes nothing.
    async fn protobuf(&self) {
        let request = Request::builder().uri(self.path()).header("accept", PROTOBUF);
        let response = self.api.send(request.body(Bytes::new()).unwrap()).await;
        assert_eq!(response.status(), 200, "{}", self.what());
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let object = protobuf::from_envelope(&bytes).unwrap();
        assert_eq!(object["apiVersion"], self.entry.api_version(), "{}", self.what());
        let plain = self.read().await;
        let json = protobuf::from_envelope(&protobuf::to_envelope(&plain).unwrap()).unwrap();
        assert_eq!(object, json, "{}", self.what());
        let headers = [("content-type", PROTOBUF), ("accept", "application/json")];
        let reply = self.api.call("PUT", &self.path(), &headers, bytes).await;
        let put = self.expect("put in protobuf", reply, 200).await;
        assert_eq!(
            put["metadata"]["resourceVersion"],
            plain["metadata"]["resourceVersion"],
            "{}",
            self.what()
        );
    }

    async fn writes(&self) {
        let path = self.path();
        let mut object = self.read().await;
        object["metadata"]["labels"]["put"] = "yes".into();
        self.expect("update", self.api.put(&path, object).await, 200).await;
        let patch = json!({"metadata": {"labels": {"merge": "yes"}}});
        self.expect("merge", self.api.patch("merge", &path, patch).await, 200).await;
        let patch = json!({"metadata": {"labels": {"strategic": "yes"}}});
        self.expect("strategic", self.api.patch("strategic-merge", &path, patch).await, 200).await;
        let patch = json!([{"op": "add", "path": "/metadata/labels/json", "value": "yes"}]);
        self.expect("json patch", self.api.patch("json", &path, patch).await, 200).await;
        let config = json!({"apiVersion": self.entry.api_version(), "kind": self.entry.kind,
            "metadata": {"name": self.name, "labels": {"apply": "yes"}}});
        let reply = self.api.apply(&format!("{path}?fieldManager=table"), config).await;
        let applied = self.expect("apply", reply, 200).await;
        for label in ["put", "merge", "strategic", "json", "apply"] {
            assert_eq!(applied["metadata"]["labels"][label], "yes", "{} {label}", self.what());
        }
        let managers = applied["metadata"]["managedFields"].as_array().unwrap();
        assert!(
            managers.iter().any(|m| m["manager"] == "table" && m["operation"] == "Apply"),
            "{}",
            self.what()
        );
        // Labels do not count for the generation, except of slices.
        let counted = if self.entry.plural == "endpointslices" { 6 } else { 1 };
        if let Some(generation) = applied["metadata"].get("generation") {
            assert_eq!(generation, counted, "{}", self.what());
        }
    }

    async fn subresources(&self) {
        for (name, verbs) in &self.entry.subresources {
            match (self.entry.plural.as_str(), name.as_str()) {
                (_, "status") => self.status(verbs).await,
                (_, "scale") => self.scale(verbs).await,
                ("certificatesigningrequests", "approval") => self.approval(verbs).await,
                ("namespaces", "finalize") => {
                    let mut object = self.read().await;
                    object["spec"]["finalizers"] = json!(["example.com/kept"]);
                    let reply = self.api.put(&format!("{}/finalize", self.path()), object).await;
                    let done = self.expect("finalize", reply, 200).await;
                    assert_eq!(done["spec"]["finalizers"], json!(["example.com/kept"]));
                }
                ("pods", "ephemeralcontainers" | "resize") => {
                    let path = format!("{}/{name}", self.path());
                    let object = self.expect(name, self.api.get(&path).await, 200).await;
                    self.expect(name, self.api.put(&path, object).await, 200).await;
                    self.expect(name, self.api.patch("merge", &path, json!({})).await, 200).await;
                }
                ("pods", "binding") => {
                    let binding =
                        json!({"metadata": {"name": self.name}, "target": {"kind": "Node", "name": "n"}});
                    let reply = self.api.post(&format!("{}/binding", self.path()), binding).await;
                    self.expect("binding", reply, 201).await;
                }
                ("pods", "eviction") => {
                    let eviction = json!({"metadata": {"name": self.name}});
                    let reply =
                        self.api.post(&format!("{}/eviction?dryRun=All", self.path()), eviction).await;
                    self.expect("eviction", reply, 201).await;
                }
                (plural, name) => {
                    let excused =
                        ELSEWHERE.iter().any(|(p, n, why)| (*p, *n) == (plural, name) && !why.is_empty());
                    assert!(excused, "{plural}/{name} is not exercised");
                }
            }
        }
    }

    /// The status is written here and only here, and nothing else is.
    async fn status(&self, verbs: &BTreeSet<String>) {
        assert_eq!(verbs, &["get", "patch", "update"].map(str::to_owned).into(), "{}", self.what());
        let path = format!("{}/status", self.path());
        let before = self.expect("get status", self.api.get(&path).await, 200).await;
        if self.entry.plural == "customresourcedefinitions" {
            // Its status is written only by the server.
            let patch = json!({"status": {"storedVersions": ["v1"]}});
            self.expect("patch status", self.api.patch("merge", &path, patch).await, 200).await;
            self.expect("put status", self.api.put(&path, self.read().await).await, 200).await;
            return;
        }
        let mut wanted = self.status.clone().unwrap_or_else(|| panic!("{}: no status", self.what()));
        if self.entry.plural == "certificatesigningrequests" {
            // Approvals stay.
            let approved = before["status"]["conditions"].as_array().cloned().unwrap_or_default();
            wanted["conditions"].as_array_mut().unwrap().splice(0..0, approved);
        }
        let mut main = before.clone();
        main["status"] = wanted.clone();
        let main = self.expect("update", self.api.put(&self.path(), main).await, 200).await;
        assert_eq!(main["status"], before["status"], "{}", self.what());
        let mut object = main.clone();
        object["status"] = wanted.clone();
        object["spec"] = json!({});
        object["metadata"]["labels"]["status"] = "yes".into();
        let told = self.expect("put status", self.api.put(&path, object).await, 200).await;
        assert_eq!(told["spec"], before["spec"], "{}", self.what());
        assert_eq!(told["metadata"]["generation"], before["metadata"]["generation"], "{}", self.what());
        for (field, value) in wanted.as_object().unwrap() {
            assert!(contains(&told["status"][field], value), "{}: {told}", self.what());
        }
        let patch = json!({"metadata": {"annotations": {"test": "status"}}});
        self.expect("patch status", self.api.patch("merge", &path, patch).await, 200).await;
        let config = json!({"apiVersion": self.entry.api_version(), "kind": self.entry.kind,
            "metadata": {"name": self.name}, "status": wanted});
        let reply = self.api.apply(&format!("{path}?fieldManager=status&force=true"), config).await;
        self.expect("apply status", reply, 200).await;
    }

    async fn scale(&self, verbs: &BTreeSet<String>) {
        assert_eq!(verbs.len(), 3);
        let path = format!("{}/scale", self.path());
        let mut scale = self.expect("scale", self.api.get(&path).await, 200).await;
        assert_eq!((&scale["kind"], &scale["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")));
        scale["spec"]["replicas"] = 4.into();
        self.expect("scale", self.api.put(&path, scale).await, 200).await;
        let patch = json!({"spec": {"replicas": 5}});
        self.expect("scale", self.api.patch("merge", &path, patch).await, 200).await;
        assert_eq!(self.read().await["spec"]["replicas"], 5);
    }

    async fn approval(&self, verbs: &BTreeSet<String>) {
        assert_eq!(verbs.len(), 3);
        let path = format!("{}/approval", self.path());
        let mut request = self.expect("approval", self.api.get(&path).await, 200).await;
        let approved = json!({"type": "Approved", "status": "True", "reason": "Test"});
        let mut conditions = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.push(approved);
        request["status"]["conditions"] = conditions.into();
        let done = self.expect("approval", self.api.put(&path, request).await, 200).await;
        let has =
            |kind: &str| done["status"]["conditions"].as_array().unwrap().iter().any(|c| c["type"] == kind);
        assert!(has("Approved"));
        let patch = json!({"metadata": {"annotations": {"test": "approval"}}});
        self.expect("approval", self.api.patch("merge", &path, patch).await, 200).await;
    }

    async fn delete(&self) {
        let path = self.path();
        let options = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
        let reply = self.api.delete(&path, options).await;
        assert!(matches!(reply.code, 200 | 202), "{}: {}", self.what(), reply.text);
        let whole = ANSWERED_WITH_OBJECT.contains(&self.entry.plural.as_str()) || self.entry.lingers();
        let wanted = if whole { self.entry.kind.as_str() } else { "Status" };
        assert_eq!(reply.body["kind"], wanted, "{}", self.what());
        if self.entry.plural == "namespaces" {
            // Its finalizers are removed when it is empty, as the controller does it.
            let mut object = self.read().await;
            assert_eq!(object["status"]["phase"], "Terminating");
            object["spec"]["finalizers"] = json!([]);
            let reply = self.api.put(&format!("{path}/finalize"), object).await;
            self.expect("finalize", reply, 200).await;
        }
        self.release().await;
        self.gone().await;
    }

    /// Removes the finalizer that a controller removes once nothing uses the object.
    async fn release(&self) {
        if finalizers::finalizer(&self.entry.group, &self.entry.plural).is_some() {
            let patch = json!({"metadata": {"finalizers": null}});
            self.expect("release", self.api.patch("merge", &self.path(), patch).await, 200).await;
        }
    }

    async fn gone(&self) {
        for _ in 0..600 {
            if self.api.get(&self.path()).await.code == 404 {
                return;
            }
            assert!(self.entry.lingers(), "{} is still there", self.what());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{} does not go", self.what());
    }

    async fn delete_collection(&self) {
        if !self.entry.has("deletecollection") {
            return;
        }
        self.create().await;
        let path = format!("{}?{OURS}", self.entry.collection());
        let options = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
        let reply = self.api.delete(&path, options).await;
        self.expect("deletecollection", reply, 200).await;
        self.release().await;
        self.gone().await;
    }
}

/// Every verb of a kind, once, and what a watcher sees of it.
async fn exercise(api: &Api, entry: &Entry, others: &[&Entry]) {
    let subject = Subject::new(api, entry);
    let list = api.get(&entry.collection()).await.expect(200);
    let from = format!("{}?watch=1&{OURS}&resourceVersion={}", entry.collection(), list.version());
    let mut watch = api.watch(&from).await;
    subject.create().await;
    let added = watch.next().await.unwrap();
    assert_eq!((&added["type"], &added["object"]["kind"]), (&json!("ADDED"), &json!(entry.kind)));
    assert_eq!(added["object"]["apiVersion"], entry.api_version());
    kept(&subject).await;
    subject.lists().await;
    subject.protobuf().await;
    subject.writes().await;
    // The same object, in the other versions of the kind.
    for other in others {
        let path = format!("{}/{}", other.collection(), subject.name);
        let seen = subject.expect("other version", api.get(&path).await, 200).await;
        assert_eq!(seen["apiVersion"], other.api_version());
        assert_eq!(seen["metadata"]["labels"]["apply"], "yes");
        let patch = json!({"metadata": {"labels": {other.version.as_str(): "yes"}}});
        let reply = api.patch("merge", &path, patch).await;
        subject.expect("patch in another version", reply, 200).await;
        let own = subject.read().await;
        assert_eq!(own["metadata"]["labels"][other.version.as_str()], "yes");
        for (field, value) in subject.object.as_object().unwrap() {
            assert!(
                matches!(field.as_str(), "metadata") || contains(&own[field], value),
                "{}: {own}",
                subject.what()
            );
        }
    }
    subject.subresources().await;
    subject.delete().await;
    loop {
        let event = watch.next().await.unwrap();
        match event["type"].as_str().unwrap() {
            "MODIFIED" => {}
            "DELETED" => break,
            other => panic!("{}: {other}", subject.what()),
        }
    }
    subject.delete_collection().await;
}

/// Returns `true` if everything of `part` is in `whole`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

/// Checks that the object is stored in the version of the table.
async fn kept(subject: &Subject<'_>) {
    let entry = subject.entry;
    let registry = apiserver_kinds::builtin::registry();
    let resource = registry.lookup(&entry.group, &entry.version, &entry.plural).unwrap();
    let scope = if entry.namespaced { "default/" } else { "" };
    let key = format!("{}/{scope}{}", resource.storage_prefix, subject.name);
    let value = subject.api.store.get(&key).await.unwrap().kv.unwrap_or_else(|| panic!("no {key}")).value;
    let object: Value = serde_json::from_slice(&value).unwrap();
    let wanted = entry.stored.clone().unwrap_or_else(|| entry.api_version());
    assert_eq!(object["apiVersion"], wanted, "{key}");
}

async fn all(wanted: impl Fn(&Entry) -> bool) {
    let api = Api::start().await;
    let table = table();
    for entry in table.iter().filter(|e| e.is_kept() && wanted(e)) {
        let others: Vec<&Entry> = table
            .iter()
            .filter(|o| o.group == entry.group && o.plural == entry.plural && o.version != entry.version)
            .collect();
        exercise(&api, entry, &others).await;
    }
}

#[tokio::test(start_paused = true)]
async fn kinds_of_the_core_group() {
    all(|entry| entry.group.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn kinds_of_other_groups_in_stable_versions() {
    all(|entry| !entry.group.is_empty() && entry.version.len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn kinds_in_alpha_and_beta_versions() {
    all(|entry| entry.version.len() > 2).await;
}

#[tokio::test(start_paused = true)]
async fn kinds_that_are_answered_and_forgotten() {
    let api = Api::start().await;
    for entry in table().iter().filter(|e| !e.is_kept()) {
        match entry.plural.as_str() {
            "componentstatuses" => {
                assert_eq!(api.get(&entry.collection()).await.expect(200).names().len(), 3);
                api.get(&format!("{}/x", entry.collection())).await.expect(404);
            }
            "bindings" => {
                api.post("/api/v1/namespaces/default/pods", crate::api::harness::pod("bound"))
                    .await
                    .expect(201);
                let binding = json!({"metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "n"}});
                api.post(&entry.collection(), binding).await.expect(201);
            }
            // It needs keys of its own: tls.rs.
            "tokenreviews" => {
                api.post(&entry.collection(), sample(entry).review.unwrap()).await.expect(404);
            }
            _ => {
                let answer = api.post(&entry.collection(), sample(entry).review.unwrap()).await.expect(201);
                assert_eq!(answer.body["kind"], entry.kind);
                assert!(answer.body["status"].is_object(), "{}", answer.text);
            }
        }
        assert_eq!(entry.verbs.len(), if entry.has("create") { 1 } else { 2 }, "{}", entry.plural);
        assert!(entry.subresources.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn every_excuse_is_still_needed() {
    let table = table();
    for (plural, name, _) in ELSEWHERE {
        let named = |e: &Entry| e.plural == *plural && e.subresources.contains_key(*name);
        assert!(table.iter().any(named), "{plural}/{name}");
    }
}
