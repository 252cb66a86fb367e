//! Defaults must fit the schema that names them.

use serde_json::{Value, json};

use apiserver_cel::rules::Rules;
use apiserver_schema::error::FieldError;
use apiserver_structural::entry;
use apiserver_structural::path::child;
use apiserver_structural::{Structural, coerce};

/// Returns the errors of the defaults in a structural schema; `path` is its place.
pub fn default_errors(schema: &Structural, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let place = Place { root: schema, way: Vec::new(), inside_meta: false };
    walk(schema, path, true, &place, &mut errors);
    errors
}

/// The place of a default in an object.
#[derive(Clone)]
struct Place<'s> {
    /// The schema of the nearest object with metadata.
    root: &'s Structural,
    /// From that object; `None` is any item of a list.
    way: Vec<Option<&'s str>>,
    inside_meta: bool,
}

impl<'s> Place<'s> {
    fn below(&self, step: Option<&'s str>, inside_meta: bool) -> Self {
        let mut way = self.way.clone();
        way.push(step);
        Self { root: self.root, way, inside_meta }
    }

    /// An object that holds nothing but the value at this place.
    fn surround(&self, value: &Value) -> Value {
        let mut around = value.clone();
        for step in self.way.iter().rev() {
            around = match step {
                Some(name) => json!({ *name: around }),
                None => json!([around]),
            };
        }
        for (field, text) in [("apiVersion", "validation/v1"), ("kind", "Validation")] {
            if let Some(map) = around.as_object_mut() {
                map.entry(field).or_insert_with(|| text.into());
            }
        }
        around
    }
}

fn walk<'s>(schema: &'s Structural, path: &str, root: bool, place: &Place<'s>, errors: &mut Vec<FieldError>) {
    let own = Place { root: schema, way: Vec::new(), inside_meta: false };
    let object = root || schema.embedded;
    let place = if object { &own } else { place };
    if let Some(default) = &schema.default {
        one(schema, default, &child(path, "default"), object, place, errors);
    }
    if let Some(items) = &schema.items {
        let below = place.below(None, place.inside_meta);
        walk(items, &child(path, "items"), false, &below, errors);
    }
    for (name, property) in &schema.properties {
        let meta =
            place.inside_meta || (object && apiserver_structural::TYPE_AND_META.contains(&name.as_str()));
        let below = place.below(Some(name), meta);
        walk(property, &entry(path, "properties", name), false, &below, errors);
    }
}

fn one(
    schema: &Structural,
    default: &Value,
    path: &str,
    object: bool,
    place: &Place<'_>,
    errors: &mut Vec<FieldError>,
) {
    if place.inside_meta {
        let mut around = place.surround(default);
        let fault = coerce(place.root, &mut around, true, false).err().or_else(|| {
            let found = place.root.embedded_errors(&around, true);
            let texts: Vec<String> = found.iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
            (!texts.is_empty()).then(|| texts.join(", "))
        });
        if let Some(fault) = fault {
            let detail = format!("must result in valid metadata: {fault}");
            errors.push(FieldError::invalid(path, default, &detail));
            return;
        }
    } else {
        let mut pruned = default.clone();
        let unknown = if object { schema.prune(&mut pruned) } else { schema.prune_value(&mut pruned) };
        if !unknown.is_empty() {
            errors.push(FieldError::invalid(path, default, "must not have unknown fields"));
        }
        if let Err(fault) = coerce(schema, &mut pruned, object, false) {
            errors.push(FieldError::invalid(path, default, &fault));
            return;
        }
        let found = schema.embedded_errors(default, object);
        if !found.is_empty() {
            errors.extend(found.into_iter().map(|e| under(path, e)));
            return;
        }
    }
    let mut found = schema.validate(default);
    if found.is_empty()
        && let Some(rules) = Rules::compile(schema)
    {
        found = rules.errors(schema, default, None);
    }
    errors.extend(found.into_iter().map(|e| under(path, e)));
}

/// Returns the same error for a value at `path`.
fn under(path: &str, mut error: FieldError) -> FieldError {
    if error.field == "<nil>" || error.field.is_empty() {
        error.field = path.to_owned();
    } else {
        error.field = child(path, &error.field);
    }
    error
}
