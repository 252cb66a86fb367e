//! A small in-memory API server with the verbs that the controllers use, without validation, defaults or
//! access control. It serves to test the wiring; tests with the real API server are elsewhere.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::at;
use crate::kinds::{KINDS, UNLISTED, discovery};
use crate::merge::{apply, merge};
use crate::scale::{scale_of, set_scale};

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A state of an object, which its readers share, as is the text that it is sent as.
pub struct Stored {
    object: Value,
    text: OnceLock<String>,
}

impl Stored {
    fn new(object: Value) -> Arc<Self> {
        Arc::new(Self { object, text: OnceLock::new() })
    }

    fn text(&self) -> &str {
        self.text.get_or_init(|| self.object.to_string())
    }
}

impl Deref for Stored {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.object
    }
}

#[derive(Default)]
struct State {
    version: u64,
    /// Objects by plural, namespace and name.
    objects: BTreeMap<(String, String, String), Arc<Stored>>,
    /// All changes so far: version, plural, type, object.
    log: Vec<(u64, String, &'static str, Arc<Stored>)>,
    /// The time of each of them.
    times: Vec<Instant>,
    /// Deletions that went through to nodes: the version at that time, and the path at the node.
    at_nodes: Vec<(u64, String)>,
    /// True while nodes answer nothing.
    nodes_are_away: bool,
    /// Time by which watches of a plural are late.
    lags: BTreeMap<String, Duration>,
}

/// The answer of a server beside this one.
pub enum Beside {
    Value(Value),
    /// None, ever.
    Silence,
}

/// Answers requests by their path and query; `None` for those that this server answers itself.
type Others = Box<dyn Fn(&str) -> Option<Beside> + Send>;

/// The server. Clones share its state.
#[derive(Clone)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
    grown: watch::Sender<usize>,
    others: Arc<Mutex<Option<Others>>>,
}

