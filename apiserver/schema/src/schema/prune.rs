//! Normalization of an object as by decoding into Kubernetes' types and encoding again: unknown fields and
//! nulls are dropped, quantities and times are in canonical form.

use serde_json::{Map, Value};

use crate::base64_text;

use super::graph::{Definition, Field, Type, definition};
use apiserver_meta::{quantity, time};

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
        if is_resource_list(definition, field.ty()) {
            round_up_resources(value);
        }
        prune_value(field.ty(), value);
        true
    });
}

/// `true` if a field is a `ResourceList`: the core group has no other maps of quantities.
fn is_resource_list(owner: Definition, ty: Type) -> bool {
    matches!(ty, Type::Map(_))
        && ty.element() == Some(Type::Quantity)
        && owner.name().starts_with("io.k8s.api.core.v1.")
}

/// Rounds the amounts of resources in an object that was written before they were, as Kubernetes does when it reads
/// one: what a client sends is rounded, and would differ from what may not change.
pub fn round_resources(name: &str, object: &mut Value) {
    if let Some(definition) = definition(name) {
        round_below(definition, object);
    }
}

fn round_below(definition: Definition, object: &mut Value) {
    for (key, value) in object.as_object_mut().into_iter().flatten() {
        let Some(ty) = definition.field(key).map(Field::ty) else { continue };
        if is_resource_list(definition, ty) {
            round_up_resources(value);
        } else if let Some(inner) = ty.object() {
            round_below(inner, value);
        } else if let (Some(inner), Value::Array(items)) = (ty.element().and_then(Type::object), value) {
            items.iter_mut().for_each(|item| round_below(inner, item));
        }
    }
}

/// Amounts of resources have at most thousandths.
fn round_up_resources(list: &mut Value) {
    for amount in list.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if let Ok(text) = quantity::canonical(amount, true) {
            *amount = Value::String(text);
        }
    }
}

/// Writes the fields of `status` that encoding Kubernetes' types always writes: those that are required
/// and are 0, false or the empty text. Clients with types of their own refuse an object without them.
pub fn complete_status(name: &str, object: &mut Value) {
    let Some(ty) = definition(name).and_then(|of| of.field("status")).map(Field::ty) else { return };
    let (Some(status), Value::Object(object)) = (ty.object(), object) else { return };
    if status.fields().any(always_written) && !MAY_LACK_STATUS.contains(&name) {
        object.entry("status").or_insert_with(|| Value::Object(Map::new()));
    }
    if let Some(value) = object.get_mut("status") {
        complete(ty, value);
    }
}

/// Definitions whose status is a pointer in Kubernetes, so that it may be absent.
const MAY_LACK_STATUS: [&str; 1] = ["io.k8s.api.resource.v1alpha3.ResourcePoolStatusRequest"];

fn always_written(field: Field) -> bool {
    field.required() && zero(field.ty()).is_some()
}

fn complete(ty: Type, value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(definition) = ty.object() {
                for field in definition.fields().filter(|field| always_written(*field)) {
                    if let (false, Some(zero)) = (map.contains_key(field.name()), zero(field.ty())) {
                        map.insert(field.name().to_owned(), zero);
                    }
                }
                for (key, value) in map {
                    if let Some(field) = definition.field(key) {
                        complete(field.ty(), value);
                    }
                }
            } else if let Some(element) = ty.element() {
                map.values_mut().for_each(|value| complete(element, value));
            }
        }
        Value::Array(items) => {
            if let Some(element) = ty.element() {
                items.iter_mut().for_each(|item| complete(element, item));
            }
        }
        _ => {}
    }
}

/// The zero value of a scalar.
fn zero(ty: Type) -> Option<Value> {
    match ty {
        Type::String => Some(Value::String(String::new())),
        Type::Int32 | Type::Int64 | Type::Number => Some(Value::from(0)),
        Type::Bool => Some(Value::Bool(false)),
        _ => None,
    }
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
            if let Ok(text) = quantity::canonical(value, false) {
                *value = Value::String(text);
            }
        }
        (Type::Bytes, Value::String(text)) => {
            if let Some(canonical) = base64_text::canonical(text) {
                *text = canonical;
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
        Type::Object(_) => Value::Object(Map::new()),
        Type::Quantity => Value::String("0".into()),
        Type::Bytes => Value::String(String::new()),
        _ => match zero(ty) {
            Some(zero) => zero,
            None => return,
        },
    };
}
