//! What decoding into Kubernetes' types and encoding again does to an object: unknown fields and
//! nulls are gone, quantities and times are in canonical form.

use serde_json::{Map, Value};

use super::graph::{Definition, Type, definition};
use crate::{quantity, time};

/// Drops fields that the definition does not have, and nulls; writes quantities and times in
/// canonical form. Values of a wrong type are left alone ([`super::check`] reports them). An
/// unknown definition leaves the object as it is.
pub fn drop_unknown(name: &str, object: &mut Value) {
    if let (Some(definition), Value::Object(map)) = (definition(name), object) {
        prune_object(definition, map);
    }
}

fn prune_object(definition: Definition, map: &mut Map<String, Value>) {
    map.retain(|key, value| {
        let Some(field) = definition.field(key) else { return false };
        if value.is_null() {
            return false;
        }
        prune_value(field.ty(), value);
        true
    });
}

fn prune_value(ty: Type, value: &mut Value) {
    match (ty, &mut *value) {
        (Type::Object(_), Value::Object(map)) => {
            if let Some(definition) = ty.object() {
                prune_object(definition, map);
            }
        }
        (Type::List(_), Value::Array(items)) => {
            let Some(element) = ty.element() else { return };
            for item in items {
                zero_for_null(element, item);
                prune_value(element, item);
            }
        }
        (Type::Map(_), Value::Object(map)) => {
            let Some(element) = ty.element() else { return };
            for item in map.values_mut() {
                zero_for_null(element, item);
                prune_value(element, item);
            }
        }
        (Type::Quantity, Value::String(_) | Value::Number(_)) => {
            if let Ok(parsed) = quantity::parse_value(value) {
                *value = Value::String(parsed.to_string());
            }
        }
        (Type::Time, Value::String(text)) => {
            if let Some(parsed) = time::parse(text) {
                *text = time::rfc3339(parsed);
            }
        }
        (Type::MicroTime, Value::String(text)) => {
            if let Some(parsed) = time::parse(text) {
                *text = time::rfc3339_micro(parsed);
            }
        }
        _ => {}
    }
}

/// Inside lists and maps Go turns null into the zero value.
fn zero_for_null(ty: Type, value: &mut Value) {
    if !value.is_null() {
        return;
    }
    *value = match ty {
        Type::String => Value::String(String::new()),
        Type::Int32 | Type::Int64 | Type::Number => Value::from(0),
        Type::Bool => Value::Bool(false),
        Type::Object(_) => Value::Object(Map::new()),
        Type::Quantity => Value::String("0".into()),
        _ => return,
    };
}
