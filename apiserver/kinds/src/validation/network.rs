//! Ingress, IngressClass, NetworkPolicy, IPAddress, ServiceCIDR.

use serde_json::{Value, json};

use super::{
    Errors, IMMUTABLE, container, given, ip, is_new, items, label_selector, metadata, names, same, service,
    text, with_metadata,
};
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;

const CLASS: &str = "kubernetes.io/ingress.class";
/// Longest name of the controller behind an IngressClass.
const CONTROLLER_LENGTH: usize = 250;

/// Errors of an Ingress.
pub fn ingress(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let default = given(spec, "defaultBackend");
    let rules = items(spec, "rules");
    if rules.is_empty() && default.is_none() {
        let shown = spec.get("rules").unwrap_or(&Value::Null);
        errors.invalid("spec", shown, "either `defaultBackend` or `rules` must be specified");
    }
    if let Some(default) = default {
        backend(default, "spec.defaultBackend", &mut errors);
    }
    for (index, rule) in rules.iter().enumerate() {
        ingress_rule(rule, &format!("spec.rules[{index}]"), &mut errors);
    }
    for (index, tls) in items(spec, "tls").iter().enumerate() {
        let path = format!("spec.tls[{index}]");
        for (index, host) in items(tls, "hosts").iter().filter_map(Value::as_str).enumerate() {
            host_name(host, &format!("{path}.hosts[{index}]"), &mut errors);
        }
        let secret = text(tls, "secretName");
        errors.name_if_set(&format!("{path}.secretName"), secret, names::dns_subdomain);
    }
    let class = text(spec, "ingressClassName");
    if given(spec, "ingressClassName").is_some() {
        errors.faults("spec.ingressClassName", class, names::dns_subdomain(class));
    }
    if let Some(annotation) = meta::annotation(object, CLASS)
        && is_new(object)
        && given(spec, "ingressClassName").is_some()
        && annotation != class
    {
        let detail = "must match `ingressClassName` when both are specified";
        errors.invalid(format!("annotations.{CLASS}"), &json!(annotation), detail);
    }
    errors.list()
}

/// Errors of a write of an Ingress' status. Arguments: new, old.
pub fn ingress_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let ingress = new["status"].get("loadBalancer").map_or(&[][..], |b| items(b, "ingress"));
    service::balancer_status(ingress, "status.loadBalancer.ingress", false, &mut errors);
    errors.list()
}

fn host_name(host: &str, path: &str, errors: &mut Errors) {
    if host.contains('*') {
        errors.faults(path, host, names::wildcard_domain(host));
    } else {
        errors.faults(path, host, names::dns_subdomain(host));
    }
}

fn ingress_rule(rule: &Value, path: &str, errors: &mut Errors) {
    let host = text(rule, "host");
    if !host.is_empty() {
        let path = format!("{path}.host");
        if ip::parse(host).is_some() {
            errors.invalid(path.as_str(), &json!(host), "must be a DNS name, not an IP address");
        }
        host_name(host, &path, errors);
    }
    let Some(http) = given(rule, "http") else { return };
    let paths = items(http, "paths");
    if paths.is_empty() {
        errors.required(format!("{path}.http.paths"), "");
    }
    for (index, entry) in paths.iter().enumerate() {
        ingress_path(entry, &format!("{path}.http.paths[{index}]"), errors);
    }
}

