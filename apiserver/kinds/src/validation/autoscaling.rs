//! HorizontalPodAutoscaler.

use serde_json::{Value, json};

use super::{Errors, given, items, metadata, names, resources, text, with_metadata};
use apiserver_meta::quantity;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;

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
pub fn autoscaler(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    spec_errors(&object["spec"], &Rules::of_new(&object["spec"]), &mut errors);
    errors.list()
}

/// Returns the errors of a change; existing faults may stay. Arguments: new, old, the part that is written.
pub fn autoscaler_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
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
        source(field, &metric[*field], rules, &format!("{path}.{field}"), errors);
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
                resources::container_resource(resource, &format!("{path}.name"), errors);
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
        resources::one("", tolerance, &format!("{path}.tolerance"), errors);
    }
}
