//! Scales of workloads, as the fake API has them.

use serde_json::{Value, json};

/// Returns the scale of a workload.
pub fn scale_of(object: &Value) -> Value {
    let selector = object["spec"]["selector"].get("matchLabels").unwrap_or(&object["spec"]["selector"]);
    let pairs = selector.as_object().into_iter().flatten();
    let selector: Vec<String> =
        pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap())).collect();
    let mut meta = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion"] {
        meta[field] = object["metadata"][field].clone();
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta,
        "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or(0)},
        "status": {"replicas": object["status"]["replicas"].as_i64().unwrap_or(0), "selector": selector.join(",")}})
}

/// Sets the number of replicas of a workload, in the version that the scale names.
pub fn set_scale(object: &mut Value, scale: &Value) {
    object["spec"]["replicas"] = scale["spec"]["replicas"].clone();
    for field in ["uid", "resourceVersion"] {
        object["metadata"][field] = scale["metadata"][field].clone();
    }
}
