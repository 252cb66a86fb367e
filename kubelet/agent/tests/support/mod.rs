//! A small API server for tests of one kubelet. It stores objects as JSON, and lists, watches, patches and
//! deletes them without any validation.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use apiserver_client::HttpBody;
use apiserver_meta::identity::Identity;
use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

pub mod node;

#[derive(Default)]
struct State {
    revision: u64,
    /// Objects by path of the collection, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    /// All events so far: revision, collection, type, object.
    events: Vec<(u64, String, &'static str, Value)>,
    /// Number of patches that were refused because of another uid.
    refused: usize,
}

/// The API server. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    state: Arc<Mutex<State>>,
    revision: watch::Sender<u64>,
}

/// The components of a request's path.
struct Target {
    collection: String,
    namespace: String,
    name: String,
    subresource: String,
}

impl Target {
    fn parse(path: &str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let group = if parts[0] == "api" { 2 } else { 3 };
        let (prefix, rest) = parts.split_at(group);
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        Self {
            collection: format!("{}/{}", prefix.join("/"), part(0)),
            namespace: namespace.to_owned(),
            name: part(1),
            subresource: part(2),
        }
    }
}

impl Api {
    pub fn new() -> Self {
        Self { state: Arc::default(), revision: watch::Sender::new(0) }
    }

    pub fn client(&self) -> kube::Client {
        apiserver_client::in_process(self.clone(), Identity::authenticated("test", &[]), "kubelet")
    }

