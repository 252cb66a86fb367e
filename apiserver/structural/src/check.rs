//! The rules that make a schema structural: every field is specified once, outside of logical
//! junctors, with its type; below `allOf`, `anyOf`, `oneOf` and `not` values are only restricted.

use serde_json::{Value, json};

use super::compile::{list, object};
use super::path::child;
use super::pattern::Patterns;
use apiserver_schema::error::FieldError;

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Returns the reasons why a schema is not structural; `path` is its place, `patterns` are those of its
/// definition so far.
pub fn structural_errors(schema: &Value, path: &str, patterns: &mut Patterns) -> Vec<FieldError> {
    let mut errors = Vec::new();
    invariants(schema, Level::Root, path, patterns, &mut errors);
    completeness(schema, Some(schema), path, path, &mut errors);
    errors.sort_by(|a, b| (&a.field, &a.message).cmp(&(&b.field, &b.message)));
    errors
}

pub(super) fn text<'v>(schema: &'v Value, key: &str) -> &'v str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn flag(schema: &Value, key: &str) -> bool {
    schema.get(key) == Some(&Value::Bool(true))
}

pub(super) fn is_set(schema: &Value, key: &str) -> bool {
    schema.get(key).is_some_and(|v| !v.is_null())
}

pub fn entry(path: &str, map: &str, key: &str) -> String {
    format!("{}[{key}]", child(path, map))
}

