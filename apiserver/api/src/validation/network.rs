//! Ingress, NetworkPolicy, IPAddress, ServiceCIDR.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Errors, container, items, label_selector, metadata, names, text, with_metadata};
use crate::error::FieldError;

/// Errors of an Ingress.
pub fn ingress(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let default = spec.get("defaultBackend").filter(|b| !b.is_null());
    if items(spec, "rules").is_empty() && default.is_none() {
        errors.invalid("spec", spec, "either `defaultBackend` or `rules` must be specified");
    }
    if let Some(default) = default {
        backend(default, "spec.defaultBackend", &mut errors);
    }
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        let path = format!("spec.rules[{index}]");
        let host = text(rule, "host");
        if !host.is_empty() {
            if host.parse::<IpAddr>().is_ok() {
                errors.invalid(format!("{path}.host"), &json!(host), "must be a DNS name, not an IP address");
            }
            let name = host.strip_prefix("*.").unwrap_or(host);
            errors.faults(&format!("{path}.host"), host, names::dns_subdomain(name));
        }
        let Some(http) = rule.get("http").filter(|h| !h.is_null()) else { continue };
        let paths = items(http, "paths");
        if paths.is_empty() {
            errors.required(format!("{path}.http.paths"), "");
        }
        for (index, entry) in paths.iter().enumerate() {
            ingress_path(entry, &format!("{path}.http.paths[{index}]"), &mut errors);
        }
    }
    errors.list()
}

fn ingress_path(entry: &Value, path: &str, errors: &mut Errors) {
    let types = ["Exact", "ImplementationSpecific", "Prefix"];
    let ty = text(entry, "pathType");
    if ty.is_empty() {
        errors.required(format!("{path}.pathType"), "pathType must be specified");
    } else {
        errors.one_of(&format!("{path}.pathType"), entry.get("pathType"), &types);
    }
    let value = text(entry, "path");
    let must_be_absolute = matches!(ty, "Exact" | "Prefix") || !value.is_empty();
    if must_be_absolute && !value.starts_with('/') {
        errors.invalid(format!("{path}.path"), &json!(value), "must be an absolute path");
    }
    backend(&entry["backend"], &format!("{path}.backend"), errors);
}

fn backend(backend: &Value, path: &str, errors: &mut Errors) {
    let service = backend.get("service").filter(|s| !s.is_null());
    let resource = backend.get("resource").filter(|s| !s.is_null());
    match (service, resource) {
        (Some(_), Some(_)) => {
            errors.invalid(path, &json!(""), "cannot set both resource and service backends");
        }
        (None, None) => errors.required(path, "resource or service backend is required"),
        (Some(service), None) => {
            let path = format!("{path}.service");
            let name = text(service, "name");
            if name.is_empty() {
                errors.required(format!("{path}.name"), "");
            } else {
                errors.faults(&format!("{path}.name"), name, names::dns_1035_label(name));
            }
            let port = &service["port"];
            let (name, number) = (text(port, "name"), port["number"].as_i64().unwrap_or(0));
            match (name.is_empty(), number == 0) {
                (true, true) => errors.required(path, "port name or number is required"),
                (false, false) => errors.invalid(path, port, "cannot set both port name & port number"),
                (false, true) => {
                    container::port_reference(&json!(name), &format!("{path}.port.name"), errors)
                }
                (true, false) => {
                    container::port_reference(&json!(number), &format!("{path}.port.number"), errors)
                }
            }
        }
        (None, Some(_)) => {}
    }
}

/// Errors of a NetworkPolicy.
pub fn policy(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    label_selector(spec.get("podSelector"), "spec.podSelector", &mut errors);
    for (index, ty) in items(spec, "policyTypes").iter().enumerate() {
        errors.one_of(&format!("spec.policyTypes[{index}]"), Some(ty), &["Egress", "Ingress"]);
    }
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(spec, direction).iter().enumerate() {
            let path = format!("spec.{direction}[{index}]");
            for (index, port) in items(rule, "ports").iter().enumerate() {
                policy_port(port, &format!("{path}.ports[{index}]"), &mut errors);
            }
            for (index, peer) in items(rule, peers).iter().enumerate() {
                policy_peer(peer, &format!("{path}.{peers}[{index}]"), &mut errors);
            }
        }
    }
    errors.list()
}

fn policy_port(port: &Value, path: &str, errors: &mut Errors) {
    errors.one_of_if_set(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
    if let Some(number) = port.get("port") {
        container::port_reference(number, &format!("{path}.port"), errors);
    }
    if let Some(end) = port.get("endPort").and_then(Value::as_i64) {
        match port.get("port").and_then(Value::as_i64) {
            None => errors.required(format!("{path}.port"), "must be specified when `endPort` is specified"),
            Some(start) if end < start => {
                errors.invalid(
                    format!("{path}.endPort"),
                    &json!(end),
                    "must be greater than or equal to `port`",
                );
            }
            Some(_) => {}
        }
    }
}

fn policy_peer(peer: &Value, path: &str, errors: &mut Errors) {
    label_selector(peer.get("podSelector"), &format!("{path}.podSelector"), errors);
    label_selector(peer.get("namespaceSelector"), &format!("{path}.namespaceSelector"), errors);
    let selectors = peer.get("podSelector").is_some() || peer.get("namespaceSelector").is_some();
    match peer.get("ipBlock") {
        Some(_) if selectors => errors.forbidden(path, "may not specify both ipBlock and another peer"),
        Some(block) => {
            let path = format!("{path}.ipBlock");
            cidr(&block["cidr"], &format!("{path}.cidr"), errors);
            for (index, except) in items(block, "except").iter().enumerate() {
                cidr(except, &format!("{path}.except[{index}]"), errors);
            }
        }
        None if !selectors => errors.required(path, "must specify a peer"),
        None => {}
    }
}

fn cidr(value: &Value, path: &str, errors: &mut Errors) {
    let text = value.as_str().unwrap_or_default();
    if text.is_empty() {
        errors.required(path, "");
    } else if !text.contains('/') || text.parse::<ipnetwork::IpNetwork>().is_err() {
        errors.invalid(path, value, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
    }
}

/// Errors of an IPAddress, which is named after its address.
pub fn ip_address(object: &Value) -> Vec<FieldError> {
    let canonical = |name: &str| match name.parse::<IpAddr>() {
        Ok(ip) if ip.to_string() == name => Vec::new(),
        _ => vec!["must be a valid IP address in canonical form".to_owned()],
    };
    let mut errors = Errors(metadata::validate(object, canonical));
    let parent = &object["spec"]["parentRef"];
    if parent.is_null() {
        errors.required("spec.parentRef", "");
    } else if text(parent, "name").is_empty() {
        errors.required("spec.parentRef.name", "");
    }
    errors.list()
}

/// Errors of a ServiceCIDR.
pub fn service_cidr(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let ranges = items(&object["spec"], "cidrs");
    if ranges.is_empty() {
        errors.required("spec.cidrs", "at least one CIDR required");
    } else if ranges.len() > 2 {
        errors.invalid("spec", &json!(ranges), "may only hold up to 2 values");
    }
    for (index, range) in ranges.iter().enumerate() {
        cidr(range, &format!("spec.cidrs[{index}]"), &mut errors);
    }
    errors.list()
}

/// What an IPAddress or ServiceCIDR says stays. Arguments: new, old.
pub fn spec_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("spec", new, old);
    errors.list()
}
