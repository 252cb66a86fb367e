//! ConfigMap, Secret, ServiceAccount.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Errors, names, text, with_metadata};
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;

/// All values of a ConfigMap or Secret together: 1 MiB.
const SIZE_LIMIT: usize = 1024 * 1024;
const FIXED: &str = "field is immutable when `immutable` is set";

fn entries<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a str)> {
    let map = object.get(field).and_then(Value::as_object);
    map.into_iter().flatten().map(|(key, value)| (key, value.as_str().unwrap_or_default()))
}

/// Bytes behind a base64 text.
fn decoded_length(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}

/// Errors of a ConfigMap.
pub fn config_map(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let mut size = 0;
    for (key, value) in entries(object, "data") {
        size += value.len();
        errors.faults(&format!("data[{key}]"), key, names::config_key(key));
        if object.get("binaryData").is_some_and(|b| b.get(key).is_some()) {
            errors.invalid(format!("data[{key}]"), &json!(key), "duplicate of key present in binaryData");
        }
    }
    for (key, value) in entries(object, "binaryData") {
        size += decoded_length(value);
        errors.faults(&format!("binaryData[{key}]"), key, names::config_key(key));
    }
    if size > SIZE_LIMIT {
        errors.too_long("", SIZE_LIMIT);
    }
    errors.list()
}

fn frozen(new: &Value, old: &Value, fields: &[&str], errors: &mut Errors) {
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        errors.forbidden("immutable", FIXED);
    }
    // An entry with an empty value is not the same as none.
    let map =
        |object: &Value, field| object.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    for field in fields {
        if map(new, *field) != map(old, *field) {
            errors.forbidden(*field, FIXED);
        }
    }
}

/// An immutable ConfigMap stays as it is. Arguments: new, old.
pub fn config_map_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    frozen(new, old, &["data", "binaryData"], &mut errors);
    errors.list()
}

/// Errors of a Secret.
pub fn secret(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let mut size = 0;
    for (key, value) in entries(object, "data") {
        size += decoded_length(value);
        errors.faults(&format!("data[{key}]"), key, names::config_key(key));
    }
    if size > SIZE_LIMIT {
        errors.too_long("data", SIZE_LIMIT);
    }
    let needs = |keys: &[&str], errors: &mut Errors| {
        for key in keys {
            if object.get("data").is_none_or(|d| d.get(*key).is_none()) {
                errors.required(format!("data[{key}]"), "");
            }
        }
    };
    match text(object, "type") {
        "kubernetes.io/tls" => needs(&["tls.crt", "tls.key"], &mut errors),
        "kubernetes.io/dockercfg" => docker(object, ".dockercfg", &mut errors),
        "kubernetes.io/dockerconfigjson" => docker(object, ".dockerconfigjson", &mut errors),
        "kubernetes.io/ssh-auth" if object["data"].get("ssh-privatekey").is_none_or(|k| k == "") => {
            errors.required("data[ssh-privatekey]", "");
        }
        "kubernetes.io/basic-auth" => {
            let either = ["username", "password"];
            if !either.iter().any(|k| object.get("data").is_some_and(|d| d.get(*k).is_some())) {
                needs(&either, &mut errors);
            }
        }
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            if meta::annotation(object, key).unwrap_or_default().is_empty() {
                errors.required(format!("metadata.annotations[{key}]"), "");
            }
        }
        _ => {}
    }
    errors.list()
}

/// Credentials of a registry are a JSON object.
fn docker(object: &Value, key: &str, errors: &mut Errors) {
    let path = format!("data[{key}]");
    let Some(encoded) = object["data"].get(key).and_then(Value::as_str) else {
        return errors.required(path, "");
    };
    let shown = json!("<secret contents redacted>");
    let text = STANDARD.decode(encoded).unwrap_or_default();
    match serde_json::from_slice::<Value>(&text) {
        Ok(Value::Object(_) | Value::Null) => {}
        Ok(_) => {
            let detail = "json: cannot unmarshal into Go value of type map[string]interface {}";
            errors.invalid(path, &shown, detail);
        }
        Err(_) if text.iter().all(u8::is_ascii_whitespace) => {
            errors.invalid(path, &shown, "unexpected end of JSON input");
        }
        Err(error) => errors.invalid(path, &shown, &format!("invalid JSON: {error}")),
    }
}

/// The type of a Secret stays, and an immutable one stays as it is. Arguments: new, old.
pub fn secret_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("type", new, old);
    frozen(new, old, &["data"], &mut errors);
    errors.list()
}
