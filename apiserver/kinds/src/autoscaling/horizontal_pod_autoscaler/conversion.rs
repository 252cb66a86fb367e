//! HorizontalPodAutoscaler: `autoscaling/v2` is stored. `v1` knows the CPU target alone; other
//! metrics, conditions and behaviour travel in annotations, in the shape of the versions that
//! first had them.

use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";

const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";

const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

pub(crate) fn to_v1(object: &mut Value) {
    let mut carried = Vec::new();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let metrics = spec.remove("metrics");
        let (mut cpu, others): (Vec<_>, Vec<_>) = list(metrics).into_iter().partition(is_cpu_target);
        if let Some(metric) = cpu.pop() {
            let target = metric["resource"]["target"]["averageUtilization"].clone();
            spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
        }
        carry(&mut carried, METRICS, others.iter().map(|m| metric_to_v1(m, "target")).collect());
        if let Some(behavior) = spec.remove("behavior") {
            carried.push((BEHAVIOR, capitalized(&behavior)));
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let current = list(status.remove("currentMetrics"));
        let cpu =
            current.iter().find(|m| is_cpu(m) && !m["resource"]["current"]["averageUtilization"].is_null());
        if let Some(metric) = cpu {
            let value = metric["resource"]["current"]["averageUtilization"].clone();
            status.insert("currentCPUUtilizationPercentage".to_owned(), value);
        }
        carry(&mut carried, CURRENT, current.iter().map(|m| metric_to_v1(m, "current")).collect());
        carry(&mut carried, CONDITIONS, list(status.remove("conditions")));
    }
    for (key, value) in carried {
        annotate(object, key, &value);
    }
}

pub(crate) fn to_v2(object: &mut Value) {
    let metrics = take(object, METRICS);
    let current = take(object, CURRENT);
    let conditions = take(object, CONDITIONS);
    let behavior = take(object, BEHAVIOR);
    drop_no_annotations(object);
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let mut all: Vec<Value> = list(metrics).iter().map(|m| metric_to_v2(m, "target")).collect();
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage").filter(|t| !t.is_null()) {
            let target = json!({"type": "Utilization", "averageUtilization": target});
            all.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
        }
        if !all.is_empty() {
            spec.insert("metrics".to_owned(), Value::Array(all));
        }
        if let Some(behavior) = behavior {
            spec.insert("behavior".to_owned(), uncapitalized(&behavior));
        }
    }
    let has_status = current.is_some() || conditions.is_some();
    if has_status && object.get("status").is_none_or(Value::is_null) && object.is_object() {
        object["status"] = json!({});
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let value = status.remove("currentCPUUtilizationPercentage").filter(|v| !v.is_null());
        let metrics = match (current, value) {
            (Some(metrics), _) => list(Some(metrics)).iter().map(|m| metric_to_v2(m, "current")).collect(),
            (None, Some(value)) => {
                let current = json!({"averageUtilization": value});
                vec![json!({"type": "Resource", "resource": {"name": "cpu", "current": current}})]
            }
            (None, None) => Vec::new(),
        };
        if !metrics.is_empty() {
            status.insert("currentMetrics".to_owned(), Value::Array(metrics));
        }
        if let Some(conditions) = conditions {
            status.insert("conditions".to_owned(), conditions);
        }
    }
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn carry(carried: &mut Vec<(&'static str, Value)>, key: &'static str, items: Vec<Value>) {
    if !items.is_empty() {
        carried.push((key, Value::Array(items)));
    }
}

fn annotate(object: &mut Value, key: &str, value: &Value) {
    let metadata = apiserver_schema::meta::metadata_mut(object);
    let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    if let Some(map) = annotations.as_object_mut() {
        map.insert(key.to_owned(), value.to_string().into());
    }
}

/// Removes an annotation and returns its value, parsed as JSON.
fn take(object: &mut Value, key: &str) -> Option<Value> {
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)?;
    serde_json::from_str(annotations.remove(key)?.as_str()?).ok()
}

fn drop_no_annotations(object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata")
        && metadata.get("annotations").is_some_and(|a| a.as_object().is_some_and(Map::is_empty))
    {
        metadata.remove("annotations");
    }
}

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource" && metric["resource"]["name"] == "cpu"
}

