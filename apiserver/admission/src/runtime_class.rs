//! RuntimeClass: a pod carries the overhead of its class and is scheduled where the class can run.

use apiserver_meta::quantity;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::{AdmissionRequest, Operation, Phase, Plugin};

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
const UNFOUNDED: &str = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";

/// Applies the RuntimeClass of a new pod.
pub struct RuntimeClass;

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, _: Phase) -> bool {
        request.is(Operation::Create, "Pod")
    }

    async fn admit(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        mutate(request, object).await
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        validate(request, object).await
    }
}

/// Sets the overhead of a new pod, and adds the node selector and the tolerations of its class.
async fn mutate(request: &AdmissionRequest<'_>, pod: &mut Value) -> Result<(), ApiError> {
    let Some(class) = class_of(request, pod).await? else { return Ok(()) };
    let merged = set_overhead(pod, &class).and_then(|()| set_scheduling(pod, &class));
    merged.map_err(|why| request.forbidden(pod, &why))
}

/// Refuses a pod whose overhead is not that of its class.
async fn validate(request: &AdmissionRequest<'_>, pod: &Value) -> Result<(), ApiError> {
    let class = class_of(request, pod).await?;
    check_overhead(pod, class.as_ref()).map_err(|why| request.forbidden(pod, why))
}

/// The class that the pod names; 403 if there is none of that name.
async fn class_of(request: &AdmissionRequest<'_>, pod: &Value) -> Result<Option<Value>, ApiError> {
    // Validation refuses an empty name.
    let name = pod["spec"]["runtimeClassName"].as_str().filter(|name| !name.is_empty());
    let Some(name) = name else { return Ok(None) };
    let Some(classes) = request.cluster.kind("node.k8s.io", "v1", "runtimeclasses") else {
        return Ok(None);
    };
    let found = request.cluster.referred(classes, "", name).await?;
    let missing = || request.forbidden(pod, &format!("pod rejected: RuntimeClass {name:?} not found"));
    found.ok_or_else(missing).map(Some)
}

/// Returns the overhead that the class adds to each pod, if it has one.
fn overhead_of(class: &Value) -> Option<&Value> {
    class.get("overhead").filter(|overhead| overhead.is_object()).map(|overhead| &overhead["podFixed"])
}

fn set_overhead(pod: &mut Value, class: &Value) -> Result<(), String> {
    let Some(fixed) = overhead_of(class) else { return Ok(()) };
    let own = &pod["spec"]["overhead"];
    if own.as_object().is_some_and(|own| !own.is_empty()) && !same_amounts(own, fixed) {
        return Err(MISMATCH.to_owned());
    }
    if let Some(Value::Object(spec)) = pod.get_mut("spec") {
        match fixed {
            Value::Null => spec.remove("overhead"),
            fixed => spec.insert("overhead".to_owned(), fixed.clone()),
        };
    }
    Ok(())
}

fn check_overhead(pod: &Value, class: Option<&Value>) -> Result<(), &'static str> {
    let own = &pod["spec"]["overhead"];
    match class.and_then(overhead_of) {
        Some(fixed) if !same_amounts(own, fixed) => Err(MISMATCH),
        None if !own.is_null() => Err(UNFOUNDED),
        _ => Ok(()),
    }
}

/// Returns `true` if two maps have the same resources and amounts, in any notation.
fn same_amounts(one: &Value, other: &Value) -> bool {
    let empty = Map::new();
    let (one, other) = (one.as_object().unwrap_or(&empty), other.as_object().unwrap_or(&empty));
    let same = |one: &Value, other: &Value| match (quantity::parse_value(one), quantity::parse_value(other)) {
        (Ok(one), Ok(other)) => one.nano() == other.nano(),
        _ => one == other,
    };
    one.len() == other.len()
        && one.iter().all(|(name, amount)| other.get(name).is_some_and(|other| same(amount, other)))
}

fn set_scheduling(pod: &mut Value, class: &Value) -> Result<(), String> {
    let Some(scheduling) = class.get("scheduling").filter(|scheduling| scheduling.is_object()) else {
        return Ok(());
    };
    let mut selector = pod["spec"]["nodeSelector"].as_object().cloned().unwrap_or_default();
    for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
        match selector.get(key) {
            Some(own) if own != value => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                return Err(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                    text(value),
                    text(own)
                ));
            }
            _ => selector.insert(key.clone(), value.clone()),
        };
    }
    if !selector.is_empty() {
        pod["spec"]["nodeSelector"] = Value::Object(selector);
    }
    let all = [meta::list(pod, "/spec/tolerations"), meta::list(scheduling, "/tolerations")].concat();
    if !all.is_empty() {
        pod["spec"]["tolerations"] = Value::Array(without_redundant(&all));
    }
    Ok(())
}

