//! The status of a pod, as its kubelet writes it.

use std::collections::{HashMap, VecDeque};

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// Restores in a new status the fields that an older kubelet leaves out and cannot mean to remove: the QoS
/// class, which is fixed at creation, and the generations that the status and its conditions were observed
/// at.
pub(crate) fn retain(new: &mut Value, old: &Value, _subresource: &str, _now: Timestamp) -> Vec<FieldError> {
    const OBSERVED: &str = "observedGeneration";
    let Some(Value::Object(status)) = new.get_mut("status") else { return Vec::new() };
    let restore = |map: &mut Map<String, Value>, field: &str, had: Option<&Value>| {
        let missing = match map.get(field) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(value) => value.as_i64() == Some(0),
        };
        if let Some(had) = had.filter(|_| missing) {
            map.insert(field.to_owned(), had.clone());
        }
    };
    restore(status, "qosClass", meta::at(old, "/status/qosClass"));
    restore(status, OBSERVED, meta::at(old, "/status/observedGeneration"));
    // A type may occur several times; the first of the new ones belongs to the first of the old ones.
    let mut had: HashMap<&str, VecDeque<&Value>> = HashMap::new();
    for condition in meta::list(old, "/status/conditions") {
        had.entry(condition["type"].as_str().unwrap_or_default()).or_default().push_back(condition);
    }
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        let kind = condition.get("type").and_then(Value::as_str).unwrap_or_default();
        let before = had.get_mut(kind).and_then(VecDeque::pop_front);
        restore(condition, OBSERVED, before.and_then(|before| before.get(OBSERVED)));
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn status_without_generations_and_class_gets_those_of_the_old_one() {
        let condition = |kind: &str, observed: Value| json!({"type": kind, "observedGeneration": observed});
        let old = json!({"status": {"qosClass": "Burstable", "observedGeneration": 3, "conditions": [
            condition("Ready", json!(1)), condition("Ready", json!(2)), condition("Other", json!(4)),
        ]}});
        let mut new = json!({"status": {"conditions": [
            {"type": "Ready"}, condition("Ready", json!(0)), condition("Other", json!(5)), {"type": "New"},
        ]}});
        retain(&mut new, &old, "status", Timestamp::UNIX_EPOCH);
        assert_eq!(
            new["status"],
            json!({"qosClass": "Burstable", "observedGeneration": 3, "conditions": [
                condition("Ready", json!(1)), condition("Ready", json!(2)), condition("Other", json!(5)),
                {"type": "New"},
            ]})
        );
        let mut told = json!({"status": {"observedGeneration": 4}});
        retain(&mut told, &old, "status", Timestamp::UNIX_EPOCH);
        assert_eq!(told["status"]["observedGeneration"], 4);
    }
}
