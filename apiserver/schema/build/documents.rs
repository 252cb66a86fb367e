//! The OpenAPI documents: one of v2 for everything, one of v3 for each group and version.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

use crate::definitions::Definitions;
use crate::{Served, message, paths, reduce, shared, single};

const PREFIX: &str = "#/$defs/";

/// Writes `v2.json.gz`, its default subset as `v2-default.json.gz` and `v2-default.pb.gz`, `v3-*.json.gz` and
/// `openapi_index.rs` into `out`.
pub fn write(out: &Path, definitions: &Definitions, served: &[Served]) {
    let by_document = paths_by_document(definitions, served);
    let mut index = String::from("static DOCUMENTS: &[Document] = &[\n");
    for (name, paths) in &by_document {
        let mut document = v3(definitions, paths);
        of_document(&mut document, name);
        let text = serde_json::to_vec(&document).expect("a JSON value is serializable");
        let file = format!("v3-{}.json.gz", name.replace('/', "-"));
        store(&out.join(&file), &text);
        writeln!(
            index,
            "Document {{ name: {name:?}, hash: \"{}\", bytes: include_bytes!(concat!(env!(\"OUT_DIR\"), \
             \"/{file}\")) }},",
            hash(&text)
        )
        .expect("writing to a string");
    }
    index.push_str("];\n");
    let mut document = v2(definitions, &by_document);
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

/// The paths of each document of v3, by its name: `apis/apps/v1`.
fn paths_by_document(definitions: &Definitions, served: &[Served]) -> BTreeMap<String, Map<String, Value>> {
    let mut all: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for resource in served {
        let (group, version) = (&resource.group, &resource.version);
        let name = paths::prefix(group, version);
        let document = all.entry(name[1..].to_owned()).or_default();
        paths::add(document, resource, definitions);
        document.extend([single::version(group, version)]);
        let (path, item) = single::group(group);
        all.entry(path.trim_matches('/').to_owned()).or_default().insert(path, item);
    }
    for (name, path, item) in single::all() {
        all.entry(name.to_owned()).or_default().insert(path, item);
    }
    all
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

fn v3(definitions: &Definitions, paths: &Map<String, Value>) -> Value {
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
        let schema = v3_value(&definitions.schemas[&name]);
        (name, schema)
    };
    let schemas: Map<String, Value> = names.into_iter().map(schema).collect();
    let paths: Map<String, Value> = paths.iter().map(|(path, item)| (path.clone(), v3_item(item))).collect();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "1.36"},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"BearerToken": {
            "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
        }}},
    })
}

/// A path with its operations, which name their parameters if they have such.
fn v3_item(item: &Value) -> Value {
    let mut item = v3_value(item);
    let holders = item.as_object_mut().expect("a path item is an object").values_mut();
    holders.filter_map(Value::as_object_mut).for_each(without_empty_parameters);
    without_empty_parameters(item.as_object_mut().expect("a path item is an object"));
    item
}

fn without_empty_parameters(holder: &mut Map<String, Value>) {
    if holder.get("parameters").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        holder.remove("parameters");
    }
}

/// Some types belong to every version: a document names its own and the legacy one.
fn of_document(document: &mut Value, name: &str) {
    let mut parts = name.split('/').skip(1);
    let own = match (name.starts_with("apis/"), parts.next(), parts.next()) {
        (true, Some(group), version) => (group, version.unwrap_or_default()),
        _ => ("", "v1"),
    };
    let Some(components) = document["components"].as_object_mut() else { return };
    let Some(schemas) = components.get_mut("schemas").and_then(Value::as_object_mut) else { return };
    for schema in schemas.values_mut() {
        if let Some(Value::Array(kinds)) = schema.get_mut(crate::KINDS)
            && kinds.len() > 1
        {
            let is = |kind: &Value, (group, version): (&str, &str)| {
                kind["group"] == group && kind["version"] == version
            };
            kinds.retain(|kind| is(kind, own) || is(kind, ("", "v1")));
        }
    }
    if schemas.is_empty() {
        components.remove("schemas");
    }
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

/// Converts references to `#/components/schemas/…`; next to other keys they go into `allOf`, because OpenAPI
/// 3.0 ignores keys next to a reference.
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

fn v2(definitions: &Definitions, by_document: &BTreeMap<String, Map<String, Value>>) -> Value {
    let schemas: Map<String, Value> =
        definitions.schemas.iter().map(|(name, schema)| (name.clone(), v2_schema(schema))).collect();
    let mut paths = Map::new();
    for items in by_document.values() {
        for (path, item) in items {
            paths.insert(path.clone(), v2_item(item));
        }
    }
    let mut parameters = Map::new();
    paths.values_mut().for_each(|item| shared::replace(item, &mut parameters));
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "1.36"},
        "paths": paths,
        "definitions": schemas,
        "parameters": parameters,
        "securityDefinitions": {"BearerToken": {
            "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
        }},
        "security": [{"BearerToken": []}],
    })
}

/// Returns a definition; v2 has neither defaults nor a choice of types, in whose place is text.
fn v2_schema(schema: &Value) -> Value {
    let mut schema = v2_value(schema);
    if let Some(object) = schema.as_object_mut()
        && object.remove("oneOf").is_some()
    {
        object.insert("type".into(), "string".into());
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for property in properties.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
        property.remove("default");
    }
    schema
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
    without_empty_parameters(&mut out);
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
    let mut parameters = operation.get("parameters").map_or_else(|| json!([]), v2_parameters);
    let mut produces: Vec<&str> = Vec::new();
    let mut responses = Map::new();
    for (code, response) in operation["responses"].as_object().expect("responses are a map") {
        let mut entry = json!({"description": response["description"]});
        if let Some(content) = response["content"].as_object() {
            produces = content.keys().map(String::as_str).collect();
            let (_, first) = content.iter().next().expect("content has a type");
            entry["schema"] = v2_value(&first["schema"]);
        }
        responses.insert(code.clone(), entry);
    }
    let rank = |media: &&str| PRODUCED.iter().position(|known| known == media);
    produces.sort_by_key(rank);
    let mut consumes = match operation.get("x-kubernetes-action") {
        Some(_) => vec!["*/*"],
        // The texts of the API itself.
        None => produces.clone(),
    };
    if let Some(body) = out.remove("requestBody") {
        let content = body["content"].as_object().expect("a body has content");
        let (_, first) = content.iter().next().expect("a body has a content type");
        let mut entry = json!({"name": "body", "in": "body", "schema": v2_value(&first["schema"])});
        if body["required"] == true {
            entry["required"] = true.into();
        }
        let list = parameters.as_array_mut().expect("parameters are a list");
        let before = |other: &Value| other["name"].as_str() < Some("body");
        list.insert(list.iter().take_while(|other| before(other)).count(), entry);
        if content.len() > 1 {
            consumes = crate::parameters::PATCHES.to_vec();
        }
    }
    if !operation["tags"][0].as_str().is_some_and(|tag| matches!(tag, "openid" | "WellKnown")) {
        out.insert("consumes".into(), json!(consumes));
    }
    out.insert("parameters".into(), parameters);
    without_empty_parameters(&mut out);
    out.insert("produces".into(), json!(produces));
    out.insert("responses".into(), Value::Object(responses));
    out.insert("schemes".into(), json!(["https"]));
    Value::Object(out)
}

/// The order in which media types of answers are named.
const PRODUCED: [&str; 6] = [
    "text/plain",
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
