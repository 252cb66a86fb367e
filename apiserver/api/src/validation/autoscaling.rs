//! HorizontalPodAutoscaler.

use serde_json::{Value, json};

use super::{Errors, given, items, names, resources, text, with_metadata};
use crate::error::FieldError;
use crate::quantity;

/// Longest window of stabilization and longest period of a policy, in seconds.
const WINDOW: i64 = 3600;
const PERIOD: i64 = 1800;

/// Sources of a metric: type and field.
const SOURCES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

/// Errors of a HorizontalPodAutoscaler.
pub fn autoscaler(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let least = spec["minReplicas"].as_i64();
    let most = spec["maxReplicas"].as_i64().unwrap_or(0);
    if let Some(least) = least.filter(|n| *n < 1) {
        errors.invalid("spec.minReplicas", &json!(least), "must be greater than or equal to 1");
    }
    if most < 1 {
        errors.invalid("spec.maxReplicas", &json!(most), "must be greater than 0");
    }
    if least.is_some_and(|least| most < least) {
        errors.invalid("spec.maxReplicas", &json!(most), "must be greater than or equal to `minReplicas`");
    }
    reference(&spec["scaleTargetRef"], "spec.scaleTargetRef", &mut errors);
    for (index, metric) in items(spec, "metrics").iter().enumerate() {
        self::metric(metric, &format!("spec.metrics[{index}]"), &mut errors);
    }
    for direction in ["scaleUp", "scaleDown"] {
        if let Some(rules) = spec.get("behavior").and_then(|b| given(b, direction)) {
            scaling(rules, &format!("spec.behavior.{direction}"), &mut errors);
        }
    }
    errors.list()
}

/// Errors of a write of the status. Arguments: new, old.
pub fn autoscaler_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    for field in ["currentReplicas", "desiredReplicas"] {
        errors.not_negative(format!("status.{field}"), new["status"].get(field));
    }
    errors.list()
}

fn reference(reference: &Value, path: &str, errors: &mut Errors) {
    for field in ["kind", "name"] {
        errors.name(&format!("{path}.{field}"), text(reference, field), names::path_segment);
    }
}

fn metric(metric: &Value, path: &str, errors: &mut Errors) {
    let kind = text(metric, "type");
    let types = SOURCES.map(|(kind, _)| kind);
    if kind.is_empty() {
        errors.required(format!("{path}.type"), "must specify a metric source type");
    }
    if !types.contains(&kind) {
        errors.not_supported(format!("{path}.type"), &json!(kind), &types);
    }
    let expected = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    for (_, field) in SOURCES {
        let Some(source) = given(metric, field) else { continue };
        let at = format!("{path}.{field}");
        self::source(field, source, &at, errors);
        if expected.is_some_and(|expected| expected != field) {
            errors.forbidden(at, "must populate the given metric source only");
        }
    }
    if let Some(expected) = expected.filter(|field| given(metric, field).is_none()) {
        let detail = "must populate information for the given metric source";
        errors.required(format!("{path}.{expected}"), detail);
    }
}

fn source(field: &str, source: &Value, path: &str, errors: &mut Errors) {
    let at = format!("{path}.target");
    let wanted = &source["target"];
    let set = |field: &str| given(wanted, field).is_some();
    match field {
        "object" => reference(&source["describedObject"], &format!("{path}.describedObject"), errors),
        "resource" | "containerResource" => {
            if text(source, "name").is_empty() {
                errors.required(format!("{path}.name"), "must specify a resource name");
            }
            if field == "containerResource" && text(source, "container").is_empty() {
                errors.required(format!("{path}.container"), "must specify a container");
            }
        }
        _ => {}
    }
    if matches!(field, "object" | "external" | "pods") {
        identifier(&source["metric"], &format!("{path}.metric"), errors);
    }
    target(wanted, &at, errors);
    match field {
        "object" | "external" => {
            if !set("value") && !set("averageValue") {
                let detail = "must set either a target value for metric or a per-pod target";
                errors.required(format!("{at}.averageValue"), detail);
            }
            if field == "external" && set("value") && set("averageValue") {
                let detail = "may not set both a target value for metric and a per-pod target";
                errors.forbidden(format!("{at}.value"), detail);
            }
        }
        "pods" => {
            let positive = quantity::parse_value(&wanted["averageValue"]).is_ok_and(|q| q.nano() > 0);
            if !positive {
                let detail = "must specify a positive target averageValue";
                errors.required(format!("{at}.averageValue"), detail);
            }
        }
        _ => match (set("averageUtilization"), set("averageValue")) {
            (false, false) => errors.required(
                format!("{at}.averageUtilization"),
                "must set either a target raw value or a target utilization",
            ),
            (true, true) => errors.forbidden(
                format!("{at}.averageValue"),
                "may not set both a target raw value and a target utilization",
            ),
            _ => {}
        },
    }
}

fn identifier(metric: &Value, path: &str, errors: &mut Errors) {
    let name = text(metric, "name");
    if name.is_empty() {
        errors.required(format!("{path}.name"), "must specify a metric name");
    } else {
        errors.faults(&format!("{path}.name"), name, names::path_segment(name));
    }
}

fn target(target: &Value, path: &str, errors: &mut Errors) {
    let kind = text(target, "type");
    if kind.is_empty() {
        errors.required(format!("{path}.type"), "must specify a metric target type");
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.invalid(format!("{path}.type"), &json!(kind), detail);
    }
    for field in ["value", "averageValue"] {
        if let Some(amount) = given(target, field)
            && quantity::parse_value(amount).is_ok_and(|q| q.nano() <= 0)
        {
            errors.invalid(format!("{path}.{field}"), amount, "must be positive");
        }
    }
    if let Some(percent) = target["averageUtilization"].as_i64().filter(|p| *p < 1) {
        errors.invalid(format!("{path}.averageUtilization"), &json!(percent), "must be greater than 0");
    }
}

fn scaling(rules: &Value, path: &str, errors: &mut Errors) {
    let at = format!("{path}.stabilizationWindowSeconds");
    match rules["stabilizationWindowSeconds"].as_i64() {
        Some(seconds) if seconds < 0 => {
            errors.invalid(at, &json!(seconds), "must be greater than or equal to zero");
        }
        Some(seconds) if seconds > WINDOW => {
            errors.invalid(at, &json!(seconds), &format!("must be less than or equal to {WINDOW}"));
        }
        _ => {}
    }
    let policies = ["Disabled", "Max", "Min"];
    errors.one_of_if_set(&format!("{path}.selectPolicy"), rules.get("selectPolicy"), &policies);
    let list = items(rules, "policies");
    if list.is_empty() {
        errors.required(format!("{path}.policies"), "must specify at least one Policy");
    }
    for (index, policy) in list.iter().enumerate() {
        let path = format!("{path}.policies[{index}]");
        let kind = text(policy, "type");
        if !matches!(kind, "Percent" | "Pods") {
            errors.not_supported(format!("{path}.type"), &json!(kind), &["Percent", "Pods"]);
        }
        for (field, most) in [("value", i64::MAX), ("periodSeconds", PERIOD)] {
            let number = policy[field].as_i64().unwrap_or(0);
            if number <= 0 {
                errors.invalid(format!("{path}.{field}"), &json!(number), "must be greater than zero");
            } else if number > most {
                let detail = format!("must be less than or equal to {most}");
                errors.invalid(format!("{path}.{field}"), &json!(number), &detail);
            }
        }
    }
    if let Some(tolerance) = given(rules, "tolerance") {
        resources::one("", tolerance, &format!("{path}.tolerance"), errors);
    }
}
