//! DeviceClass, ResourceClaim, ResourceClaimTemplate: who asks for devices, and for which.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::admission::{expression, reading};
use super::shared::{at_most, distinct, required_name};
use super::{
    Errors, IMMUTABLE, items, metadata, names, same, scheduling, subdomain_name, text, with_metadata,
};
use crate::error::FieldError;
use crate::meta;
use crate::registry::Written;

const MOST: usize = 32;
const MOST_ALTERNATIVES: usize = 8;
const MOST_TOLERATIONS: usize = 16;
const MOST_RESERVED: usize = 256;
/// Longest driver name, bytes.
const DRIVER: usize = 63;
/// Longest expression and longest opaque parameters, bytes.
const OPAQUE: usize = 10 * 1024;
const REFERENCE: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// Errors of a DeviceClass.
pub fn class(object: &Value) -> Vec<FieldError> {
    reading(|| class_errors(object))
}

fn class_errors(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    selectors(spec, "spec", &mut errors);
    at_most(spec, "config", "spec", MOST, &mut errors);
    for (index, config) in items(spec, "config").iter().enumerate() {
        configuration(config, &format!("spec.config[{index}]"), &mut errors);
    }
    if let Some(name) = spec.get("extendedResourceName").and_then(Value::as_str) {
        let native = !name.contains('/') || name.contains("kubernetes.io/") || name.starts_with("requests.");
        if native || !names::qualified_name(&format!("requests.{name}")).is_empty() {
            errors.invalid(
                "spec.extendedResourceName",
                &json!(name),
                "must be a valid extended resource name",
            );
        }
    }
    errors.list()
}

/// Errors of a ResourceClaim.
pub fn claim(object: &Value) -> Vec<FieldError> {
    reading(|| claim_errors(object))
}

fn claim_errors(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    spec_errors(&object["spec"], "spec", &mut errors);
    errors.list()
}

/// Errors of a change of a ResourceClaim: what it asks for stays, and so does what it was given.
/// Arguments: new, old.
pub fn claim_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    if written == Written::Status {
        let mut errors = Errors::default();
        claim_status(new, &old["status"], &mut errors);
        return errors.list();
    }
    let mut errors = Errors(subdomain_name(new));
    errors.immutable("spec", new, old);
    errors.list()
}

/// Errors of a ResourceClaimTemplate.
pub fn template(object: &Value) -> Vec<FieldError> {
    reading(|| template_errors(object))
}

fn template_errors(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let mut found = Vec::new();
    metadata::labels(spec.pointer("/metadata/labels"), "spec.metadata.labels", &mut found);
    metadata::annotations(spec.pointer("/metadata/annotations"), "spec.metadata.annotations", &mut found);
    errors.extend(found);
    spec_errors(&spec["spec"], "spec.spec", &mut errors);
    errors.list()
}

/// Errors of a change of a ResourceClaimTemplate. Arguments: new, old.
pub fn template_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors(subdomain_name(new));
    errors.immutable("spec", new, old);
    errors.list()
}

/// Names of requests, and of the alternatives in each.
type Requests<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

fn requests_of(spec: &Value) -> Requests<'_> {
    let alternatives =
        |request| items(request, "firstAvailable").iter().map(|sub| text(sub, "name")).collect();
    items(&spec["devices"], "requests").iter().map(|r| (text(r, "name"), alternatives(r))).collect()
}

fn spec_errors(spec: &Value, path: &str, errors: &mut Errors) {
    let (devices, path) = (&spec["devices"], format!("{path}.devices"));
    let known = requests_of(spec);
    let requests = items(devices, "requests");
    for field in ["requests", "constraints", "config"] {
        at_most(devices, field, &path, MOST, errors);
    }
    for (index, one) in requests.iter().enumerate() {
        request(one, &format!("{path}.requests[{index}]"), errors);
    }
    distinct(requests, "name", &format!("{path}.requests"), errors);
    for (index, constraint) in items(devices, "constraints").iter().enumerate() {
        let path = format!("{path}.constraints[{index}]");
        references(constraint, &path, &known, errors);
        let attribute = |field: &str| constraint.get(field).and_then(Value::as_str);
        match (attribute("matchAttribute"), attribute("distinctAttribute")) {
            (Some(name), _) => attribute_name(name, &format!("{path}.matchAttribute"), errors),
            (None, Some(name)) => attribute_name(name, &format!("{path}.distinctAttribute"), errors),
            (None, None) => errors.required(format!("{path}.matchAttribute"), ""),
        }
    }
    for (index, config) in items(devices, "config").iter().enumerate() {
        let path = format!("{path}.config[{index}]");
        references(config, &path, &known, errors);
        configuration(config, &path, errors);
    }
}