struct Refused(u16, &'static str);

/// The body of an answer.
enum Answered {
    Object(Arc<Stored>),
    Value(Value),
    Text(String),
}

/// Resource that a request refers to.
#[derive(Default)]
pub(crate) struct Target {
    pub plural: String,
    pub namespace: String,
    pub name: String,
    pub subresource: String,
}

impl Default for FakeApi {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the parameters of a request.
fn query_of(uri: &http::Uri) -> BTreeMap<String, String> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let decoded = |value: &str| value.replace("%3D", "=").replace("%2F", "/").replace("%2C", ",");
    pairs.map(|(key, value)| (key.to_owned(), decoded(value))).collect()
}

impl FakeApi {
    pub fn new() -> Self {
        Self { state: Arc::default(), grown: watch::Sender::new(0), others: Arc::default() }
    }

    /// Lets `others` answer, such as the servers of metrics.
    pub fn serve(&self, others: impl Fn(&str) -> Option<Beside> + Send + 'static) {
        *self.others.lock().unwrap() = Some(Box::new(others));
    }

    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    /// Returns a client whose process dies with the write of this number, not counting events: from then on no
    /// request is answered. That write is carried out if `is_done`. The receiver tells when it has happened.
    pub fn mortal_client(&self, writes: usize, is_done: bool) -> (Client, watch::Receiver<bool>) {
        let (dead, death) = watch::channel(false);
        let (api, left) = (self.clone(), Arc::new(Mutex::new(writes)));
        let dead = Arc::new(dead);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (api, left, dead) = (api.clone(), Arc::clone(&left), Arc::clone(&dead));
            async move {
                let path = request.uri().path();
                let writes = *request.method() != Method::GET && !path.ends_with("/events");
                let last = {
                    let mut left = left.lock().unwrap();
                    *left = left.saturating_sub(usize::from(writes && *left > 0));
                    *left == 0
                };
                if last {
                    let was_dead = dead.send_replace(true);
                    if writes && is_done && !was_dead {
                        api.answer(request).await;
                    }
                    return std::future::pending().await;
                }
                Ok::<_, Infallible>(api.answer(request).await)
            }
        });
        (Client::new(service, "default"), death)
    }

    /// Returns every state that an object of a plural ever had, in the order of the changes, with the type of the
    /// change.
    pub fn history(&self, plural: &str) -> Vec<(&'static str, Value)> {
        let state = self.state.lock().unwrap();
        let of = state.log.iter().filter(|(_, of, ..)| of == plural);
        of.map(|(_, _, change, object)| (*change, Value::clone(object))).collect()
    }

    /// Changes an object as another client would.
    pub fn change(&self, plural: &str, name: &str, change: impl Fn(&mut Value)) {
        let (plural, namespace, name) = (plural.to_owned(), "ns".to_owned(), name.to_owned());
        let target = Target { plural, namespace, name, ..Target::default() };
        let mut state = self.state.lock().unwrap();
        assert!(state.update(&target, change).is_ok());
        self.grown.send_replace(state.log.len());
    }

    /// Returns the states of the history with the times at which they began.
    pub fn times(&self, plural: &str) -> Vec<(Instant, Value)> {
        let state = self.state.lock().unwrap();
        let of = state.times.iter().zip(&state.log).filter(|(_, (_, of, ..))| of == plural);
        of.map(|(at, (.., object))| (*at, Value::clone(object))).collect()
    }

    /// Returns the objects of a plural, by namespace and name.
    pub fn all(&self, plural: &str) -> Vec<Value> {
        self.shared(plural).iter().map(|object| Value::clone(object)).collect()
    }

    /// Returns the objects of a plural, by namespace and name, without copies.
    pub fn shared(&self, plural: &str) -> Vec<Arc<Stored>> {
        self.state.lock().unwrap().of(plural).map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Returns the deletions that went through to nodes, each with the version of the newest change before it.
    pub fn deleted_at_nodes(&self) -> Vec<(u64, String)> {
        self.state.lock().unwrap().at_nodes.clone()
    }

    /// Has nodes answer nothing from now on, or answer again.
    pub fn set_nodes_away(&self, away: bool) {
        self.state.lock().unwrap().nodes_are_away = away;
    }

    /// Has the watches of a plural be late.
    pub fn set_lag(&self, plural: &str, lag: Duration) {
        self.state.lock().unwrap().lags.insert(plural.to_owned(), lag);
    }

    pub(crate) async fn answer(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let path = parts.uri.path().trim_matches('/').to_owned();
        let query = query_of(&parts.uri);
        let asked = parts.uri.path_and_query().map_or("", |asked| asked.as_str());
        let beside = self.others.lock().unwrap().as_ref().and_then(|others| others(asked));
        match beside {
            Some(Beside::Value(value)) => return whole(200, &value),
            Some(Beside::Silence) => return std::future::pending().await,
            None => {}
        }
        if let Some(answer) = without_state(&path) {
            return answer;
        }
        let target = target(&path);
        let media = parts.headers.get(http::header::CONTENT_TYPE);
        let is_apply = media.is_some_and(|media| media.as_bytes().starts_with(b"application/apply-patch"));
        if query.contains_key("sendInitialEvents") {
            // As an API server that does not stream lists: clients list in pages then.
            let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422,
                "reason": "Invalid", "message": "sendInitialEvents is forbidden for watch"});
            return whole(422, &refusal);
        }
        if parts.method == Method::GET && query.get("watch").is_some_and(|watch| watch == "true") {
            return self.watch(target, &query);
        }
        let mut state = self.state.lock().unwrap();
        let result = match parts.method {
            Method::GET if target.name.is_empty() => Ok(Answered::Text(state.list(&target, &query))),
            Method::GET if target.subresource == "scale" => {
                state.get(&target).map(|object| Answered::Value(scale_of(&object)))
            }
            Method::GET => state.get(&target).map(Answered::Object),
            Method::POST if target.subresource == "binding" => {
                state.bind(&target, &body).map(Answered::Value)
            }
            Method::POST => state.create(&target, body).map(Answered::Object),
            Method::PATCH if is_apply => {
                state.update(&target, |object| apply(object, &body)).map(Answered::Object)
            }
            Method::PATCH => state.update(&target, |object| merge(object, &body)).map(Answered::Object),
            Method::PUT if target.subresource == "scale" => {
                let updated = state.update(&target, |object| set_scale(object, &body));
                updated.map(|object| Answered::Value(scale_of(&object)))
            }
            Method::PUT => state.update(&target, |object| *object = body.clone()).map(Answered::Object),
            Method::DELETE if target.subresource == "proxy" => {
                state.delete_at_node(&path).map(Answered::Value)
            }
            Method::DELETE if target.name.is_empty() => Ok(Answered::Text(state.delete_all(&target, &body))),
            Method::DELETE => state.delete(&target, &body).map(Answered::Object),
            _ => Err(Refused(405, "MethodNotAllowed")),
        };
        self.grown.send_replace(state.log.len());
        match result {
            Ok(Answered::Object(object)) => written(200, object.text().to_owned()),
            Ok(Answered::Value(value)) => whole(200, &value),
            Ok(Answered::Text(text)) => written(200, text),
            Err(Refused(code, reason)) => whole(
                code,
                &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                        "reason": reason, "message": format!("{} {path}", parts.method)}),
            ),
        }
    }

    fn watch(&self, target: Target, query: &BTreeMap<String, String>) -> Answer {
        let since: u64 = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        let fields = query.get("fieldSelector").cloned();
        let (api, grown) = (self.clone(), self.grown.subscribe());
        let events = stream::unfold((0, grown), move |(mut from, mut grown)| {
            let (api, plural, fields) = (api.clone(), target.plural.clone(), fields.clone());
            async move {
                loop {
                    let lag = api.state.lock().unwrap().lags.get(&plural).copied();
                    if let Some(lag) = lag {
                        tokio::time::sleep(lag).await;
                    }
                    let (lines, length) = {
                        let state = api.state.lock().unwrap();
                        let new = state.log[from..].iter().filter(|(version, of, _, object)| {
                            *version > since && *of == plural && selected(object, fields.as_deref())
                        });
                        let lines: String = new
                            .map(|(_, _, change, object)| {
                                format!("{{\"type\":\"{change}\",\"object\":{}}}\n", object.text())
                            })
                            .collect();
                        (lines, state.log.len())
                    };
                    if !lines.is_empty() {
                        return Some((Ok(Frame::data(Bytes::from(lines))), (length, grown)));
                    }
                    from = length;
                    grown.wait_for(|now| *now > length).await.ok()?;
                }
            }
        });
        Response::new(StreamBody::new(events.boxed()).boxed_unsync())
    }
}

