//! An API server with controllers, and this process as its administrator.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::objects;
use super::process::{Controllers, Page};
use super::straight::CLIENTS;
use crate::api;
use crate::api::client::{Call, Connection};
use crate::api::server::Running;

/// Number of connections of this process.
pub const CONNECTIONS: usize = 4;
/// Pause between two looks at how far a workload is.
const LOOK: Duration = Duration::from_millis(20);
/// Time within which a workload must be done.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// Pods of the namespace of the benchmark.
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// An API server, and its clients. Fields are dropped in this order: clients and controllers go before the server.
pub struct Stage {
    pub connections: Vec<Connection>,
    pub controllers: Option<Controllers>,
    pub api: Running,
    pub runtime: Rc<Runtime>,
    directory: TempDir,
}

impl Stage {
    /// Starts an API server on an empty store.
    pub fn new() -> Result<Self> {
        Self::on(api::directory()?)
    }

    /// Starts an API server on the store in a directory.
    pub fn on(directory: TempDir) -> Result<Self> {
        let runtime = Rc::new(api::runtime()?);
        let api = Running::hawser(&directory.path().join("hawser"), None)?;
        let connections = runtime.block_on(api.target.connect(CONNECTIONS))?;
        Ok(Self { connections, controllers: None, api, runtime, directory })
    }

    /// Opens the connections anew: the API server ends those that have been idle for some time.
    pub fn reconnect(&mut self) -> Result<()> {
        self.connections = self.runtime.block_on(self.api.target.connect(CONNECTIONS))?;
        Ok(())
    }

    /// Returns the directory of the API server.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("hawser")
    }

    /// Starts the controllers and waits until they answer.
    pub fn start_controllers(&mut self) -> Result<()> {
        let directory = self.data();
        let started = Controllers::start(&directory, &self.connections[0]);
        self.controllers = Some(self.runtime.block_on(started)?);
        // The account of pods, without which none is created.
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        self.until("the account of pods", async |stage| {
            let (status, _) = stage.connections[0].ask(Call::get(account)).await?;
            Ok(status.is_success().then_some(()))
        })?;
        self.page().map(drop)
    }

    pub fn controllers(&self) -> Result<&Controllers> {
        self.controllers.as_ref().context("the controllers do not run")
    }

    /// Returns the figures of the queues.
    pub fn page(&mut self) -> Result<Page> {
        self.until("the metrics", async |stage| stage.controllers()?.page().await)
    }

    /// Waits, while connections and kubelets go on.
    pub fn rest(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    /// Repeats an attempt until it returns a value.
    pub fn until<T>(
        &mut self,
        what: &str,
        mut attempt: impl AsyncFnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let (runtime, began) = (Rc::clone(&self.runtime), Instant::now());
        runtime.block_on(async {
            loop {
                self.controllers.iter_mut().try_for_each(Controllers::check)?;
                if let Some(value) = attempt(self).await? {
                    return Ok(value);
                }
                if began.elapsed() > LIMIT {
                    bail!("{what}: not within {LIMIT:?}");
                }
                tokio::time::sleep(LOOK).await;
            }
        })
    }

    /// Reads an object.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let text = self.connections[0].read(Call::get(path)).await?;
        serde_json::from_slice(&text).with_context(|| format!("{path}: no JSON"))
    }

    /// Creates an object.
    pub fn create(&self, path: &str, object: &Value) -> Result<()> {
        let body = Bytes::from(object.to_string());
        self.runtime.block_on(self.connections[0].read(Call::post(path, body))).map(drop)
    }

    /// Creates objects, several at the same time.
    pub fn create_all(&self, path: &str, objects: impl Iterator<Item = Value>) -> Result<()> {
        self.create_each(objects.map(|object| (path.to_owned(), object)))
    }

    /// Creates objects, each at its path, several at the same time.
    pub fn create_each(&self, objects: impl Iterator<Item = (String, Value)>) -> Result<()> {
        self.send_all(objects.map(|(path, object)| Call::post(path, Bytes::from(object.to_string()))))
    }

    /// Sends requests, several at the same time.
    fn send_all(&self, calls: impl Iterator<Item = Call>) -> Result<()> {
        let send = |(i, call): (usize, Call)| self.connections[i % CONNECTIONS].read(call);
        let all = stream::iter(calls.enumerate()).map(send).buffer_unordered(CLIENTS);
        self.runtime.block_on(all.try_for_each(|_| async { Ok(()) }))
    }

    /// Creates nodes that are ready.
    pub fn create_nodes(&self, count: usize) -> Result<()> {
        self.create_these_nodes(|| (0..count).map(objects::node_object))
    }

    /// Creates these nodes, which are ready.
    pub fn create_these_nodes<I: Iterator<Item = Value>>(&self, nodes: impl Fn() -> I) -> Result<()> {
        let path = "/api/v1/nodes";
        self.create_all(path, nodes())?;
        // The API server taints new nodes until a controller finds them ready, which is off here.
        let untainted = json!({"spec": {"taints": null}});
        self.send_all(nodes().map(|node| {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            merge(&format!("{path}/{name}"), &untainted)
        }))
    }

    /// Changes an object by a merge patch.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<()> {
        self.runtime.block_on(self.connections[0].read(merge(path, patch))).map(drop)
    }

    /// Returns the number of objects of a collection.
    pub async fn count(&self, path: &str) -> Result<usize> {
        let list = self.get(&format!("{path}?limit=1")).await?;
        let shown = list["items"].as_array().map_or(0, Vec::len);
        let others = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        Ok(shown + usize::try_from(others).context("too many objects")?)
    }
}

fn merge(path: &str, patch: &Value) -> Call {
    Call {
        method: Method::PATCH,
        path: path.to_owned(),
        content_type: "application/merge-patch+json",
        body: Bytes::from(patch.to_string()),
    }
}