fn request(request: &Value, path: &str, errors: &mut Errors) {
    required_name(request, "name", path, names::dns_label, errors);
    let exactly = request.get("exactly").filter(|e| !e.is_null());
    let alternatives = items(request, "firstAvailable");
    let needed = "exactly one of `exactly` or `firstAvailable` is required";
    match (exactly, alternatives.is_empty()) {
        (None, true) => errors.required(path, needed),
        (Some(_), false) => {
            errors.invalid(path, &Value::Null, &format!("{needed}, but multiple fields are set"));
        }
        (Some(exactly), true) => device(exactly, &format!("{path}.exactly"), errors),
        (None, false) => {
            at_most(request, "firstAvailable", path, MOST_ALTERNATIVES, errors);
            for (index, alternative) in alternatives.iter().enumerate() {
                let path = format!("{path}.firstAvailable[{index}]");
                required_name(alternative, "name", &path, names::dns_label, errors);
                device(alternative, &path, errors);
            }
            distinct(alternatives, "name", &format!("{path}.firstAvailable"), errors);
        }
    }
}

fn device(request: &Value, path: &str, errors: &mut Errors) {
    required_name(request, "deviceClassName", path, names::dns_subdomain, errors);
    selectors(request, path, errors);
    let count = request["count"].as_i64().unwrap_or(0);
    let at = format!("{path}.count");
    match text(request, "allocationMode") {
        "All" if count != 0 => {
            errors.invalid(at, &json!(count), "must not be specified when allocationMode is 'All'");
        }
        "ExactCount" if count <= 0 => errors.invalid(at, &json!(count), "must be greater than zero"),
        "All" | "ExactCount" => {}
        other => {
            let path = format!("{path}.allocationMode");
            errors.extend([FieldError::not_supported(path, &json!(other), &["All", "ExactCount"])]);
        }
    }
    at_most(request, "tolerations", path, MOST_TOLERATIONS, errors);
    for (index, one) in items(request, "tolerations").iter().enumerate() {
        toleration(one, &format!("{path}.tolerations[{index}]"), errors);
    }
}

fn toleration(toleration: &Value, path: &str, errors: &mut Errors) {
    let (key, value) = (text(toleration, "key"), text(toleration, "value"));
    if !key.is_empty() {
        errors.faults(&format!("{path}.key"), key, names::qualified_name(key));
    }
    match text(toleration, "operator") {
        "Exists" if !value.is_empty() => {
            let detail = "must be empty for operator `Exists`";
            errors.invalid(format!("{path}.value"), &json!(value), detail);
        }
        "Equal" => errors.faults(&format!("{path}.value"), value, names::label_value(value)),
        "Exists" => {}
        "" => errors.required(format!("{path}.operator"), ""),
        other => {
            let path = format!("{path}.operator");
            errors.extend([FieldError::not_supported(path, &json!(other), &["Equal", "Exists"])]);
        }
    }
    if key.is_empty() && text(toleration, "operator") == "Equal" {
        let detail = "must be `Exists` when `key` is empty";
        errors.invalid(format!("{path}.operator"), &json!("Equal"), detail);
    }
    let effects = ["NoExecute", "NoSchedule", "None"];
    errors.one_of_if_set(&format!("{path}.effect"), toleration.get("effect"), &effects);
}

