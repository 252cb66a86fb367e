//! Endpoints and EndpointSlice.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Errors, items, names, text, with_metadata};
use crate::error::FieldError;

/// Limits of one slice.
const ENDPOINTS: usize = 1000;
const PORTS: usize = 20_000;
const ADDRESSES: usize = 100;

/// Errors of an EndpointSlice.
pub fn slice(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let ty = text(object, "addressType");
    errors.one_of("addressType", object.get("addressType"), &["FQDN", "IPv4", "IPv6"]);
    let endpoints = items(object, "endpoints");
    if endpoints.len() > ENDPOINTS {
        errors.too_many("endpoints", endpoints.len(), ENDPOINTS);
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let path = format!("endpoints[{index}]");
        let addresses = items(endpoint, "addresses");
        if addresses.is_empty() {
            errors.required(format!("{path}.addresses"), "must contain at least 1 address");
        } else if addresses.len() > ADDRESSES {
            errors.too_many(format!("{path}.addresses"), addresses.len(), ADDRESSES);
        }
        for (index, value) in addresses.iter().enumerate() {
            address(value, ty, &format!("{path}.addresses[{index}]"), &mut errors);
        }
        let node = text(endpoint, "nodeName");
        if !node.is_empty() {
            errors.faults(&format!("{path}.nodeName"), node, names::dns_subdomain(node));
        }
        let host = text(endpoint, "hostname");
        if !host.is_empty() {
            errors.faults(&format!("{path}.hostname"), host, names::dns_label(host));
        }
    }
    slice_ports(items(object, "ports"), &mut errors);
    errors.list()
}

fn address(value: &Value, ty: &str, path: &str, errors: &mut Errors) {
    let text = value.as_str().unwrap_or_default();
    match (ty, text.parse::<IpAddr>()) {
        ("IPv4", Ok(IpAddr::V4(_))) | ("IPv6", Ok(IpAddr::V6(_))) => special(text, path, errors),
        ("IPv4", _) => errors.invalid(path, value, "must be a valid IPv4 address"),
        ("IPv6", _) => errors.invalid(path, value, "must be a valid IPv6 address"),
        ("FQDN", _) => errors.faults(path, text, names::dns_subdomain(text)),
        _ => {}
    }
}

/// Addresses that cannot be an endpoint: traffic to them would stay on the sender's machine.
fn special(text: &str, path: &str, errors: &mut Errors) {
    let Ok(ip) = text.parse::<IpAddr>() else { return };
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let fault = if ip.is_unspecified() {
        "may not be unspecified (0.0.0.0 or ::)"
    } else if ip.is_loopback() {
        "may not be in the loopback range (127.0.0.0/8, ::1/128)"
    } else if link_local {
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
    } else {
        return;
    };
    errors.invalid(path, &json!(text), fault);
}

fn slice_ports(ports: &[Value], errors: &mut Errors) {
    if ports.len() > PORTS {
        errors.too_many("ports", ports.len(), PORTS);
    }
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("ports[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            errors.faults(&format!("{path}.name"), name, names::dns_label(name));
        }
        if !seen.insert(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        }
        errors.one_of(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
        if let Some(number) = port.get("port").and_then(Value::as_i64) {
            for fault in names::port_number(number) {
                errors.invalid(format!("{path}.port"), &json!(number), &fault);
            }
        }
    }
}

/// The address type of a slice stays. Arguments: new, old.
pub fn slice_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("addressType", new, old);
    errors.list()
}

/// Errors of an Endpoints object.
pub fn endpoints(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    for (index, subset) in items(object, "subsets").iter().enumerate() {
        let path = format!("subsets[{index}]");
        for list in ["addresses", "notReadyAddresses"] {
            for (index, entry) in items(subset, list).iter().enumerate() {
                let path = format!("{path}.{list}[{index}].ip");
                let ip = text(entry, "ip");
                if ip.parse::<IpAddr>().is_err() {
                    let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                    errors.invalid(path, &json!(ip), detail);
                } else {
                    special(ip, &path, &mut errors);
                }
            }
        }
        let ports = items(subset, "ports");
        for (index, port) in ports.iter().enumerate() {
            let path = format!("{path}.ports[{index}]");
            if text(port, "name").is_empty() && ports.len() > 1 {
                errors.required(format!("{path}.name"), "");
            }
            let number = port["port"].as_i64().unwrap_or(0);
            for fault in names::port_number(number) {
                errors.invalid(format!("{path}.port"), &json!(number), &fault);
            }
            errors.one_of(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
        }
    }
    errors.list()
}
