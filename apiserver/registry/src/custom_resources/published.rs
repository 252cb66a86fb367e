//! The schemas of custom resources as OpenAPI publishes them, in the forms of v2 and v3.
//!
//! ```text
//! schema of a version ─ tidy ─▶ v3: unfold ───▶ + fields of every object ─▶ published
//!                              └▶ v2: for_v2 ─┘
//! ```
//!
//! kubectl takes a type without properties in v2 for one that has none, and refuses what it cannot find
//! there. So v2 says nothing of what it cannot say in full.

use serde_json::{Map, Value, json};

use super::openapi::{Dialect, META};
use crate::definition::Custom;
use crate::resource::Resource;

const CONVENTIONS: &str =
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// Extensions that mark a node of a schema.
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";

/// Keywords that combine schemas, of which v2 has none.
const JUNCTORS: [&str; 4] = ["allOf", "anyOf", "oneOf", "not"];
/// Keywords whose value is one schema.
const SINGLE: [&str; 3] = ["items", "additionalProperties", "not"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// The schemas of an object and of a list, by their names.
pub fn schemas(custom: &Custom, resource: &Resource, dialect: Dialect) -> Vec<(String, Value)> {
    let raw = custom.definition.raw_schema(custom.version());
    let mut object = object(raw, dialect);
    let mut list = list(resource, dialect);
    for (schema, kind) in [(&mut object, resource.kind.as_str()), (&mut list, resource.list_kind().as_ref())]
    {
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": resource.group, "version": resource.version, "kind": kind}]);
        if !resource.selectable.is_empty() {
            let fields = resource.selectable.iter().map(|path| json!({"fieldPath": path}));
            schema["x-kubernetes-selectable-fields"] = fields.collect();
        }
    }
    vec![(resource.schema.clone(), object), (resource.list_schema(), list)]
}

/// The schema of an object from that of its version.
fn object(mut schema: Value, dialect: Dialect) -> Value {
    tidy(&mut schema);
    let Some(map) = schema.as_object_mut() else { return json!({"type": "object"}) };
    match dialect {
        Dialect::V2 if says(map, PRESERVE) => return json!({"type": "object"}),
        Dialect::V2 => for_v2(map),
        Dialect::V3 => unfold(map),
    }
    embed(map, dialect);
    if let Some(properties) = properties(map) {
        let types = format!("{CONVENTIONS}#types-kinds");
        let version = "APIVersion defines the versioned schema of this representation of an object. Servers \
                       should convert recognized schemas to the latest internal value, and may reject \
                       unrecognized values.";
        let kind = "Kind is a string value representing the REST resource this object represents. Servers may \
                    infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase.";
        properties.insert("apiVersion".to_owned(), text(version, &format!("{CONVENTIONS}#resources")));
        properties.insert("kind".to_owned(), text(kind, &types));
        properties.insert("metadata".to_owned(), metadata(dialect));
    }
    schema
}

fn list(resource: &Resource, dialect: Dialect) -> Value {
    let Value::Object(mut list) = object(json!({"type": "object"}), dialect) else { return Value::Null };
    if let Some(properties) = properties(&mut list) {
        let text = format!("Standard list metadata. More info: {CONVENTIONS}#types-kinds");
        properties.insert("metadata".to_owned(), dialect.described(&format!("{META}.ListMeta"), &text));
        let text = format!("List of {}. More info: {CONVENTIONS}", resource.plural);
        let items = dialect.reference(&resource.schema);
        properties.insert("items".to_owned(), json!({"type": "array", "description": text, "items": items}));
    }
    list.insert("required".to_owned(), json!(["items"]));
    let text = format!("{} is a list of {}", resource.list_kind(), resource.kind);
    list.insert("description".to_owned(), text.into());
    Value::Object(list)
}

fn text(what: &str, more: &str) -> Value {
    json!({"type": "string", "description": format!("{what} More info: {more}")})
}

fn metadata(dialect: Dialect) -> Value {
    let text = format!("Standard object's metadata. More info: {CONVENTIONS}#metadata");
    dialect.described(&format!("{META}.ObjectMeta"), &text)
}

fn says(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key) == Some(&Value::Bool(true))
}

fn properties(map: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    map.entry("properties").or_insert_with(|| json!({})).as_object_mut()
}

