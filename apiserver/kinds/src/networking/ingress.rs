//! Ingresses.

use std::collections::BTreeSet;

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, given, is_new, items, names, text, with_metadata};
use serde_json::{Value, json};

use crate::core::{pod, service};
use crate::kind::Kind;
use crate::shared::cells::NONE;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::{cells, ip};

pub(crate) static KIND: Kind = Kind {
    group: "networking.k8s.io",
    plural: "ingresses",
    short_names: &["ing"],
    prefix: "ingress",
    generation: true,
    validate,
    validate_status: Some(validate_status),
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

const CLASS: &str = "kubernetes.io/ingress.class";

/// Errors of an Ingress.
fn validate(object: &Value) -> Vec<FieldError> {
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
fn validate_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let ingress = new["status"].get("loadBalancer").map_or(&[][..], |b| items(b, "ingress"));
    service::validation::balancer_status(ingress, "status.loadBalancer.ingress", false, &mut errors);
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
                (false, true) => pod::handlers::port_reference(&json!(name), &format!("{at}.name"), errors),
                (true, false) => {
                    pod::handlers::port_reference(&json!(number), &format!("{at}.number"), errors);
                }
            }
        }
        (None, Some(resource)) => object_reference(resource, &format!("{path}.resource"), errors),
    }
}

/// Group, kind and name of an object.
pub(crate) fn object_reference(reference: &Value, path: &str, errors: &mut Errors) {
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

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Class", "string", 0, "Which controller implements it"),
        ("Hosts", "string", 0, "Hosts that it answers for"),
        ("Address", "string", 0, "Where it is reached"),
        ("Ports", "string", 0, "Ports on which it listens"),
        AGE,
    ],
    cells: |object, now| {
        let addresses: BTreeSet<&str> = meta::list(object, "/status/loadBalancer/ingress")
            .iter()
            .map(|i| {
                if meta::text(i, "/ip").is_empty() {
                    meta::text(i, "/hostname")
                } else {
                    meta::text(i, "/ip")
                }
            })
            .filter(|a| !a.is_empty())
            .collect();
        let tls = !meta::list(object, "/spec/tls").is_empty();
        vec![
            cells::name(object),
            cells::text_or(object, "/spec/ingressClassName", NONE),
            json!(hosts(object)),
            json!(addresses.into_iter().collect::<Vec<_>>().join(",")),
            json!(if tls { "80, 443" } else { "80" }),
            cells::age(object, now),
        ]
    },
};

/// So many hosts are shown; of what comes behind them the rules are counted, whether they name a host
/// or not.
const HOSTS: usize = 3;

fn hosts(object: &Value) -> String {
    let rules = meta::list(object, "/spec/rules");
    let (mut shown, mut more) = (Vec::new(), false);
    for rule in rules {
        more |= shown.len() == HOSTS;
        let host = meta::text(rule, "/host");
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match shown.join(",") {
        none if none.is_empty() => "*".to_owned(),
        some if more => format!("{some} + {} more...", rules.len() - HOSTS),
        all => all,
    }
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    const CLASS: &str = "kubernetes.io/ingress.class";
    let warning = meta::annotation(new, CLASS)
        .filter(|_| old.is_none())
        .map(|_| format!("annotation \"{CLASS}\" is deprecated, please use 'spec.ingressClassName' instead"));
    warning.into_iter().collect()
}
