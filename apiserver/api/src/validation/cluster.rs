//! Namespace, Node, Lease, Event, PriorityClass, RuntimeClass, ResourceQuota, LimitRange,
//! PodDisruptionBudget, HorizontalPodAutoscaler, CertificateSigningRequest.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    Errors, int_or_percent, items, label_selector, metadata, names, resources, same, scheduling, text,
    with_metadata,
};
use crate::error::FieldError;
use crate::meta;

/// Above this only Kubernetes' own priority classes.
const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;

/// Errors of a Namespace.
pub fn namespace(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors(metadata::validate(object, names::dns_label));
    for (index, finalizer) in
        items(&object["spec"], "finalizers").iter().filter_map(Value::as_str).enumerate()
    {
        let path = format!("spec.finalizers[{index}]");
        errors.faults(&path, finalizer, names::qualified_name(finalizer));
    }
    errors.list()
}

/// Errors of a Node.
pub fn node(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    scheduling::taints(items(spec, "taints"), "spec.taints", &mut errors);
    let ranges = items(spec, "podCIDRs");
    for (index, range) in ranges.iter().enumerate() {
        if range.as_str().unwrap_or_default().parse::<ipnetwork::IpNetwork>().is_err() {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            errors.invalid(format!("spec.podCIDRs[{index}]"), range, detail);
        }
    }
    if ranges.len() > 2 {
        errors.invalid(
            "spec.podCIDRs",
            &json!(ranges),
            "may specify no more than one CIDR for each IP family",
        );
    }
    for field in ["capacity", "allocatable"] {
        resources::amounts(object["status"].get(field), &format!("status.{field}"), &mut errors);
    }
    errors.list()
}

/// Addresses and provider of a Node are set once. Arguments: new, old.
pub fn node_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (spec, before) = (&new["spec"], &old["spec"]);
    if !same(before.get("podCIDRs"), None) && !same(spec.get("podCIDRs"), before.get("podCIDRs")) {
        errors.forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid");
    }
    if !text(before, "providerID").is_empty() && text(spec, "providerID") != text(before, "providerID") {
        errors
            .forbidden("spec.providerID", "node updates may not change providerID except from \"\" to valid");
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
    errors.list()
}

/// Errors of an Event.
pub fn event(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let involved = text(&object["involvedObject"], "namespace");
    let namespace = meta::namespace(object);
    // Events about objects without a namespace are kept in `default` or `kube-system`.
    let placed = if involved.is_empty() {
        matches!(namespace, "default" | "kube-system")
    } else {
        involved == namespace
    };
    if !placed && !namespace.is_empty() {
        errors.invalid("involvedObject.namespace", &json!(involved), "does not match event.namespace");
    }
    errors.list()
}

/// Errors of a PriorityClass.
pub fn priority_class(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let value = object["value"].as_i64().unwrap_or(0);
    let name = meta::name(object);
    let system = matches!(name, "system-node-critical" | "system-cluster-critical");
    if name.starts_with("system-") && !system {
        errors.forbidden(
            "metadata.name",
            "priority class names with 'system-' prefix are reserved for system use only. error: is not a known system priority class",
        );
    }
    if value > HIGHEST_USER_PRIORITY && !system {
        let detail = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
        errors.forbidden("value", &detail);
    }
    let policies = ["Never", "PreemptLowerPriority"];
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

/// Errors of a ResourceQuota.
pub fn resource_quota(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    resources::amounts(object["spec"].get("hard"), "spec.hard", &mut errors);
    errors.list()
}

/// Errors of a LimitRange.
pub fn limit_range(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let mut seen = BTreeSet::new();
    for (index, item) in items(&object["spec"], "limits").iter().enumerate() {
        let path = format!("spec.limits[{index}]");
        if text(item, "type").is_empty() {
            errors.required(format!("{path}.type"), "");
        } else if !seen.insert(text(item, "type")) {
            errors.duplicate(format!("{path}.type"), &json!(text(item, "type")));
        }
        for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            resources::amounts(item.get(field), &format!("{path}.{field}"), &mut errors);
        }
    }
    errors.list()
}

/// Errors of a PodDisruptionBudget.
pub fn disruption_budget(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    if spec.get("minAvailable").is_some() && spec.get("maxUnavailable").is_some() {
        errors.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set");
    }
    for field in ["minAvailable", "maxUnavailable"] {
        int_or_percent(&format!("spec.{field}"), spec.get(field), &mut errors);
    }
    label_selector(spec.get("selector"), "spec.selector", &mut errors);
    errors.list()
}

/// Errors of a HorizontalPodAutoscaler.
pub fn autoscaler(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let (least, most) =
        (spec["minReplicas"].as_i64().unwrap_or(1), spec["maxReplicas"].as_i64().unwrap_or(0));
    if least < 1 {
        errors.invalid("spec.minReplicas", &json!(least), "must be greater than or equal to 1");
    }
    if most < 1 {
        errors.invalid("spec.maxReplicas", &json!(most), "must be greater than 0");
    } else if most < least {
        errors.invalid("spec.maxReplicas", &json!(most), "must be greater than or equal to `minReplicas`");
    }
    for field in ["kind", "name"] {
        if text(&spec["scaleTargetRef"], field).is_empty() {
            errors.required(format!("spec.scaleTargetRef.{field}"), "");
        }
    }
    errors.list()
}

/// Errors of a CertificateSigningRequest.
pub fn signing_request(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors(metadata::validate(object, names::path_segment));
    let spec = &object["spec"];
    if text(spec, "request").is_empty() {
        errors.required("spec.request", "");
    }
    if items(spec, "usages").is_empty() {
        errors.required("spec.usages", "");
    }
    let signer = text(spec, "signerName");
    if signer.is_empty() {
        errors.required("spec.signerName", "");
    } else if !signer.split_once('/').is_some_and(|(domain, path)| {
        domain.contains('.') && names::dns_subdomain(domain).is_empty() && !path.is_empty()
    }) {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.invalid("spec.signerName", &json!(signer), detail);
    }
    if let Some(seconds) = spec.get("expirationSeconds").filter(|s| s.as_i64().is_some_and(|s| s < 600)) {
        errors.invalid(
            "spec.expirationSeconds",
            seconds,
            "may not specify a duration less than 600 seconds (10 minutes)",
        );
    }
    errors.list()
}

/// Errors of a RuntimeClass.
pub fn runtime_class(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let handler = text(object, "handler");
    errors.faults("handler", handler, names::dns_label(handler));
    errors.list()
}

/// The handler of a RuntimeClass stays. Arguments: new, old.
pub fn runtime_class_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("handler", new, old);
    errors.list()
}
