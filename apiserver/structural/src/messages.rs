//! Messages of the validation, in the words of Kubernetes' OpenAPI validator.

use serde_json::{Value, json};

use super::path::Path;
use crate::limits::CHOICES_BYTES;
use apiserver_schema::error::{FieldError, FieldReason};

/// A value of the wrong type: `spec.replicas in body must be of type integer: "string"`.
pub fn wrong_type(path: &Path<'_>, expected: &str, shown: &str) -> FieldError {
    FieldError {
        field: path.to_string(),
        reason: FieldReason::TypeInvalid,
        message: format!("Invalid value: {shown:?}: {path} in body must be of type {expected}: {shown:?}"),
    }
}

/// A value that a check refuses: `spec.x in body should …`.
pub fn refused(path: &Path<'_>, value: &Value, what: &str) -> FieldError {
    FieldError::invalid(path.to_string(), value, &format!("{path} in body {what}"))
}

/// A value that the alternatives refuse: `"spec.x" must …`.
pub fn alternatives(path: &Path<'_>, what: &str) -> FieldError {
    // Kubernetes has no value here, only this text.
    FieldError {
        field: "<nil>".to_owned(),
        reason: FieldReason::Invalid,
        message: format!("Invalid value: \"\": \"{path}\" {what}"),
    }
}

/// Text that is longer than allowed, bytes.
pub fn too_long(path: &Path<'_>, limit: u64) -> FieldError {
    FieldError {
        field: path.to_string(),
        reason: FieldReason::TooLong,
        message: format!("Too long: may not be more than {limit} bytes"),
    }
}

/// More items or properties than allowed.
pub fn too_many(path: &Path<'_>, count: usize, limit: u64) -> FieldError {
    let noun = if limit == 1 { "item" } else { "items" };
    FieldError {
        field: path.to_string(),
        reason: FieldReason::TooMany,
        message: format!("Too many: {count}: must have at most {limit} {noun}"),
    }
}

/// A value that is none of the choices.
pub fn not_a_choice(path: &Path<'_>, value: &Value, choices: &[Value]) -> FieldError {
    let mut texts: Vec<String> = Vec::new();
    let mut length = 0;
    for choice in choices {
        if length >= CHOICES_BYTES {
            texts.push("...".to_owned());
            break;
        }
        let text = choice.as_str().map_or_else(|| choice.to_string(), str::to_owned);
        length += text.len();
        texts.push(text);
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let shown = if value.is_null() { json!("null") } else { value.clone() };
    FieldError::not_supported(path.to_string(), &shown, &texts)
}
