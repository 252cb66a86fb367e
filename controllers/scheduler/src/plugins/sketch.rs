//! Nodes and pods from a line of text, for tables.
//!
//! A node is `NAME LABEL=VALUE…`, and `!KEY=VALUE:EFFECT` a taint. A pod is `[NAMESPACE/]NODE LABEL=VALUE…`, where the node `-`
//! is none, with further parts after `; `:
//!
//! ```text
//! near KEY SELECTOR, away KEY SELECTOR                          required terms
//! prefer WEIGHT KEY SELECTOR, avoid WEIGHT KEY SELECTOR         preferred terms
//! hard SKEW KEY SELECTOR, soft SKEW KEY SELECTOR                spread constraints
//! nodes SELECTOR, affine SELECTOR                               node selector, required node affinity
//! tolerate KEY, nominated NODE, owned REPLICASET, dying
//! ```
//!
//! A selector is as in `kubectl get -l`, or `null`. What follows it after ` | ` are fields of the term or of the constraint.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::{Cluster, NodeFacts};
use crate::pod::PodInfo;
use crate::testing;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn push(list: &mut Value, item: Value) {
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut().expect("it is a list").push(item);
}

fn labels<'a>(words: impl Iterator<Item = &'a str>) -> Value {
    let label = |word: &str| word.split_once('=').map(|(key, value)| (key.to_owned(), json!(value)));
    Value::Object(words.filter_map(label).collect())
}

fn requirement(text: &str) -> Value {
    let list = |values: &str| json!(values.trim_matches(['(', ')']).split(',').collect::<Vec<_>>());
    if let Some(key) = text.strip_prefix('!') {
        json!({"key": key, "operator": "DoesNotExist"})
    } else if let Some((key, values)) = text.split_once(" in ") {
        json!({"key": key, "operator": "In", "values": list(values)})
    } else if let Some((key, values)) = text.split_once(" notin ") {
        json!({"key": key, "operator": "NotIn", "values": list(values)})
    } else if let Some((key, value)) = text.split_once('=') {
        json!({"key": key, "operator": "In", "values": [value]})
    } else {
        json!({"key": text, "operator": "Exists"})
    }
}

fn selector(text: &str) -> Value {
    if text == "null" {
        return Value::Null;
    }
    let requirements = text.split(", ").filter(|text| !text.is_empty()).map(requirement);
    json!({"matchExpressions": requirements.collect::<Vec<_>>()})
}

/// Sets the fields that follow a selector.
fn set_fields(object: &mut Value, fields: &str) {
    for field in fields.split(' ').filter(|field| !field.is_empty()) {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        let list = || json!(value.split(',').collect::<Vec<_>>());
        match name {
            "names" => object["namespaces"] = list(),
            "teams" => object["namespaceSelector"] = selector(&format!("team in ({value})")),
            "everywhere" => object["namespaceSelector"] = json!({}),
            "min" => object["minDomains"] = json!(value.parse::<i32>().expect("it is a number")),
            "affinity" => object["nodeAffinityPolicy"] = json!(value),
            "taints" => object["nodeTaintsPolicy"] = json!(value),
            "keys" => object["matchLabelKeys"] = list(),
            _ => panic!("unknown field {name}"),
        }
    }
}

/// Returns `KEY SELECTOR [| FIELDS]` as a term or a constraint.
fn term(text: &str) -> Value {
    let (text, fields) = text.split_once(" | ").unwrap_or((text, ""));
    let (key, selector_) = text.split_once(' ').unwrap_or((text, ""));
    let mut term = json!({"topologyKey": key, "labelSelector": selector(selector_)});
    set_fields(&mut term, fields);
    term
}

fn numbered(text: &str) -> (i32, Value) {
    let (number, text) = text.split_once(' ').expect("a number comes first");
    (number.parse().expect("it is a number"), term(text))
}

fn apply(pod: &mut Value, part: &str) {
    let (kind, text) = part.split_once(' ').unwrap_or((part, ""));
    let spec = &mut pod["spec"];
    let mut prefer = |kind: &str| {
        let (weight, term) = numbered(text);
        push(&mut spec["affinity"][kind][PREFERRED], json!({"weight": weight, "podAffinityTerm": term}));
    };
    let spread = |when: &str| {
        let (skew, mut constraint) = numbered(text);
        constraint["maxSkew"] = json!(skew);
        constraint["whenUnsatisfiable"] = json!(when);
        constraint
    };
    match kind {
        "near" => push(&mut spec["affinity"]["podAffinity"][REQUIRED], term(text)),
        "away" => push(&mut spec["affinity"]["podAntiAffinity"][REQUIRED], term(text)),
        "prefer" => prefer("podAffinity"),
        "avoid" => prefer("podAntiAffinity"),
        "hard" => push(&mut spec["topologySpreadConstraints"], spread("DoNotSchedule")),
        "soft" => push(&mut spec["topologySpreadConstraints"], spread("ScheduleAnyway")),
        "nodes" => spec["nodeSelector"] = labels(text.split(", ")),
        "affine" => {
            spec["affinity"]["nodeAffinity"] = json!({REQUIRED: {"nodeSelectorTerms": [selector(text)]}});
        }
        "tolerate" => push(&mut spec["tolerations"], json!({"key": text, "operator": "Exists"})),
        "nominated" => pod["status"] = json!({"nominatedNodeName": text}),
        "owned" => {
            let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": text, "uid": text, "controller": true});
            pod["metadata"]["ownerReferences"] = json!([owner]);
        }
        "dying" => pod["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z"),
        _ => panic!("unknown part {part}"),
    }
}

/// Returns the pod of a line.
pub fn pod(name: &str, line: &str) -> Arc<PodInfo> {
    let mut parts = line.split("; ");
    let mut words = parts.next().unwrap_or_default().split(' ');
    let place = words.next().unwrap_or_default();
    let (namespace, node) = place.split_once('/').unwrap_or(("default", place));
    let mut pod = json!({"metadata": {"namespace": namespace, "labels": labels(words)}, "spec": {}});
    if node != "-" {
        pod["spec"]["nodeName"] = json!(node);
    }
    parts.for_each(|part| apply(&mut pod, part));
    testing::pod(name, pod)
}

/// Returns the node of a line.
pub fn node(line: &str) -> Arc<NodeFacts> {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let (taints, words): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with('!'));
    let taint = |word: &str| {
        let (taint, effect) = word[1..].split_once(':').expect("a taint has an effect");
        let (key, value) = taint.split_once('=').unwrap_or((taint, ""));
        json!({"key": key, "value": value, "effect": effect})
    };
    let taints: Vec<Value> = taints.into_iter().map(taint).collect();
    testing::node(
        name,
        json!({"metadata": {"labels": labels(words.into_iter())}, "spec": {"taints": taints}}),
    )
}

/// Returns a cluster of the nodes and pods of these lines.
pub fn cluster(nodes: &[&str], pods: &[&str]) -> Cluster {
    let nodes: Vec<Arc<NodeFacts>> = nodes.iter().map(|line| node(line)).collect();
    let pods: Vec<Arc<PodInfo>> =
        pods.iter().enumerate().map(|(index, line)| pod(&format!("pod{index}"), line)).collect();
    testing::cluster(&nodes, &pods)
}
