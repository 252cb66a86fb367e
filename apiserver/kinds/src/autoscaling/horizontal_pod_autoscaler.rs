//! HorizontalPodAutoscalers.

pub(crate) mod conversion;

use apiserver_meta::quantity;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, given, items, metadata, names, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::{Kind, Shape, Version};
use crate::shared::cells::{self, NONE, UNKNOWN, UNSET};
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{fill, fill_absent, is_empty, object, object_or_insert, with_spec};
use crate::shared::quantities::{container_resource, one};

pub(crate) static KIND: Kind = Kind {
    group: "autoscaling",
    plural: "horizontalpodautoscalers",
    short_names: &["hpa"],
    category: Some("all"),
    versions: &[Version {
        name: "v1",
        default: None,
        shape: Some(Shape { to_stored: conversion::to_v2, from_stored: conversion::to_v1 }),
    }],
    default,
    validate,
    validate_change: Some(validate_change),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a HorizontalPodAutoscaler: 80 % of the CPU requested, where no metric is named.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "minReplicas", 1);
        if is_empty(spec, "metrics") {
            spec.insert(
                "metrics".into(),
                json!([{"type": "Resource", "resource": {
                    "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]),
            );
        }
        let Some(behavior) = object(spec, "behavior") else { return };
        if let Some(up) = object_or_insert(behavior, "scaleUp") {
            fill(up, "stabilizationWindowSeconds", 0);
            fill_absent(up, "selectPolicy", "Max");
            // A list that was sent empty stays so, and is refused.
            fill_absent(
                up,
                "policies",
                json!([{"type": "Pods", "value": 4, "periodSeconds": 15},
                       {"type": "Percent", "value": 100, "periodSeconds": 15}]),
            );
        }
        if let Some(down) = object_or_insert(behavior, "scaleDown") {
            fill_absent(down, "selectPolicy", "Max");
            fill_absent(down, "policies", json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]));
        }
    });
}

/// Longest window of stabilization and longest period of a policy, in seconds.
const WINDOW: i64 = 3600;

const PERIOD: i64 = 1800;

/// The sources of a metric: type and field, in the order of their validation.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

/// Errors of a new HorizontalPodAutoscaler.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    spec_errors(&object["spec"], &Rules::of_new(&object["spec"]), &mut errors);
    errors.list()
}

/// Returns the errors of a change; existing faults may stay. Arguments: new, old, the part that is written.
fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::common(new, &mut errors);
    if written == Written::Status {
        for field in ["currentReplicas", "desiredReplicas"] {
            errors.not_negative(format!("status.{field}"), new["status"].get(field));
        }
    } else {
        let (spec, before) = (&new["spec"], &old["spec"]);
        spec_errors(spec, &Rules::of_new(spec).tolerating(spec, before), &mut errors);
    }
    errors.list()
}

/// The apiVersions that may be used to refer to an object.
#[derive(Clone, Copy, PartialEq)]
enum Versions {
    Any,
    Readable,
    WithGroup,
}

/// The rules to apply, depending on the previous object.
struct Rules {
    least: i64,
    target: Versions,
    described: Versions,
}

impl Rules {
    fn of_new(spec: &Value) -> Self {
        // Nothing else of the core group can be scaled.
        let core = text(&spec["scaleTargetRef"], "kind") == "ReplicationController";
        let target = if core { Versions::Readable } else { Versions::WithGroup };
        Self { least: 1, target, described: Versions::Readable }
    }

    fn tolerating(mut self, spec: &Value, before: &Value) -> Self {
        let target = |spec: &Value| {
            ["apiVersion", "kind"].map(|field| text(&spec["scaleTargetRef"], field).to_owned())
        };
        if before["minReplicas"].as_i64() == Some(0) {
            self.least = 0;
        }
        if target(spec) == target(before) {
            self.target = Versions::Any;
        }
        let objects = items(before, "metrics").iter().filter(|metric| text(metric, "type") == "Object");
        let mut described = objects.map(|metric| &metric["object"]["describedObject"]);
        if described.any(|object| version_fault(text(object, "apiVersion"), self.described).is_some()) {
            self.described = Versions::Any;
        }
        self
    }
}

