//! A fake kubelet for all nodes: it reports each pod that has a node as running or as ended, and finishes deletions. It
//! also binds the pods of DaemonSets, which name their nodes, because there is no scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::stage::{PODS, Stage};
use super::straight::CLIENTS;
use crate::api::client::{Call, Connection, next_chunk};
use crate::api::objects::running_status;

/// Result of the pods.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// They run and are ready.
    Running,
    /// They end at once, with success.
    Succeeded,
}

/// The kubelet, which stops when dropped.
pub struct Kubelet {
    tasks: [JoinHandle<Result<()>>; 2],
}

impl Kubelet {
    /// Starts it on connections of its own.
    pub fn start(stage: &Stage, outcome: Outcome) -> Result<Self> {
        let connections = stage.runtime.block_on(stage.api.target.connect(3))?;
        let (watching, writing) = connections.split_at(1);
        // Bounded by the number of pods, which this program has made itself.
        let (todo, queue) = mpsc::unbounded_channel();
        let watch = stage.runtime.spawn(watch(watching[0].clone(), outcome, todo));
        let work = stage.runtime.spawn(work(writing.to_vec(), queue));
        Ok(Self { tasks: [watch, work] })
    }

    /// Fails if it has stopped.
    pub fn check(&self) -> Result<()> {
        if self.tasks.iter().any(JoinHandle::is_finished) {
            bail!("the kubelet has stopped: its watch has ended, or a write has failed");
        }
        Ok(())
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// The fields of an event that matter here.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Pod,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: String,
    affinity: Value,
}

/// Place of the node's name in the affinity of a pod of a DaemonSet.
const NODE: &str =
    "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0";

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
}

/// Something to write about a pod.
#[derive(Debug, PartialEq, Eq)]
enum Todo {
    Bind(String, String),
    Report(String, &'static str),
    Delete(String),
}

/// Returns what an event leaves to do.
fn todo(event: &Event, outcome: Outcome) -> Option<Todo> {
    let Pod { metadata, spec, status } = &event.object;
    if !matches!(event.kind.as_str(), "ADDED" | "MODIFIED") {
        return None;
    }
    if spec.node_name.is_empty() {
        let node = spec.affinity.pointer(NODE).and_then(Value::as_str);
        return node.map(|node| Todo::Bind(metadata.name.clone(), node.to_owned()));
    }
    let ended = matches!(status.phase.as_str(), "Succeeded" | "Failed");
    match &metadata.deletion_timestamp {
        // One that has ended waits for its finalizer only, and goes with it.
        Some(_) if ended => None,
        Some(_) => Some(Todo::Delete(metadata.name.clone())),
        None if status.phase != "Pending" => None,
        None if outcome == Outcome::Running => Some(Todo::Report(metadata.name.clone(), "Running")),
        None => Some(Todo::Report(metadata.name.clone(), "Succeeded")),
    }
}

async fn watch(connection: Connection, outcome: Outcome, queue: mpsc::UnboundedSender<Todo>) -> Result<()> {
    let (status, mut body) = connection.open_stream(Call::get(format!("{PODS}?watch=true"))).await?;
    if status != StatusCode::OK {
        bail!("the watch of pods: {status}");
    }
    let mut rest = BytesMut::new();
    while let Some(chunk) = next_chunk(&mut body).await? {
        rest.extend_from_slice(&chunk);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = rest.split_to(end + 1);
            let event: Event = serde_json::from_slice(&line).context("an event cannot be read")?;
            if event.kind == "ERROR" {
                bail!("the watch of pods: {}", String::from_utf8_lossy(&line));
            }
            if let Some(todo) = todo(&event, outcome) {
                queue.send(todo).context("nobody writes")?;
            }
        }
    }
    bail!("the watch of pods has ended")
}

async fn work(connections: Vec<Connection>, mut queue: mpsc::UnboundedReceiver<Todo>) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let todos = stream::poll_fn(|context| queue.poll_recv(context));
    let mut writes = std::pin::pin!(
        todos
            .map(|todo| {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let connection = &connections[number as usize % connections.len()];
                write(connection, todo, number)
            })
            .buffer_unordered(CLIENTS)
    );
    while let Some(written) = writes.next().await {
        written?;
    }
    bail!("nobody watches")
}

async fn write(connection: &Connection, todo: Todo, number: u64) -> Result<()> {
    let call = match todo {
        Todo::Bind(pod, node) => bind(&pod, &node),
        Todo::Report(pod, phase) => report(&pod, phase, number),
        Todo::Delete(pod) => delete(&pod),
    };
    let path = call.path.clone();
    let (status, _) = connection.ask(call).await?;
    // The pod may be gone, or bound, by now.
    if !status.is_success() && !matches!(status, StatusCode::NOT_FOUND | StatusCode::CONFLICT) {
        bail!("{path}: {status}");
    }
    Ok(())
}

fn bind(pod: &str, node: &str) -> Call {
    let target = json!({"kind": "Node", "name": node});
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target});
    Call::post(format!("{PODS}/{pod}/binding"), Bytes::from(binding.to_string()))
}

/// Returns the request that reports a pod.
pub fn report(pod: &str, phase: &str, number: u64) -> Call {
    let mut status = running_status(number as usize);
    if phase != "Running" {
        status = json!({"phase": phase, "startTime": "2026-01-02T03:04:07Z"});
    }
    Call {
        method: Method::PATCH,
        path: format!("{PODS}/{pod}/status"),
        content_type: "application/merge-patch+json",
        body: Bytes::from(json!({"status": status}).to_string()),
    }
}

/// Returns the request that finishes a deletion.
pub fn delete(pod: &str) -> Call {
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
    Call {
        method: Method::DELETE,
        path: format!("{PODS}/{pod}"),
        content_type: "application/json",
        body: Bytes::from(options.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_reported_once_and_deletions_finished() {
        let event = |kind: &str, node: &str, phase: &str, deleted: bool| {
            let time = deleted.then_some("2026-01-02T03:04:07Z");
            let pod = json!({"metadata": {"name": "p", "deletionTimestamp": time}, "spec": {"nodeName": node},
                "status": {"phase": phase}});
            serde_json::from_value::<Event>(json!({"type": kind, "object": pod})).unwrap()
        };
        let running = |event: Event| todo(&event, Outcome::Running);
        assert_eq!(running(event("ADDED", "n", "Pending", false)), Some(Todo::Report("p".into(), "Running")));
        assert_eq!(running(event("ADDED", "", "Pending", false)), None);
        assert_eq!(running(event("MODIFIED", "n", "Running", false)), None);
        assert_eq!(running(event("MODIFIED", "n", "Running", true)), Some(Todo::Delete("p".into())));
        assert_eq!(running(event("DELETED", "n", "Running", true)), None);
        assert_eq!(running(event("MODIFIED", "n", "Succeeded", true)), None);
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}}});
        let pod = json!({"metadata": {"name": "p"}, "spec": {"affinity": affinity}, "status": {"phase": "Pending"}});
        let unbound = serde_json::from_value(json!({"type": "ADDED", "object": pod})).unwrap();
        assert_eq!(running(unbound), Some(Todo::Bind("p".into(), "n".into())));
        let ended = todo(&event("ADDED", "n", "Pending", false), Outcome::Succeeded);
        assert_eq!(ended, Some(Todo::Report("p".into(), "Succeeded")));
    }
}
