//! Whole objects for extenders: the scheduler itself stores no more of them than it reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::{Cache, Informers, Projection, message};
use http::Request;
use k8s_openapi::api::core::v1;
use kube::Client;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{CallError, Extenders};
use crate::limits;
use crate::pod::PodInfo;

/// Reads objects as JSON, without `managedFields`. Clones share the cache of nodes.
#[derive(Clone)]
pub(crate) struct Objects {
    client: Client,
    /// The nodes, if an extender must be told them as objects.
    nodes: Option<Cache<NodeText>>,
    lanes: Arc<Semaphore>,
}

/// A node as JSON.
struct NodeText {
    name: String,
    version: String,
    text: String,
}

impl Projection for NodeText {
    type Object = v1::Node;

    fn project(mut node: v1::Node) -> Self {
        node.metadata.managed_fields = None;
        Self {
            // An object of the API can be written as JSON.
            text: serde_json::to_string(&node).unwrap_or_default(),
            name: node.metadata.name.unwrap_or_default(),
            version: node.metadata.resource_version.unwrap_or_default(),
        }
    }

    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        !self.version.is_empty() && self.version == other.version
    }
}

impl Objects {
    pub fn new(client: Client, informers: &Informers, extenders: &Extenders) -> Self {
        let nodes = extenders.need_nodes().then(|| informers.cache::<NodeText>());
        Self { client, nodes, lanes: Arc::new(Semaphore::new(limits::EXTENDER_READS)) }
    }

    /// Returns a reader that asks for each node.
    #[cfg(test)]
    pub fn without_cache(client: Client) -> Self {
        Self { client, nodes: None, lanes: Arc::new(Semaphore::new(limits::EXTENDER_READS)) }
    }

    /// Returns a pod; `None` if it is gone.
    pub async fn pod(&self, pod: &PodInfo) -> Result<Option<String>, CallError> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace(), pod.name());
        let object = self.read(path).await?;
        let uid = |object: &Value| object["metadata"]["uid"].as_str().map(str::to_owned);
        let same = object.filter(|object| uid(object).is_some_and(|uid| pod.uid == *uid));
        Ok(same.map(|object| object.to_string()))
    }

    /// Returns pods by UID, without those that are gone.
    pub async fn pods(&self, pods: Vec<Arc<PodInfo>>) -> Result<BTreeMap<String, String>, CallError> {
        let mut reads = JoinSet::new();
        for pod in pods {
            let objects = self.clone();
            reads.spawn(async move { (pod.uid.to_string(), objects.pod(&pod).await) });
        }
        let mut found = BTreeMap::new();
        while let Some(read) = reads.join_next().await {
            let (uid, object) = read.map_err(|error| CallError::Object(error.to_string()))?;
            found.extend(object?.map(|object| (uid, object)));
        }
        Ok(found)
    }

    /// Returns nodes, without those that are gone.
    pub async fn nodes(&self, names: &[String]) -> Result<Vec<String>, CallError> {
        if let Some(nodes) = &self.nodes {
            nodes.synced().await;
        }
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            let key = apiserver_client::ObjectKey::new("", name);
            match self.nodes.as_ref().and_then(|nodes| nodes.get(&key)) {
                Some(node) => found.push(node.text.clone()),
                // It is newer than what the cache shows.
                None => {
                    let object = self.read(format!("/api/v1/nodes/{name}")).await?;
                    found.extend(object.map(|object| object.to_string()));
                }
            }
        }
        Ok(found)
    }

    async fn read(&self, path: String) -> Result<Option<Value>, CallError> {
        let _lane = self.lanes.acquire().await;
        let failed =
            |cause: String| CallError::Object(format!("cannot read {path} for an extender: {cause}"));
        let request = Request::get(&path).body(Vec::new()).map_err(|error| failed(error.to_string()))?;
        let answer = tokio::time::timeout(limits::EXTENDER_READ, self.client.request::<Value>(request)).await;
        match answer {
            Ok(Ok(mut object)) => {
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("managedFields");
                }
                Ok(Some(object))
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
            Ok(Err(error)) => Err(failed(message(&error))),
            Err(_) => Err(failed("no answer in time".to_owned())),
        }
    }
}
