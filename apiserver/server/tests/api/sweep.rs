//! Sweep that compares the authorized with the actual: every kind, verb and subresource, in its right place
//! and in wrong ones, in plain and in odd notations of the path. The authorizer's refusal says what it was
//! asked, the store, the kubelet and the pods record what they were asked for, and the two must agree. The
//! store records what requests write and does not write it, so that all of them meet the same objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_meta::identity::Identity;
use apiserver_registry::Resource;
use apiserver_server::ServerConfig;
use apiserver_server::streams::Kubelets;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Op, Range, Store, Write, Written};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::api::harness::{Api, Reply, every_api};
use crate::api::resources;

#[path = "sweep_asked.rs"]
mod asked;
#[path = "sweep_paths.rs"]
mod paths;
#[path = "sweep_recorder.rs"]
mod recorder;
use asked::Asked;
use paths::{NAMED, UNREACHED, paths, root};
use recorder::{Access, NoRoad, Recorder};

/// The object that every kind has in both namespaces, or once in the cluster.
const ONE: &str = "one";
/// A pod without a node.
const FREE: &str = "free";
/// A finalizer and a label that bodies carry: objects take the finalizer, their subresources do not.
const MARK: &str = "sweep.example.com/mark";
const NODE_ADDRESS: &str = "192.0.2.9";
const CUSTOM_PREFIX: &str = "/registry/sweep.example.com/";
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// The address of the pod `one` in a namespace.
fn pod_address(namespace: &str) -> &'static str {
    if namespace == "left" { "192.0.2.10" } else { "192.0.2.11" }
}

struct Sweep {
    admin: Api,
    nobody: Api,
    kinds: Vec<Arc<Resource>>,
    /// Objects as clients send them, by version and plural.
    samples: BTreeMap<(String, String), Value>,
    /// The object of each kind as it is answered in the namespace `left`, or the cluster's.
    present: BTreeMap<String, Value>,
    /// The stored objects, by key.
    stored: BTreeMap<String, Value>,
}

fn definition(plural: &str, kind: &str, scope: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.sweep.example.com")},
        "spec": {"group": "sweep.example.com", "scope": scope, "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object",
                    "x-kubernetes-preserve-unknown-fields": true}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas"}}}]}})
}

/// `widgets` are namespaced, `gadgets` are not, and the third kind has the plural of Namespaces.
const CUSTOM: [(&str, &str, &str); 3] =
    [("widgets", "Widget", "Namespaced"), ("gadgets", "Gadget", "Cluster"), ("namespaces", "Odd", "Cluster")];

impl Sweep {
    async fn start() -> Self {
        let disk = Arc::new(SimDisk::new(1));
        let store: Arc<dyn Store> = Arc::new(Embedded::open(disk, Options::default()).await.unwrap());
        let store: Arc<dyn Store> = Arc::new(Recorder(store));
        let kubelets = Some(Kubelets::with_dial(Arc::new(NoRoad)));
        let admin = Api::over(ServerConfig { kubelets, ..every_api() }, store).await;
        for (plural, kind, scope) in CUSTOM {
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            admin.post(path, definition(plural, kind, scope)).await.expect(201);
        }
        let nobody = admin.as_user(Identity { groups: Vec::new(), ..Identity::authenticated("nobody", &[]) });
        let mut sweep = Self {
            admin,
            nobody,
            kinds: Vec::new(),
            samples: BTreeMap::new(),
            present: BTreeMap::new(),
            stored: BTreeMap::new(),
        };
        sweep.find_kinds().await;
        sweep.seed().await;
        sweep.read().await;
        sweep
    }

    async fn find_kinds(&mut self) {
        let server = &self.admin.server;
        self.kinds = server.objects().registry().iter().cloned().collect();
        for (plural, ..) in CUSTOM {
            loop {
                match server.objects().kind("sweep.example.com", "v1", plural) {
                    Some(kind) => break self.kinds.push(kind),
                    None => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                }
            }
        }
    }

