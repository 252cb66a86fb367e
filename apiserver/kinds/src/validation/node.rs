//! Nodes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, given, ip, items, names, resources, same, scheduling, text, with_metadata};
use apiserver_schema::error::FieldError;
use apiserver_schema::repeats::repeats;

const POD_RANGE: &str = "node updates may not change podCIDR except from \"\" to valid";

/// Errors of a Node.
pub fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    taints(spec, &mut errors);
    amounts(&object["status"], &mut errors);
    ranges(items(spec, "podCIDRs"), &mut errors);
    errors.list()
}

fn taints(spec: &Value, errors: &mut Errors) {
    // The path is odd and Kubernetes' own.
    scheduling::taints(items(spec, "taints"), "metadata.taints", errors);
}

fn amounts(status: &Value, errors: &mut Errors) {
    for field in ["capacity", "allocatable"] {
        for (name, amount) in status[field].as_object().into_iter().flatten() {
            resources::one(name, amount, &format!("status.{field}.{name}"), errors);
        }
    }
}

fn ranges(list: &[Value], errors: &mut Errors) {
    let path = "spec.podCIDRs";
    let mut families = BTreeSet::new();
    for (index, range) in list.iter().filter_map(Value::as_str).enumerate() {
        let parsed = ip::range(range, false, &format!("{path}[{index}]"), errors);
        families.extend(parsed.map(|(ip, _)| ip.is_ipv4()));
    }
    let unread = |text: &&str| ip::parse_range(text).is_none();
    let mut given = list.iter().filter_map(Value::as_str).enumerate();
    if list.len() > 1
        && let Some((index, range)) = given.find(|(_, text)| unread(text))
    {
        let why = format!("invalid CIDR[{index}]: <nil> (invalid CIDR address: {range})");
        errors.internal(path, &format!("invalid PodCIDRs. failed to check with dual stack with error:{why}"));
        families.clear();
    }
    if list.len() > 1 && (families.len() != 2 || list.len() > 2) {
        errors.invalid(path, &json!(list), "may specify no more than one CIDR for each IP family");
    }
}

/// Addresses and provider of a Node are set once. Arguments: new, old.
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (spec, before) = (&new["spec"], &old["spec"]);
    amounts(&new["status"], &mut errors);
    addresses(&new["status"], &mut errors);
    let (ranges, assigned) = (items(spec, "podCIDRs"), items(before, "podCIDRs"));
    let changes = match assigned.len() {
        0 => 0,
        count if count != ranges.len() => 1,
        _ => assigned.iter().zip(ranges).filter(|(was, now)| was != now).count(),
    };
    for _ in 0..changes {
        errors.forbidden("spec.podCIDRs", POD_RANGE);
    }
    let provider = text(before, "providerID");
    if !provider.is_empty() && text(spec, "providerID") != provider {
        errors
            .forbidden("spec.providerID", "node updates may not change providerID except from \"\" to valid");
    }
    if let Some(source) = given(spec, "configSource") {
        config_source(source, false, "spec.configSource", &mut errors);
    }
    // Kubernetes judges them as those of a Node and as those of a change.
    taints(spec, &mut errors);
    if !same(spec.get("externalID"), before.get("externalID")) {
        errors.forbidden("spec.externalID", "may not be updated");
    }
    errors.list()
}

/// Errors of a write of a Node's status. Arguments: new, old.
pub fn validate_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let status = &new["status"];
    amounts(status, &mut errors);
    addresses(status, &mut errors);
    for part in ["assigned", "active", "lastKnownGood"] {
        if let Some(source) = given(&status["config"], part) {
            config_source(source, true, &format!("status.config.{part}"), &mut errors);
        }
    }
    errors.list()
}

fn addresses(status: &Value, errors: &mut Errors) {
    let list = items(status, "addresses");
    for index in repeats(list) {
        errors.duplicate(format!("status.addresses[{index}]"), &list[index]);
    }
}

/// Validates the obsolete configuration in a ConfigMap: nothing reads it, but it must have its form.
fn config_source(source: &Value, status: bool, path: &str, errors: &mut Errors) {
    let Some(map) = given(source, "configMap") else {
        let shown = r#"{"ConfigMap":null}"#;
        return errors.invalid_shown(path, shown, "exactly one reference subfield must be non-nil");
    };
    let path = format!("{path}.configMap");
    for field in ["uid", "resourceVersion"] {
        match (status, text(map, field).is_empty()) {
            (true, true) => {
                errors.required(format!("{path}.{field}"), &format!("{field} must be set in status"));
            }
            (false, false) => {
                errors.forbidden(format!("{path}.{field}"), &format!("{field} must not be set in spec"));
            }
            _ => {}
        }
    }
    type Grammar = fn(&str) -> names::Faults;
    let fields: [(&str, Grammar); 3] = [
        ("namespace", names::dns_label),
        ("name", names::dns_subdomain),
        ("kubeletConfigKey", names::config_key),
    ];
    for (field, grammar) in fields {
        let (value, path) = (text(map, field), format!("{path}.{field}"));
        if value.is_empty() {
            errors.required(path, &format!("{field} must be set"));
        } else {
            errors.faults(&path, value, grammar(value));
        }
    }
}