fn selectors(holder: &Value, path: &str, errors: &mut Errors) {
    at_most(holder, "selectors", path, MOST, errors);
    for (index, selector) in items(holder, "selectors").iter().enumerate() {
        let path = format!("{path}.selectors[{index}].cel");
        let Some(cel) = selector.get("cel").filter(|c| !c.is_null()) else {
            errors.required(path, "");
            continue;
        };
        let (source, path) = (text(cel, "expression"), format!("{path}.expression"));
        if source.len() > OPAQUE {
            errors.too_long(path, OPAQUE);
        } else {
            expression(source, &path, "", errors, crate::cel::device);
        }
    }
}

/// Requests that a constraint or a configuration is about; none means all.
fn references(holder: &Value, path: &str, known: &Requests<'_>, errors: &mut Errors) {
    at_most(holder, "requests", path, MOST, errors);
    let mut seen = BTreeSet::new();
    for (index, name) in items(holder, "requests").iter().filter_map(Value::as_str).enumerate() {
        let path = format!("{path}.requests[{index}]");
        reference(name, &path, known, errors);
        if !seen.insert(name) {
            errors.duplicate(path, &json!(name));
        }
    }
}

fn reference(name: &str, path: &str, known: &Requests<'_>, errors: &mut Errors) {
    let (request, alternative) = name.split_once('/').map_or((name, None), |(a, b)| (a, Some(b)));
    let found = known.get(request).is_some_and(|subs| alternative.is_none_or(|sub| subs.contains(sub)));
    errors.faults(path, request, names::dns_label(request));
    if !found {
        errors.invalid(path, &json!(name), REFERENCE);
    }
}

fn configuration(config: &Value, path: &str, errors: &mut Errors) {
    let path = format!("{path}.opaque");
    let Some(opaque) = config.get("opaque").filter(|o| !o.is_null()) else {
        errors.required(path, "");
        return;
    };
    driver_name(text(opaque, "driver"), &format!("{path}.driver"), errors);
    let path = format!("{path}.parameters");
    match opaque.get("parameters").filter(|p| !p.is_null()) {
        None => errors.required(path, ""),
        Some(parameters) if !parameters.is_object() => {
            errors.invalid(path, &json!("<value omitted>"), "parameters must be a valid JSON object");
        }
        Some(parameters) if parameters.to_string().len() > OPAQUE => errors.too_long(path, OPAQUE),
        Some(_) => {}
    }
}

/// The name of a driver: a DNS subdomain of 63 bytes, whatever its case.
pub(super) fn driver_name(name: &str, path: &str, errors: &mut Errors) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > DRIVER {
        errors.too_long(path, DRIVER);
    }
    errors.faults(path, name, names::dns_subdomain(&name.to_lowercase()));
}

/// The name of a pool: DNS subdomains with slashes between.
pub(super) fn pool_name(name: &str, path: &str, errors: &mut Errors) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > 253 {
        errors.too_long(path, 253);
    }
    for part in name.split('/') {
        errors.faults(path, part, names::dns_subdomain(part));
    }
}

/// `domain/identifier`, as constraints name attributes.
fn attribute_name(name: &str, path: &str, errors: &mut Errors) {
    if name.is_empty() {
        errors.required(path, "name required");
    } else if let Some((domain, _)) = name.split_once('/') {
        if domain.is_empty() {
            errors.required(path, "the domain must not be empty");
        }
        qualified(name, path, errors);
    } else {
        errors.invalid(path, &json!(name), "must include a domain");
    }
}

/// `identifier` or `domain/identifier`, as slices name attributes and capacities.
pub(super) fn qualified(name: &str, path: &str, errors: &mut Errors) {
    let (domain, identifier) = name.split_once('/').map_or(("", name), |(domain, rest)| (domain, rest));
    if !domain.is_empty() {
        if domain.len() > 63 {
            errors.too_long(path, 63);
        }
        errors.faults(path, domain, names::dns_subdomain(domain));
    }
    if identifier.is_empty() {
        errors.required(path, "the name must not be empty");
        return;
    }
    if identifier.len() > 32 {
        errors.too_long(path, 32);
    }
    let good = identifier.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && identifier.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !good {
        let detail = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
                      alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for \
                      validation is '[A-Za-z_][A-Za-z0-9_]*')";
        errors.invalid(path, &json!(identifier), detail);
    }
}

