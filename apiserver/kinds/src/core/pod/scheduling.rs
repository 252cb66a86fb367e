//! Tolerations, taints, affinity and spreading.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use apiserver_schema::error::{FieldError, FieldReason};
use apiserver_schema::validation::{Errors, given, items, label_selector, names, text};
use serde_json::{Value, json};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Tolerations at `path`.
pub(crate) fn tolerations(tolerations: &[Value], path: &str, errors: &mut Errors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        let (value, effect) = (text(toleration, "value"), text(toleration, "effect"));
        let at = format!("{path}.operator");
        errors.name_if_set(&format!("{path}.key"), key, names::qualified_name);
        if key.is_empty() && operator != "Exists" {
            let detail =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(at.as_str(), &json!(operator), detail);
        }
        if given(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(format!("{path}.effect"), &json!(effect), detail);
        }
        match operator {
            "" | "Equal" => {
                let faults = names::label_value(value);
                if !faults.is_empty() {
                    errors.invalid(at, &json!(value), &faults.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                errors.invalid(at, &json!(value), "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            // Known, and switched off.
            "Lt" | "Gt" => errors.not_supported(at, &json!(operator), &["Equal", "Exists", "Lt", "Gt"]),
            other => errors.not_supported(at, &json!(other), &["Equal", "Exists"]),
        }
        errors.one_of_if_set(&format!("{path}.effect"), toleration.get("effect"), &EFFECTS);
    }
}

/// Taints of a node at `path`.
pub(crate) fn taints(taints: &[Value], path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        errors.faults(&format!("{path}.key"), key, names::qualified_name(key));
        let faults = names::label_value(value);
        if !faults.is_empty() {
            errors.invalid(format!("{path}.value"), &json!(value), &faults.join(";"));
        }
        errors.one_of(&format!("{path}.effect"), taint.get("effect"), &EFFECTS);
        if !seen.insert((key, effect)) {
            let message = format!("Duplicate value: {taint}: taints must be unique by key and effect pair");
            errors.extend([FieldError { field: path, reason: FieldReason::Duplicate, message }]);
        }
    }
}

/// `spec.affinity` at `path`.
pub(crate) fn affinity(affinity: &Value, path: &str, errors: &mut Errors) {
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
    if let Some(required) = given(affinity, "requiredDuringSchedulingIgnoredDuringExecution") {
        let path = format!("{path}.requiredDuringSchedulingIgnoredDuringExecution");
        node_selector(required, &path, errors);
    }
    for (index, term) in items(affinity, "preferredDuringSchedulingIgnoredDuringExecution").iter().enumerate()
    {
        let path = format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
        weight(term, &path, errors);
        node_term(&term["preference"], false, &format!("{path}.preference"), errors);
    }
}

/// A `NodeSelector` at `path`.
pub(crate) fn node_selector(selector: &Value, path: &str, errors: &mut Errors) {
    let path = format!("{path}.nodeSelectorTerms");
    let terms = items(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.required(path.as_str(), "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        node_term(term, true, &format!("{path}[{index}]"), errors);
    }
}

fn weight(term: &Value, path: &str, errors: &mut Errors) {
    let weight = term["weight"].as_i64().unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.invalid(format!("{path}.weight"), &json!(weight), "must be in the range 1-100");
    }
}

/// `required` terms must have values that a label can have; of others nodes may simply have none.
fn node_term(term: &Value, required: bool, path: &str, errors: &mut Errors) {
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
        let texts = values.iter().filter_map(Value::as_str).enumerate();
        for (index, value) in texts.filter(|_| required) {
            errors.faults(&format!("{path}.values[{index}]"), value, names::label_value(value));
        }
    }
    for (index, field) in items(term, "matchFields").iter().enumerate() {
        let path = format!("{path}.matchFields[{index}]");
        let (operator, values) = (text(field, "operator"), items(field, "values"));
        if !matches!(operator, "In" | "NotIn") {
            errors.invalid(format!("{path}.operator"), &json!(operator), "not a valid selector operator");
        } else if values.len() != 1 {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(format!("{path}.values"), detail);
        }
        if text(field, "key") != "metadata.name" {
            let detail = "not a valid field selector key";
            errors.invalid(format!("{path}.key"), &json!(text(field, "key")), detail);
            continue;
        }
        for (index, name) in values.iter().filter_map(Value::as_str).enumerate() {
            errors.faults(&format!("{path}.values[{index}]"), name, names::dns_subdomain(name));
        }
    }
}

fn pod_term(term: &Value, path: &str, errors: &mut Errors) {
    label_selector(term.get("labelSelector"), &format!("{path}.labelSelector"), errors);
    label_selector(term.get("namespaceSelector"), &format!("{path}.namespaceSelector"), errors);
    for name in items(term, "namespaces").iter().filter_map(Value::as_str) {
        errors.faults(&format!("{path}.namespace"), name, names::dns_label(name));
    }
    label_keys(term, path, errors);
    let key = text(term, "topologyKey");
    if key.is_empty() {
        errors.required(format!("{path}.topologyKey"), "can not be empty");
    }
    errors.faults(&format!("{path}.topologyKey"), key, names::qualified_name(key));
}

/// `matchLabelKeys` and `mismatchLabelKeys` of a term (KEP-3633).
fn label_keys(term: &Value, path: &str, errors: &mut Errors) {
    let selector = given(term, "labelSelector");
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = items(term, field);
        let path = format!("{path}.{field}");
        if !keys.is_empty() && selector.is_none() {
            errors.forbidden(path, "must not be specified when labelSelector is not set");
            continue;
        }
        for (index, key) in keys.iter().filter_map(Value::as_str).enumerate() {
            errors.faults(&format!("{path}[{index}]"), key, names::qualified_name(key));
        }
    }
    let (keys, mismatch) = (items(term, "matchLabelKeys"), items(term, "mismatchLabelKeys"));
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, key) in keys.iter().enumerate().filter_map(|(index, key)| Some((index, key.as_str()?))) {
        first.entry(key).or_insert(index);
    }
    let unlike: HashSet<&Value> = mismatch.iter().collect();
    // The server itself adds one expression for each key; a second one is the user's.
    let mut seen: BTreeSet<&str> = selector
        .and_then(|s| s["matchLabels"].as_object())
        .into_iter()
        .flatten()
        .map(|(key, _)| key.as_str())
        .collect();
    for expression in selector.map_or(&[][..], |s| items(s, "matchExpressions")) {
        let key = text(expression, "key");
        if let Some(index) = first.get(key)
            && seen.contains(key)
        {
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.invalid(format!("{path}[{index}]"), &json!(key), detail);
        }
        seen.insert(key);
    }
    for (index, key) in keys.iter().enumerate().filter(|(_, k)| unlike.contains(k)) {
        let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.invalid(format!("{path}.matchLabelKeys[{index}]"), key, detail);
    }
}

