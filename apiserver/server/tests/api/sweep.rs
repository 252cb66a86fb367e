//! What is authorized is what is done: every kind, verb and subresource, in its right place and in wrong
//! ones, in plain and in odd spellings of the path. The authorizer says in its refusal what it was asked,
//! the store and the kubelet record what they were asked for, and the two must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};

use apiserver_api::auth::Identity;
use apiserver_api::registry::Resource;
use apiserver_server::ServerConfig;
use apiserver_server::streams::{Dial, Kubelets, NodeStream, Peer};
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Got, Op, Page, Range, Revision, Store, StoreError, Watch, Write, Written};
use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::harness::{Api, Reply, every_api};
use crate::resources;

/// Something that a request touched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Access {
    Read(String),
    /// Everything below a prefix.
    Range(String),
    Write(String),
    /// A path at a kubelet.
    Dial,
}

tokio::task_local! {
    /// What the request of this task has touched; the server's own upkeep runs in other tasks.
    static TOUCHED: Arc<Mutex<BTreeSet<Access>>>;
}

fn touch(access: Access) {
    let _ = TOUCHED.try_with(|touched| touched.lock().unwrap().insert(access));
}

/// A store that records which keys requests ask for.
struct Recorder(Arc<dyn Store>);

#[async_trait]
impl Store for Recorder {
    async fn get(&self, key: &str) -> Result<Got, StoreError> {
        touch(Access::Read(key.to_owned()));
        self.0.get(key).await
    }

    async fn list(&self, range: Range) -> Result<Page, StoreError> {
        touch(Access::Range(range.prefix.clone()));
        self.0.list(range).await
    }

    async fn write(&self, write: Write) -> Result<Written, StoreError> {
        touch(Access::Write(write.key.clone()));
        self.0.write(write).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        touch(Access::Range(prefix.to_owned()));
        self.0.watch(prefix, from).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.0.revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.0.compact(revision).await
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        self.0.request_progress().await
    }
}

/// A way to kubelets that leads nowhere and records that it was taken.
struct NoRoad;

#[async_trait]
impl Dial for NoRoad {
    async fn dial(&self, _: &Peer, _: std::net::SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        touch(Access::Dial);
        Err(io::Error::other("no road"))
    }
}

/// What the authorizer says that it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asked {
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

