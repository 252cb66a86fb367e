//! The verdict of a scheduler on a case.

use std::collections::BTreeMap;

use serde_json::Value;

/// The refusal of a node, or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// `Unschedulable`, `UnschedulableAndUnresolvable` or `Error`.
    pub code: String,
    /// The plugin that refused, empty where a plugin's earlier choice of nodes left this one out.
    pub plugin: String,
    /// The reasons, sorted: a scheduler may list lacking resources in any order.
    pub reasons: Vec<String>,
}

/// The outcome of evicting pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preemption {
    /// The nodes that are equally good; empty if none helps.
    pub nominated: Vec<String>,
    /// The pods to evict on each node that helps.
    pub candidates: BTreeMap<String, Vec<String>>,
    /// The disruption budgets that each node's victims violate, where there are any.
    pub violations: BTreeMap<String, i64>,
    /// The reason for which the pod may not evict others, if so.
    pub ineligible: String,
}

/// The verdict of a scheduler on a case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The error that left the case without a verdict.
    pub error: String,
    /// The nodes that take the pod, sorted.
    pub feasible: Vec<String>,
    /// The refusal before any node was looked at.
    pub pre_filter: Option<Refusal>,
    /// The refusal of each other node.
    pub refusals: BTreeMap<String, Refusal>,
    /// The message of the event.
    pub message: String,
    /// The message with what preemption adds.
    pub full_message: String,
    /// The normalised score of each node by plugin, before the weight.
    pub scores: BTreeMap<String, BTreeMap<String, i64>>,
    /// The weighted sum of each node.
    pub totals: BTreeMap<String, i64>,
    /// The outcome of preemption, if no node takes the pod and preemption is on.
    pub preemption: Option<Preemption>,
}

impl Verdict {
    /// Reads a verdict from JSON.
    pub fn parse(value: &Value) -> Self {
        Self {
            error: text(&value["error"]),
            feasible: texts(&value["feasible"]),
            pre_filter: value["preFilter"].is_object().then(|| refusal(&value["preFilter"])),
            refusals: map(&value["refusals"], refusal),
            message: text(&value["message"]),
            full_message: text(&value["fullMessage"]),
            scores: map(&value["scores"], |nodes| map(nodes, number)),
            totals: map(&value["totals"], number),
            preemption: value["preemption"].is_object().then(|| preemption(&value["preemption"])),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    let mut texts: Vec<String> = value.as_array().into_iter().flatten().map(text).collect();
    texts.sort();
    texts
}

fn number(value: &Value) -> i64 {
    value.as_i64().expect("scores are integers")
}

fn map<T>(value: &Value, read: impl Fn(&Value) -> T) -> BTreeMap<String, T> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), read(value))).collect()
}

fn refusal(value: &Value) -> Refusal {
    Refusal { code: text(&value["code"]), plugin: text(&value["plugin"]), reasons: texts(&value["reasons"]) }
}

fn preemption(value: &Value) -> Preemption {
    let mut nominated = texts(&value["ties"]);
    let first = text(&value["nominated"]);
    if nominated.is_empty() && !first.is_empty() {
        nominated.push(first);
    }
    Preemption {
        nominated,
        candidates: map(&value["candidates"], texts),
        violations: map(&value["violations"], number),
        ineligible: text(&value["ineligible"]),
    }
}
