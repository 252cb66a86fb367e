//! Calls of one extender. Errors have the words of kube-scheduler and of Go's HTTP client, since users read them in events.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io;
use std::sync::Arc;

use apiserver_meta::error_chain;
use http::Request;
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use serde::Deserialize;
use serde_json::json;

use super::wire::{self, Bound, Filtered, List, Preempted, Score};
use super::{Extender, Objects};
use crate::limits;
use crate::pod::PodInfo;
use crate::preemption::Answered;

/// An extender has given no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("Post {url:?}: {cause}")]
    Post { url: String, cause: String },
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Status { verb: String, url: String, code: u16 },
    #[error("context deadline exceeded (Client.Timeout or context cancellation while reading body)")]
    Slow,
    #[error("{0}")]
    Answer(String),
    /// The extender says so itself.
    #[error("{0}")]
    Refused(String),
    #[error(
        "extender {extender:?} claims a filtered node {node:?} which is not found in the input node list"
    )]
    UnknownNode { extender: String, node: String },
    /// An object to be sent cannot be read.
    #[error("{0}")]
    Object(String),
}

/// The nodes that an extender leaves, and why it refuses others.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub nodes: Vec<String>,
    pub failed: BTreeMap<String, String>,
    pub unresolvable: BTreeMap<String, String>,
}

impl Extender {
    /// Asks which of these nodes, which the request contains, are feasible.
    pub(super) async fn filter(&self, request: String, names: &[String]) -> Result<Left, CallError> {
        let answer: Filtered = self.post(&self.settings.filter_verb, request).await?;
        if !answer.error.is_empty() {
            return Err(CallError::Refused(answer.error));
        }
        let nodes = match (answer.node_names, answer.nodes) {
            (Some(left), _) if self.settings.node_cache_capable => {
                let known: BTreeSet<&String> = names.iter().collect();
                if let Some(node) = left.iter().find(|name| !known.contains(name)) {
                    return Err(CallError::UnknownNode { extender: self.name.clone(), node: node.clone() });
                }
                left
            }
            (_, Some(nodes)) => nodes.items.0.into_iter().map(|node| node.metadata.name).collect(),
            _ => Vec::new(),
        };
        Ok(Left { nodes, failed: answer.failed, unresolvable: answer.unresolvable })
    }

    /// Returns the scores of nodes, from 0 to 10, by name; a node may be there more than once.
    pub(super) async fn prioritize(&self, request: String) -> Result<Vec<(String, i64)>, CallError> {
        let answer: List<Score> = self.post(&self.settings.prioritize_verb, request).await?;
        Ok(answer.0.into_iter().map(|score| (score.host, score.score)).collect())
    }

    /// Asks for which of these nodes pods may be preempted, and which. `pod` is JSON. `victims` are those of the candidates,
    /// whose objects are sent to an extender that does not know them.
    pub(crate) async fn choose_victims(
        &self,
        pod: &str,
        candidates: &[Answered],
        victims: Vec<Arc<PodInfo>>,
        objects: &Objects,
    ) -> Result<Vec<Answered>, CallError> {
        let whole = match self.settings.node_cache_capable {
            true => None,
            false => Some(objects.pods(victims).await?),
        };
        let request = wire::preemption_request(pod, candidates, whole.as_ref());
        let answer: Preempted = self.post(&self.settings.preempt_verb, request).await?;
        Ok(answer.into_answer())
    }

    /// Has a pod bound.
    pub(crate) async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), CallError> {
        let (name, namespace, uid) = (pod.name(), pod.namespace(), pod.uid.to_string());
        let request = json!({"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": node});
        let answer: Bound = self.post(&self.settings.bind_verb, request.to_string()).await?;
        if answer.error.is_empty() { Ok(()) } else { Err(CallError::Refused(answer.error)) }
    }

    /// Posts JSON, and reads the answer.
    async fn post<T: for<'a> Deserialize<'a>>(&self, verb: &str, body: String) -> Result<T, CallError> {
        let url = format!("{}/{verb}", self.name.trim_end_matches('/'));
        let failed = |cause: String| CallError::Post { url: url.clone(), cause };
        let request = Request::post(format!("/{verb}")).header("Content-Type", "application/json");
        let request =
            request.body(Body::from(body.into_bytes())).map_err(|error| failed(error.to_string()))?;
        let deadline = tokio::time::Instant::now() + self.timeout;
        let answer = match tokio::time::timeout_at(deadline, self.client.send(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(failed(cause(&error, &url))),
            Err(_) => {
                let text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
                return Err(failed(text.to_owned()));
            }
        };
        let code = answer.status().as_u16();
        if code != 200 {
            return Err(CallError::Status { verb: verb.to_owned(), url, code });
        }
        let body = Limited::new(answer.into_body(), limits::EXTENDER_ANSWER).collect();
        let text = match tokio::time::timeout_at(deadline, body).await {
            Ok(Ok(text)) => text.to_bytes(),
            Ok(Err(error)) => return Err(CallError::Answer(error_chain(&*error))),
            Err(_) => return Err(CallError::Slow),
        };
        if text.iter().all(u8::is_ascii_whitespace) {
            return Err(CallError::Answer("EOF".to_owned()));
        }
        wire::read(&text).map_err(|error| CallError::Answer(error.to_string()))
    }
}

/// Returns why a request was not answered, as Go says it where that is known.
fn cause(error: &kube::Error, url: &str) -> String {
    let mut source: Option<&dyn Error> = Some(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            let host = url.split('/').nth(2).unwrap_or_default();
            return format!("dial tcp {host}: connect: connection refused");
        }
        source = error.source();
    }
    error_chain(error)
}
