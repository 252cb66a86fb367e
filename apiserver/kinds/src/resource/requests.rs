//! Requests for devices, as claims, templates and classes make them.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_cel::Unfit;
use apiserver_schema::error::FieldError;
use apiserver_schema::protobuf;
use apiserver_schema::validation::{Errors, items, names, same, text};
use serde_json::{Map, Value, json};

use crate::resource::sets;
use crate::shared::checks::required_name;
use crate::shared::defaults::{Object, each_object, fill, fill_zero, has_text, is_empty, object};

/// `exact` fills in a request for one class of devices.
pub(crate) fn default_spec(spec: &mut Object, exact: fn(&mut Object)) {
    let Some(devices) = object(spec, "devices") else { return };
    each_object(devices, "requests", |request| {
        if let Some(exactly) = object(request, "exactly") {
            exact(exactly);
        }
        each_object(request, "firstAvailable", default_device);
    });
}

/// Sets the default of one device in a request.
pub(crate) fn default_device(request: &mut Object) {
    fill(request, "allocationMode", "ExactCount");
    if has_text(request, "allocationMode", "ExactCount") {
        fill_zero(request, "count", 1);
    }
    tolerations(request);
}

/// Sets the default of one device in a request of `v1beta1`, where a request without a class is taken for one with alternatives.
pub(crate) fn default_older_device(request: &mut Object) {
    if is_empty(request, "deviceClassName") {
        tolerations(request);
    } else {
        default_device(request);
    }
}

fn tolerations(request: &mut Object) {
    each_object(request, "tolerations", |toleration| fill(toleration, "operator", "Equal"));
}

/// The fields of a device request that `exactly` holds.
const EXACTLY: [&str; 7] =
    ["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"];

pub(crate) fn convert_requests(object: &mut Value, pointer: &str, change: impl Fn(&mut Map<String, Value>)) {
    let list = object.pointer_mut(pointer).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut).for_each(change);
}

pub(crate) fn nest_request(request: &mut Map<String, Value>) {
    let mut exactly = Map::new();
    for field in EXACTLY {
        exactly.extend(request.remove(field).map(|value| (field.to_owned(), value)));
    }
    // Fields that `v1beta1` leaves out if they are empty do not make a request for one class.
    let unset = |(field, value): (&String, &Value)| match field.as_str() {
        "deviceClassName" | "allocationMode" => matches!(value, Value::Null) || value == "",
        "count" => value.is_null() || value == 0,
        _ => value.is_null(),
    };
    if !exactly.iter().all(unset) {
        request.insert("exactly".to_owned(), Value::Object(exactly));
    }
}

pub(crate) fn flatten_request(request: &mut Map<String, Value>) {
    if let Some(Value::Object(exactly)) = request.remove("exactly") {
        request.extend(exactly);
    }
}

pub(crate) const MOST: usize = 32;

const MOST_ALTERNATIVES: usize = 8;

/// Longest driver name and longest identifier, bytes.
const DRIVER: usize = 63;

const IDENTIFIER: usize = 32;

/// Longest name of a pool, bytes.
pub(crate) const POOL_NAME: usize = 253;

/// Longest expression and longest opaque parameters, bytes.
const OPAQUE: usize = 10 * 1024;

const REFERENCE: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// Returns `true` if two specs have the same encoding. An empty capacity differs from an absent one, as it does
/// in their encodings. Arguments: the kind, new, old.
pub(crate) fn same_spec(kind: &str, new: &Value, old: &Value) -> bool {
    let encoded = |object: &Value| {
        let message = protobuf::of_kind("resource.k8s.io/v1", kind)?;
        protobuf::encode(message, &json!({"spec": object["spec"]})).ok()
    };
    match (encoded(new), encoded(old)) {
        (Some(new), Some(old)) => new == old,
        _ => same(Some(&new["spec"]), Some(&old["spec"])),
    }
}

/// Names of requests, and of the alternatives in each.
type Requests<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

pub(crate) fn requests_of(spec: &Value) -> Requests<'_> {
    let alternatives =
        |request| items(request, "firstAvailable").iter().map(|sub| text(sub, "name")).collect();
    items(&spec["devices"], "requests").iter().map(|r| (text(r, "name"), alternatives(r))).collect()
}

pub(crate) fn spec_errors(spec: &Value, path: &str, errors: &mut Errors) {
    let (devices, path) = (&spec["devices"], format!("{path}.devices"));
    let known = requests_of(spec);
    sets::set((devices, "requests"), &path, MOST, sets::name, errors, &mut request);
    sets::list(devices, "constraints", &path, MOST, errors, &mut |one, path, errors| {
        references(one, path, &known, errors);
        let attribute = |field: &str| one.get(field).and_then(Value::as_str);
        match (attribute("matchAttribute"), attribute("distinctAttribute")) {
            (Some(name), _) => attribute_name(name, &format!("{path}.matchAttribute"), errors),
            (None, Some(name)) => attribute_name(name, &format!("{path}.distinctAttribute"), errors),
            // The end of the sentence is Kubernetes' own.
            (None, None) => errors.required(
                path,
                "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields \
                 are set",
            ),
        }
    });
    sets::list(devices, "config", &path, MOST, errors, &mut |one, path, errors| {
        references(one, path, &known, errors);
        configuration(one, path, errors);
    });
}