fn claim_status(claim: &Value, old: &Value, errors: &mut Errors) {
    let status = &claim["status"];
    let reserved = items(status, "reservedFor");
    at_most(status, "reservedFor", "status", MOST_RESERVED, errors);
    for (index, consumer) in reserved.iter().enumerate() {
        for field in ["resource", "name", "uid"] {
            if text(consumer, field).is_empty() {
                errors.required(format!("status.reservedFor[{index}].{field}"), "");
            }
        }
    }
    distinct(reserved, "uid", "status.reservedFor", errors);
    let allocation = status.get("allocation").filter(|a| !a.is_null());
    if !reserved.is_empty() && allocation.is_none() {
        errors.forbidden("status.reservedFor", "may not be specified when `allocated` is not set");
    }
    let before = items(old, "reservedFor");
    if meta::deletion_timestamp(claim).is_some() && reserved.iter().any(|one| !before.contains(one)) {
        let detail =
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.forbidden("status.reservedFor", detail);
    }
    let had = old.get("allocation").filter(|a| !a.is_null());
    match (allocation, had) {
        (Some(now), Some(before)) if !same(Some(now), Some(before)) => {
            errors.invalid("status.allocation", now, IMMUTABLE);
        }
        (Some(allocation), None) => allocated(claim, allocation, errors),
        _ => {}
    }
    devices_told(status, errors);
}

fn allocated(claim: &Value, allocation: &Value, errors: &mut Errors) {
    let known = requests_of(&claim["spec"]);
    let path = "status.allocation.devices";
    let devices = &allocation["devices"];
    at_most(devices, "results", path, MOST, errors);
    at_most(devices, "config", path, 2 * MOST, errors);
    for (index, result) in items(devices, "results").iter().enumerate() {
        let path = format!("{path}.results[{index}]");
        reference(text(result, "request"), &format!("{path}.request"), &known, errors);
        driver_name(text(result, "driver"), &format!("{path}.driver"), errors);
        pool_name(text(result, "pool"), &format!("{path}.pool"), errors);
        required_name(result, "device", &path, names::dns_label, errors);
    }
    for (index, config) in items(devices, "config").iter().enumerate() {
        let path = format!("{path}.config[{index}]");
        errors.one_of(&format!("{path}.source"), config.get("source"), &["FromClaim", "FromClass"]);
        references(config, &path, &known, errors);
        configuration(config, &path, errors);
    }
    if let Some(selector) = allocation.get("nodeSelector").filter(|s| !s.is_null()) {
        scheduling::node_selector(selector, "status.allocation.nodeSelector", errors);
    }
}

/// What drivers tell about devices must be about devices that were allocated.
fn devices_told(status: &Value, errors: &mut Errors) {
    let results = status.pointer("/allocation/devices/results").and_then(Value::as_array);
    let results = results.map_or(&[][..], Vec::as_slice);
    let id = |one: &Value| ["driver", "pool", "device"].map(|field| text(one, field).to_owned());
    let known: BTreeSet<_> = results.iter().map(id).collect();
    let mut seen = BTreeSet::new();
    for (index, device) in items(status, "devices").iter().enumerate() {
        let path = format!("status.devices[{index}]");
        driver_name(text(device, "driver"), &format!("{path}.driver"), errors);
        pool_name(text(device, "pool"), &format!("{path}.pool"), errors);
        required_name(device, "device", &path, names::dns_label, errors);
        if !seen.insert(id(device)) {
            errors.duplicate(path.as_str(), &json!(id(device).join("/")));
        } else if !known.contains(&id(device)) {
            let detail = "must be an allocated device in the claim";
            errors.invalid(path.as_str(), &json!(id(device).join("/")), detail);
        }
        let conditions = items(device, "conditions");
        at_most(device, "conditions", &path, 8, errors);
        super::shared::conditions(conditions, &format!("{path}.conditions"), errors);
    }
}
