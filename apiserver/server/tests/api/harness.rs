//! A server, and requests as plain values.

use std::sync::Arc;
use std::time::Duration;

use apiserver_kinds::builtin;
use apiserver_kinds::enablement::Enablement;
use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use apiserver_registry::Registry;
use apiserver_server::{Body, Server, ServerConfig};
use apiserver_store::Store;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::Service;

/// A running server.
pub struct Api {
    pub server: Arc<Server>,
    pub store: Arc<dyn Store>,
    pub identity: Identity,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub code: u16,
    pub headers: HeaderMap,
    pub text: String,
    pub body: Value,
}

impl Api {
    /// With the default configuration, as an administrator, and every version of every kind.
    pub async fn start() -> Self {
        Self::with(every_api()).await
    }

    pub async fn with(config: ServerConfig) -> Self {
        let disk = Arc::new(SimDisk::new(1));
        let store: Arc<dyn Store> = Arc::new(Embedded::open(disk, Options::default()).await.unwrap());
        Self::over(config, store).await
    }

    pub async fn of_kinds(registry: Registry) -> Self {
        let disk = Arc::new(SimDisk::new(1));
        let store: Arc<dyn Store> = Arc::new(Embedded::open(disk, Options::default()).await.unwrap());
        Self::serving(every_api(), store, registry).await
    }

    pub async fn over(config: ServerConfig, store: Arc<dyn Store>) -> Self {
        Self::serving(config, store, builtin::registry()).await
    }

    async fn serving(config: ServerConfig, store: Arc<dyn Store>, registry: Registry) -> Self {
        let server = Server::new(config, Arc::clone(&store), registry, Ambient::system()).unwrap();
        server.start();
        tokio::time::timeout(Duration::from_secs(20), server.ready()).await.expect("ready in time");
        let api = Self { server, store, identity: Identity::authenticated("admin", &["system:masters"]) };
        // Objects that controllers would create.
        let account = json!({"metadata": {"name": "default"}});
        api.post("/api/v1/namespaces/default/serviceaccounts", account).await;
        api
    }

    /// Returns a client of the same server for another identity.
    pub fn as_user(&self, identity: Identity) -> Self {
        Self { server: Arc::clone(&self.server), store: Arc::clone(&self.store), identity }
    }

    pub async fn send(&self, request: Request<Bytes>) -> http::Response<Body> {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(self.identity.clone());
        let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
        self.server.service().call(Request::from_parts(parts, body)).await.unwrap()
    }

    pub async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        for (key, value) in headers {
            request = request.header(*key, *value);
        }
        let response = self.send(request.body(body.into()).unwrap()).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Reply { code: parts.status.as_u16(), headers: parts.headers, text, body }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, &[], "").await
    }

    pub async fn get_as(&self, path: &str, accept: &str) -> Reply {
        self.call("GET", path, &[("accept", accept)], "").await
    }

    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.call("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Reply {
        self.call("PUT", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn delete(&self, path: &str, options: Value) -> Reply {
        let body = if options.is_null() { String::new() } else { options.to_string() };
        self.call("DELETE", path, &[("content-type", "application/json")], body).await
    }

    pub async fn patch(&self, kind: &str, path: &str, body: Value) -> Reply {
        let media = format!("application/{kind}-patch+json");
        self.call("PATCH", path, &[("content-type", &media)], body.to_string()).await
    }

    pub async fn watch(&self, path: &str) -> Watching {
        self.watch_as(path, "application/json").await
    }

    pub async fn watch_as(&self, path: &str, accept: &str) -> Watching {
        let request = Request::builder().uri(path).header("accept", accept).body(Bytes::new()).unwrap();
        let response = self.send(request).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        Watching { body: response.into_body(), buffer: Vec::new() }
    }

    /// Makes a ConfigMap; answers with its resource version.
    pub async fn config_map(&self, name: &str, labels: Value) -> String {
        let map = json!({"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}});
        self.post("/api/v1/namespaces/default/configmaps", map).await.expect(201).version()
    }
}

impl Reply {
    /// Returns the reply if it has this code; panics otherwise.
    #[track_caller]
    pub fn expect(self, code: u16) -> Self {
        assert_eq!(self.code, code, "{}", self.text);
        self
    }

    pub fn version(&self) -> String {
        self.body["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }

    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    /// Names of a list's items.
    pub fn names(&self) -> Vec<&str> {
        let items = self.body["items"].as_array().unwrap();
        items.iter().map(|i| i["metadata"]["name"].as_str().unwrap()).collect()
    }
}

/// An open watch.
pub struct Watching {
    body: Body,
    buffer: Vec<u8>,
}

impl Watching {
    /// The next event, `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        self.next_line().await.map(|line| serde_json::from_str(&line).unwrap())
    }

    /// The text of the next event, `None` at the end.
    pub async fn next_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// The next event as `TYPE name`.
    pub async fn brief(&mut self) -> String {
        let wait = tokio::time::timeout(Duration::from_secs(600), self.next());
        match wait.await.expect("an event in time") {
            Some(event) => {
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
                format!("{} {name}", event["type"].as_str().unwrap())
            }
            None => "END".to_owned(),
        }
    }

    /// Returns `true` if nothing more has arrived.
    pub async fn is_quiet(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(100), self.next()).await.is_err()
    }
}

/// The default configuration, and every version of every kind.
pub fn every_api() -> ServerConfig {
    ServerConfig { apis: Enablement::all(), ..ServerConfig::default() }
}

/// A pod that is valid.
pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// A Deployment that is valid.
pub fn deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

/// An object as lists of its kind have it: they name version and kind for all.
pub fn as_item(object: &Value) -> Value {
    let mut item = object.clone();
    if let Some(fields) = item.as_object_mut() {
        fields.retain(|name, _| name != "apiVersion" && name != "kind");
    }
    item
}