fn is_cpu_target(metric: &Value) -> bool {
    is_cpu(metric) && !metric["resource"]["target"]["averageUtilization"].is_null()
}

/// Returns the field of a metric's source, by the type of the metric.
fn source(metric: &Value) -> Option<&'static str> {
    Some(match metric["type"].as_str()? {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return None,
    })
}

/// Names of the amounts in `v1`, of metrics wanted (`target`) or seen (`current`).
fn amounts(field: &str, which: &str) -> [(&'static str, &'static str); 3] {
    let target = which == "target";
    let utilization = if target { "targetAverageUtilization" } else { "currentAverageUtilization" };
    let average = if target { "targetAverageValue" } else { "currentAverageValue" };
    let value = if target { "targetValue" } else { "currentValue" };
    // For a metric of one object the average has a name of its own.
    let average = if field == "object" { "averageValue" } else { average };
    [("averageUtilization", utilization), ("averageValue", average), ("value", value)]
}

fn metric_to_v1(metric: &Value, which: &str) -> Value {
    let Some(field) = source(metric) else { return metric.clone() };
    let old = &metric[field];
    let mut new = Map::new();
    let mut copy = |to: &str, value: &Value| {
        if !value.is_null() {
            new.insert(to.to_owned(), value.clone());
        }
    };
    copy("name", &old["name"]);
    copy("container", &old["container"]);
    copy("metricName", &old["metric"]["name"]);
    copy(if field == "external" { "metricSelector" } else { "selector" }, &old["metric"]["selector"]);
    copy("target", &old["describedObject"]);
    for (from, to) in amounts(field, which) {
        copy(to, &old[which][from]);
    }
    // Without omitempty in Go.
    if field == "object" && old[which]["value"].is_null() {
        copy(if which == "target" { "targetValue" } else { "currentValue" }, &json!("0"));
    }
    json!({"type": metric["type"], field: new})
}

fn metric_to_v2(metric: &Value, which: &str) -> Value {
    let Some(field) = source(metric) else { return metric.clone() };
    let old = &metric[field];
    let mut new = Map::new();
    for name in ["name", "container"] {
        new.extend(old.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    if let Some(name) = old.get("metricName") {
        let selector = old.get(if field == "external" { "metricSelector" } else { "selector" });
        let mut identifier = Map::from_iter([("name".to_owned(), name.clone())]);
        identifier.extend(selector.map(|selector| ("selector".to_owned(), selector.clone())));
        new.insert("metric".to_owned(), Value::Object(identifier));
    }
    if let Some(target) = old.get("target") {
        new.insert("describedObject".to_owned(), target.clone());
    }
    let mut amount = Map::new();
    for (to, from) in amounts(field, which) {
        let nothing =
            field == "object" && to == "value" && old[from] == "0" && !old["averageValue"].is_null();
        if let Some(value) = old.get(from).filter(|v| !v.is_null() && !nothing) {
            amount.insert(to.to_owned(), value.clone());
        }
    }
    if which == "target" {
        let kind = if amount.contains_key("averageUtilization") {
            "Utilization"
        } else if amount.contains_key("averageValue") {
            "AverageValue"
        } else if matches!(field, "object" | "external") {
            "Value"
        } else {
            "AverageValue"
        };
        amount.insert("type".to_owned(), kind.into());
    }
    new.insert(which.to_owned(), Value::Object(amount));
    json!({"type": metric["type"], field: new})
}

/// Converts behaviour to Go's field names, in which annotations carry it; they are read in any case.
fn capitalized(value: &Value) -> Value {
    renamed(value, &|key| change_first(key, |c| c.to_ascii_uppercase()))
}

fn uncapitalized(value: &Value) -> Value {
    renamed(value, &|key| change_first(key, |c| c.to_ascii_lowercase()))
}

fn renamed(value: &Value, name: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (name(k), renamed(v, name))).collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(|item| renamed(item, name)).collect()),
        other => other.clone(),
    }
}

fn change_first(key: &str, change: impl Fn(char) -> char) -> String {
    let mut letters = key.chars();
    letters.next().map(change).into_iter().chain(letters).collect()
}
