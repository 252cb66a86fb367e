//! Kinds that are served in two versions and kept in one. Everything else is kept as it is served.

use std::sync::Arc;

use apiserver_api::registry::{Change, Resource};
use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// From the version kept to the one that `resource` serves; `None` where they are the same.
pub fn from_storage(resource: &Resource) -> Option<Change> {
    if let Some(custom) = &resource.custom {
        let custom = Arc::clone(custom);
        return Some(Arc::new(move |object| custom.adopt(object)));
    }
    match (resource.group.as_str(), resource.plural.as_str(), resource.version.as_str()) {
        ("events.k8s.io", "events", _) => Some(Arc::new(event_from_core)),
        ("autoscaling", "horizontalpodautoscalers", "v1") => Some(Arc::new(autoscaler_to_v1)),
        _ => None,
    }
}

/// From the version that `resource` serves to the one kept.
pub fn to_storage(resource: &Resource) -> Option<Change> {
    if let Some(custom) = &resource.custom {
        let custom = Arc::clone(custom);
        return Some(Arc::new(move |object| custom.to_storage(object)));
    }
    match (resource.group.as_str(), resource.plural.as_str(), resource.version.as_str()) {
        ("events.k8s.io", "events", _) => Some(Arc::new(event_to_core)),
        ("autoscaling", "horizontalpodautoscalers", "v1") => Some(Arc::new(autoscaler_to_v2)),
        _ => None,
    }
}

/// Whether objects of this apiVersion may be such as [`upgrade`] changes.
pub fn is_older(api_version: &str) -> bool {
    matches!(api_version, "autoscaling/v1" | "events.k8s.io/v1")
}

/// Turns an object that another server kept in a version of its own choice into the one kept here.
pub fn upgrade(object: &mut Value) {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("autoscaling/v1", "HorizontalPodAutoscaler") => autoscaler_to_v2(object),
        ("events.k8s.io/v1", "Event") => event_to_core(object),
        _ => {}
    }
}

/// Fields of events that differ: core, events.k8s.io.
const EVENT: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn event_from_core(object: &mut Value) {
    rename(object, "events.k8s.io/v1", EVENT.iter().copied());
}

fn event_to_core(object: &mut Value) {
    rename(object, "v1", EVENT.iter().map(|(core, new)| (*new, *core)));
}

fn rename<'a>(object: &mut Value, api_version: &str, names: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(map) = object.as_object_mut() else { return };
    map.insert("apiVersion".to_owned(), api_version.into());
    for (from, to) in names {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}

/// v1 knows the CPU target alone; the other metrics travel in annotations.
fn autoscaler_to_v1(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v1".into();
    let mut carried = Vec::new();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let metrics = spec.remove("metrics");
        let (cpu, others) = split_cpu(metrics.as_ref());
        if let Some(target) = cpu.and_then(|m| m.pointer("/resource/target/averageUtilization").cloned()) {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
        }
        if !others.is_empty() {
            carried.push((METRICS, Value::Array(others)));
        }
        if let Some(behavior) = spec.remove("behavior") {
            carried.push((BEHAVIOR, behavior));
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let current = status.remove("currentMetrics");
        let (cpu, _) = split_cpu(current.as_ref());
        if let Some(value) = cpu.and_then(|m| m.pointer("/resource/current/averageUtilization").cloned()) {
            status.insert("currentCPUUtilizationPercentage".to_owned(), value);
        }
        status.remove("conditions");
    }
    for (key, value) in carried {
        object["metadata"]["annotations"][key] = value.to_string().into();
    }
}

fn autoscaler_to_v2(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v2".into();
    let mut take = |key: &str| {
        let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)?;
        let text = annotations.remove(key)?;
        serde_json::from_str(text.as_str()?).ok()
    };
    let (metrics, behavior): (Option<Value>, Option<Value>) = (take(METRICS), take(BEHAVIOR));
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let mut all = Vec::new();
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage") {
            all.push(cpu_metric("target", json!({"type": "Utilization", "averageUtilization": target})));
        }
        all.extend(metrics.and_then(|m| m.as_array().cloned()).unwrap_or_default());
        if !all.is_empty() {
            spec.insert("metrics".to_owned(), Value::Array(all));
        }
        if let Some(behavior) = behavior {
            spec.insert("behavior".to_owned(), behavior);
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut)
        && let Some(value) = status.remove("currentCPUUtilizationPercentage")
    {
        let metric = cpu_metric("current", json!({"averageUtilization": value}));
        status.insert("currentMetrics".to_owned(), json!([metric]));
    }
}

fn cpu_metric(what: &str, value: Value) -> Value {
    let mut resource = Map::new();
    resource.insert("name".to_owned(), "cpu".into());
    resource.insert(what.to_owned(), value);
    json!({"type": "Resource", "resource": resource})
}

/// The CPU utilization metric, and the others.
fn split_cpu(metrics: Option<&Value>) -> (Option<Value>, Vec<Value>) {
    let metrics = metrics.and_then(Value::as_array).cloned().unwrap_or_default();
    let is_cpu = |m: &Value| {
        m["type"] == "Resource"
            && m["resource"]["name"] == "cpu"
            && ["target", "current"].iter().any(|w| !m["resource"][w]["averageUtilization"].is_null())
    };
    let (mut cpu, others): (Vec<_>, Vec<_>) = metrics.into_iter().partition(is_cpu);
    (cpu.pop(), others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_go_there_and_back() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod"}, "message": "m", "reason": "r", "count": 2,
            "reportingComponent": "kubelet"});
        let mut event = core.clone();
        event_from_core(&mut event);
        assert_eq!(event["regarding"]["kind"], "Pod");
        assert_eq!(event["note"], "m");
        assert_eq!(event["reportingController"], "kubelet");
        event_to_core(&mut event);
        assert_eq!(event, core);
    }

    #[test]
    fn autoscalers_go_there_and_back() {
        let v2 = json!({"apiVersion": "autoscaling/v2", "metadata": {"name": "h", "annotations": {}}, "spec": {
            "maxReplicas": 3,
            "metrics": [cpu_metric("target", json!({"type": "Utilization", "averageUtilization": 80})),
                        {"type": "Pods", "pods": {"metric": {"name": "x"}}}],
            "behavior": {"scaleUp": {}}}});
        let mut object = v2.clone();
        autoscaler_to_v1(&mut object);
        assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 80);
        assert_eq!(object["spec"].get("metrics"), None);
        autoscaler_to_v2(&mut object);
        assert_eq!(object, v2);
    }
}