/// Validates a DNS label; an empty one is reported as not being one.
fn label(holder: &Value, field: &str, path: &str, errors: &mut Errors) {
    let value = text(holder, field);
    errors.faults(&format!("{path}.{field}"), value, names::dns_label(value));
}

fn request(request: &Value, path: &str, errors: &mut Errors) {
    label(request, "name", path, errors);
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
            let of = (request, "firstAvailable");
            sets::set(of, path, MOST_ALTERNATIVES, sets::name, errors, &mut |one, path, errors| {
                label(one, "name", path, errors);
                device(one, path, errors);
            });
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
    let effects = ["NoExecute", "NoSchedule", "None"];
    errors.one_of_if_set(&format!("{path}.effect"), toleration.get("effect"), &effects);
}

pub(crate) fn selectors(holder: &Value, path: &str, errors: &mut Errors) {
    sets::list(holder, "selectors", path, MOST, errors, &mut |selector, path, errors| {
        let path = format!("{path}.cel");
        let Some(cel) = selector.get("cel").filter(|c| !c.is_null()) else {
            return errors.required(path, "");
        };
        let (source, path) = (text(cel, "expression"), format!("{path}.expression"));
        if source.len() > OPAQUE {
            errors.too_long(path, OPAQUE);
        } else {
            match apiserver_cel::device(source) {
                Ok(()) => {}
                Err(Unfit::Invalid(why)) => errors.invalid(path, &json!(source), &why),
                Err(Unfit::TooComplex) => errors.forbidden(path, "too complex, exceeds cost limit"),
            }
        }
    });
}

/// Requests that a constraint or a configuration is about; none means all.
pub(crate) fn references(holder: &Value, path: &str, known: &Requests<'_>, errors: &mut Errors) {
    sets::set((holder, "requests"), path, MOST, sets::itself, errors, &mut |name, path, errors| {
        reference(name.as_str().unwrap_or_default(), path, known, errors);
    });
}

pub(crate) fn reference(name: &str, path: &str, known: &Requests<'_>, errors: &mut Errors) {
    let parts: Vec<&str> = name.split('/').collect();
    let found = match parts.as_slice() {
        [request] => known.contains_key(request),
        [request, alternative] => known.get(request).is_some_and(|subs| subs.contains(alternative)),
        _ => return errors.invalid(path, &json!(name), REFERENCE),
    };
    for part in parts {
        errors.faults(path, part, names::dns_label(part));
    }
    if !found {
        errors.invalid(path, &json!(name), REFERENCE);
    }
}

pub(crate) fn configuration(config: &Value, path: &str, errors: &mut Errors) {
    let path = format!("{path}.opaque");
    let Some(opaque) = config.get("opaque").filter(|o| !o.is_null()) else {
        errors.required(path, "");
        return;
    };
    driver_name(text(opaque, "driver"), &format!("{path}.driver"), errors);
    match opaque.get("parameters").filter(|p| !p.is_null()) {
        None => errors.required(format!("{path}.parameters"), ""),
        Some(parameters) => any_object(parameters, &format!("{path}.parameters"), errors),
    }
}

/// An object of a driver's own making.
pub(crate) fn any_object(value: &Value, path: &str, errors: &mut Errors) {
    if value.to_string().len() > OPAQUE {
        errors.too_long(path, OPAQUE);
    } else if !value.is_object() {
        errors.invalid(path, &json!("<value omitted>"), "must be a valid JSON object");
    }
}

/// Validates the name of a driver: a DNS subdomain of 63 bytes, in any case.
pub(crate) fn driver_name(name: &str, path: &str, errors: &mut Errors) {
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
pub(crate) fn pool_name(name: &str, path: &str, errors: &mut Errors) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > POOL_NAME {
        errors.too_long(path, POOL_NAME);
    }
    for part in name.split('/') {
        errors.faults(path, part, names::dns_subdomain(part));
    }
}

/// `domain/identifier`, as constraints name attributes.
fn attribute_name(name: &str, path: &str, errors: &mut Errors) {
    qualified(name, path, errors);
    if !name.contains('/') {
        let detail = "a fully qualified name must be a domain and a name separated by a slash";
        errors.invalid(path, &json!(name), detail);
    }
}

/// `identifier` or `domain/identifier`, as slices name attributes and capacities. Kubernetes takes
/// what has more slashes as it is.
pub(crate) fn qualified(name: &str, path: &str, errors: &mut Errors) {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [identifier] => self::identifier(identifier, path, errors),
        [domain, identifier] => {
            if domain.is_empty() {
                errors.invalid(path, &json!(""), "the domain must not be empty");
            } else {
                driver_name(domain, path, errors);
            }
            if identifier.is_empty() {
                errors.invalid(path, &json!(""), "the name must not be empty");
            } else {
                self::identifier(identifier, path, errors);
            }
        }
        _ => {}
    }
}

fn identifier(identifier: &str, path: &str, errors: &mut Errors) {
    if identifier.len() > IDENTIFIER {
        errors.too_long(path, IDENTIFIER);
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
