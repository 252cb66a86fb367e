//! Endpoints and EndpointSlice.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Errors, ip, items, names, same, text, with_metadata};
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;

/// Limits of one slice.
const ENDPOINTS: usize = 1000;
const PORTS: usize = 20_000;
const ADDRESSES: usize = 100;
const TOPOLOGY: usize = 16;
const HINTS: usize = 8;

/// Errors of an EndpointSlice.
pub fn slice(object: &Value) -> Vec<FieldError> {
    judged_slice(object, true)
}

/// Errors of a changed EndpointSlice: endpoints that stay are not judged again. Arguments: new, old.
pub fn slice_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let judged = !same(new.get("endpoints"), old.get("endpoints"));
    let mut errors = Errors::of(judged_slice(new, judged));
    errors.immutable("addressType", new, old);
    errors.list()
}

fn judged_slice(object: &Value, all: bool) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let ty = text(object, "addressType");
    errors.one_of("addressType", object.get("addressType"), &["FQDN", "IPv4", "IPv6"]);
    slice_ports(items(object, "ports"), &mut errors);
    let endpoints = if all { items(object, "endpoints") } else { &[] };
    if endpoints.len() > ENDPOINTS {
        errors.too_many("endpoints", endpoints.len(), ENDPOINTS);
    } else {
        for (index, endpoint) in endpoints.iter().enumerate() {
            self::endpoint(endpoint, ty, &format!("endpoints[{index}]"), &mut errors);
        }
    }
    errors.list()
}

fn endpoint(endpoint: &Value, ty: &str, path: &str, errors: &mut Errors) {
    let addresses = items(endpoint, "addresses");
    if addresses.is_empty() {
        errors.required(format!("{path}.addresses"), "must contain at least 1 address");
    } else if addresses.len() > ADDRESSES {
        errors.too_many(format!("{path}.addresses"), addresses.len(), ADDRESSES);
    }
    for (index, value) in addresses.iter().filter_map(Value::as_str).enumerate() {
        address(value, ty, &format!("{path}.addresses[{index}]"), errors);
    }
    errors.name_if_given(&format!("{path}.nodeName"), endpoint.get("nodeName"), names::dns_subdomain);
    let topology = endpoint.get("deprecatedTopology").and_then(Value::as_object).map_or(0, |t| t.len());
    if topology > TOPOLOGY {
        errors.too_many(format!("{path}.deprecatedTopology"), topology, TOPOLOGY);
    }
    errors.name_if_given(&format!("{path}.hostname"), endpoint.get("hostname"), names::dns_label);
    let zones: fn(&str) -> names::Faults = names::label_value;
    for (list, grammar) in [("forZones", zones), ("forNodes", names::dns_subdomain)] {
        let hints = endpoint.get("hints").map_or(&[][..], |h| items(h, list));
        let path = format!("{path}.hints.{list}");
        if hints.len() > HINTS {
            errors.too_many(path.as_str(), hints.len(), HINTS);
        }
        let mut seen = BTreeSet::new();
        for (index, hint) in hints.iter().enumerate() {
            let (path, name) = (format!("{path}[{index}].name"), text(hint, "name"));
            if !seen.insert(name) {
                errors.duplicate(path.as_str(), &json!(name));
            }
            errors.faults(&path, name, grammar(name));
        }
    }
}

fn address(text: &str, ty: &str, path: &str, errors: &mut Errors) {
    let parsed = ip::parse(text);
    match (ty, parsed) {
        ("IPv4", Some(ip @ IpAddr::V4(_))) | ("IPv6", Some(ip @ IpAddr::V6(_))) => {
            ip::address(text, true, path, errors);
            ip::not_special(ip, text, path, errors);
        }
        ("IPv4", _) => errors.invalid(path, &json!(text), "must be a valid IPv4 address"),
        ("IPv6", _) => errors.invalid(path, &json!(text), "must be a valid IPv6 address"),
        ("FQDN", _) => domain(text, path, errors),
        _ => {}
    }
}

/// A domain of two labels or more; a dot at the end is let pass.
fn domain(text: &str, path: &str, errors: &mut Errors) {
    if text.is_empty() {
        return errors.required(path, "");
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let faults = names::dns_subdomain(name);
    let labels: Vec<&str> = name.split('.').collect();
    if !faults.is_empty() {
        errors.invalid(path, &json!(name), &faults.join(","));
    } else if labels.len() < 2 {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.invalid(path, &json!(name), detail);
    } else {
        let wrong = labels.into_iter().find(|label| !names::dns_label(label).is_empty());
        if let Some(label) = wrong {
            errors.invalid(path, &json!(label), &names::dns_label(label).join(","));
        }
    }
}

fn slice_ports(ports: &[Value], errors: &mut Errors) {
    if ports.len() > PORTS {
        return errors.too_many("ports", ports.len(), PORTS);
    }
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("ports[{index}]");
        let name = text(port, "name");
        errors.name_if_set(&format!("{path}.name"), name, names::dns_label);
        if !seen.insert(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        }
        errors.one_of_given(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
        errors.name_if_given(&format!("{path}.appProtocol"), port.get("appProtocol"), names::qualified_name);
    }
}

/// Errors of a changed Endpoints object: subsets that stay are not judged again. Arguments: new, old.
pub fn endpoints_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    if same(new.get("subsets"), old.get("subsets")) { with_metadata(new).list() } else { endpoints(new) }
}

/// Errors of an Endpoints object.
pub fn endpoints(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    for (index, subset) in items(object, "subsets").iter().enumerate() {
        let path = format!("subsets[{index}]");
        let lists = ["addresses", "notReadyAddresses"];
        if lists.iter().all(|list| items(subset, list).is_empty()) {
            errors.required(path.as_str(), "must specify `addresses` or `notReadyAddresses`");
        }
        for list in lists {
            for (index, entry) in items(subset, list).iter().enumerate() {
                endpoint_address(entry, &format!("{path}.{list}[{index}]"), &mut errors);
            }
        }
        let ports = items(subset, "ports");
        for (index, port) in ports.iter().enumerate() {
            let path = format!("{path}.ports[{index}]");
            let name = text(port, "name");
            if name.is_empty() && ports.len() > 1 {
                errors.required(format!("{path}.name"), "");
            }
            errors.name_if_set(&format!("{path}.name"), name, names::dns_label);
            let number = port["port"].as_i64().unwrap_or(0);
            for fault in names::port_number(number) {
                errors.invalid(format!("{path}.port"), &json!(number), &fault);
            }
            errors.one_of(&format!("{path}.protocol"), port.get("protocol"), &["SCTP", "TCP", "UDP"]);
            let protocol = port.get("appProtocol");
            errors.name_if_given(&format!("{path}.appProtocol"), protocol, names::qualified_name);
        }
    }
    errors.list()
}

fn endpoint_address(entry: &Value, path: &str, errors: &mut Errors) {
    let (address, at) = (text(entry, "ip"), format!("{path}.ip"));
    let parsed = ip::address(address, true, &at, errors);
    errors.name_if_set(&format!("{path}.hostname"), text(entry, "hostname"), names::dns_label);
    errors.name_if_given(&format!("{path}.nodeName"), entry.get("nodeName"), names::dns_subdomain);
    if let Some(parsed) = parsed {
        ip::not_special(parsed, address, &at, errors);
    } else {
        // Two rules of Kubernetes each report it.
        errors.invalid(at, &json!(address), "must be a valid IP address");
    }
}