    /// Puts an object of each kind into the store, in both namespaces where the kind has one.
    async fn seed(&mut self) {
        for name in ["left", "right"] {
            self.admin.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await.expect(201);
            let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
            self.admin.post(&accounts, json!({"metadata": {"name": "default"}})).await.expect(201);
        }
        let made = resources::every_object().into_iter();
        for (collection, object) in made {
            let plural = collection.rsplit('/').next().unwrap().to_owned();
            let kind = self
                .kinds
                .iter()
                .find(|kind| kind.plural == plural && collection.starts_with(&format!("{}/", root(kind))));
            self.samples.insert((kind.unwrap().api_version(), plural), object);
        }
        let mut seeded = BTreeSet::new();
        for kind in self.kinds.iter().filter(|kind| kind.stored) {
            // A definition of another name than its own is none.
            if kind.plural == "customresourcedefinitions" || !seeded.insert(kind.storage_prefix.clone()) {
                continue;
            }
            let object = self.object(kind);
            let places = if kind.namespaced { &["left", "right"][..] } else { &[""] };
            for namespace in places {
                let mut object = object.clone();
                object["metadata"] = json!({"name": ONE, "uid": format!("{}-{namespace}", kind.plural),
                    "creationTimestamp": "2026-01-01T00:00:00Z"});
                if kind.namespaced {
                    object["metadata"]["namespace"] = (*namespace).into();
                }
                if kind.kind == "Pod" {
                    object["spec"]["nodeName"] = ONE.into();
                }
                if kind.kind == "Endpoints" {
                    object["subsets"] = json!([{"ports": [{"port": 80}], "addresses": [{
                        "ip": pod_address(namespace),
                        "targetRef": {"kind": "Pod", "namespace": namespace, "name": ONE}}]}]);
                }
                if kind.kind == "Node" {
                    object["status"] =
                        json!({"addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}]});
                }
                let scope =
                    if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
                let made =
                    self.admin.post(&format!("{}{scope}/{}", root(kind), kind.plural), object.clone()).await;
                if made.code != 201 {
                    self.put(kind, namespace, ONE, &object).await;
                }
                if kind.kind == "Pod" {
                    let ips = json!({"status": {"podIPs": [{"ip": pod_address(namespace)}]}});
                    let status = format!("{}{scope}/pods/{ONE}/status", root(kind));
                    self.admin.patch("merge", &status, ips).await.expect(200);
                    object["metadata"]["name"] = FREE.into();
                    object["metadata"]["uid"] = format!("{FREE}-{namespace}").into();
                    object["spec"]["nodeName"] = Value::Null;
                    self.put(kind, namespace, FREE, &object).await;
                }
            }
        }
        self.admin.server.objects().fresh().await.unwrap();
    }

    async fn put(&self, kind: &Resource, namespace: &str, name: &str, object: &Value) {
        let value = Bytes::from(object.to_string());
        let key = key(kind, namespace, name);
        let write = Write { key, expected: 0, op: Op::Put { value, ttl_seconds: 0 } };
        let written = self.admin.store.write(write).await.unwrap();
        assert!(matches!(written, Written::Done { .. }), "{}", kind.plural);
    }

    /// Reads the objects as clients do before they change them, and as the store has them.
    async fn read(&mut self) {
        let all = Range { prefix: "/registry/".to_owned(), ..Range::default() };
        for kv in self.admin.store.list(all).await.unwrap().kvs {
            self.stored.insert(kv.key, serde_json::from_slice(&kv.value).unwrap_or_default());
        }
        for kind in self.kinds.iter().filter(|kind| kind.stored) {
            let place = if kind.namespaced { "/namespaces/left" } else { "" };
            let path = format!("{}{place}/{}/{ONE}", root(kind), kind.plural);
            let reply = self.admin.get(&path).await;
            if reply.code == 200 {
                self.present.insert(format!("{}/{}", kind.api_version(), kind.plural), reply.body);
            }
        }
    }

    fn object(&self, kind: &Resource) -> Value {
        let sample = self
            .samples
            .iter()
            .find(|((version, plural), _)| *plural == kind.plural && *version == kind.api_version());
        let group = format!("{}/", kind.group);
        let other = || {
            self.samples
                .iter()
                .find(|((version, plural), _)| *plural == kind.plural && version.starts_with(&group))
        };
        let sample = sample.or_else(other).map(|(_, sample)| sample);
        let review = || resources::status_or_review(&kind.api_version(), &kind.plural);
        let mut object = sample
            .cloned()
            .or_else(review)
            .unwrap_or_else(|| json!({"metadata": {"name": "new"}, "spec": {"replicas": 1}}));
        for referred in ["involvedObject", "regarding"] {
            if object[referred].is_object() {
                object[referred]["namespace"] = "left".into();
            }
        }
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.clone().into();
        object
    }

    /// Sends a request; also returns its accesses.
    async fn send(&self, api: &Api, method: &str, path: &str, body: &Value) -> (Reply, Vec<Access>) {
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if matches!(method, "POST" | "PUT" | "PATCH") { body.to_string() } else { String::new() };
        let mut headers = vec![("content-type", media)];
        if ["exec", "attach", "portforward"].iter().any(|stream| path.contains(&format!("/{stream}?"))) {
            headers.extend([("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        }
        recorder::recorded(api.call(method, path, &headers, body)).await
    }

    /// Returns the body that is sent to a path: with everything that objects and the bodies of subresources
    /// can contain, so that the recorded write shows as which of them it was carried out.
    fn body(&self, kind: &Resource, method: &str, path: &str) -> Value {
        let path = path.split('?').next().unwrap_or_default();
        let name = if path.contains(FREE) || kind.plural == "bindings" { FREE } else { ONE };
        let subresource = path.rsplit('/').next().unwrap_or_default();
        match subresource {
            "scale" => {
                return json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 7},
                    "metadata": {"name": ONE, "namespace": if kind.namespaced { "left" } else { "" },
                        "finalizers": [MARK]}});
            }
            "binding" | "bindings" => {
                return json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": ONE}});
            }
            "eviction" => return json!({"metadata": {"name": name}}),
            _ => {}
        }
        if method == "POST" {
            return self.object(kind);
        }
        let group_version = kind.api_version();
        let mut body = match method {
            "PATCH" => json!({"metadata": {}}),
            _ => match self.present.get(&format!("{group_version}/{}", kind.plural)) {
                Some(present) => present.clone(),
                None => self.object(kind),
            },
        };
        body["metadata"]["labels"] = json!({MARK: "yes"});
        body["metadata"]["finalizers"] = json!([MARK]);
        let status = resources::status_or_review(&group_version, &kind.plural);
        if let Some(status) = status.or_else(|| kind.custom.is_some().then(|| json!({"told": "yes"}))) {
            body["status"] = status;
        }
        match subresource {
            "approval" => {
                body["status"]["conditions"] =
                    json!([{"type": "Approved", "status": "True", "reason": "Sweep", "message": ""}]);
            }
            "finalize" => body["spec"] = json!({"finalizers": [MARK]}),
            "ephemeralcontainers" => {
                body["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "i",
                    "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]);
            }
            _ => {}
        }
        body
    }

    /// Sends one request without rights and as an administrator, and compares.
    async fn compare(&self, kind: &Resource, method: &str, path: &str, tally: &mut Tally) {
        let body = self.body(kind, method, path);
        let (refusal, before) = self.send(&self.nobody, method, path, &body).await;
        let (reply, touched) = self.send(&self.admin, method, path, &body).await;
        tally.requests += 1;
        let judged = match Asked::read(&refusal) {
            _ if !before.is_empty() => Err("it was carried out before it was authorized".to_owned()),
            // Without rights everything is forbidden: any other answer was given without authorization.
            _ if refusal.code != 403 || !refusal.message().contains(" cannot ") => {
                Err(format!("it was answered without authorization: {}", refusal.code))
            }
            Some(asked) => tally.judge(self, &asked, path, &reply, &touched),
            // A path of no kind.
            None if touched.is_empty() && reply.code >= 400 => Ok(()),
            None => Err("nothing was to be authorized".to_owned()),
        };
        if let Err(why) = judged {
            let (code, refusal) = (reply.code, refusal.message());
            tally.faults.push(format!("{method} {path}: {code}, {why}; {refusal}; {touched:?}"));
        }
    }
}

/// The results of the sweep.
#[derive(Default)]
struct Tally {
    requests: usize,
    /// Kinds, verbs and subresources that were carried out: they answered with success, wrote or dialled.
    reached: BTreeSet<(String, String, String)>,
    faults: Vec<String>,
}

impl Tally {
    /// Compares the authorized request with the actual accesses.
    fn judge(
        &mut self,
        sweep: &Sweep,
        asked: &Asked,
        path: &str,
        reply: &Reply,
        touched: &[Access],
    ) -> Result<(), String> {
        let untouched = reply.code >= 400 && touched.is_empty();
        let version = path.split('/').nth(if path.starts_with("/apis/") { 3 } else { 2 }).unwrap();
        let kind = sweep.kinds.iter().find(|kind| {
            (&kind.group, &kind.plural) == (&asked.group, &asked.resource) && kind.version == version
        });
        let Some(kind) = kind else {
            return if untouched { Ok(()) } else { Err("there is no such kind".to_owned()) };
        };
        let own = kind.group.is_empty() && kind.plural == "namespaces" && asked.namespace == asked.name;
        if !kind.namespaced && !asked.namespace.is_empty() && !own {
            let absent = untouched && reply.code == 404;
            return if absent { Ok(()) } else { Err("a kind of the cluster below a namespace".to_owned()) };
        }
        let watched = path.split('/').nth(if path.starts_with("/apis/") { 4 } else { 3 }) == Some("watch");
        if watched && (asked.verb != "watch" || !asked.subresource.is_empty()) && !untouched {
            return Err("only objects of a kind are watched, by GET".to_owned());
        }
        if let Some(access) = touched.iter().find(|access| !permits(sweep, kind, asked, access)) {
            return Err(format!("{access:?} was not authorized"));
        }
        if reply.code < 300 {
            let objects = objects(&reply.text);
            if let Some(object) = objects.iter().find(|object| !contains(kind, asked, object)) {
                return Err(format!("{} was not authorized", object["metadata"]));
            }
        }
        for access in touched {
            if let Access::Write(written, value) = access
                && !sweep.is_address(kind, asked, written)
            {
                sweep.written_as(kind, asked, written, value.as_ref())?;
            }
        }
        let changes = !matches!(asked.verb.as_str(), "get" | "list" | "watch");
        let wrote = touched.iter().any(|access| matches!(access, Access::Write(..)));
        let dialled = touched.iter().any(|access| matches!(access, Access::Dial(_)));
        if dialled
            || (reply.code < 300 && (wrote || !changes || !kind.stored || asked.subresource == "resize"))
        {
            let kind = format!("{}/{}", kind.api_version(), kind.plural);
            self.reached.insert((kind, asked.verb.clone(), asked.subresource.clone()));
        }
        Ok(())
    }
}

/// Returns `true` if the authorized request includes an access.
fn permits(sweep: &Sweep, kind: &Resource, asked: &Asked, access: &Access) -> bool {
    let (namespace, name) = (asked.namespace.as_str(), asked.name.as_str());
    let place = if kind.namespaced { namespace } else { "" };
    let collection = key(kind, place, "");
    let own = |found: &str| match asked.verb.as_str() {
        "create" if kind.plural == "bindings" => {
            sweep.kinds.iter().any(|pods| pods.kind == "Pod" && found == key(pods, place, FREE))
        }
        "create" if name.is_empty() => {
            sweep.object(kind)["metadata"]["name"].as_str().is_some_and(|new| found == key(kind, place, new))
        }
        "list" | "watch" => false,
        "deletecollection" => found.starts_with(&collection),
        _ => !name.is_empty() && found == key(kind, place, asked.object()),
    };
    let reads = matches!(asked.verb.as_str(), "get" | "list" | "watch");
    // A Service is reached at the pods that its Endpoints name.
    let proxied = kind.plural == "services" && asked.subresource == "proxy";
    match access {
        Access::Read(found) | Access::Write(found, _) if !reads && sweep.is_address(kind, asked, found) => {
            true
        }
        Access::Dial(address) => {
            let subresource = asked.subresource.as_str();
            match (kind.plural.as_str(), subresource) {
                ("nodes", "proxy") => address == NODE_ADDRESS,
                ("pods" | "services", "proxy") => address == pod_address(namespace),
                ("pods", "log") => asked.verb == "get" && address == NODE_ADDRESS,
                ("pods", "exec" | "attach" | "portforward") => {
                    matches!(asked.verb.as_str(), "get" | "create") && address == NODE_ADDRESS
                }
                _ => false,
            }
        }
        Access::Write(found, _) => !reads && own(found),
        // The cache of the kind is loaded as a whole; the answer shows the selection.
        Access::Range(found) => *found == format!("{}/", kind.storage_prefix),
        Access::Read(found) if own(found) => true,
        // Other reads of admission and validation: the namespace, and references of objects. None is in
        // another namespace or of the same kind.
        Access::Read(found) => sweep.kinds.iter().any(|other| {
            let prefix = format!("{}/", other.storage_prefix);
            let Some(rest) = found.strip_prefix(&prefix) else { return false };
            match (other.plural.as_str(), other.namespaced) {
                ("namespaces", false) => rest == namespace,
                ("nodes", false) => kind.plural == "pods" && !asked.subresource.is_empty() && rest == ONE,
                ("priorityclasses", false) => kind.plural == "pods",
                ("serviceaccounts", true) => {
                    kind.plural == "pods" && rest.starts_with(&format!("{namespace}/"))
                }
                ("pods", true) => {
                    (kind.plural == "bindings" || proxied) && rest == format!("{namespace}/{ONE}")
                }
                ("endpoints", true) => proxied && rest == format!("{namespace}/{ONE}"),
                _ => false,
            }
        }),
    }
}

impl Sweep {
    /// Returns `true` if a key is that of an address of the Services that a request is about, or of a new one.
    fn is_address(&self, kind: &Resource, asked: &Asked, key: &str) -> bool {
        if kind.kind != "Service" || !key.starts_with("/registry/ipaddresses/") {
            return false;
        }
        let Some(address) = self.stored.get(key) else { return asked.verb == "create" };
        address["spec"]["parentRef"]["namespace"] == asked.namespace
    }

    /// Returns `true` if an object has the status that the bodies carry.
    fn told(&self, kind: &Resource, value: &Value) -> bool {
        let body = self.body(kind, "PATCH", "");
        body["status"].is_object() && subset(&body["status"], &value["status"])
    }

    /// Compares a write of an object with the authorized verb and subresource.
    fn written_as(
        &self,
        kind: &Resource,
        asked: &Asked,
        key: &str,
        value: Option<&Value>,
    ) -> Result<(), String> {
        let fault = |why: &str| Err(format!("{why}: {key}"));
        let deletes = matches!(
            (asked.verb.as_str(), asked.subresource.as_str()),
            ("delete" | "deletecollection", "") | ("create", "eviction")
        );
        let Some(value) = value else {
            return if deletes { Ok(()) } else { fault("a deletion was not authorized") };
        };
        let Some(old) = self.stored.get(key) else {
            let made = asked.verb == "create" && asked.subresource.is_empty() && kind.kind == value["kind"];
            return if made { Ok(()) } else { fault("an object was made that was not authorized") };
        };
        if old["kind"] != value["kind"] {
            return fault("another kind was written");
        }
        let marked = |list: &str| {
            value.pointer(list).and_then(Value::as_array).is_some_and(|marks| marks.contains(&MARK.into()))
        };
        let going = value["metadata"]["deletionTimestamp"].is_string();
        if going && !deletes {
            return fault("a deletion was not authorized");
        }
        let changes = matches!(asked.verb.as_str(), "update" | "patch");
        let whole = changes && asked.subresource.is_empty();
        if marked("/metadata/finalizers") != whole {
            return fault("the finalizers belong to the object, and to no subresource");
        }
        let differs = |part: &str| !old[part].is_null() && !subset(&old[part], &value[part]);
        match asked.subresource.as_str() {
            "" if kind.behaviour.status_subresource && changes && self.told(kind, value) => {
                fault("the status was written")
            }
            "status" | "approval" if differs("spec") => fault("more than the status was written"),
            "binding" if value["spec"]["nodeName"] != ONE => fault("the pod was not bound"),
            "finalize" if !marked("/spec/finalizers") => fault("the finalizers of the namespace"),
            "ephemeralcontainers" if value["spec"]["ephemeralContainers"][0]["name"] != "debug" => {
                fault("no container was added")
            }
            "scale" if value.pointer("/spec/replicas") != Some(&7.into()) => fault("it was not scaled"),
            _ => Ok(()),
        }
    }
}

/// Returns `true` if all of a value is in another, which may have defaults besides.
fn subset(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part.iter().all(|(field, value)| {
            value.is_null() || whole.get(field).is_some_and(|whole| subset(value, whole))
        }),
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| subset(part, whole))
        }
        _ => part == whole,
    }
}

/// Returns `true` if the authorized request includes an object of the answer.
fn contains(kind: &Resource, asked: &Asked, object: &Value) -> bool {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let all = matches!(asked.verb.as_str(), "list" | "watch") && asked.namespace.is_empty();
    let place = if kind.namespaced { asked.namespace.as_str() } else { "" };
    let name = asked.name.is_empty() || text("name") == asked.name;
    (all || text("namespace") == place) && name
}

/// The objects of an answer: one, a list's, or those of events.
fn objects(text: &str) -> Vec<Value> {
    let documents = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut found = Vec::new();
    for mut document in documents.flatten() {
        if document["type"].is_string() && document["object"].is_object() {
            document = document["object"].take();
        }
        match document["items"].take() {
            Value::Array(items) => found.extend(items),
            _ => found.push(document),
        }
    }
    found.retain(|object| object["metadata"]["uid"].is_string());
    found
}

fn key(kind: &Resource, namespace: &str, name: &str) -> String {
    if kind.namespaced {
        format!("{}/{namespace}/{name}", kind.storage_prefix)
    } else {
        format!("{}/{name}", kind.storage_prefix)
    }
}

#[tokio::test(start_paused = true)]
async fn store_is_asked_for_exactly_the_authorized_request() {
    let sweep = Sweep::start().await;
    let mut tally = Tally::default();
    for kind in &sweep.kinds {
        for path in paths(kind) {
            for method in METHODS {
                let separator = if path.contains('?') { '&' } else { '?' };
                let path = format!("{path}{separator}timeoutSeconds=-1&command=x&stdout=1");
                sweep.compare(kind, method, &path, &mut tally).await;
            }
        }
    }
    let (count, some) = (tally.faults.len(), &tally.faults[..tally.faults.len().min(40)]);
    assert_eq!(count, 0, "of {} requests: {some:#?}", tally.requests);
    // Objects of a custom kind with the plural of Namespaces have no path, as in Kubernetes.
    let odd = |kind: &Resource| kind.custom.is_some() && kind.plural == "namespaces";
    let mut missing = Vec::new();
    for kind in sweep.kinds.iter().filter(|kind| !odd(kind)) {
        let own = kind.verbs.iter().map(|verb| (verb.as_str(), ""));
        let below = kind
            .subresources
            .iter()
            .flat_map(|subresource| subresource.verbs.iter().map(|verb| (verb.as_str(), subresource.name)));
        for (verb, subresource) in own.chain(below) {
            let what =
                (format!("{}/{}", kind.api_version(), kind.plural), verb.to_owned(), subresource.to_owned());
            let unreached = UNREACHED.iter().any(|(plural, only, below, _)| {
                (*plural, *below) == (&*kind.plural, subresource) && (only.is_empty() || *only == verb)
            });
            let excused =
                unreached || (NAMED.contains(&&*kind.plural) && !matches!(verb, "create" | "list" | "watch"));
            if !excused && !tally.reached.contains(&what) {
                missing.push(what);
            }
        }
    }
    assert!(missing.is_empty(), "never carried out: {missing:#?}");
}
