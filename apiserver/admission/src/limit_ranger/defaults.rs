//! Defaults for the requests and limits of containers.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::limits_of;

/// The annotation that says what was set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Gives the containers of a pod the requests and limits that they lack and a LimitRange has defaults for.
pub(super) fn set(pod: &mut Value, range: &Value) {
    let merged = |field: &str| -> Map<String, Value> {
        let lists = limits_of(range, "Container").filter_map(|limit| limit[field].as_object());
        lists.flatten().map(|(name, amount)| (name.clone(), amount.clone())).collect()
    };
    let (requests, limits) = (merged("defaultRequest"), merged("default"));
    let mut set = Vec::new();
    for (field, kind) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod["spec"].get_mut(field).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            // Limits come first, but the annotation names requests first.
            let limited = complete(container, "limits", &limits);
            let requested = complete(container, "requests", &requests);
            for (names, what) in [(requested, "request"), (limited, "limit")] {
                if !names.is_empty() {
                    set.push(format!("{} {what} for {kind} {name}", names.join(", ")));
                }
            }
        }
    }
    if !set.is_empty() {
        annotate(pod, &format!("LimitRanger plugin set: {}", set.join("; ")));
    }
}

/// Adds the amounts that a container does not have; returns the names of those.
fn complete(container: &mut Value, field: &str, defaults: &Map<String, Value>) -> Vec<String> {
    let present = container["resources"][field].as_object();
    let missing: BTreeMap<&String, &Value> =
        defaults.iter().filter(|(name, _)| present.is_none_or(|list| !list.contains_key(*name))).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    if !container["resources"].is_object() {
        container["resources"] = json!({});
    }
    if !container["resources"][field].is_object() {
        container["resources"][field] = json!({});
    }
    for (name, amount) in &missing {
        container["resources"][field][name.as_str()] = Value::clone(amount);
    }
    missing.into_keys().cloned().collect()
}

fn annotate(pod: &mut Value, text: &str) {
    let annotations = &mut pod["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[ANNOTATION] = text.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_get_what_they_lack_and_the_annotation_says_so() {
        let range = json!({"spec": {"limits": [
            {"type": "Pod", "default": {"cpu": "9"}},
            {"type": "Container", "default": {"cpu": "200m", "memory": "2Gi"}, "defaultRequest": {"cpu": "100m"}},
        ]}});
        let both = json!({"cpu": "1", "memory": "1"});
        let mut pod = json!({"metadata": {}, "spec": {
            "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": both, "requests": {"cpu": "1"}}}],
            "initContainers": [{"name": "i", "resources": {"limits": both}}]}});
        set(&mut pod, &range);
        let of = |pointer: &str| pod.pointer(pointer).cloned().unwrap();
        assert_eq!(
            of("/spec/containers/0/resources"),
            json!({"limits": {"cpu": "200m", "memory": "2Gi"}, "requests": {"cpu": "100m"}})
        );
        assert_eq!(of("/spec/containers/1/resources/limits"), both);
        assert_eq!(of("/spec/initContainers/0/resources/requests"), json!({"cpu": "100m"}));
        assert_eq!(
            of("/metadata/annotations")[ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; \
             cpu request for init container i"
        );
        let before = pod.clone();
        set(&mut pod, &range);
        assert_eq!(pod, before, "nothing is lacking any more");
    }
}
