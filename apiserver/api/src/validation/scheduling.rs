//! Tolerations, taints, affinity and spreading.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, items, label_selector, metadata, names, text};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Tolerations at `path`.
pub(super) fn tolerations(tolerations: &[Value], path: &str, errors: &mut Errors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        if key.is_empty() {
            if operator != "Exists" {
                let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
                errors.invalid(format!("{path}.operator"), &json!(operator), detail);
            }
        } else {
            errors.faults(&format!("{path}.key"), key, names::qualified_name(key));
        }
        let value = text(toleration, "value");
        match operator {
            "" | "Equal" => errors.faults(&format!("{path}.operator"), value, names::label_value(value)),
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.invalid(format!("{path}.operator"), toleration, detail);
            }
            _ => errors.one_of(&format!("{path}.operator"), toleration.get("operator"), &["Equal", "Exists"]),
        }
        if toleration.get("tolerationSeconds").is_some_and(|s| !s.is_null())
            && text(toleration, "effect") != "NoExecute"
        {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(format!("{path}.effect"), &json!(text(toleration, "effect")), detail);
        }
        errors.one_of_if_set(&format!("{path}.effect"), toleration.get("effect"), &EFFECTS);
    }
}

/// Taints of a node at `path`.
pub(super) fn taints(taints: &[Value], path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        errors.faults(&format!("{path}.key"), key, names::qualified_name(key));
        errors.faults(&format!("{path}.value"), value, names::label_value(value));
        errors.one_of(&format!("{path}.effect"), taint.get("effect"), &EFFECTS);
        if !seen.insert((key, effect)) {
            errors.duplicate(path, taint);
        }
    }
}

/// `spec.affinity` at `path`.
pub(super) fn affinity(affinity: &Value, path: &str, errors: &mut Errors) {
    if let Some(node) = affinity.get("nodeAffinity") {
        node_affinity(node, &format!("{path}.nodeAffinity"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(terms) = affinity.get(kind) else { continue };
        let required = items(terms, "requiredDuringSchedulingIgnoredDuringExecution");
        for (index, term) in required.iter().enumerate() {
            let path = format!("{path}.{kind}.requiredDuringSchedulingIgnoredDuringExecution[{index}]");
            pod_term(term, &path, errors);
        }
        let preferred = items(terms, "preferredDuringSchedulingIgnoredDuringExecution");
        for (index, weighted) in preferred.iter().enumerate() {
            let path = format!("{path}.{kind}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
            weight(weighted, &path, errors);
            pod_term(&weighted["podAffinityTerm"], &format!("{path}.podAffinityTerm"), errors);
        }
    }
}

fn node_affinity(affinity: &Value, path: &str, errors: &mut Errors) {
    if let Some(required) = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") {
        let path = format!("{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
        let terms = items(required, "nodeSelectorTerms");
        if terms.is_empty() {
            errors.required(path.as_str(), "must have at least one node selector term");
        }
        for (index, term) in terms.iter().enumerate() {
            node_term(term, &format!("{path}[{index}]"), errors);
        }
    }
    for (index, term) in items(affinity, "preferredDuringSchedulingIgnoredDuringExecution").iter().enumerate()
    {
        let path = format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
        weight(term, &path, errors);
        node_term(&term["preference"], &format!("{path}.preference"), errors);
    }
}

fn weight(term: &Value, path: &str, errors: &mut Errors) {
    let weight = term["weight"].as_i64().unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.invalid(format!("{path}.weight"), &json!(weight), "must be in the range 1-100");
    }
}

/// One term of a node selector.
pub(super) fn node_term(term: &Value, path: &str, errors: &mut Errors) {
    for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let values = items(expression, "values");
        let path_of_values = format!("{path}.values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(path_of_values, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.forbidden(
                    path_of_values,
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                );
            }
            "Gt" | "Lt" if values.len() != 1 => {
                errors.required(
                    path_of_values,
                    "must be specified single value when `operator` is 'Lt' or 'Gt'",
                );
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => {
                errors.invalid(format!("{path}.operator"), &json!(other), "not a valid selector operator")
            }
        }
        let key = text(expression, "key");
        errors.faults(&format!("{path}.key"), key, names::qualified_name(key));
    }
    for (index, field) in items(term, "matchFields").iter().enumerate() {
        let path = format!("{path}.matchFields[{index}]");
        if items(field, "values").len() != 1 {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(format!("{path}.values"), detail);
        }
        if text(field, "key") != "metadata.name" {
            let detail = "not a valid field selector key";
            errors.invalid(format!("{path}.key"), &json!(text(field, "key")), detail);
        }
    }
}

fn pod_term(term: &Value, path: &str, errors: &mut Errors) {
    label_selector(term.get("labelSelector"), &format!("{path}.labelSelector"), errors);
    label_selector(term.get("namespaceSelector"), &format!("{path}.namespaceSelector"), errors);
    for name in items(term, "namespaces").iter().filter_map(Value::as_str) {
        errors.faults(&format!("{path}.namespace"), name, names::dns_label(name));
    }
    let key = text(term, "topologyKey");
    if key.is_empty() {
        errors.required(format!("{path}.topologyKey"), "can not be empty");
    } else {
        let mut found = Vec::new();
        metadata::labels(Some(&json!({key: ""})), &format!("{path}.topologyKey"), &mut found);
        errors.extend(found);
    }
}

/// Topology spread constraints at `path`.
pub(super) fn spread(constraints: &[Value], path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, constraint) in constraints.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let skew = constraint["maxSkew"].as_i64().unwrap_or(0);
        if skew <= 0 {
            errors.invalid(format!("{path}.maxSkew"), &json!(skew), "must be greater than zero");
        }
        let (key, action) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if key.is_empty() {
            errors.required(format!("{path}.topologyKey"), "can not be empty");
        }
        errors.one_of(
            &format!("{path}.whenUnsatisfiable"),
            constraint.get("whenUnsatisfiable"),
            &["DoNotSchedule", "ScheduleAnyway"],
        );
        if !seen.insert((key, action)) {
            errors.duplicate(
                format!("{path}.{{topologyKey, whenUnsatisfiable}}"),
                &json!(format!("{{{key}, {action}}}")),
            );
        }
        if let Some(domains) = constraint.get("minDomains") {
            if domains.as_i64().is_some_and(|n| n <= 0) {
                errors.invalid(format!("{path}.minDomains"), domains, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let detail = "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway";
                errors.invalid(format!("{path}.minDomains"), domains, detail);
            }
        }
        label_selector(constraint.get("labelSelector"), &format!("{path}.labelSelector"), errors);
    }
}