pub(crate) fn whole(code: u16, value: &Value) -> Answer {
    written(code, value.to_string())
}

fn written(code: u16, text: String) -> Answer {
    Response::builder().status(code).body(Full::new(Bytes::from(text)).boxed_unsync()).unwrap()
}

/// Answers requests for which no object matters.
fn without_state(path: &str) -> Option<Answer> {
    if let Some(answer) = discovery(path) {
        return Some(whole(200, &answer));
    }
    (!is_served(path)).then(|| written(404, "404 page not found\n".to_owned()))
}

/// Returns `true` if there is a kind of the group and version in this path.
fn is_served(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["api", "v1", ..] => true,
        ["apis", group, version, ..] => {
            let mut kinds = KINDS.iter().chain(UNLISTED);
            kinds.any(|(of, ..)| *of == format!("{group}/{version}"))
        }
        _ => false,
    }
}

pub(crate) fn target(path: &str) -> Target {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.drain(..if parts[0] == "api" { 2 } else { 3 });
    let mut target = Target::default();
    // `namespaces/ns` is an object; with anything but a subresource after it, it is a scope.
    let inside = parts[0] == "namespaces" && parts.len() > 2 && !["status", "finalize"].contains(&parts[2]);
    if inside {
        target.namespace = parts[1].to_owned();
        parts.drain(..2);
    }
    let mut parts = parts.into_iter().map(str::to_owned);
    target.plural = parts.next().unwrap_or_default();
    target.name = parts.next().unwrap_or_default();
    target.subresource = parts.next().unwrap_or_default();
    target
}

fn selected(object: &Value, fields: Option<&str>) -> bool {
    fields.unwrap_or_default().split(',').filter_map(|pair| pair.split_once('=')).all(|(field, value)| {
        match field.strip_prefix("metadata.") {
            Some(field) => object["metadata"][field] == json!(value),
            None => object[field] == json!(value),
        }
    })
}

/// Returns `true` if an object has the labels of a selector of the form `a=b,c=d`; other forms select all.
fn is_labelled(object: &Value, selector: &str) -> bool {
    let mut pairs = selector.split(',').filter_map(|pair| pair.split_once('='));
    pairs.all(|(label, value)| label.contains(' ') || object["metadata"]["labels"][label] == value)
}