fn spec_errors(spec: &Value, rules: &Rules, errors: &mut Errors) {
    let least = spec["minReplicas"].as_i64();
    let most = spec["maxReplicas"].as_i64().unwrap_or(0);
    if let Some(least) = least.filter(|n| *n < rules.least) {
        let detail = format!("must be greater than or equal to {}", rules.least);
        errors.invalid("spec.minReplicas", &json!(least), &detail);
    }
    if most == 0 {
        errors.required("spec.maxReplicas", "must be set and greater than 0");
    } else if most < 0 {
        errors.invalid("spec.maxReplicas", &json!(most), "must be greater than or equal to 1");
    }
    if least.is_some_and(|least| most < least) {
        errors.invalid("spec.maxReplicas", &json!(most), "must be greater than or equal to `minReplicas`");
    }
    reference(&spec["scaleTargetRef"], rules.target, "spec.scaleTargetRef", errors);
    let metrics = items(spec, "metrics");
    for (index, metric) in metrics.iter().enumerate() {
        self::metric(metric, rules, &format!("spec.metrics[{index}]"), errors);
    }
    let outside = metrics.iter().any(|metric| matches!(text(metric, "type"), "Object" | "External"));
    if least == Some(0) && !outside {
        let detail =
            "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.forbidden("spec.metrics", detail);
    }
    for direction in ["scaleUp", "scaleDown"] {
        if let Some(rules) = spec.get("behavior").and_then(|b| given(b, direction)) {
            scaling(rules, &format!("spec.behavior.{direction}"), errors);
        }
    }
}

fn reference(reference: &Value, versions: Versions, path: &str, errors: &mut Errors) {
    for field in ["kind", "name"] {
        errors.name(&format!("{path}.{field}"), text(reference, field), names::path_segment);
    }
    let version = text(reference, "apiVersion");
    if let Some(fault) = version_fault(version, versions) {
        errors.invalid(format!("{path}.apiVersion"), &json!(version), &fault);
    }
}

fn version_fault(version: &str, versions: Versions) -> Option<String> {
    let group = match version.split('/').collect::<Vec<_>>().as_slice() {
        _ if versions == Versions::Any => return None,
        [] | [_] | ["", ""] => "",
        [group, _] => group,
        _ => return Some(format!("unexpected GroupVersion string: {version}")),
    };
    let missing = versions == Versions::WithGroup && group.is_empty();
    missing.then(|| "apiVersion must specify API group".to_owned())
}

fn metric(metric: &Value, rules: &Rules, path: &str, errors: &mut Errors) {
    let kind = text(metric, "type");
    let mut types = SOURCES.map(|(kind, _)| kind);
    types.sort_unstable();
    let expected = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    if kind.is_empty() {
        errors.required(format!("{path}.type"), "must specify a metric source type");
    }
    if expected.is_none() {
        errors.not_supported(format!("{path}.type"), &json!(kind), &types);
    }
    let present: Vec<&str> =
        SOURCES.iter().map(|(_, field)| *field).filter(|field| given(metric, field).is_some()).collect();
    // Only the first of several is validated.
    if let Some(field) = present.first() {
        self::source(field, &metric[*field], rules, &format!("{path}.{field}"), errors);
    }
    match expected {
        Some(expected) if given(metric, expected).is_none() => {
            let detail = "must populate information for the given metric source";
            errors.required(format!("{path}.{expected}"), detail);
        }
        Some(_) => {}
        // Kubernetes finds this twice.
        None => errors.not_supported(format!("{path}.type"), &json!(kind), &types),
    }
    if present.len() > 1 {
        for field in present.into_iter().filter(|field| Some(*field) != expected) {
            errors.forbidden(format!("{path}.{field}"), "must populate the given metric source only");
        }
    }
}