/// The schemas within a schema.
fn children(map: &mut Map<String, Value>) -> Vec<&mut Value> {
    let mut all = Vec::new();
    for (key, value) in map.iter_mut() {
        let key = key.as_str();
        if SINGLE.contains(&key) {
            all.push(value);
        } else if key == "properties" {
            all.extend(value.as_object_mut().into_iter().flat_map(Map::values_mut));
        } else if LISTS.contains(&key) {
            all.extend(value.as_array_mut().into_iter().flatten());
        }
    }
    all
}

/// Removes what Go's encoder leaves out: flags that are false, and empty texts and lists.
fn tidy(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    map.retain(|key, value| match value {
        Value::Null => false,
        Value::Bool(false) => matches!(key.as_str(), "additionalProperties" | "default" | "example"),
        Value::String(text) => !text.is_empty() || matches!(key.as_str(), "default" | "example"),
        Value::Array(list) => !list.is_empty() || matches!(key.as_str(), "default" | "example"),
        _ => true,
    });
    children(map).into_iter().for_each(tidy);
}

/// Removes the parts that v2 cannot express, from the outside inwards.
fn for_v2(map: &mut Map<String, Value>) {
    for key in JUNCTORS.into_iter().chain(["default"]) {
        map.remove(key);
    }
    if map.remove("nullable") == Some(Value::Bool(true)) {
        for key in ["type", "items", "properties"] {
            map.remove(key);
        }
    }
    if says(map, PRESERVE) {
        for key in ["items", "properties"] {
            map.remove(key);
        }
    }
    let untyped = match map.get("type").and_then(Value::as_str) {
        Some("array") => !map.contains_key("items"),
        Some("object") => says(map, PRESERVE),
        _ => false,
    };
    if untyped {
        map.remove("type");
    }
    require_no_null(map);
    for child in children(map) {
        if let Some(child) = child.as_object_mut() {
            for_v2(child);
        }
    }
}

/// Drops nullable fields from the required ones, because null stands for their absence in v2.
fn require_no_null(map: &mut Map<String, Value>) {
    let nullable = |schema: &Value| schema["nullable"] == true;
    if map.get("additionalProperties").is_some_and(nullable) {
        map.remove("required");
    }
    let Some(Value::Object(properties)) = map.get("properties") else { return };
    let open: Vec<String> =
        properties.iter().filter(|(_, schema)| nullable(schema)).map(|(name, _)| name.clone()).collect();
    let Some(required) = map.get_mut("required").and_then(Value::as_array_mut) else { return };
    required.retain(|name| name.as_str().is_none_or(|name| !open.iter().any(|open| open == name)));
    if required.is_empty() {
        map.remove("required");
    }
}

/// Says in plain words of schemas what `x-kubernetes-int-or-string` means.
fn unfold(map: &mut Map<String, Value>) {
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    if says(map, INT_OR_STRING) {
        let first = map.get("allOf").and_then(|all| all.get(0)).and_then(|first| first.get("anyOf"));
        if map.get("anyOf") != Some(&either) && first != Some(&either) {
            if map.contains_key("anyOf") {
                let all = map.entry("allOf").or_insert_with(|| json!([]));
                if let Some(all) = all.as_array_mut() {
                    all.insert(0, json!({"anyOf": either}));
                }
            } else {
                map.insert("anyOf".to_owned(), either);
            }
        }
    }
    for child in children(map) {
        if let Some(child) = child.as_object_mut() {
            unfold(child);
        }
    }
}

/// Adds the fields of embedded API objects, which must have an apiVersion and a kind.
fn embed(map: &mut Map<String, Value>, dialect: Dialect) {
    for child in children(map) {
        if let Some(child) = child.as_object_mut() {
            embed(child, dialect);
        }
    }
    let open = dialect == Dialect::V2 && says(map, PRESERVE);
    if open || !says(map, EMBEDDED) {
        return;
    }
    if let Some(properties) = properties(map) {
        let version = "apiVersion defines the versioned schema of this representation of an object.";
        let kind = "kind is a string value representing the type of this object. In CamelCase.";
        properties.insert("apiVersion".to_owned(), text(version, &format!("{CONVENTIONS}#resources")));
        properties.insert("kind".to_owned(), text(kind, &format!("{CONVENTIONS}#types-kinds")));
        properties.insert("metadata".to_owned(), metadata(dialect));
    }
    if let Some(required) = map.entry("required").or_insert_with(|| json!([])).as_array_mut() {
        for field in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == field) {
                required.push(field.into());
            }
        }
    }
}

#[cfg(test)]
#[path = "published_tests.rs"]
mod tests;