/// The tolerations that no other one covers; of equal ones the first.
fn without_redundant(all: &[Value]) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    for (index, toleration) in all.iter().enumerate() {
        let later = all[index + 1..].iter().filter(|later| !is_same(toleration, later));
        if !merged.iter().chain(later).any(|other| covers(other, toleration)) {
            merged.push(toleration.clone());
        }
    }
    merged
}

fn text<'a>(toleration: &'a Value, field: &str) -> &'a str {
    toleration[field].as_str().unwrap_or_default()
}

fn is_same(one: &Value, other: &Value) -> bool {
    ["key", "operator", "value", "effect"].iter().all(|field| text(one, field) == text(other, field))
        && one["tolerationSeconds"].as_i64() == other["tolerationSeconds"].as_i64()
}

/// Returns `true` if `wide` tolerates all that `narrow` does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if is_same(wide, narrow) {
        return true;
    }
    // No key with `Exists` means all keys, and no effect all effects.
    let all_keys = text(wide, "key").is_empty() && text(wide, "operator") == "Exists";
    if text(narrow, "key") != text(wide, "key") && !all_keys {
        return false;
    }
    let effect = text(wide, "effect");
    if !effect.is_empty() && effect != text(narrow, "effect") {
        return false;
    }
    if effect == "NoExecute"
        && let Some(most) = wide["tolerationSeconds"].as_i64()
        && narrow["tolerationSeconds"].as_i64().is_none_or(|seconds| seconds > most)
    {
        return false;
    }
    match text(wide, "operator") {
        "" | "Equal" => text(narrow, "operator") == "Equal" && text(narrow, "value") == text(wide, "value"),
        operator => operator == "Exists",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_compared_as_quantities() {
        let class = json!({"overhead": {"podFixed": {"cpu": "0.25", "memory": "1Gi"}}});
        let pod = |overhead: Value| json!({"spec": {"overhead": overhead}});
        for (overhead, set, checked) in [
            (json!({"cpu": "250m", "memory": "1024Mi"}), true, true),
            (json!({"cpu": "250m"}), false, false),
            (json!({"cpu": "251m", "memory": "1Gi"}), false, false),
            (json!({}), true, false),
            (json!(null), true, false),
        ] {
            assert_eq!(check_overhead(&pod(overhead.clone()), Some(&class)).is_ok(), checked, "{overhead}");
            let mut made = pod(overhead.clone());
            assert_eq!(set_overhead(&mut made, &class).is_ok(), set, "{overhead}");
            assert_eq!(check_overhead(&made, Some(&class)).is_ok(), set, "{overhead}");
        }
        assert_eq!(check_overhead(&pod(json!({"cpu": "1"})), None), Err(UNFOUNDED));
        assert_eq!(check_overhead(&pod(json!({"cpu": "1"})), Some(&json!({}))), Err(UNFOUNDED));
        assert_eq!(check_overhead(&pod(json!(null)), None), Ok(()));
    }

    #[test]
    fn tolerations_that_others_cover_are_left_out() {
        let equal = json!({"key": "a", "operator": "Equal", "value": "1", "effect": "NoSchedule"});
        let exists = json!({"key": "a", "operator": "Exists"});
        let all = json!({"operator": "Exists"});
        let seconds = |key: &str, seconds: Value| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let none = json!({"key": "b", "operator": "Exists", "effect": "NoExecute"});
        let table = [
            (vec![&equal, &equal], vec![&equal]),
            (vec![&equal, &exists], vec![&exists]),
            (vec![&exists, &equal], vec![&exists]),
            (vec![&equal, &exists, &all], vec![&all]),
            (vec![&seconds("b", json!(5)), &seconds("b", json!(9))], vec![&seconds("b", json!(9))]),
            (vec![&seconds("b", json!(5)), &none], vec![&none]),
            (vec![&seconds("c", json!(5)), &none], vec![&seconds("c", json!(5)), &none]),
        ]
        .map(|(given, wanted)| {
            let owned = |list: Vec<&Value>| list.into_iter().cloned().collect::<Vec<_>>();
            (owned(given), owned(wanted))
        });
        for (given, wanted) in table {
            assert_eq!(without_redundant(&given), wanted, "{given:?}");
        }
    }
}