impl State {
    fn key(target: &Target) -> (String, String, String) {
        (target.plural.clone(), target.namespace.clone(), target.name.clone())
    }

    /// Returns the objects of a plural.
    fn of(&self, plural: &str) -> impl Iterator<Item = (&(String, String, String), &Arc<Stored>)> {
        let start = (plural.to_owned(), String::new(), String::new());
        self.objects.range(start..).take_while(move |((of, ..), _)| of == plural)
    }

    /// Returns the objects that a request asks for.
    fn asked(&self, target: &Target, query: &BTreeMap<String, String>) -> Vec<&Arc<Stored>> {
        let fields = query.get("fieldSelector").map(String::as_str);
        let labels = query.get("labelSelector").map_or("", String::as_str);
        self.of(&target.plural)
            .filter(|((_, namespace, _), object)| {
                (target.namespace.is_empty() || *namespace == target.namespace)
                    && selected(object, fields)
                    && is_labelled(object, labels)
            })
            .map(|(_, object)| object)
            .collect()
    }

    fn list(&self, target: &Target, query: &BTreeMap<String, String>) -> String {
        self.listed(target, &self.asked(target, query))
    }

    fn listed(&self, target: &Target, items: &[&Arc<Stored>]) -> String {
        let (version, kind) = Self::kind(&target.plural);
        let items: Vec<&str> = items.iter().map(|object| object.text()).collect();
        format!(
            "{{\"kind\":\"{kind}List\",\"apiVersion\":\"{version}\",\"metadata\":{{\"resourceVersion\":\"{}\"}},\"items\":[{}]}}",
            self.version,
            items.join(",")
        )
    }

    fn kind(plural: &str) -> (&'static str, &'static str) {
        KINDS
            .iter()
            .chain(UNLISTED)
            .find(|(_, of, ..)| *of == plural)
            .map_or(("v1", "Event"), |(version, _, kind, _)| (version, kind))
    }

    fn get(&self, target: &Target) -> Result<Arc<Stored>, Refused> {
        self.objects.get(&Self::key(target)).cloned().ok_or(Refused(404, "NotFound"))
    }

    fn create(&mut self, target: &Target, mut object: Value) -> Result<Arc<Stored>, Refused> {
        let (version, kind) = Self::kind(&target.plural);
        let meta = &mut object["metadata"];
        if meta["name"].is_null() {
            let prefix = meta["generateName"].as_str().unwrap_or_default().to_owned();
            meta["name"] = json!(format!("{prefix}{:05}", self.version));
        }
        let name = meta["name"].as_str().unwrap().to_owned();
        if target.plural == "subjectaccessreviews" {
            // A user may what one of its groups is called.
            let (groups, spec) = (&object["spec"]["groups"], &object["spec"]["resourceAttributes"]);
            let allowed = groups.as_array().is_some_and(|groups| groups.contains(&spec["subresource"]));
            object["status"] = json!({"allowed": allowed});
            object["kind"] = json!(kind);
            object["apiVersion"] = json!(version);
            return Ok(Stored::new(object));
        }
        let key = (target.plural.clone(), target.namespace.clone(), name.clone());
        if self.objects.contains_key(&key) {
            return Err(Refused(409, "AlreadyExists"));
        }
        if !target.namespace.is_empty() {
            meta["namespace"] = json!(target.namespace);
        }
        meta["uid"] = json!(format!("uid-{}-{name}", self.version));
        meta["creationTimestamp"] = json!(Time(at(0)));
        meta["generation"] = json!(1);
        object["kind"] = json!(kind);
        object["apiVersion"] = json!(version);
        if target.plural == "namespaces" {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
        }
        Ok(self.put(key, object, "ADDED"))
    }

