//! JSON values as expressions see them: names escaped, texts with a format as values of its type.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};
use serde_json::Value;

use crate::functions;
use crate::functions::text;
use crate::is_reserved;
use crate::types::schema::escape;
use apiserver_structural::{Additional, Kind, Structural};

fn key(name: String) -> Key {
    Key::String(Arc::new(name))
}

fn map(entries: HashMap<Key, Cel>) -> Cel {
    Cel::Map(Map { map: Arc::new(entries) })
}

/// A value of a schema; with `object` one that has a type and metadata.
pub fn of(value: &Value, schema: &Structural, object: bool) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(number) if schema.kind == Some(Kind::Number) => {
            Cel::Float(number.as_f64().unwrap_or(f64::NAN))
        }
        Value::Number(number) => number.as_i64().map_or_else(
            || {
                let float = number.as_f64().unwrap_or(f64::NAN);
                // `1.0` is an integer where one is wanted; the cast saturates.
                if schema.kind == Some(Kind::Integer) { Cel::Int(float as i64) } else { Cel::Float(float) }
            },
            Cel::Int,
        ),
        Value::String(found) => formatted(found, schema),
        Value::Array(list) => {
            let open = Structural::default();
            let items = schema.items.as_deref().unwrap_or(&open);
            Cel::List(Arc::new(list.iter().map(|item| of(item, items, items.embedded)).collect()))
        }
        Value::Object(fields) => {
            let mut entries = HashMap::with_capacity(fields.len());
            for (name, value) in fields {
                if let Some(property) = schema.properties.get(name).filter(|_| !object || name != "metadata")
                {
                    if let Some(escaped) = escape(name) {
                        let found = of(value, property, property.embedded);
                        if is_reserved(name) {
                            entries.insert(key(name.clone()), found.clone());
                        }
                        entries.insert(key(escaped), found);
                    }
                } else if let Additional::Schema(values) = &schema.additional {
                    // Keys of maps are data and stay as they are.
                    entries.insert(key(name.clone()), of(value, values, values.embedded));
                }
            }
            if object {
                type_and_names(value, &mut entries);
            }
            map(entries)
        }
    }
}

/// `apiVersion`, `kind`, and of the metadata what rules may see.
fn type_and_names(object: &Value, entries: &mut HashMap<Key, Cel>) {
    for field in ["apiVersion", "kind"] {
        let found = object.get(field).and_then(Value::as_str).unwrap_or_default();
        entries.insert(key(field.to_owned()), text(found));
    }
    let mut metadata = HashMap::new();
    for field in ["name", "generateName"] {
        if let Some(found) = object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_str) {
            metadata.insert(key(field.to_owned()), text(found));
        }
    }
    entries.insert(key("metadata".to_owned()), map(metadata));
}

fn formatted(found: &str, schema: &Structural) -> Cel {
    let format = schema.checks.as_ref().and_then(|c| c.format).filter(|_| schema.kind == Some(Kind::String));
    let converted = |function: &str, found: &str| {
        functions::call(function, false, &[text(found)]).unwrap_or_else(|_| text(found))
    };
    match format.map(apiserver_structural::Format::name) {
        Some("datetime") => converted("timestamp", found),
        Some("date") => converted("timestamp", &format!("{found}T00:00:00Z")),
        Some("duration") => converted("duration", found),
        Some("byte") => {
            STANDARD.decode(found).map_or_else(|_| text(found), |bytes| Cel::Bytes(Arc::new(bytes)))
        }
        _ => text(found),
    }
}
