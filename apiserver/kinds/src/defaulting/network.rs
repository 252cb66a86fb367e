//! NetworkPolicy, IngressClass.

use serde_json::{Value, json};

use super::{each, fill_absent, is_empty, object, with_spec};

/// Defaults of a NetworkPolicy.
pub fn policy(value: &mut Value) {
    with_spec(value, |spec| {
        for rules in ["ingress", "egress"] {
            each(spec, rules, |rule| each(rule, "ports", |port| fill_absent(port, "protocol", "TCP")));
        }
        if is_empty(spec, "policyTypes") {
            let egress = !is_empty(spec, "egress");
            let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            spec.insert("policyTypes".into(), types);
        }
    });
}

/// Defaults of an IngressClass.
pub fn ingress_class(value: &mut Value) {
    with_spec(value, |spec| {
        if let Some(parameters) = object(spec, "parameters") {
            fill_absent(parameters, "scope", "Cluster");
        }
    });
}