    /// Gives a pod its node, as the API server does: once, and not while the pod is being deleted.
    fn bind(&mut self, target: &Target, binding: &Value) -> Result<Value, Refused> {
        let mut pod = Value::clone(&*self.get(target)?);
        let (uid, node) = (&binding["metadata"]["uid"], &binding["target"]["name"]);
        let is_other = !uid.is_null() && *uid != pod["metadata"]["uid"];
        if is_other || !pod["spec"]["nodeName"].is_null() || !pod["metadata"]["deletionTimestamp"].is_null() {
            return Err(Refused(409, "Conflict"));
        }
        pod["spec"]["nodeName"] = node.clone();
        pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"}]);
        self.put(Self::key(target), pod, "MODIFIED");
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}))
    }

    fn put(&mut self, key: (String, String, String), mut object: Value, change: &'static str) -> Arc<Stored> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Stored::new(object);
        self.log.push((self.version, key.0.clone(), change, Arc::clone(&object)));
        self.times.push(Instant::now());
        if change == "DELETED" {
            self.objects.remove(&key);
        } else {
            self.objects.insert(key, Arc::clone(&object));
        }
        object
    }

    fn update(&mut self, target: &Target, change: impl Fn(&mut Value)) -> Result<Arc<Stored>, Refused> {
        let old = self.get(target)?;
        let mut new = Value::clone(&old);
        change(&mut new);
        for field in ["resourceVersion", "uid"] {
            if !new["metadata"][field].is_null() && new["metadata"][field] != old["metadata"][field] {
                return Err(Refused(409, "Conflict"));
            }
        }
        if matches!(target.subresource.as_str(), "status" | "approval") {
            let wanted = std::mem::replace(&mut new, Value::clone(&old));
            new["status"] = wanted["status"].clone();
            for field in ["labels", "annotations"] {
                merge(&mut new, &json!({"metadata": {field: wanted["metadata"][field]}}));
            }
        } else {
            merge(&mut new, &json!({"status": null}));
            if !old["status"].is_null() {
                new["status"] = old["status"].clone();
            }
        }
        for field in ["uid", "creationTimestamp", "deletionTimestamp", "generation"] {
            if !old["metadata"][field].is_null() {
                new["metadata"][field] = old["metadata"][field].clone();
            }
        }
        let annotated = new["metadata"]["annotations"] != old["metadata"]["annotations"];
        let counted = target.plural == "deployments" && target.subresource != "status" && annotated;
        if new["spec"] != old["spec"] || counted {
            new["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        if new == **old {
            return Ok(old);
        }
        let change = if !new["metadata"]["deletionTimestamp"].is_null() && !is_held(&new) {
            "DELETED"
        } else {
            "MODIFIED"
        };
        Ok(self.put(Self::key(target), new, change))
    }

    fn delete_at_node(&mut self, path: &str) -> Result<Value, Refused> {
        if self.nodes_are_away {
            return Err(Refused(503, "ServiceUnavailable"));
        }
        let at_node = path.split_once("/proxy/").map_or("", |(_, path)| path);
        self.at_nodes.push((self.version, at_node.to_owned()));
        Ok(json!("removed"))
    }

    fn delete(&mut self, target: &Target, options: &Value) -> Result<Arc<Stored>, Refused> {
        let mut object = Value::clone(&*self.get(target)?);
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != object["metadata"][field] {
                return Err(Refused(409, "Conflict"));
            }
        }
        let finalizer = match options["propagationPolicy"].as_str() {
            Some("Foreground") => Some("foregroundDeletion"),
            Some("Orphan") => Some("orphan"),
            _ => None,
        };
        if let Some(finalizer) = finalizer {
            let mut all = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            if !all.contains(&json!(finalizer)) {
                all.push(json!(finalizer));
            }
            object["metadata"]["finalizers"] = json!(all);
        }
        if !is_held(&object) {
            return Ok(self.put(Self::key(target), object, "DELETED"));
        }
        object["metadata"]["deletionTimestamp"] = json!(Time(at(0)));
        Ok(self.put(Self::key(target), object, "MODIFIED"))
    }

    fn delete_all(&mut self, target: &Target, options: &Value) -> String {
        let all: Vec<Arc<Stored>> = self.asked(target, &BTreeMap::new()).into_iter().cloned().collect();
        let list = self.list(target, &BTreeMap::new());
        for object in all {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let one = Target {
                plural: target.plural.clone(),
                namespace: target.namespace.clone(),
                name,
                ..Target::default()
            };
            let _ = self.delete(&one, options);
        }
        list
    }
}

/// Returns `true` if a finalizer keeps the object.
fn is_held(object: &Value) -> bool {
    let any = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    any(&object["metadata"]["finalizers"])
        || (object["kind"] == "Namespace" && any(&object["spec"]["finalizers"]))
}
