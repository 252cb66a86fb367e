//! EndpointSlices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::names::dns_subdomain;
use apiserver_schema::validation::{Errors, items, names, same, text, with_metadata};
use serde_json::{Value, json};

use crate::core::endpoints;
use crate::kind::Kind;
use crate::shared::cells::UNSET;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{each_object, fill_absent};
use crate::shared::{cells, ip};

pub(crate) static KIND: Kind = Kind {
    group: "discovery.k8s.io",
    plural: "endpointslices",
    generation: true,
    counted: Some("labels"),
    default,
    prepare_create,
    prepare_update,
    validate,
    validate_change: Some(validate_change),
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of an EndpointSlice.
pub(crate) fn default(value: &mut Value) {
    if let Value::Object(map) = value {
        each_object(map, "ports", |port| {
            fill_absent(port, "protocol", "TCP");
            if !port.contains_key("name") {
                port.insert("name".into(), "".into());
            }
        });
    }
}

/// Endpoints that change lose their topology, of which the name of a node that the old ones had moves to its own
/// field.
pub(crate) fn prepare_update(value: &mut Value, old: &Value) {
    const HOSTNAME: &str = "kubernetes.io/hostname";
    fn node(endpoint: &Value) -> Option<&str> {
        endpoint["deprecatedTopology"][HOSTNAME].as_str()
    }
    if value.get("endpoints") == old.get("endpoints") {
        return;
    }
    let before = old["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    for endpoint in value.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        let known =
            |name: &&str| before.iter().any(|old| node(old) == Some(name)) && dns_subdomain(name).is_empty();
        let kept = node(endpoint).filter(known).map(str::to_owned);
        let Value::Object(map) = endpoint else { continue };
        map.remove("deprecatedTopology");
        if let Some(name) = kept {
            fill_absent(map, "nodeName", name);
        }
    }
}

/// Endpoints of a new EndpointSlice have no topology but their zone and node: what went before is for
/// slices of before.
fn prepare_create(value: &mut Value) {
    if let Value::Object(map) = value {
        each_object(map, "endpoints", |endpoint| {
            endpoint.remove("deprecatedTopology");
        });
    }
}

/// Limits of one slice.
const ENDPOINTS: usize = 1000;

const PORTS: usize = 20_000;

const ADDRESSES: usize = 100;

const TOPOLOGY: usize = 16;

const HINTS: usize = 8;

/// Errors of an EndpointSlice.
fn validate(object: &Value) -> Vec<FieldError> {
    common_errors(object, true)
}

/// Errors of a changed EndpointSlice: endpoints that stay are not validated again. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let changed = !same(new.get("endpoints"), old.get("endpoints"));
    let mut errors = Errors::of(common_errors(new, changed));
    errors.immutable("addressType", new, old);
    errors.list()
}

fn common_errors(object: &Value, all: bool) -> Vec<FieldError> {
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

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("AddressType", "string", 0, "IPv4, IPv6 or FQDN"),
        ("Ports", "string", 0, "Ports of all endpoints"),
        ("Endpoints", "string", 0, "Addresses"),
        AGE,
    ],
    cells: |object, now| {
        let port = |port: &Value| match port["port"].as_i64() {
            Some(number) => number.to_string(),
            None if port.get("name").is_none_or(Value::is_null) => "*".to_owned(),
            None => meta::text(port, "/name").to_owned(),
        };
        let ports: Vec<String> = meta::list(object, "/ports").iter().map(port).collect();
        let addresses: Vec<String> = meta::list(object, "/endpoints")
            .iter()
            .flat_map(|e| meta::list(e, "/addresses"))
            .filter_map(|a| a.as_str().map(str::to_owned))
            .collect();
        vec![
            cells::name(object),
            cells::text_or(object, "/addressType", ""),
            json!(endpoints::shortened(&ports, UNSET)),
            json!(endpoints::shortened(&addresses, UNSET)),
            cells::age(object, now),
        ]
    },
};

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    if text(new, "addressType") == "FQDN" && old.is_none() {
        warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        return warnings;
    }
    for (index, endpoint) in items(new, "endpoints").iter().enumerate() {
        for (number, address) in items(endpoint, "addresses").iter().filter_map(Value::as_str).enumerate() {
            let path = format!("endpoints[{index}].addresses[{number}]");
            warnings.extend(ip::address_warning(address, &path));
        }
    }
    warnings
}