    /// Creates an object; `collection` is a path such as `api/v1/pods`.
    pub fn create(&self, collection: &str, mut object: Value) -> Value {
        let mut state = self.state.lock().unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let key = (
            collection.to_owned(),
            text(&object["metadata"]["namespace"]),
            text(&object["metadata"]["name"]),
        );
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", state.revision + 1));
        }
        self.store(&mut state, key, object, "ADDED")
    }

    fn store(
        &self,
        state: &mut State,
        key: (String, String, String),
        mut object: Value,
        kind: &'static str,
    ) -> Value {
        state.revision += 1;
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        state.events.push((state.revision, key.0.clone(), kind, object.clone()));
        if kind == "DELETED" {
            state.objects.remove(&key);
        } else {
            state.objects.insert(key, object.clone());
        }
        self.revision.send_replace(state.revision);
        object
    }

    pub fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        self.state.lock().unwrap().objects.get(&key).cloned()
    }

    /// Returns how many patches were refused because of another uid.
    pub fn refused(&self) -> usize {
        self.state.lock().unwrap().refused
    }

    pub fn pod(&self, name: &str) -> Value {
        self.get("api/v1/pods", "default", name).unwrap_or_default()
    }

    /// Creates a pod in `default` that is bound to node `n1`.
    pub fn create_pod(&self, name: &str, mut spec: Value) -> Value {
        spec["nodeName"] = json!("n1");
        self.create("api/v1/pods", json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": {"phase": "Pending"},
        }))
    }

    /// Deletes a pod as a client does: gracefully, so that the kubelet can stop it first.
    pub fn delete_pod(&self, name: &str, grace: i64) {
        self.delete("api/v1/pods", "default", name, Some(grace));
    }

    fn delete(&self, collection: &str, namespace: &str, name: &str, grace: Option<i64>) -> Option<Value> {
        let mut state = self.state.lock().unwrap();
        let key = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        let mut object = state.objects.get(&key).cloned()?;
        let graceful = collection.ends_with("/pods") && grace != Some(0);
        if graceful {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace.unwrap_or(30));
            return Some(self.store(&mut state, key, object, "MODIFIED"));
        }
        Some(self.store(&mut state, key, object, "DELETED"))
    }

    /// Deletes an object at once.
    pub fn remove(&self, collection: &str, namespace: &str, name: &str) {
        self.delete(collection, namespace, name, Some(0));
    }

    /// Changes an object in place.
    pub fn change(&self, collection: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock().unwrap();
        let key = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        let mut object = state.objects[&key].clone();
        change(&mut object);
        self.store(&mut state, key, object, "MODIFIED");
    }

    /// Waits until a pod meets a condition.
    pub async fn until(&self, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        let mut revisions = self.revision.subscribe();
        let wait = async {
            loop {
                let pod = self.pod(name);
                if check(&pod) {
                    return pod;
                }
                revisions.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(Duration::from_secs(60), wait).await {
            Ok(pod) => pod,
            Err(_) => panic!("{name} is not {what}: {:#}\n{:#?}", self.pod(name), self.event_messages()),
        }
    }

    pub async fn until_ready(&self, name: &str) -> Value {
        self.until(name, "ready", |pod| condition(pod, "Ready") == "True").await
    }

    pub async fn until_gone(&self, name: &str) {
        self.until(name, "gone", Value::is_null).await;
    }

    /// Returns reasons and messages of the events.
    pub fn event_messages(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let events = state.objects.iter().filter(|(key, _)| key.0 == "api/v1/events");
        events
            .map(|(_, event)| {
                format!("{} {}", event["reason"].as_str().unwrap(), event["message"].as_str().unwrap())
            })
            .collect()
    }

    /// Returns all states that a pod has gone through.
    pub fn history(&self, name: &str) -> Vec<Value> {
        let state = self.state.lock().unwrap();
        let of_pod = state.events.iter().filter(|(_, collection, _, object)| {
            collection == "api/v1/pods" && object["metadata"]["name"] == name
        });
        of_pod.map(|(_, _, _, object)| object.clone()).collect()
    }

    async fn handle(self, request: Request<HttpBody>) -> Response<HttpBody> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let query: BTreeMap<String, String> = parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.replace("%3D", "=").replace("%2C", ",")))
            .collect();
        let target = Target::parse(parts.uri.path());
        match parts.method {
            Method::GET if !target.name.is_empty() => {
                self.answer(self.get(&target.collection, &target.namespace, &target.name))
            }
            // As an API server that does not stream lists: clients list in pages then.
            Method::GET if query.contains_key("sendInitialEvents") => status(422, "Invalid"),
            Method::GET if query.get("watch").is_some_and(|watch| watch == "true") => {
                self.watch(target, &query)
            }
            Method::GET => self.list(&target, &query),
            Method::POST if target.subresource == "token" => self.answer(Some(json!({
                "metadata": {}, "spec": body["spec"],
                "status": {"token": "a-token", "expirationTimestamp": "2099-01-01T00:00:00Z"},
            }))),
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                if self.get(&target.collection, &target.namespace, name).is_some() {
                    return status(409, "AlreadyExists");
                }
                self.answer(Some(self.create(&target.collection, body)))
            }
            Method::PATCH => self.patch(target, body),
            Method::DELETE => {
                let grace = body["gracePeriodSeconds"].as_i64();
                self.answer(self.delete(&target.collection, &target.namespace, &target.name, grace))
            }
            _ => status(405, "MethodNotAllowed"),
        }
    }

    fn answer(&self, object: Option<Value>) -> Response<HttpBody> {
        match object {
            Some(object) => json_response(200, &object),
            None => status(404, "NotFound"),
        }
    }

    fn list(&self, target: &Target, query: &BTreeMap<String, String>) -> Response<HttpBody> {
        let state = self.state.lock().unwrap();
        let items: Vec<&Value> = state
            .objects
            .iter()
            .filter(|(key, object)| key.0 == target.collection && selected(object, query))
            .map(|(_, object)| object)
            .collect();
        let revision = state.revision.to_string();
        json_response(200, &json!({"metadata": {"resourceVersion": revision}, "items": items}))
    }

    fn watch(&self, target: Target, query: &BTreeMap<String, String>) -> Response<HttpBody> {
        let from: u64 = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or_default();
        let (api, query) = (self.clone(), query.clone());
        let stream =
            futures::stream::unfold((from, self.revision.subscribe()), move |(from, mut revisions)| {
                let (api, query, collection) = (api.clone(), query.clone(), target.collection.clone());
                async move {
                    loop {
                        revisions.mark_unchanged();
                        let (text, last) = {
                            let state = api.state.lock().unwrap();
                            let new = state.events.iter().filter(|(revision, ..)| *revision > from);
                            let text: String = new
                                .filter(|(_, c, _, object)| *c == collection && selected(object, &query))
                                .map(|(_, _, kind, object)| {
                                    json!({"type": kind, "object": object}).to_string() + "\n"
                                })
                                .collect();
                            (text, state.revision)
                        };
                        if !text.is_empty() {
                            return Some((Bytes::from(text), (last, revisions)));
                        }
                        revisions.changed().await.ok()?;
                    }
                }
            });
        let body = StreamBody::new(stream.map(|piece| Ok(Frame::data(piece))));
        Response::new(body.boxed_unsync())
    }

    fn patch(&self, target: Target, patch: Value) -> Response<HttpBody> {
        let mut state = self.state.lock().unwrap();
        let key = (target.collection, target.namespace, target.name);
        let Some(mut object) = state.objects.get(&key).cloned() else { return status(404, "NotFound") };
        let uid = &patch["metadata"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            state.refused += 1;
            return status(422, "Pod is invalid: metadata.uid: Invalid value: \"x\": field is immutable");
        }
        merge(&mut object, patch);
        json_response(200, &self.store(&mut state, key, object, "MODIFIED"))
    }
}

