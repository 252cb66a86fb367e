//! Namespace, Lease, PriorityClass, RuntimeClass, PodDisruptionBudget; and the door to other kinds of
//! the cluster.

use serde_json::{Value, json};

pub use super::autoscaling::{autoscaler, autoscaler_change};
pub use super::node::{validate as node, validate_update as node_update};
pub use super::quota::{limit_range, resource_quota, resource_quota_update};
use super::{
    Errors, amount, coordination, given, int_or_percent, items, label_selector, metadata, names, resources,
    same, scheduling, text, with_metadata,
};
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::repeats::repeats;

/// Above this only Kubernetes' own priority classes.
const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;
const SYSTEM_PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Errors of a Namespace.
pub fn namespace(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(metadata::of_builtin(object, names::dns_label));
    for (index, finalizer) in
        items(&object["spec"], "finalizers").iter().filter_map(Value::as_str).enumerate()
    {
        // When a Namespace is created, only the list as a whole is reported.
        let new = super::is_new(object);
        let path = if new { "spec.finalizers".to_owned() } else { format!("spec.finalizers[{index}]") };
        errors.faults(&path, finalizer, names::qualified_name(finalizer));
        let standard = matches!(finalizer, "kubernetes" | "orphan" | "foregroundDeletion");
        if !finalizer.contains('/') && !standard {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid(path, &json!(finalizer), detail);
        }
    }
    errors.list()
}

/// Errors of a Lease.
pub fn lease(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    if let Some(seconds) = spec.get("leaseDurationSeconds").filter(|s| s.as_i64().is_some_and(|s| s <= 0)) {
        errors.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0");
    }
    errors.not_negative("spec.leaseTransitions", spec.get("leaseTransitions"));
    let strategy = given(spec, "strategy").and_then(Value::as_str);
    if let Some(strategy) = strategy {
        coordination::strategy(strategy, &mut errors);
    }
    if !text(spec, "preferredHolder").is_empty() && strategy.is_none_or(str::is_empty) {
        errors.forbidden("spec.preferredHolder", "may only be specified when `strategy` is defined");
    }
    errors.list()
}

/// Errors of a PriorityClass.
pub fn priority_class(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let value = object["value"].as_i64().unwrap_or(0);
    let name = meta::name(object);
    if name.starts_with("system-") {
        let system = SYSTEM_PRIORITIES.iter().find(|(known, _)| *known == name);
        let why = match system {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, wanted)) if *wanted != value => {
                Some(format!("value of {name} PriorityClass must be {wanted}"))
            }
            Some(_) if object["globalDefault"] == true => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            let detail = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
            );
            errors.forbidden("metadata.name", &detail);
        }
    } else if value > HIGHEST_USER_PRIORITY {
        let detail = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
        errors.forbidden("value", &detail);
    }
    let policies = ["PreemptLowerPriority", "Never"];
    errors.one_of("preemptionPolicy", object.get("preemptionPolicy"), &policies);
    errors.list()
}

/// Value and policy of a PriorityClass stay. Arguments: new, old.
pub fn priority_class_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if !same(new.get("value"), old.get("value")) {
        errors.forbidden("value", "may not be changed in an update.");
    }
    errors.immutable("preemptionPolicy", new, old);
    errors.list()
}

/// Errors of a PodDisruptionBudget.
pub fn disruption_budget(object: &Value) -> Vec<FieldError> {
    // The metadata is validated by the rules of all kinds.
    let mut errors = Errors::default();
    let spec = &object["spec"];
    if given(spec, "minAvailable").is_some() && given(spec, "maxUnavailable").is_some() {
        errors.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set");
    }
    for field in ["minAvailable", "maxUnavailable"] {
        let (path, value) = (format!("spec.{field}"), given(spec, field));
        int_or_percent(&path, value, &mut errors);
        if let Some(value) = value.filter(|v| v.is_string() && amount(Some(v)) > 100) {
            errors.invalid(path, value, "must not be greater than 100%");
        }
    }
    label_selector(spec.get("selector"), "spec.selector", &mut errors);
    errors.one_of_if_given(
        "spec.unhealthyPodEvictionPolicy",
        spec.get("unhealthyPodEvictionPolicy"),
        &["AlwaysAllow", "IfHealthyBudget"],
    );
    errors.list()
}

/// Errors of a RuntimeClass.
pub fn runtime_class(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(metadata::validate(object, names::dns_subdomain));
    let handler = text(object, "handler");
    if handler.is_empty() {
        errors.required("handler", "");
    } else {
        errors.faults("handler", handler, names::dns_label(handler));
    }
    if let Some(fixed) = object.pointer("/overhead/podFixed") {
        resources::overhead(fixed, "overhead", &mut errors);
    }
    if let Some(scheduling) = given(object, "scheduling") {
        metadata::labels(scheduling.get("nodeSelector"), "scheduling.nodeSelector", &mut errors);
        let tolerations = items(scheduling, "tolerations");
        self::scheduling::tolerations(tolerations, "scheduling.tolerations", &mut errors);
        let key = |toleration: &Value| {
            ["key", "operator", "value", "effect"].map(|field| text(toleration, field).to_owned())
        };
        for index in repeats(tolerations.iter().map(key)) {
            errors.duplicate(format!("scheduling.tolerations[{index}]"), &tolerations[index]);
        }
    }
    errors.list()
}

/// The handler of a RuntimeClass stays. Arguments: new, old.
pub fn runtime_class_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable_shown("handler", new, old, &json!(text(new, "handler")).to_string());
    errors.list()
}
