//! NetworkPolicies.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, given, is_new, items, label_selector, text, with_metadata};
use serde_json::{Value, json};

use crate::core::pod;
use crate::kind::Kind;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{each_object, fill_absent, is_empty, with_spec};
use crate::shared::{cells, ip};

pub(crate) static KIND: Kind = Kind {
    group: "networking.k8s.io",
    plural: "networkpolicies",
    short_names: &["netpol"],
    generation: true,
    default,
    validate,
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a NetworkPolicy.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| {
        for rules in ["ingress", "egress"] {
            each_object(spec, rules, |rule| {
                each_object(rule, "ports", |port| fill_absent(port, "protocol", "TCP"))
            });
        }
        if is_empty(spec, "policyTypes") {
            let egress = !is_empty(spec, "egress");
            let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            spec.insert("policyTypes".into(), types);
        }
    });
}

/// Errors of a NetworkPolicy.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let strict = is_new(object);
    label_selector(spec.get("podSelector"), "spec.podSelector", &mut errors);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(spec, direction).iter().enumerate() {
            let path = format!("spec.{direction}[{index}]");
            for (index, port) in items(rule, "ports").iter().enumerate() {
                policy_port(port, &format!("{path}.ports[{index}]"), &mut errors);
            }
            for (index, peer) in items(rule, peers).iter().enumerate() {
                policy_peer(peer, strict, &format!("{path}.{peers}[{index}]"), &mut errors);
            }
        }
    }
    let types = items(spec, "policyTypes");
    if types.len() > 2 {
        errors.invalid("spec.policyTypes", &json!(types), "may not specify more than two policyTypes");
        return errors.list();
    }
    for (index, ty) in types.iter().enumerate().filter(|(_, ty)| *ty != "Ingress" && *ty != "Egress") {
        errors.not_supported(format!("spec.policyTypes[{index}]"), ty, &["Ingress", "Egress"]);
    }
    errors.list()
}

fn policy_port(port: &Value, path: &str, errors: &mut Errors) {
    errors.one_of_if_given(&format!("{path}.protocol"), port.get("protocol"), &["TCP", "UDP", "SCTP"]);
    let number = given(port, "port");
    let end = given(port, "endPort").and_then(Value::as_i64);
    let at = format!("{path}.endPort");
    match (number, end) {
        (Some(Value::String(_)), Some(end)) => {
            errors.invalid(at, &json!(end), "may not be specified when `port` is non-numeric");
        }
        (None, Some(end)) => {
            errors.invalid(at, &json!(end), "may not be specified when `port` is not specified");
        }
        _ => {}
    }
    let Some(number) = number else { return };
    pod::handlers::port_reference(number, &format!("{path}.port"), errors);
    if let (Some(start), Some(end)) = (number.as_i64(), end) {
        let at = format!("{path}.endPort");
        if end < start {
            errors.invalid(at.as_str(), &json!(start), "must be greater than or equal to `port`");
        }
        pod::handlers::port_reference(&json!(end), &at, errors);
    }
}

fn policy_peer(peer: &Value, strict: bool, path: &str, errors: &mut Errors) {
    label_selector(peer.get("podSelector"), &format!("{path}.podSelector"), errors);
    label_selector(peer.get("namespaceSelector"), &format!("{path}.namespaceSelector"), errors);
    let selectors = given(peer, "podSelector").is_some() || given(peer, "namespaceSelector").is_some();
    let block = given(peer, "ipBlock");
    if let Some(block) = block {
        ip_block(block, strict, &format!("{path}.ipBlock"), errors);
    }
    match (block, selectors) {
        (Some(_), true) => errors.forbidden(path, "may not specify both ipBlock and another peer"),
        (None, false) => errors.required(path, "must specify a peer"),
        _ => {}
    }
}

fn ip_block(block: &Value, strict: bool, path: &str, errors: &mut Errors) {
    let outer = text(block, "cidr");
    if outer.is_empty() {
        return errors.required(format!("{path}.cidr"), "");
    }
    let Some((outer_ip, outer_length)) = ip::range(outer, strict, &format!("{path}.cidr"), errors) else {
        return;
    };
    for (index, except) in items(block, "except").iter().filter_map(Value::as_str).enumerate() {
        let path = format!("{path}.except[{index}]");
        let Some((inner, length)) = ip::range(except, strict, &path, errors) else { continue };
        let within = inner.is_ipv4() == outer_ip.is_ipv4()
            && ip::network(inner, outer_length) == ip::network(outer_ip, outer_length);
        if !within || length <= outer_length {
            errors.invalid(path, &json!(except), "must be a strict subset of `cidr`");
        }
    }
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Pod-Selector", "string", 0, "Pods that it applies to"), AGE],
    cells: |object, now| {
        vec![cells::name(object), cells::selector(object, "/spec/podSelector"), cells::age(object, now)]
    },
};

fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(&new["spec"], direction).iter().enumerate() {
            for (number, peer) in items(rule, peers).iter().enumerate() {
                let Some(block) = given(peer, "ipBlock") else { continue };
                let path = format!("spec.{direction}[{index}].{peers}[{number}].ipBlock");
                warnings.extend(ip::range_warnings(text(block, "cidr"), &format!("{path}.cidr")));
                for (index, range) in items(block, "except").iter().filter_map(Value::as_str).enumerate() {
                    warnings.extend(ip::range_warnings(range, &format!("{path}.except[{index}]")));
                }
            }
        }
    }
    warnings
}