/// Applies a merge patch that merges lists of conditions and addresses by their keys.
fn merge(object: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else { return *object = patch };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    for (field, value) in patch {
        let key = match field.as_str() {
            "conditions" => Some("type"),
            "podIPs" | "hostIPs" => Some("ip"),
            _ => None,
        };
        match (key, value) {
            (Some(key), Value::Array(items)) => merge_list(&mut object[&field], items, key),
            // This list is only ever replaced as a whole, which an entry of the patch says.
            (_, Value::Array(items)) if field == "addresses" => {
                object[&field] = items.into_iter().filter(|item| item["$patch"].is_null()).collect();
            }
            (_, Value::Null) => {
                object.as_object_mut().unwrap().remove(&field);
            }
            (_, value) => merge(&mut object[&field], value),
        }
    }
}

fn merge_list(list: &mut Value, items: Vec<Value>, key: &str) {
    if !list.is_array() {
        *list = json!([]);
    }
    let list = list.as_array_mut().unwrap();
    for item in items {
        let index = list.iter().position(|old| old[key] == item[key]);
        match (index, item["$patch"].as_str()) {
            (Some(index), Some("delete")) => {
                list.remove(index);
            }
            (None, Some("delete")) => {}
            (Some(index), _) => merge(&mut list[index], item),
            (None, _) => {
                let mut new = json!({});
                merge(&mut new, item);
                list.push(new);
            }
        }
    }
}

fn selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let Some(selector) = query.get("fieldSelector") else { return true };
    selector.split(',').filter_map(|term| term.split_once('=')).all(|(path, value)| {
        let pointer = format!("/{}", path.replace('.', "/"));
        object.pointer(&pointer).and_then(Value::as_str) == Some(value)
    })
}

fn json_response(code: u16, value: &Value) -> Response<HttpBody> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {}).boxed_unsync();
    let builder = Response::builder().status(code).header("content-type", "application/json");
    builder.body(body).unwrap()
}

fn status(code: u16, message: &str) -> Response<HttpBody> {
    let value = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": message, "code": code});
    json_response(code, &value)
}

impl tower::Service<Request<HttpBody>> for Api {
    type Response = Response<HttpBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<HttpBody>) -> Self::Future {
        let api = self.clone();
        Box::pin(async move { Ok(api.handle(request).await) })
    }
}

/// Returns the status of a condition of a pod or node.
pub fn condition(object: &Value, kind: &str) -> String {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    found.map_or_else(String::new, |condition| condition["status"].as_str().unwrap().to_owned())
}
