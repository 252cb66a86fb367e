//! Merging a configuration into an object, and taking fields out of one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map as Fields, Value};

use super::error::ShapeErrors;
use super::item;
use super::path::PathElement;
use super::set::FieldSet;
use super::walk::Way;
use apiserver_schema::schema::shape::{Kind, Shape};

/// Returns the object with the configuration merged into it: fields of the configuration win, nothing is
/// removed. Lists of identifiable items keep the order of the object, except where the configuration has
/// another one. Fails on items of such lists that have no key, and on items that the configuration repeats.
pub fn merge<S: Shape>(shape: S, object: &Value, config: &Value) -> Result<Value, ShapeErrors> {
    Ok(both(shape, Some(object), Some(config))?.unwrap_or(Value::Null))
}

fn both<S: Shape>(
    shape: S,
    object: Option<&Value>,
    config: Option<&Value>,
) -> Result<Option<Value>, ShapeErrors> {
    let Some(config) = config else { return Ok(object.cloned()) };
    let way = Way::of(shape, config);
    match (way, object) {
        (Way::Leaf, _) => Ok(Some(config.clone())),
        (Way::Fields, _) => fields(shape, object, config),
        (Way::Items, _) => items(shape, object, config),
    }
}

fn fields<S: Shape>(shape: S, object: Option<&Value>, config: &Value) -> Result<Option<Value>, ShapeErrors> {
    let held = object.and_then(Value::as_object).filter(|map| !map.is_empty());
    let given = config.as_object().filter(|map| !map.is_empty());
    if held.is_none() && given.is_none() {
        // Empty and null are different here.
        return Ok(Some(config.clone()));
    }
    let mut out = Fields::new();
    let mut errors = ShapeErrors::default();
    for (name, value) in given.into_iter().flatten() {
        let Some(child) = shape.field(name) else { continue };
        match both(child.shape, held.and_then(|map| map.get(name)), Some(value)) {
            Ok(Some(merged)) => {
                out.insert(name.clone(), merged);
            }
            Ok(None) => {}
            Err(error) => errors.below(&PathElement::field(name), error),
        }
    }
    errors.into_result()?;
    // Merged fields have their copy of the held value already.
    for (name, value) in held.into_iter().flatten() {
        if !out.contains_key(name) {
            out.insert(name.clone(), value.clone());
        }
    }
    Ok(Some(Value::Object(out)))
}

/// A list with the names of its items.
struct Named<'a> {
    elements: Vec<PathElement>,
    values: &'a [Value],
    /// The values by name; `None` for those that occur twice.
    by_name: BTreeMap<PathElement, Option<&'a Value>>,
}

impl<'a> Named<'a> {
    fn new<S: Shape>(shape: S, values: &'a [Value], repeat: bool) -> Result<Self, ShapeErrors> {
        let mut errors = ShapeErrors::default();
        let mut named = Self { elements: Vec::with_capacity(values.len()), values, by_name: BTreeMap::new() };
        for (at, value) in values.iter().enumerate() {
            let element = match item::element(shape, value) {
                Ok(element) => element,
                Err(why) => {
                    errors.extend(ShapeErrors::here(format!("element {at}: {why}")));
                    continue;
                }
            };
            if named.by_name.contains_key(&element) {
                if !repeat {
                    errors.extend(ShapeErrors::here(format!("duplicate entries for key {element}")));
                }
                named.by_name.insert(element.clone(), None);
            } else {
                named.by_name.insert(element.clone(), Some(value));
            }
            named.elements.push(element);
        }
        errors.into_result()?;
        Ok(named)
    }

    fn has(&self, element: &PathElement) -> bool {
        self.by_name.contains_key(element)
    }

    fn value(&self, element: &PathElement) -> Option<&'a Value> {
        self.by_name.get(element).copied().flatten()
    }
}