/// Topology spread constraints at `path`.
pub(crate) fn spread(constraints: &[Value], path: &str, errors: &mut Errors) {
    let pair = |c: &Value| (text(c, "topologyKey").to_owned(), text(c, "whenUnsatisfiable").to_owned());
    // All but the last of equal constraints are refused.
    let mut later: BTreeMap<(String, String), usize> = BTreeMap::new();
    for constraint in constraints {
        *later.entry(pair(constraint)).or_default() += 1;
    }
    for (index, constraint) in constraints.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let skew = constraint["maxSkew"].as_i64().unwrap_or(0);
        if skew <= 0 {
            errors.invalid(format!("{path}.maxSkew"), &json!(skew), "must be greater than zero");
        }
        let (key, action) = pair(constraint);
        if key.is_empty() {
            errors.required(format!("{path}.topologyKey"), "can not be empty");
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        if !actions.contains(&action.as_str()) {
            errors.not_supported(format!("{path}.whenUnsatisfiable"), &json!(action), &actions);
        }
        let left = later.entry((key.clone(), action.clone())).or_default();
        *left = left.saturating_sub(1);
        if *left > 0 {
            errors.duplicate(
                format!("{path}.{{topologyKey, whenUnsatisfiable}}"),
                &json!(format!("{{{key}, {action}}}")),
            );
        }
        if let Some(domains) = given(constraint, "minDomains") {
            let path = format!("{path}.minDomains");
            if domains.as_i64().is_some_and(|n| n <= 0) {
                errors.invalid(path.as_str(), domains, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.invalid(path, domains, &detail);
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            errors.one_of_if_given(&format!("{path}.{field}"), constraint.get(field), &["Honor", "Ignore"]);
        }
        spread_keys(constraint, &format!("{path}.matchLabelKeys"), errors);
        label_selector(constraint.get("labelSelector"), &format!("{path}.labelSelector"), errors);
    }
}

fn spread_keys(constraint: &Value, path: &str, errors: &mut Errors) {
    let keys = items(constraint, "matchLabelKeys");
    if keys.is_empty() {
        return;
    }
    let Some(selector) = given(constraint, "labelSelector") else {
        return errors.forbidden(path, "must not be specified when labelSelector is not set");
    };
    for (index, key) in keys.iter().filter_map(Value::as_str).enumerate() {
        let path = format!("{path}[{index}]");
        errors.faults(&path, key, names::qualified_name(key));
        // The server itself adds one expression for each key; a second one is the user's.
        let labels = usize::from(selector["matchLabels"].get(key).is_some());
        let expressions = items(selector, "matchExpressions").iter().filter(|e| text(e, "key") == key);
        if labels + expressions.count() > 1 {
            errors.invalid(path, &json!(key), "exists in both matchLabelKeys and labelSelector");
        }
    }
}