fn ingress_path(entry: &Value, path: &str, errors: &mut Errors) {
    let (kind, value) = (text(entry, "pathType"), text(entry, "path"));
    let at = format!("{path}.path");
    let mut refuse = |detail: &str| errors.invalid(at.as_str(), &json!(value), detail);
    match kind {
        "Exact" | "Prefix" => {
            if !value.starts_with('/') {
                refuse("must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|part| value.contains(**part)) {
                refuse(&format!("must not contain '{part}'"));
            }
            for end in ["/..", "/."].iter().filter(|end| value.ends_with(**end)) {
                refuse(&format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if !value.is_empty() && !value.starts_with('/') {
                refuse("must be an absolute path");
            }
        }
        "" if given(entry, "pathType").is_none() => {
            return errors.required(format!("{path}.pathType"), "pathType must be specified");
        }
        other => {
            let types = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.not_supported(format!("{path}.pathType"), &json!(other), &types);
        }
    }
    backend(&entry["backend"], &format!("{path}.backend"), errors);
}

fn backend(backend: &Value, path: &str, errors: &mut Errors) {
    match (given(backend, "service"), given(backend, "resource")) {
        (Some(_), Some(_)) => {
            errors.invalid(path, &json!(""), "cannot set both resource and service backends");
        }
        (None, None) => errors.invalid(path, &json!(""), "resource or service backend is required"),
        (Some(service), None) => {
            errors.name(&format!("{path}.service.name"), text(service, "name"), names::dns_label);
            let port = &service["port"];
            let (name, number) = (text(port, "name"), port["number"].as_i64().unwrap_or(0));
            let at = format!("{path}.service.port");
            match (name.is_empty(), number == 0) {
                (true, true) => errors.required(path, "port name or number is required"),
                (false, false) => {
                    errors.invalid(path, &json!(""), "cannot set both port name & port number");
                }
                (false, true) => container::port_reference(&json!(name), &format!("{at}.name"), errors),
                (true, false) => {
                    container::port_reference(&json!(number), &format!("{at}.number"), errors);
                }
            }
        }
        (None, Some(resource)) => object_reference(resource, &format!("{path}.resource"), errors),
    }
}

/// Group, kind and name of an object.
fn object_reference(reference: &Value, path: &str, errors: &mut Errors) {
    if let Some(group) = given(reference, "apiGroup").and_then(Value::as_str) {
        errors.faults(&format!("{path}.apiGroup"), group, names::dns_subdomain(group));
    }
    for field in ["kind", "name"] {
        let (path, value) = (format!("{path}.{field}"), text(reference, field));
        if value.is_empty() {
            errors.required(path, "");
        } else {
            errors.faults(&path, value, names::path_segment(value));
        }
    }
}

/// Errors of an IngressClass.
pub fn ingress_class(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let controller = text(spec, "controller");
    if controller.len() > CONTROLLER_LENGTH {
        errors.too_long("spec.controller", CONTROLLER_LENGTH);
    }
    errors.domain_path("spec.controller", controller);
    let Some(parameters) = given(spec, "parameters") else { return errors.list() };
    let path = "spec.parameters";
    object_reference(parameters, path, &mut errors);
    let namespace = given(parameters, "namespace").and_then(Value::as_str);
    let at = format!("{path}.namespace");
    match text(parameters, "scope") {
        "" if given(parameters, "scope").is_none() => errors.required(format!("{path}.scope"), ""),
        "Cluster" if namespace.is_some() => {
            errors.forbidden(at, "`parameters.scope` is set to 'Cluster'");
        }
        "Cluster" => {}
        "Namespace" => match namespace {
            None => errors.required(at, "`parameters.scope` is set to 'Namespace'"),
            Some(name) => errors.faults(&at, name, names::dns_label(name)),
        },
        other => errors.not_supported(format!("{path}.scope"), &json!(other), &["Cluster", "Namespace"]),
    }
    errors.list()
}

/// Errors of a change of an IngressClass, whose controller stays. Arguments: new, old.
pub fn ingress_class_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable_text("spec.controller", new, old);
    errors.extend(ingress_class(new));
    errors.list()
}

/// Errors of a NetworkPolicy.
pub fn policy(object: &Value) -> Vec<FieldError> {
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
    container::port_reference(number, &format!("{path}.port"), errors);
    if let (Some(start), Some(end)) = (number.as_i64(), end) {
        let at = format!("{path}.endPort");
        if end < start {
            errors.invalid(at.as_str(), &json!(start), "must be greater than or equal to `port`");
        }
        container::port_reference(&json!(end), &at, errors);
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

/// Returns the errors of an IPAddress, whose name is its address.
pub fn ip_address(object: &Value) -> Vec<FieldError> {
    let canonical = |name: &str| ip::canonical_fault(name).into_iter().collect();
    let mut errors = Errors::of(metadata::of_builtin(object, canonical));
    let Some(parent) = given(&object["spec"], "parentRef") else {
        errors.required("spec.parentRef", "");
        return errors.list();
    };
    let path = "spec.parentRef";
    errors.name_if_set(&format!("{path}.group"), text(parent, "group"), names::dns_subdomain);
    for field in ["resource", "name"] {
        errors.name(&format!("{path}.{field}"), text(parent, field), names::path_segment);
    }
    errors.name_if_set(&format!("{path}.namespace"), text(parent, "namespace"), names::path_segment);
    errors.list()
}

/// Validates that the parent of an IPAddress does not change. Arguments: new, old.
pub fn ip_address_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (now, was) = (new["spec"].get("parentRef"), old["spec"].get("parentRef"));
    if !same(now, was) {
        errors.invalid("spec.parentRef", now.unwrap_or(&Value::Null), IMMUTABLE);
    }
    errors.list()
}

/// Errors of a ServiceCIDR.
pub fn service_cidr(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let (spec, path) = (&object["spec"], "spec.cidrs");
    let ranges: Vec<&str> = items(spec, "cidrs").iter().filter_map(Value::as_str).collect();
    if ranges.is_empty() {
        errors.required(path, "at least one CIDR required");
        return errors.list();
    }
    if ranges.len() > 2 {
        errors.invalid(path, spec, "may only hold up to 2 values");
        return errors.list();
    }
    for (index, range) in ranges.iter().enumerate() {
        ip::canonical_range(range, &format!("{path}[{index}]"), &mut errors);
    }
    if let [one, other] = ranges[..] {
        let family = |range: &str| ip::parse_range(range).map(|(address, _)| address.is_ipv4());
        if family(one).zip(family(other)).is_some_and(|(one, other)| one == other) {
            let detail =
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
            errors.invalid(path, &spec["cidrs"], detail);
        }
    }
    errors.list()
}

/// The ranges of a ServiceCIDR stay; one may be joined by one of the other family. Arguments: new, old.
pub fn service_cidr_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let path = "spec.cidrs";
    let mut errors = Errors::default();
    let (now, before) = (items(&new["spec"], "cidrs"), items(&old["spec"], "cidrs"));
    match (before.len(), now.len()) {
        (a, b) if a == b => {
            for (index, (now, _)) in now.iter().zip(before).enumerate().filter(|(_, (now, was))| now != was) {
                errors.invalid(format!("{path}[{index}]"), now, IMMUTABLE);
            }
        }
        (1, 2) => {
            if now[0] != before[0] {
                errors.invalid(format!("{path}[0]"), &now[0], IMMUTABLE);
            }
            errors.extend(service_cidr(new).into_iter().filter(|error| error.field.starts_with(path)));
        }
        _ => errors.invalid(path, &new["spec"]["cidrs"], IMMUTABLE),
    }
    errors.list()
}