fn invariants(
    schema: &Value,
    level: Level,
    path: &str,
    patterns: &mut Patterns,
    errors: &mut Vec<FieldError>,
) {
    if text(schema, "type") == "array" && !is_set(schema, "items") {
        errors.push(FieldError::required(child(path, "items"), "must be specified"));
    }
    if let Some(items) = schema.get("items").filter(|i| i.is_object()) {
        invariants(items, Level::Item, &child(path, "items"), patterns, errors);
    }
    for (name, property) in object(schema, "properties") {
        invariants(property, Level::Field, &entry(path, "properties", name), patterns, errors);
    }
    if is_set(schema, "additionalProperties") {
        let at = child(path, "additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(at.as_str(), "must not be used at the root"));
        }
        if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
            invariants(values, Level::Field, &at, patterns, errors);
        }
    }
    extensions(schema, path, errors);
    let skip = int_or_string_pattern(schema);
    junctors(schema, skip, path, patterns, errors);
    types(schema, level, path, errors);
    metadata(schema, level, path, errors);
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    if embedded
        && !flag(schema, "x-kubernetes-preserve-unknown-fields")
        && object(schema, "properties").len() == 0
    {
        errors.push(FieldError::required(
            child(path, "properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
}

fn extensions(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !flag(schema, "x-kubernetes-int-or-string") {
        return;
    }
    for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
        if flag(schema, key) {
            let detail = "must be false if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(child(path, key), &json!(true), detail));
        }
    }
}

fn types(schema: &Value, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    let at = child(path, "type");
    if flag(schema, "x-kubernetes-embedded-resource") {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        match kind {
            "object" => {}
            "" => errors.push(FieldError::required(at.as_str(), detail)),
            other => errors.push(FieldError::invalid(at.as_str(), &json!(other), detail)),
        }
        if is_set(schema, "additionalProperties") {
            errors.push(FieldError::forbidden(
                child(path, "additionalProperties"),
                "must not be used if x-kubernetes-embedded-resource is set",
            ));
        }
    } else if kind.is_empty()
        && !flag(schema, "x-kubernetes-int-or-string")
        && !flag(schema, "x-kubernetes-preserve-unknown-fields")
    {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(at.as_str(), detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(at, &json!(kind), "must be object at the root"));
    }
}

/// Validates the schema of `apiVersion`, `kind` and `metadata`, which are fixed; of metadata only names may
/// be restricted.
fn metadata(schema: &Value, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let of_object = level == Level::Root || flag(schema, "x-kubernetes-embedded-resource");
    let properties = &schema["properties"];
    for name in ["kind", "apiVersion"] {
        if of_object && let Some(found) = properties.get(name).filter(|p| text(p, "type") != "string") {
            let at = child(&entry(path, "properties", name), "type");
            errors.push(FieldError::invalid(at, &json!(text(found, "type")), "must be string"));
        }
    }
    let Some(metadata) = properties.get("metadata") else { return };
    let at = entry(path, "properties", "metadata");
    if of_object && text(metadata, "type") != "object" {
        let found = json!(text(metadata, "type"));
        errors.push(FieldError::invalid(child(&at, "type"), &found, "must be object"));
    }
    if level != Level::Root {
        return;
    }
    let names_only =
        object(metadata, "properties").all(|(name, _)| matches!(name.as_str(), "name" | "generateName"));
    let others = metadata.as_object().into_iter().flatten();
    let extra = others.filter(|(key, value)| {
        !matches!(key.as_str(), "type" | "properties" | "default") && !is_empty(value)
    });
    if !names_only || extra.count() > 0 {
        errors.push(FieldError::forbidden(
            at,
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        ));
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// The form in which an int-or-string is written: `anyOf` here, or in the first `allOf`.
#[derive(Clone, Copy, Default)]
struct Skip {
    any_of: bool,
    first_all_of: bool,
}

fn int_or_string_pattern(schema: &Value) -> Skip {
    let pattern = json!([{"type": "integer"}, {"type": "string"}]);
    Skip {
        any_of: schema.get("anyOf") == Some(&pattern),
        first_all_of: schema.pointer("/allOf/0/anyOf") == Some(&pattern),
    }
}

fn junctors(schema: &Value, skip: Skip, path: &str, patterns: &mut Patterns, errors: &mut Vec<FieldError>) {
    if !skip.any_of {
        for (i, branch) in list(schema, "anyOf").iter().enumerate() {
            nested(branch, Skip::default(), &format!("{}[{i}]", child(path, "anyOf")), patterns, errors);
        }
    }
    for (i, branch) in list(schema, "allOf").iter().enumerate() {
        let skip = Skip { any_of: skip.first_all_of && i == 0, first_all_of: false };
        nested(branch, skip, &format!("{}[{i}]", child(path, "allOf")), patterns, errors);
    }
    for (i, branch) in list(schema, "oneOf").iter().enumerate() {
        nested(branch, Skip::default(), &format!("{}[{i}]", child(path, "oneOf")), patterns, errors);
    }
    if let Some(not) = schema.get("not").filter(|n| n.is_object()) {
        nested(not, Skip::default(), &child(path, "not"), patterns, errors);
    }
    let expression = text(schema, "pattern");
    if !expression.is_empty()
        && let Some(error) = patterns.fault(expression)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(child(path, "pattern"), &json!(expression), &detail));
    }
}

/// The fields that are not allowed under a junctor, with the error texts.
const FORBIDDEN: [(&str, &str); 11] = [
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
];

fn nested(schema: &Value, skip: Skip, path: &str, patterns: &mut Patterns, errors: &mut Vec<FieldError>) {
    junctors(schema, skip, path, patterns, errors);
    if let Some(items) = schema.get("items").filter(|i| i.is_object()) {
        nested(items, Skip::default(), &child(path, "items"), patterns, errors);
    }
    for (name, property) in object(schema, "properties") {
        nested(property, Skip::default(), &entry(path, "properties", name), patterns, errors);
    }
    for (key, detail) in FORBIDDEN {
        if schema.get(key).is_some_and(|value| !is_empty(value)) {
            errors.push(FieldError::forbidden(child(path, key), detail));
        }
    }
    for key in ["x-kubernetes-list-type", "x-kubernetes-map-type"] {
        if is_set(schema, key) {
            errors.push(FieldError::forbidden(child(path, key), "must be undefined to be structural"));
        }
    }
    if schema["properties"].get("metadata").is_some() {
        let at = entry(path, "properties", "metadata");
        errors.push(FieldError::forbidden(at, "must not be specified in a nested context"));
    }
}

/// Checks that whatever is restricted under a junctor is specified outside of it. As in Kubernetes, only the
/// junctors of the root are checked.
fn completeness(
    schema: &Value,
    outside: Option<&Value>,
    outside_path: &str,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let mut branch = |branch: &Value, path: String| {
        nested_completeness(branch, outside, outside_path, &path, errors);
    };
    if let Some(not) = schema.get("not").filter(|n| n.is_object()) {
        branch(not, child(path, "not"));
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (i, found) in list(schema, key).iter().enumerate() {
            branch(found, format!("{}[{i}]", child(path, key)));
        }
    }
}

fn nested_completeness(
    schema: &Value,
    outside: Option<&Value>,
    outside_path: &str,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let Some(outside) = outside else {
        errors.push(FieldError::required(outside_path, &format!("because it is defined in {path}")));
        return;
    };
    completeness(schema, Some(outside), outside_path, path, errors);
    if let Some(items) = schema.get("items").filter(|i| i.is_object()) {
        let there = outside.get("items").filter(|i| i.is_object());
        nested_completeness(items, there, &child(outside_path, "items"), &child(path, "items"), errors);
    }
    for (name, property) in object(schema, "properties") {
        let (there, here) = (entry(outside_path, "properties", name), entry(path, "properties", name));
        nested_completeness(property, outside["properties"].get(name), &there, &here, errors);
    }
}
