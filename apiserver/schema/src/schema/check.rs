//! Does an object have the shape of its definition? Errors read as those of Kubernetes' decoder.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::base64_text;
use crate::limits::PROBLEMS;

use super::graph::{Definition, Type, definition};
use apiserver_meta::{quantity, time};

/// The faults of an object's shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// Values of a wrong type. Any of them makes the request a 400, regardless of `fieldValidation`: `json:
    /// cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32`.
    pub type_errors: Vec<String>,
    /// The paths of unknown fields, `spec.foo`, for `fieldValidation` `Strict` (400) and `Warn` (a warning).
    pub unknown_fields: Vec<String>,
}

impl Problems {
    /// Nothing was found.
    pub fn is_empty(&self) -> bool {
        self.type_errors.is_empty() && self.unknown_fields.is_empty()
    }
}

/// Compares `object` with the definition of that name. An unknown definition accepts anything.
pub fn check(name: &str, object: &Value) -> Problems {
    let Some(definition) = definition(name) else { return Problems::default() };
    let mut walk = Walk { problems: Problems::default(), keys: Vec::new(), path: String::new() };
    match object {
        Value::Object(map) => walk.object(definition, map),
        other => walk.problems.type_errors.push(format!(
            "json: cannot unmarshal {} into Go value of type {}",
            go_kind(other),
            definition.go_name()
        )),
    }
    walk.problems
}

struct Walk<'a> {
    problems: Problems,
    /// The fields on the way, without indexes.
    keys: Vec<&'a str>,
    /// The fields on the way, with indexes: `spec.containers[0].name`.
    path: String,
}

impl<'a> Walk<'a> {
    fn object(&mut self, definition: Definition, map: &'a Map<String, Value>) {
        for (key, value) in map {
            let length = self.path.len();
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(key);
            if let Some(field) = definition.field(key) {
                self.keys.push(key);
                self.value(definition, field.ty(), value);
                self.keys.pop();
            } else if self.problems.unknown_fields.len() < PROBLEMS {
                self.problems.unknown_fields.push(self.path.clone());
            }
            self.path.truncate(length);
        }
    }

    fn value(&mut self, owner: Definition, ty: Type, value: &'a Value) {
        // Go leaves a field alone when it reads null.
        if value.is_null() {
            return;
        }
        match (ty, value) {
            (Type::Any, _)
            | (Type::String, Value::String(_))
            | (Type::Bool, Value::Bool(_))
            | (Type::Number, Value::Number(_))
            | (Type::IntOrString, Value::String(_)) => {}
            (Type::Int64, Value::Number(n)) if n.is_i64() => {}
            (Type::Int32 | Type::IntOrString, Value::Number(n)) if fits_int32(n) => {}
            (Type::Object(_), Value::Object(map)) => {
                if let Some(definition) = ty.object() {
                    self.object(definition, map);
                }
            }
            (Type::List(_), Value::Array(items)) => self.items(owner, ty, items),
            (Type::Map(_), Value::Object(map)) => self.values(owner, ty, map),
            (Type::Bytes, Value::String(text)) => {
                if let Err(error) = base64_text::decode_or_error(text) {
                    self.error(error);
                }
            }
            (Type::Quantity, Value::String(_) | Value::Number(_)) => {
                if let Err(error) = quantity::parse_value(value) {
                    self.error(error.to_string());
                }
            }
            (Type::Time | Type::MicroTime, Value::String(text)) => {
                if time::parse(text).is_none() {
                    let fraction = if ty == Type::MicroTime { ".000000" } else { "" };
                    self.error(format!(
                        "parsing time \"{text}\" as \"2006-01-02T15:04:05{fraction}Z07:00\": cannot parse \"{text}\" as \"2006\""
                    ));
                }
            }
            _ => self.mismatch(owner, ty, value),
        }
    }

    fn items(&mut self, owner: Definition, ty: Type, items: &'a [Value]) {
        let Some(element) = ty.element() else { return };
        let length = self.path.len();
        for (index, item) in items.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(self.path, "[{index}]");
            self.value(owner, element, item);
            self.path.truncate(length);
        }
    }

    fn values(&mut self, owner: Definition, ty: Type, map: &'a Map<String, Value>) {
        let Some(element) = ty.element() else { return };
        let length = self.path.len();
        for (key, value) in map {
            self.path.push('.');
            self.path.push_str(key);
            // Go names the field that holds the map, not the key.
            self.value(owner, element, value);
            self.path.truncate(length);
        }
    }

    fn mismatch(&mut self, owner: Definition, ty: Type, value: &Value) {
        let what = match value {
            // A number of the wrong kind or size is named, others are not.
            Value::Number(n) if matches!(ty, Type::Int32 | Type::Int64 | Type::IntOrString) => {
                format!("number {n}")
            }
            other => go_kind(other).to_owned(),
        };
        self.error(format!(
            "json: cannot unmarshal {what} into Go struct field {}.{} of type {}",
            owner.short_name(),
            self.keys.join("."),
            go_type(ty)
        ));
    }

    fn error(&mut self, message: String) {
        if self.problems.type_errors.len() < PROBLEMS {
            self.problems.type_errors.push(message);
        }
    }
}

fn fits_int32(number: &serde_json::Number) -> bool {
    number.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
}

/// Returns the name of a value's type in Go's JSON errors.
pub fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn go_type(ty: Type) -> String {
    match ty {
        Type::String => "string".into(),
        Type::Bytes => "[]uint8".into(),
        Type::Int32 => "int32".into(),
        Type::Int64 => "int64".into(),
        Type::Number => "float64".into(),
        Type::Bool => "bool".into(),
        Type::IntOrString => "intstr.IntOrString".into(),
        Type::Quantity => "resource.Quantity".into(),
        Type::Time => "v1.Time".into(),
        Type::MicroTime => "v1.MicroTime".into(),
        Type::Any => "runtime.RawExtension".into(),
        Type::Object(_) => ty.object().map(|d| d.go_name().to_owned()).unwrap_or_default(),
        Type::List(_) => format!("[]{}", ty.element().map(go_type).unwrap_or_default()),
        Type::Map(_) => format!("map[string]{}", ty.element().map(go_type).unwrap_or_default()),
    }
}
