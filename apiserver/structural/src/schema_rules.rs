//! Rules for the schemas of a definition besides being structural: the parts of JSON schema that Kubernetes
//! leaves out, list and map types, and the form of validation rules.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::check::{entry, flag, is_set, text};
use super::compile::{list, object, texts};
use super::path::child;
use super::{Structural, field_path};
use apiserver_schema::error::FieldError;

/// The context of a schema.
#[derive(Clone, Default)]
struct SchemaRules {
    /// The reason why defaults are not allowed here, if they are not.
    no_defaults: Option<String>,
    /// Within `metadata`, `kind` or `apiVersion` of an object.
    inside_meta: bool,
}

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Returns the errors of a whole schema; `path` is its place.
pub fn schema_errors(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, path, &SchemaRules::default(), true, &mut errors);
    errors
}

fn walk(schema: &Value, path: &str, rules: &SchemaRules, root: bool, errors: &mut Vec<FieldError>) {
    unsupported(schema, path, rules, errors);
    maps(schema, path, rules, root, errors);
    for key in ["allOf", "oneOf", "anyOf"] {
        for (i, branch) in list(schema, key).iter().enumerate() {
            walk(branch, &format!("{}[{i}]", child(path, key)), rules, false, errors);
        }
    }
    for key in ["not", "items"] {
        if let Some(found) = schema.get(key).filter(|v| v.is_object()) {
            walk(found, &child(path, key), rules, false, errors);
        }
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(false)) {
        let at = child(path, "x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(at, &json!(false), "must be true or undefined"));
    }
    map_type(schema, path, errors);
    list_type(schema, path, errors);
    list_map(schema, path, errors);
    list_items(schema, path, errors);
    for (i, rule) in list(schema, "x-kubernetes-validations").iter().enumerate() {
        rule_form(schema, rule, &format!("{}[{i}]", child(path, "x-kubernetes-validations")), errors);
    }
}

/// Properties and `additionalProperties`.
fn maps(schema: &Value, path: &str, rules: &SchemaRules, root: bool, errors: &mut Vec<FieldError>) {
    if let Some(additional) = schema.get("additionalProperties").filter(|v| !v.is_null()) {
        let at = child(path, "additionalProperties");
        if object(schema, "properties").len() > 0 && *additional != json!(true) {
            errors.push(FieldError::forbidden(
                at.as_str(),
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        let mut below = rules.clone();
        if rules.inside_meta {
            below.no_defaults = Some("inside additionalProperties applying to object metadata".to_owned());
        }
        if additional.is_object() {
            walk(additional, &at, &below, false, errors);
        }
    }
    let of_object = root || flag(schema, "x-kubernetes-embedded-resource");
    for (name, property) in object(schema, "properties") {
        let mut below = rules.clone();
        if of_object && super::prune::TYPE_AND_META.contains(&name.as_str()) {
            below.inside_meta = true;
            if root {
                below.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        walk(property, &entry(path, "properties", name), &below, false, errors);
    }
}

fn unsupported(schema: &Value, path: &str, rules: &SchemaRules, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(child(path, "type"), detail));
    }
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(child(path, "type"), &json!(kind), &TYPES));
    }
    if is_set(schema, "default")
        && let Some(reason) = &rules.no_defaults
    {
        errors.push(FieldError::forbidden(child(path, "default"), &format!("must not be set {reason}")));
    }
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        let empty = matches!(schema.get(key), None | Some(Value::Null))
            || schema[key] == json!("")
            || schema[key] == json!({});
        if !empty {
            errors.push(FieldError::forbidden(child(path, key), &format!("{key} is not supported")));
        }
    }
    if schema.get("items").is_some_and(Value::is_array) {
        let detail = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(child(path, "items"), detail));
    }
    if rules.inside_meta && flag(schema, "x-kubernetes-embedded-resource") {
        errors.push(FieldError::forbidden(
            child(path, "x-kubernetes-embedded-resource"),
            "must not be used inside of resource meta",
        ));
    }
    if flag(schema, "uniqueItems") {
        errors.push(FieldError::forbidden(
            child(path, "uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
}

/// The type that an extension asks for.
fn needs_type(
    schema: &Value,
    path: &str,
    wanted: &str,
    extension: &str,
    errors: &mut Vec<FieldError>,
) -> bool {
    let detail = format!("must be {wanted} if {extension} is specified");
    let at = child(path, "type");
    match text(schema, "type") {
        "" => errors.push(FieldError::required(at, &detail)),
        found if found != wanted => errors.push(FieldError::invalid(at, &json!(found), &detail)),
        _ => return true,
    }
    false
}

fn map_type(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    const EXTENSION: &str = "x-kubernetes-map-type";
    if !is_set(schema, EXTENSION) {
        return;
    }
    needs_type(schema, path, "object", EXTENSION, errors);
    if !matches!(text(schema, EXTENSION), "atomic" | "granular") {
        errors.push(FieldError::not_supported(
            child(path, EXTENSION),
            &schema[EXTENSION],
            &["atomic", "granular"],
        ));
    }
}

const LIST_TYPE: &str = "x-kubernetes-list-type";
const LIST_KEYS: &str = "x-kubernetes-list-map-keys";

fn list_type(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let kind = text(schema, LIST_TYPE);
    if is_set(schema, LIST_TYPE) {
        if needs_type(schema, path, "array", LIST_TYPE, errors) && kind == "set" {
            atomic_items(schema, path, errors);
        }
        if !matches!(kind, "atomic" | "set" | "map") {
            let supported = ["atomic", "map", "set"];
            errors.push(FieldError::not_supported(child(path, LIST_TYPE), &schema[LIST_TYPE], &supported));
        }
    }
    if !list(schema, LIST_KEYS).is_empty() && kind != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        let at = child(path, LIST_TYPE);
        errors.push(if is_set(schema, LIST_TYPE) {
            FieldError::invalid(at, &json!(kind), detail)
        } else {
            FieldError::required(at, detail)
        });
    }
}

/// Checks that the items of a list of type `set` are atomic, since members of a set are compared as a whole.
fn atomic_items(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let items = &schema["items"];
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let wrong = match text(items, "type") {
        "array" => is_set(items, LIST_TYPE) && text(items, LIST_TYPE) != "atomic",
        "object" => text(items, "x-kubernetes-map-type") != "atomic",
        _ => false,
    };
    if wrong {
        let extension = if text(items, "type") == "array" { LIST_TYPE } else { "x-kubernetes-map-type" };
        let at = child(&child(path, "items"), extension);
        errors.push(FieldError::invalid(at, &items[extension], detail));
    }
}

fn list_map(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if text(schema, LIST_TYPE) != "map" {
        return;
    }
    let keys = texts(schema, LIST_KEYS);
    let (keys_at, items_at) = (child(path, LIST_KEYS), child(path, "items"));
    if keys.is_empty() {
        let detail = "must not be empty if x-kubernetes-list-type is map";
        errors.push(FieldError::required(keys_at.as_str(), detail));
    }
    let Some(items) = schema.get("items").filter(|i| i.is_object()) else {
        let detail = "must have a schema if x-kubernetes-list-type is map";
        errors.push(FieldError::required(items_at, detail));
        return;
    };
    if text(items, "type") != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(child(&items_at, "type"), &json!(text(items, "type")), detail));
        return;
    }
    let mut seen = BTreeSet::new();
    let shown = json!(keys);
    for key in &keys {
        match items["properties"].get(key) {
            Some(property) if matches!(text(property, "type"), "array" | "object") => {
                let at = child(&entry(&items_at, "properties", key), "type");
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(at, &json!(text(items, "type")), detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(FieldError::invalid(keys_at.as_str(), &shown, detail));
            }
        }
        if !seen.insert(key) {
            let detail = "must not contain duplicate entries";
            errors.push(FieldError::invalid(keys_at.as_str(), &shown, detail));
        }
    }
}

/// Items of maps and sets are there, and so are the keys of maps.
fn list_items(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let kind = text(schema, LIST_TYPE);
    let Some(items) = schema.get("items").filter(|i| i.is_object() && matches!(kind, "set" | "map")) else {
        return;
    };
    let at = child(path, "items");
    if flag(items, "nullable") {
        let detail = format!("cannot be nullable when {LIST_TYPE} is {kind}");
        errors.push(FieldError::forbidden(child(&at, "nullable"), &detail));
    }
    if kind == "set" {
        return;
    }
    let required: BTreeSet<String> = texts(items, "required").into_iter().collect();
    for key in texts(schema, LIST_KEYS) {
        let Some(property) = items["properties"].get(&key) else { continue };
        let at = entry(&at, "properties", &key);
        if !required.contains(&key) && !is_set(property, "default") {
            errors.push(FieldError::required(
                child(&at, "default"),
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ));
        }
        if flag(property, "nullable") {
            errors.push(FieldError::forbidden(
                child(&at, "nullable"),
                "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            ));
        }
    }
}

/// Validates a rule of `x-kubernetes-validations`, except its expressions.
fn rule_form(schema: &Value, rule: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let lines = |text: &str| text.contains(['\n', '\r']);
    let (expression, message) = (text(rule, "rule").trim(), text(rule, "message"));
    let at = |field: &str| child(path, field);
    if expression.is_empty() {
        errors.push(FieldError::required(at("rule"), "rule is not specified"));
    } else if !message.is_empty() && message.trim().is_empty() {
        errors.push(FieldError::invalid(at("message"), &json!(message), "must be non-empty if specified"));
    } else if lines(message.trim()) {
        errors.push(FieldError::invalid(at("message"), &json!(message), "must not contain line breaks"));
    } else if lines(expression) && message.trim().is_empty() {
        let detail = "message must be specified if rule contains line breaks";
        errors.push(FieldError::required(at("message"), detail));
    }
    let message_expression = text(rule, "messageExpression");
    if !message_expression.is_empty() && message_expression.trim().is_empty() {
        let detail = "messageExpression must be non-empty if specified";
        errors.push(FieldError::required(at("messageExpression"), detail));
    }
    if is_set(rule, "reason") && !REASONS.contains(&text(rule, "reason")) {
        errors.push(FieldError::not_supported(at("reason"), &rule["reason"], &REASONS));
    }
    let place = text(rule, "fieldPath");
    if place.is_empty() {
        return;
    }
    if place.trim().is_empty() {
        errors.push(FieldError::invalid(at("fieldPath"), &json!(place), "must be non-empty if specified"));
    }
    if lines(place) {
        errors.push(FieldError::invalid(at("fieldPath"), &json!(place), "must not contain line breaks"));
    }
    if field_path(place, &Structural::compile(schema), true).is_err() {
        errors.push(FieldError::invalid(at("fieldPath"), &json!(place), "must be a valid path"));
    }
}
