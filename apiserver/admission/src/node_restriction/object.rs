//! The parts that a node may not change of its Node, of the status of its pods and of their claims.

use apiserver_schema::meta;
use serde_json::{Map, Value};

use super::labels;

/// Checks that a node may register itself with this object; the error is the reason why not.
pub(super) fn new_node(new: &Value, node: &str) -> Result<(), String> {
    // A configuration source decides what a node may read, so it does not choose it.
    if !is_empty(&new["spec"]["configSource"]) {
        return Err(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
    }
    // With an owner that is gone the Node would be collected, and could register with other taints.
    if !is_empty(&new["metadata"]["ownerReferences"]) {
        return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    ranges(new, &Value::Null, node)?;
    let labels = labels::forbidden_changes(new, &Value::Null);
    if labels.is_empty() {
        return Ok(());
    }
    Err(format!("node {node:?} is not allowed to set the following labels: {}", labels.join(", ")))
}

/// Checks that a node may change its Node like this; the error is the reason why not.
pub(super) fn changed_node(new: &Value, old: &Value, node: &str) -> Result<(), String> {
    let source = &new["spec"]["configSource"];
    if !is_empty(source) && !same(source, &old["spec"]["configSource"]) {
        return Err(format!(
            "node {node:?} is not allowed to update configSource to a new non-nil configSource"
        ));
    }
    if !same(&new["spec"]["taints"], &old["spec"]["taints"]) {
        return Err(format!("node {node:?} is not allowed to modify taints"));
    }
    if !same(&new["metadata"]["ownerReferences"], &old["metadata"]["ownerReferences"]) {
        return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    ranges(new, old, node)?;
    let labels = labels::forbidden_changes(new, old);
    if labels.is_empty() {
        return Ok(());
    }
    Err(format!("is not allowed to modify labels: {}", labels.join(", ")))
}

/// Checks that a node does not choose its own ranges of the pod network. Kubernetes allows it, but no kubelet
/// does so, and a node that takes the whole network leaves none to others.
fn ranges(new: &Value, old: &Value, node: &str) -> Result<(), String> {
    let given = |value: &Value| !is_empty(value) && value != "";
    for field in ["podCIDR", "podCIDRs"] {
        let (new, old) = (&new["spec"][field], &old["spec"][field]);
        if given(new) && !same(new, old) {
            return Err(format!("node {node:?} is not allowed to set {field}"));
        }
    }
    Ok(())
}

/// Checks that a node may write the status of a pod like this; the error is the reason why not.
pub(super) fn pod_status(new: &Value, old: &Value, node: &str) -> Result<(), String> {
    if meta::text(old, "/spec/nodeName") != node {
        return Err(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    if !same(&new["metadata"]["labels"], &old["metadata"]["labels"]) {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    // They determine which claims the node may read.
    let (new, old) = (&new["status"], &old["status"]);
    if !same(&new["resourceClaimStatuses"], &old["resourceClaimStatuses"]) {
        return Err(format!("node {node:?} cannot update resource claim statues"));
    }
    if !same(&new["extendedResourceClaimStatus"], &old["extendedResourceClaimStatus"]) {
        return Err(format!("node {node:?} cannot update extended resource claim status"));
    }
    Ok(())
}

/// The fields of a claim's status that a node writes: the progress of an expansion.
const EXPANSION: [&str; 4] = ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"];

/// Checks that a node may write the status of a claim like this; the error is the reason why not.
pub(super) fn claim_status(new: &Value, old: &Value, node: &str) -> Result<(), String> {
    let (new, old) = (without_expansion(new), without_expansion(old));
    if same(&new, &old) {
        return Ok(());
    }
    let fields = differences(&new, &old);
    Err(format!(
        "node {node:?} is not allowed to update fields other than status.quantity and status.conditions: {}",
        fields.join(", ")
    ))
}

fn without_expansion(claim: &Value) -> Value {
    let mut claim = claim.clone();
    let mut drop_fields = |part: &str, fields: &[&str]| {
        if let Some(map) = claim.get_mut(part).and_then(Value::as_object_mut) {
            fields.iter().for_each(|field| drop(map.remove(*field)));
        }
    };
    drop_fields("metadata", &["resourceVersion", "managedFields"]);
    drop_fields("status", &EXPANSION);
    claim
}

/// The fields at the first two levels that differ.
fn differences(new: &Value, old: &Value) -> Vec<String> {
    let none = Map::new();
    let fields = |value: &Value| value.as_object().unwrap_or(&none).keys().cloned().collect::<Vec<_>>();
    let mut found = Vec::new();
    for part in ["metadata", "spec", "status"] {
        let (new, old) = (&new[part], &old[part]);
        let mut names = [fields(new), fields(old)].concat();
        names.sort();
        names.dedup();
        let changed = names.into_iter().filter(|name| !same(&new[name], &old[name]));
        found.extend(changed.map(|name| format!("{part}.{name}")));
    }
    found
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
        _ => false,
    }
}

/// Returns `true` if two values are the same except for fields with empty values.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let null = Value::Null;
            a.keys().chain(b.keys()).all(|key| same(a.get(key).unwrap_or(&null), b.get(key).unwrap_or(&null)))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(one, other)| same(one, other))
        }
        _ => one == other || (is_empty(one) && is_empty(other)),
    }
}

#[cfg(test)]
#[path = "object_tests.rs"]
mod tests;