impl Asked {
    /// From the refusal of a request for a kind; `None` for other paths.
    fn read(refusal: &Reply) -> Option<Self> {
        let said = refusal.message().split_once(" cannot ")?.1;
        let (verb, said) = said.split_once(" resource ")?;
        let quoted: Vec<&str> = said.split('"').skip(1).step_by(2).collect();
        let (resource, subresource) = quoted[0].split_once('/').unwrap_or((quoted[0], ""));
        let namespace = if said.contains(" at the cluster scope") { "" } else { quoted[2] };
        Some(Self {
            verb: verb.to_owned(),
            group: quoted[1].to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: refusal.body["details"]["name"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

/// The object that every kind has in both namespaces, or once in the cluster.
const ONE: &str = "one";
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

struct Sweep {
    admin: Api,
    nobody: Api,
    kinds: Vec<Arc<Resource>>,
    /// Objects as clients send them, by group and plural.
    samples: BTreeMap<(String, String), Value>,
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

/// `widgets` lie in namespaces, `gadgets` do not, and the third kind is called as Namespaces are.
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
        let mut sweep = Self { admin, nobody, kinds: Vec::new(), samples: BTreeMap::new() };
        sweep.find_kinds().await;
        sweep.seed().await;
        sweep
    }

    async fn find_kinds(&mut self) {
        let server = &self.admin.server;
        self.kinds = server.registry().iter().cloned().collect();
        for (plural, ..) in CUSTOM {
            loop {
                match server.kind("sweep.example.com", "v1", plural) {
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
        }
        let made = resources::every_object().into_iter();
        for (collection, object) in made {
            let plural = collection.rsplit('/').next().unwrap().to_owned();
            let kind = self
                .kinds
                .iter()
                .find(|kind| kind.plural == plural && collection.starts_with(&format!("{}/", root(kind))));
            self.samples.insert((kind.unwrap().group.clone(), plural), object);
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
                if kind.kind == "Node" {
                    object["status"] = json!({"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]});
                }
                let value = Bytes::from(object.to_string());
                let write = Write {
                    key: key(kind, namespace, ONE),
                    expected: 0,
                    op: Op::Put { value, ttl_seconds: 0 },
                };
                let written = self.admin.store.write(write).await.unwrap();
                assert!(matches!(written, Written::Done { .. }), "{}", kind.plural);
            }
        }
        self.admin.server.fresh().await.unwrap();
    }

    fn object(&self, kind: &Resource) -> Value {
        let sample = self.samples.get(&(kind.group.clone(), kind.plural.clone()));
        let mut object = sample.cloned().unwrap_or_else(|| json!({"spec": {"replicas": 1}}));
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.clone().into();
        object
    }

    /// Sends a request; also says what it touched.
    async fn send(&self, api: &Api, method: &str, path: &str, body: &Value) -> (Reply, BTreeSet<Access>) {
        let touched = Arc::<Mutex<BTreeSet<Access>>>::default();
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if matches!(method, "POST" | "PUT" | "PATCH") { body.to_string() } else { String::new() };
        let headers = [("content-type", media)];
        let reply = TOUCHED.scope(Arc::clone(&touched), api.call(method, path, &headers, body)).await;
        let touched = touched.lock().unwrap().clone();
        (reply, touched)
    }

    /// Sends one request as nobody and as an administrator, and compares.
    async fn compare(&self, kind: &Resource, method: &str, path: &str, tally: &mut Tally) {
        let body = match method {
            // Says that it belongs elsewhere than any path of the sweep.
            "PATCH" => json!({"metadata": {"labels": {"sweep": tally.requests.to_string()}}}),
            _ => {
                let mut object = self.object(kind);
                object["metadata"] = json!({"name": ONE});
                object
            }
        };
        let (refusal, before) = self.send(&self.nobody, method, path, &body).await;
        let (reply, touched) = self.send(&self.admin, method, path, &body).await;
        tally.requests += 1;
        let judged = match Asked::read(&refusal) {
            _ if !before.is_empty() => Err("it was carried out before it was authorized".to_owned()),
            Some(asked) => tally.judge(self, &asked, path, &reply, &touched),
            // A path of no kind.
            None if touched.is_empty() => Ok(()),
            None => Err("nothing was to be authorized".to_owned()),
        };
        if let Err(why) = judged {
            let (code, refusal) = (reply.code, refusal.message());
            tally.faults.push(format!("{method} {path}: {code}, {why}; {refusal}; {touched:?}"));
        }
    }
}

/// What the sweep has seen.
#[derive(Default)]
struct Tally {
    requests: usize,
    /// Kinds and verbs that reached the store or answered with objects.
    reached: BTreeSet<(String, String)>,
    faults: Vec<String>,
}

impl Tally {
    /// Compares what was authorized with what was done.
    fn judge(
        &mut self,
        sweep: &Sweep,
        asked: &Asked,
        path: &str,
        reply: &Reply,
        touched: &BTreeSet<Access>,
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
        if reply.code < 300 || !touched.is_empty() {
            self.reached.insert((format!("{}/{}", kind.api_version(), kind.plural), asked.verb.clone()));
        }
        Ok(())
    }
}

/// Whether what was authorized includes an access.
fn permits(sweep: &Sweep, kind: &Resource, asked: &Asked, access: &Access) -> bool {
    let (namespace, name) = (asked.namespace.as_str(), asked.name.as_str());
    let place = if kind.namespaced { namespace } else { "" };
    let collection = key(kind, place, "");
    let own = |found: &str| match asked.verb.as_str() {
        "create" if name.is_empty() => found == key(kind, place, ONE),
        "list" | "watch" => false,
        "deletecollection" => found.starts_with(&collection),
        _ => !name.is_empty() && found == key(kind, place, name.rsplit(':').next().unwrap_or(name)),
    };
    let reads = matches!(asked.verb.as_str(), "get" | "list" | "watch");
    match access {
        Access::Dial => {
            let subresource = asked.subresource.as_str();
            match kind.plural.as_str() {
                "nodes" => subresource == "proxy",
                "pods" => match subresource {
                    "log" => asked.verb == "get",
                    "exec" | "attach" | "portforward" => matches!(asked.verb.as_str(), "get" | "create"),
                    _ => false,
                },
                _ => false,
            }
        }
        Access::Write(found) => !reads && own(found),
        // The cache of the kind is loaded as a whole; the answer shows what was chosen from it.
        Access::Range(found) => *found == format!("{}/", kind.storage_prefix),
        Access::Read(found) if own(found) => true,
        // What admission and validation look at beside: the namespace, and what objects refer to. Nothing
        // of another namespace is among it, and nothing of the same kind.
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
                ("pods", true) => kind.plural == "bindings" && rest == format!("{namespace}/{ONE}"),
                _ => false,
            }
        }),
    }
}

/// Whether what was authorized includes an object of the answer.
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

fn root(kind: &Resource) -> String {
    let prefix = if kind.group.is_empty() { "/api" } else { "/apis" };
    format!("{prefix}/{}", kind.api_version())
}

fn key(kind: &Resource, namespace: &str, name: &str) -> String {
    if kind.namespaced {
        format!("{}/{namespace}/{name}", kind.storage_prefix)
    } else {
        format!("{}/{name}", kind.storage_prefix)
    }
}

/// Names behind a collection, or none, in every spelling.
const NAMES: [&str; 10] =
    ["", "/", "/one", "/%6fne", "/right", "/one/", "//one", "/..%2Fright%2Fone", "/right%2Fone", "/."];
const SELECTORS: [&str; 5] = [
    "metadata.name%3Done",
    "metadata.name%3D%3Done",
    "metadata.name!%3Done",
    "metadata.name%3Done%2Cmetadata.name%3Dright",
    "metadata.namespace%3Dright",
];

/// Paths of the kind, in its right place and in wrong ones.
fn paths(kind: &Resource) -> Vec<String> {
    let (root, plural) = (root(kind), &kind.plural);
    let own = kind.subresources.iter().map(|subresource| subresource.name);
    let subresources: BTreeSet<&str> = own.chain(["status", "proxy"]).collect();
    let mut paths = Vec::new();
    for scope in ["", "/namespaces/left"] {
        let place = format!("{root}{scope}/{plural}");
        paths.extend(NAMES.map(|name| format!("{place}{name}")));
        paths.extend(SELECTORS.map(|selector| format!("{place}?fieldSelector={selector}")));
        paths.push(format!("{place}?watch=1"));
        for subresource in &subresources {
            paths.push(format!("{place}/one/{subresource}"));
            paths.push(format!("{place}/one/{subresource}/more"));
        }
        let watch = format!("{root}/watch{scope}/{plural}");
        paths.extend(["", "/one", "/right"].map(|name| format!("{watch}{name}")));
        paths.push(format!("{watch}?fieldSelector=metadata.name%3Done"));
        paths.extend(subresources.iter().map(|subresource| format!("{watch}/one/{subresource}")));
    }
    for scope in ["le%66t", "left%2F..%2Fright", "left/namespaces/right", "", "left/status"] {
        let place = format!("{root}/namespaces/{scope}/{plural}");
        paths.extend(["", "/one", "/one/status"].map(|name| format!("{place}{name}")));
    }
    paths
}

#[tokio::test(start_paused = true)]
async fn what_is_authorized_is_what_the_store_is_asked_for() {
    let sweep = Sweep::start().await;
    let mut tally = Tally::default();
    for kind in &sweep.kinds {
        for path in paths(kind) {
            for method in METHODS {
                // Nothing but labels is changed, so that all requests meet the same state.
                let separator = if path.contains('?') { '&' } else { '?' };
                let dry = if method == "PATCH" { "" } else { "&dryRun=All" };
                let path = format!("{path}{separator}timeoutSeconds=-1{dry}");
                sweep.compare(kind, method, &path, &mut tally).await;
            }
        }
    }
    let (count, some) = (tally.faults.len(), &tally.faults[..tally.faults.len().min(40)]);
    assert_eq!(count, 0, "of {} requests: {some:#?}", tally.requests);
    // Objects of a custom kind that is called as Namespaces are have no path, in Kubernetes neither.
    let odd = |kind: &Resource| kind.custom.is_some() && kind.plural == "namespaces";
    for kind in sweep.kinds.iter().filter(|kind| kind.stored && !odd(kind)) {
        for verb in ["get", "list", "watch", "patch", "delete"] {
            let reached = (format!("{}/{}", kind.api_version(), kind.plural), verb.to_owned());
            let served = kind.verbs.iter().any(|served| served.as_str() == verb);
            assert!(!served || tally.reached.contains(&reached), "{reached:?} was not reached");
        }
    }
}