fn items<S: Shape>(shape: S, object: Option<&Value>, config: &Value) -> Result<Option<Value>, ShapeErrors> {
    let held = object.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let given = config.as_array().map_or(&[][..], Vec::as_slice);
    if held.is_empty() && given.is_empty() {
        return Ok(Some(config.clone()));
    }
    let Some(item_shape) = shape.element() else { return Ok(Some(config.clone())) };
    let given = Named::new(shape, given, false)?;
    let held = Named::new(shape, held, true)?;
    let mut errors = ShapeErrors::default();
    let mut out = Vec::with_capacity(held.values.len().max(given.values.len()));
    for step in arrange(&held, &given) {
        let (element, object, config) = match step {
            Step::Held(at) => (&held.elements[at], Some(&held.values[at]), None),
            Step::Given(at) => {
                let element = &given.elements[at];
                (element, held.value(element), given.value(element))
            }
        };
        match both(item_shape, object, config) {
            Ok(merged) => out.extend(merged),
            Err(error) => errors.below(element, error),
        }
    }
    errors.into_result()?;
    Ok((!out.is_empty()).then_some(Value::Array(out)))
}

/// The source of the next item of the merged list.
enum Step {
    /// An item that only the object has.
    Held(usize),
    /// An item of the configuration, merged with the object's.
    Given(usize),
}

/// Returns the order of a merged list. Items of the applied configuration are in its order. An item that only the
/// object has stays behind the item that it followed there, if both lists have that one.
fn arrange(held: &Named<'_>, given: &Named<'_>) -> Vec<Step> {
    let mut shared: VecDeque<&PathElement> = given.elements.iter().filter(|e| held.has(e)).collect();
    let mut next = shared.pop_front();
    let mut placed: BTreeSet<&PathElement> = BTreeSet::new();
    let mut steps = Vec::new();
    let (mut h, mut g) = (0, 0);
    while h < held.elements.len() || g < given.elements.len() {
        if let (Some(mine), Some(theirs)) = (held.elements.get(h), given.elements.get(g)) {
            if mine == theirs {
                placed.insert(theirs);
                steps.push(Step::Given(g));
                h += 1;
                g += 1;
                next = shared.pop_front();
                continue;
            }
            if given.has(mine) && next.is_some_and(|next| next != mine) {
                // A shared item whose turn comes later, or has been.
                h += 1;
                continue;
            }
        }
        if let Some(mine) = held.elements.get(h) {
            if !given.has(mine) {
                steps.push(Step::Held(h));
                h += 1;
                continue;
            }
            if placed.contains(mine) {
                h += 1;
            }
        }
        if let Some(theirs) = given.elements.get(g) {
            placed.insert(theirs);
            steps.push(Step::Given(g));
            g += 1;
            if next == Some(theirs) {
                next = shared.pop_front();
            }
        }
    }
    steps
}

/// The object without the fields and items of `set`. What had something in it and is empty
/// afterwards is null.
pub fn remove<S: Shape>(shape: S, object: &Value, set: &FieldSet) -> Value {
    if matches!(shape.kind(), Kind::Scalar(_)) {
        return object.clone();
    }
    match (Way::of(shape, object), object) {
        (Way::Fields, Value::Object(map)) => {
            let mut out = Fields::new();
            for (name, value) in map {
                let element = PathElement::field(name);
                if set.has(&element) {
                    continue;
                }
                let value = match (set.below(&element), shape.field(name)) {
                    (Some(below), Some(child)) => remove(child.shape, value, below),
                    _ => value.clone(),
                };
                out.insert(name.clone(), value);
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        (Way::Items, Value::Array(items)) => {
            let mut out = Vec::with_capacity(items.len());
            for value in items {
                let Ok(element) = item::element(shape, value) else {
                    out.push(value.clone());
                    continue;
                };
                if set.has(&element) {
                    continue;
                }
                out.push(match (set.below(&element), shape.element()) {
                    (Some(below), Some(shape)) => remove(shape, value, below),
                    _ => value.clone(),
                });
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        (Way::Leaf, Value::Object(_) | Value::Array(_)) => Value::Null,
        (Way::Leaf, scalar) => scalar.clone(),
        _ => Value::Null,
    }
}
