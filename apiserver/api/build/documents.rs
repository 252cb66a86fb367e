//! The OpenAPI documents: one of v2 for everything, one of v3 for each group and version.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

use crate::definitions::Definitions;
use crate::{Served, message, paths, reduce};

const PREFIX: &str = "#/$defs/";

/// Writes `v2.json.gz`, the same of what is served by default as `v2-default.json.gz` and
/// `v2-default.pb.gz`, `v3-*.json.gz` and `openapi_index.rs` into `out`.
pub fn write(out: &Path, definitions: &Definitions, served: &[Served], enums: &Value) {
    let mut by_version: BTreeMap<(String, String), Map<String, Value>> = BTreeMap::new();
    for resource in served {
        let key = (resource.group.clone(), resource.version.clone());
        paths::add(by_version.entry(key).or_default(), resource, definitions);
    }
    let mut index = String::from("static DOCUMENTS: &[Document] = &[\n");
    for ((group, version), paths) in &by_version {
        let document = v3(definitions, paths, enums);
        let text = serde_json::to_vec(&document).expect("a JSON value is serializable");
        let file = format!("v3-{group}-{version}.json.gz");
        store(&out.join(&file), &text);
        writeln!(
            index,
            "Document {{ group: {group:?}, version: {version:?}, hash: \"{}\", \
             bytes: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{file}\")) }},",
            hash(&text)
        )
        .expect("writing to a string");
    }
    index.push_str("];\n");
    let mut document = v2(definitions, &by_version);
    let text = serde_json::to_vec(&document).expect("a JSON value is serializable");
    store(&out.join("v2.json.gz"), &text);
    let mut constant = |name: &str, hash: String| {
        writeln!(index, "static {name}: &str = \"{hash}\";").expect("writing to a string");
    };
    constant("V2_HASH", hash(&text));
    reduce::without(&mut document, &|_, version, _| version.contains("alpha") || version.contains("beta"));
    let text = serde_json::to_vec(&document).expect("a JSON value is serializable");
    store(&out.join("v2-default.json.gz"), &text);
    constant("V2_DEFAULT_HASH", hash(&text));
    let message = message::v2(&document).unwrap_or_else(|error| panic!("{error}"));
    store(&out.join("v2-default.pb.gz"), &message);
    constant("V2_DEFAULT_PROTOBUF_HASH", hash(&message));
    std::fs::write(out.join("openapi_index.rs"), index).expect("OUT_DIR is writable");
}

fn store(path: &Path, text: &[u8]) {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).expect("writing to memory");
    std::fs::write(path, encoder.finish().expect("writing to memory")).expect("OUT_DIR is writable");
}

/// 128 bits of FNV-1a; names a version of a document, nothing more.
fn hash(text: &[u8]) -> String {
    let mut state: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in text {
        state = (state ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("{state:032X}")
}

fn v3(definitions: &Definitions, paths: &Map<String, Value>, enums: &Value) -> Value {
    let mut names = BTreeSet::new();
    let mut open = Vec::new();
    references(&Value::Object(paths.clone()), &mut open);
    while let Some(name) = open.pop() {
        if names.insert(name.clone()) {
            let schema = definitions
                .schemas
                .get(&name)
                .unwrap_or_else(|| panic!("{name} is referred to, not defined"));
            references(schema, &mut open);
        }
    }
    let schema = |name: String| {
        let schema = v3_schema(&name, &definitions.schemas[&name], enums);
        (name, schema)
    };
    let schemas: Map<String, Value> = names.into_iter().map(schema).collect();
    let paths: Map<String, Value> = paths.iter().map(|(path, item)| (path.clone(), v3_value(item))).collect();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"BearerToken": {
            "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
        }}},
    })
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(PREFIX)) {
                found.push(name.to_owned());
            }
            map.values().for_each(|v| references(v, found));
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

fn v3_schema(name: &str, schema: &Value, enums: &Value) -> Value {
    let mut schema = v3_value(schema);
    if let Some(fields) = enums.get(name).and_then(Value::as_object) {
        name_values(&mut schema, fields);
    }
    let choice = match name.rsplit('.').next() {
        Some("Quantity") => json!([{"type": "string"}, {"type": "number"}]),
        Some("IntOrString") => json!([{"type": "integer"}, {"type": "string"}]),
        _ => return schema,
    };
    let object = schema.as_object_mut().expect("a definition is an object");
    object.remove("type");
    object.insert("oneOf".into(), choice);
    schema
}

