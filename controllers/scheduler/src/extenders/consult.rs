//! The round through the extenders that a pod interests: each filters what those before it have left, and then all score
//! what is left at the end.

use std::collections::BTreeMap;

use tokio::task::JoinSet;
use tracing::{debug, info};

use super::wire::{Sent, nodes_request};
use super::{CallError, Extender, Extenders, Interested, Objects};
use crate::framework::{Code, MAX_SCORE, Refusal};

/// Highest score that an extender gives (`MaxExtenderPriority`).
const MAX_EXTENDER_SCORE: i64 = 10;

/// The nodes that extenders have left for a pod. They are names, since the nodes may be others by now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Consulted {
    pub nodes: Vec<String>,
    /// Refusals of nodes; a node that was refused without a reason is in neither list.
    pub refusals: BTreeMap<String, Refusal>,
    /// Fewer or more nodes are left than were asked about.
    pub has_refused: bool,
    /// Sums of the weighted scores, on the scale of the plugins.
    pub scores: BTreeMap<String, i64>,
}

/// The nodes of a request, with their objects once they are needed.
struct Nodes {
    names: Vec<String>,
    objects: Option<Vec<String>>,
}

impl Nodes {
    fn new(names: Vec<String>) -> Self {
        Self { names, objects: None }
    }

    /// Returns a request about the nodes, in the form that an extender wants.
    async fn request(
        &mut self,
        extender: &Extender,
        pod: &str,
        objects: &Objects,
    ) -> Result<String, CallError> {
        if extender.settings.node_cache_capable {
            return Ok(nodes_request(pod, Sent::Names(&self.names)));
        }
        if self.objects.is_none() {
            self.objects = Some(objects.nodes(&self.names).await?);
        }
        Ok(nodes_request(pod, Sent::Objects(self.objects.as_deref().unwrap_or_default())))
    }
}

impl Extenders {
    /// Asks extenders which of these nodes are feasible for a pod, and how they score. `pod` is JSON.
    ///
    /// # Errors
    ///
    /// Fails if an extender that may not be ignored does not answer.
    pub(crate) async fn consult(
        &self,
        interested: &Interested,
        pod: &str,
        names: Vec<String>,
        objects: &Objects,
    ) -> Result<Consulted, CallError> {
        let asked = names.len();
        let mut nodes = Nodes::new(names);
        let mut refusals = BTreeMap::new();
        let extenders = || interested.iter().map(|index| (*index, self.get(*index)));
        for (_, extender) in extenders().filter(|(_, extender)| extender.filters()) {
            if nodes.names.is_empty() {
                break;
            }
            let request = nodes.request(extender, pod, objects).await?;
            let left = match extender.filter(request, &nodes.names).await {
                Ok(left) => left,
                Err(error) if extender.is_ignorable() => {
                    info!(extender = %extender.name, %error, "the extender is ignored");
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (node, text) in left.failed {
                if !left.unresolvable.contains_key(&node) {
                    refusals.insert(node, Refusal::new(Code::Unschedulable, text));
                }
            }
            let unresolvable = left.unresolvable.into_iter();
            refusals.extend(unresolvable.map(|(node, text)| (node, Refusal::new(Code::Unresolvable, text))));
            if left.nodes != nodes.names {
                nodes = Nodes::new(left.nodes);
            }
        }
        let has_refused = nodes.names.len() != asked;
        let mut scores = BTreeMap::new();
        if nodes.names.len() > 1 {
            let scoring = extenders().filter(|(_, extender)| extender.scores()).map(|(index, _)| index);
            scores = self.scores(scoring.collect(), pod, &mut nodes, objects).await;
        }
        Ok(Consulted { nodes: nodes.names, refusals, has_refused, scores })
    }

    /// Asks extenders for scores, all at one time. One that fails gives none.
    async fn scores(
        &self,
        scoring: Vec<usize>,
        pod: &str,
        nodes: &mut Nodes,
        objects: &Objects,
    ) -> BTreeMap<String, i64> {
        let mut calls = JoinSet::new();
        for index in scoring {
            let extender = self.get(index);
            let request = match nodes.request(extender, pod, objects).await {
                Ok(request) => request,
                Err(error) => {
                    debug!(extender = %extender.name, %error, "the extender gives no scores");
                    continue;
                }
            };
            let extenders = self.clone();
            calls.spawn(async move {
                let extender = extenders.get(index);
                let answer = extender.prioritize(request).await;
                if let Err(error) = &answer {
                    debug!(extender = %extender.name, %error, "the extender gives no scores");
                }
                let scale = extender.settings.weight.wrapping_mul(MAX_SCORE / MAX_EXTENDER_SCORE);
                answer
                    .unwrap_or_default()
                    .into_iter()
                    .map(move |(node, score)| (node, score.wrapping_mul(scale)))
            });
        }
        let mut sums: BTreeMap<String, i64> = BTreeMap::new();
        while let Some(answer) = calls.join_next().await {
            for (node, score) in answer.into_iter().flatten() {
                let sum = sums.entry(node).or_default();
                *sum = sum.wrapping_add(score);
            }
        }
        sums
    }
}
