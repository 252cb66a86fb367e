//! Secrets.

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, names, text, with_metadata};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::core::config_map::{self, SIZE_LIMIT};
use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{fill, object_or_insert};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "secrets",
    selectable: &["type"],
    default,
    validate,
    validate_update,
    warnings: Some(warnings),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a Secret; `stringData`, which is only written, moves into `data`.
pub(crate) fn default(value: &mut Value) {
    let Value::Object(map) = value else { return };
    fill(map, "type", "Opaque");
    if let Some(Value::Object(plain)) = map.remove("stringData")
        && !plain.is_empty()
        && let Some(data) = object_or_insert(map, "data")
    {
        for (key, text) in plain {
            let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
            data.insert(key, encoded.into());
        }
    }
}

/// Errors of a Secret.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let mut size = 0;
    for (key, value) in config_map::entries(object, "data") {
        size += config_map::decoded_length(value);
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
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("type", new, old);
    config_map::frozen(new, old, &["data"], &mut errors);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Type", "string", 0, "What the secret is for"),
        ("Data", "string", 0, "Number of entries"),
        AGE,
    ],
    cells: |object, now| {
        let entries = cells::count(object, "/data");
        vec![
            cells::name(object),
            cells::text_or(object, "/type", ""),
            json!(entries),
            cells::age(object, now),
        ]
    },
};

/// Returns the warning about a TLS Secret without a certificate or a key.
fn warnings(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let data = new.get("data");
    if text(new, "type") != "kubernetes.io/tls" {
        return Vec::new();
    }
    let is_pem = |key: &str| {
        let encoded = data.and_then(|d| d.get(key)).and_then(Value::as_str).unwrap_or_default();
        STANDARD.decode(encoded).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("-----BEGIN "))
    };
    let faults = [("tls.crt", "certificate"), ("tls.key", "key")];
    let missing = faults.iter().find(|(key, _)| !is_pem(key));
    missing.map(|(_, what)| format!("tls: failed to find any PEM data in {what} input")).into_iter().collect()
}