fn source(field: &str, source: &Value, rules: &Rules, path: &str, errors: &mut Errors) {
    let at = format!("{path}.target");
    let wanted = &source["target"];
    let set = |field: &str| given(wanted, field).is_some();
    match field {
        "object" => {
            let path = format!("{path}.describedObject");
            reference(&source["describedObject"], rules.described, &path, errors);
        }
        "resource" | "containerResource" => {
            let resource = text(source, "name");
            if resource.is_empty() {
                errors.required(format!("{path}.name"), "must specify a resource name");
            } else if field == "containerResource" {
                container_resource(resource, &format!("{path}.name"), errors);
            }
            let container = text(source, "container");
            if field == "containerResource" && container.is_empty() {
                errors.required(format!("{path}.container"), "must specify a container");
            } else if field == "containerResource" {
                errors.faults(&format!("{path}.container"), container, names::dns_label(container));
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
                let detail = if field == "object" {
                    "must set either a target value or averageValue"
                } else {
                    "must set either a target value for metric or a per-pod target"
                };
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
    errors.one_of_if_given(&format!("{path}.selectPolicy"), rules.get("selectPolicy"), &policies);
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
        one("", tolerance, &format!("{path}.tolerance"), errors);
    }
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Reference", "string", 0, "What is scaled"),
        ("Targets", "string", 0, "Metrics: now and wanted"),
        ("MinPods", "string", 0, "Fewest replicas"),
        ("MaxPods", "string", 0, "Most replicas"),
        ("Replicas", "string", 0, "Replicas now"),
        AGE,
    ],
    cells: |object, now| {
        let target = &object["spec"]["scaleTargetRef"];
        let least = object.pointer("/spec/minReplicas").and_then(Value::as_i64);
        vec![
            cells::name(object),
            json!(format!("{}/{}", meta::text(target, "/kind"), meta::text(target, "/name"))),
            json!(targets(object)),
            json!(least.map_or(UNSET.to_owned(), |n| n.to_string())),
            cells::number(object, "/spec/maxReplicas"),
            cells::number(object, "/status/currentReplicas"),
            cells::age(object, now),
        ]
    },
};

fn targets(object: &Value) -> String {
    let metrics = meta::list(object, "/spec/metrics");
    if metrics.is_empty() {
        return NONE.to_owned();
    }
    let current = meta::list(object, "/status/currentMetrics");
    let shown = metrics.iter().enumerate().take(2).map(|(index, metric)| {
        // `Resource` is described under `resource`, `ContainerResource` under `containerResource`.
        let kind = meta::text(metric, "/type");
        let field: String =
            kind.char_indices().map(|(i, c)| if i == 0 { c.to_ascii_lowercase() } else { c }).collect();
        let (wanted, now) =
            (&metric[&field], current.get(index).map_or(&Value::Null, |c| &c[&field]["current"]));
        let text = match wanted["target"]["averageUtilization"].as_i64() {
            Some(percent) => {
                let now = now["averageUtilization"].as_i64().map_or(UNKNOWN.to_owned(), |n| format!("{n}%"));
                format!("{now}/{percent}%")
            }
            None => {
                let average = wanted["target"].get("averageValue").is_some();
                let key = if average { "averageValue" } else { "value" };
                let now = now[key].as_str().unwrap_or(UNKNOWN);
                let suffix = if average && matches!(kind, "External" | "Object") { " (avg)" } else { "" };
                format!("{now}/{}{suffix}", wanted["target"][key].as_str().unwrap_or_default())
            }
        };
        match meta::text(wanted, "/name") {
            "" => text,
            name => format!("{name}: {text}"),
        }
    });
    let list: Vec<String> = shown.collect();
    let more = metrics.len() - list.len();
    let joined = list.join(", ");
    if more > 0 { format!("{joined} + {more} more...") } else { joined }
}
