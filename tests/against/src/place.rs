//! Objects that a run makes on both servers before it asks, and removes afterwards.

use std::time::Duration;

use anyhow::{Result, bail};
use http::Method;
use serde_json::{Value, json};

use crate::kinds::{Kind, named};
use crate::plan::Base;
use crate::server::Server;

/// Time that the controllers of a server have for a namespace before it is finalized from here.
const NAMESPACE_GOES: Duration = Duration::from_secs(5);

/// A namespace and the objects that were created, on both servers.
pub struct Place {
    pub namespace: String,
    servers: [Server; 2],
    created: Vec<String>,
}

impl Place {
    /// Creates the namespace, which must be new, with the ServiceAccount that pods need. No controller may be there to
    /// do it.
    pub async fn make(servers: [Server; 2], namespace: &str) -> Result<Self> {
        let mut place = Self { namespace: namespace.to_owned(), servers, created: Vec::new() };
        if let Err(error) = place.fill().await {
            // The first error is the one to tell.
            let _ = place.remove().await;
            return Err(error);
        }
        Ok(place)
    }

    async fn fill(&mut self) -> Result<()> {
        let namespace = self.namespace.clone();
        let manifest = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        for server in &self.servers {
            let answer = server.call(Method::POST, "/api/v1/namespaces", manifest.to_string()).await?;
            if answer.status != 201 {
                bail!("{}: cannot create namespace {namespace}: {}", server.name, answer.body["message"]);
            }
        }
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        for server in &self.servers {
            let answer = server.call(Method::POST, &accounts, account.to_string()).await?;
            if ![201, 409].contains(&answer.status) {
                bail!("{}: cannot create ServiceAccount default: {}", server.name, answer.body["message"]);
            }
        }
        Ok(())
    }

    /// Creates the first manifest of a kind, and up to two more that are harmless because they stay in the namespace.
    /// Tells which could not be created on both servers.
    pub async fn create(&mut self, kind: &Kind, told: &mut Vec<String>) -> Result<Vec<Base>> {
        let wanted = match kind.plural.as_str() {
            _ if !kind.updates || !kind.deletes => 0,
            // These govern the others of their namespace.
            "limitranges" | "resourcequotas" => 1,
            _ if kind.namespaced => 3,
            _ => 1,
        };
        let mut bases = Vec::new();
        for (index, manifest) in kind.manifests.iter().take(wanted).enumerate() {
            let version = kind.api_version.replace(['/', '.'], "-");
            let manifest = named(
                manifest,
                &self.namespace,
                &format!("{}-{version}-{}-{index}", self.namespace, kind.plural),
            );
            let collection = kind.collection(&self.namespace);
            let path = format!("{collection}/{}", manifest["metadata"]["name"].as_str().unwrap_or_default());
            let mut statuses = Vec::new();
            for server in &self.servers {
                let query = format!("{collection}?fieldManager=creator");
                let answer = server.call(Method::POST, &query, manifest.to_string()).await?;
                let message = answer.body["message"].as_str().unwrap_or_default().to_owned();
                statuses.push((answer.status, message));
            }
            if statuses.iter().any(|(status, _)| *status == 201) {
                self.created.push(path.clone());
            }
            if statuses.iter().all(|(status, _)| *status == 201) {
                bases.push(Base { manifest, path });
            } else {
                told.push(format!("{path}: {statuses:?}"));
            }
        }
        Ok(bases)
    }

    /// Deletes what was created. Goes on after a failure and tells the first.
    pub async fn remove(&self) -> Result<()> {
        let mut failed = None;
        for server in &self.servers {
            for path in self.created.iter().rev() {
                failed = failed.or(delete(server, path).await.err());
            }
            failed = failed.or(self.remove_namespace(server).await.err());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Deletes the namespace. Where no controller empties it, there is nothing left to wait for and its finalizer goes.
    async fn remove_namespace(&self, server: &Server) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        let account = format!("{path}/serviceaccounts/default");
        server.call(Method::DELETE, &account, String::new()).await?;
        server.call(Method::DELETE, &path, String::new()).await?;
        let end = tokio::time::Instant::now() + NAMESPACE_GOES;
        loop {
            let mut namespace = server.call(Method::GET, &path, String::new()).await?;
            if namespace.status == 404 {
                return Ok(());
            }
            if tokio::time::Instant::now() > end {
                namespace.body["spec"]["finalizers"] = json!([]);
                let answer =
                    server.call(Method::PUT, &format!("{path}/finalize"), namespace.body.to_string()).await?;
                if answer.status != 200 {
                    bail!("{}: cannot finalize namespace {}: {}", server.name, self.namespace, answer.body);
                }
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Deletes an object at once, with its finalizers: no controller may be there to take them away.
async fn delete(server: &Server, path: &str) -> Result<()> {
    let now = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    let answer = server.call(Method::DELETE, path, now.to_string()).await?;
    if answer.status == 404 {
        return Ok(());
    }
    let left = server.call(Method::GET, path, String::new()).await?;
    // A definition's finalizer belongs to the server itself.
    let finalizers = left.body["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
    if left.status == 200 && finalizers && left.body["kind"] != "CustomResourceDefinition" {
        let none = json!({"metadata": {"finalizers": Value::Null}});
        server.call(Method::PATCH, path, none.to_string()).await?;
    }
    if left.status == 200 && left.body["kind"] == "Namespace" {
        let mut namespace = left.body;
        namespace["spec"]["finalizers"] = json!([]);
        server.call(Method::PUT, &format!("{path}/finalize"), namespace.to_string()).await?;
    }
    Ok(())
}
