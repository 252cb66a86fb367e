//! Validation of a configuration against its schema, before anything is merged.

use std::collections::BTreeSet;

use serde_json::Value;

use super::error::{ShapeErrors, go, go_type};
use super::item;
use super::path::PathElement;
use apiserver_schema::schema::shape::{Kind, List, Scalar, Shape};

/// All places where `value` is not what the schema allows, repeated items of lists among them.
pub fn validate<S: Shape>(shape: S, value: &Value) -> Result<(), ShapeErrors> {
    check(shape, value).into_result()
}

fn check<S: Shape>(shape: S, value: &Value) -> ShapeErrors {
    match (shape.kind(), value) {
        (_, Value::Null) => ShapeErrors::default(),
        (Kind::Scalar(scalar), _) => check_scalar(scalar, value),
        (Kind::Untyped { .. }, Value::Array(items)) => check_items(shape, items, false),
        (Kind::List(list), Value::Array(items)) => check_items(shape, items, list != List::Atomic),
        (Kind::Map(_) | Kind::Untyped { .. }, Value::Object(_)) => check_fields(shape, value),
        (Kind::Untyped { .. }, _) => ShapeErrors::default(),
        (Kind::List(_), _) => ShapeErrors::here(format!("expected list, got &{{{}}}", go(value))),
        (Kind::Map(_), _) => ShapeErrors::here(format!("expected map, got &{{{}}}", go(value))),
    }
}

fn check_scalar(scalar: Scalar, value: &Value) -> ShapeErrors {
    let composite = value.is_array() || value.is_object();
    match scalar {
        Scalar::Number if !value.is_number() => {
            ShapeErrors::here(format!("expected numeric (int or float), got {}", go_type(value)))
        }
        Scalar::String if !value.is_string() => {
            ShapeErrors::here(format!("expected string, got &value.valueUnstructured{{Value:{}}}", go(value)))
        }
        Scalar::Boolean if !value.is_boolean() => {
            ShapeErrors::here(format!("expected boolean, got &{{{}}}", go(value)))
        }
        Scalar::Any if composite => ShapeErrors::here(format!("expected any scalar, got &{{{}}}", go(value))),
        _ => ShapeErrors::default(),
    }
}

fn check_items<S: Shape>(list: S, items: &[Value], associative: bool) -> ShapeErrors {
    let (mut errors, mut seen) = (ShapeErrors::default(), BTreeSet::new());
    for (at, value) in items.iter().enumerate() {
        let element = if associative {
            match item::element(list, value) {
                Ok(element) => element,
                // Without its name nothing more can be said of the item.
                Err(why) => {
                    errors.extend(ShapeErrors::here(format!("element {at}: {why}")));
                    return errors;
                }
            }
        } else {
            PathElement::Index(i64::try_from(at).unwrap_or(i64::MAX))
        };
        if let Some(shape) = list.element() {
            errors.below(&element, check(shape, value));
        }
        if associative && !seen.insert(element.clone()) {
            errors.extend(ShapeErrors::here(format!("duplicate entries for key {element}")));
        }
    }
    errors
}

fn check_fields<S: Shape>(shape: S, value: &Value) -> ShapeErrors {
    let mut errors = ShapeErrors::default();
    for (name, value) in value.as_object().into_iter().flatten() {
        let below = match shape.field(name) {
            Some(child) => check(child.shape, value),
            None => ShapeErrors::here("field not declared in schema"),
        };
        errors.below(&PathElement::field(name), below);
    }
    errors
}