/// Names the values that fields may have; v2 does not.
fn name_values(schema: &mut Value, fields: &Map<String, Value>) {
    for (field, values) in fields {
        // A field behind a gate may be missing in the types.
        let Some(property) = schema["properties"].get_mut(field) else { continue };
        let list = values.as_array().expect("the values of a field are a list");
        let lines: Vec<String> = list.iter().map(|value| format!(" - `{value}`")).collect();
        let text = property["description"].as_str().unwrap_or_default();
        property["description"] = format!("{text}\n\nPossible enum values:\n{}", lines.join("\n")).into();
        let holder = if property["type"] == "array" { &mut property["items"] } else { property };
        holder["enum"] = values.clone();
    }
}

/// References become `#/components/schemas/…`; beside other keys they go into `allOf`, because
/// OpenAPI 3.0 ignores what stands beside a reference.
fn v3_value(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut out: Map<String, Value> =
                map.iter().filter(|(k, _)| *k != "$ref").map(|(k, v)| (k.clone(), v3_value(v))).collect();
            if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(PREFIX)) {
                let reference = json!({"$ref": format!("#/components/schemas/{name}")});
                if out.is_empty() {
                    return reference;
                }
                out.insert("allOf".into(), json!([reference]));
            } else if let Some(reference) = map.get("$ref") {
                // A field whose name is `$ref`, in the schema of schemas.
                out.insert("$ref".into(), v3_value(reference));
            }
            Value::Object(out)
        }
        Value::Array(list) => Value::Array(list.iter().map(v3_value).collect()),
        other => other.clone(),
    }
}

fn v2(definitions: &Definitions, by_version: &BTreeMap<(String, String), Map<String, Value>>) -> Value {
    let schemas: Map<String, Value> =
        definitions.schemas.iter().map(|(name, schema)| (name.clone(), v2_value(schema))).collect();
    let mut paths = Map::new();
    for items in by_version.values() {
        for (path, item) in items {
            paths.insert(path.clone(), v2_item(item));
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": paths,
        "definitions": schemas,
        "securityDefinitions": {"BearerToken": {
            "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
        }},
        "security": [{"BearerToken": []}],
    })
}

fn v2_value(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let convert = |(key, value): (&String, &Value)| {
                let name = value.as_str().filter(|_| key == "$ref").and_then(|r| r.strip_prefix(PREFIX));
                let value = name.map_or_else(|| v2_value(value), |n| format!("#/definitions/{n}").into());
                (key.clone(), value)
            };
            Value::Object(map.iter().map(convert).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(v2_value).collect()),
        other => other.clone(),
    }
}

fn v2_item(item: &Value) -> Value {
    let mut out = Map::new();
    for (key, value) in item.as_object().expect("a path item is an object") {
        let converted = if key == "parameters" { v2_parameters(value) } else { v2_operation(value) };
        out.insert(key.clone(), converted);
    }
    Value::Object(out)
}

fn v2_parameters(list: &Value) -> Value {
    let convert = |parameter: &Value| {
        let mut parameter = parameter.clone();
        let object = parameter.as_object_mut().expect("a parameter is an object");
        if let Some(Value::Object(schema)) = object.remove("schema") {
            object.extend(schema);
        }
        parameter
    };
    Value::Array(list.as_array().expect("parameters are a list").iter().map(convert).collect())
}

fn v2_operation(operation: &Value) -> Value {
    let mut out = operation.as_object().expect("an operation is an object").clone();
    let mut parameters = v2_parameters(&operation["parameters"]);
    if let Some(body) = out.remove("requestBody") {
        let content = body["content"].as_object().expect("a body has content");
        let (_, first) = content.iter().next().expect("a body has a content type");
        let entry = json!({"name": "body", "in": "body", "required": body["required"] == true, "schema": v2_value(&first["schema"])});
        parameters.as_array_mut().expect("parameters are a list").push(entry);
        out.insert("consumes".into(), content.keys().cloned().collect::<Vec<_>>().into());
    } else {
        out.insert("consumes".into(), json!(["*/*"]));
    }
    out.insert("parameters".into(), parameters);
    let mut produces = BTreeSet::new();
    let mut responses = Map::new();
    for (code, response) in operation["responses"].as_object().expect("responses are a map") {
        let mut entry = json!({"description": response["description"]});
        if let Some(content) = response["content"].as_object() {
            produces.extend(content.keys().cloned());
            let (_, first) = content.iter().next().expect("content has a type");
            entry["schema"] = v2_value(&first["schema"]);
        }
        responses.insert(code.clone(), entry);
    }
    out.insert("responses".into(), Value::Object(responses));
    out.insert("produces".into(), produces.into_iter().collect::<Vec<_>>().into());
    out.insert("schemes".into(), json!(["https"]));
    Value::Object(out)
}
