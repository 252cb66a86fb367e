//! Parameters that operations share: those of all operations of a path belong to the path, and in v2 each
//! is there once, under its name and a hash, and operations refer to it. The build script has this file too.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use serde_json::{Map, Value, json};

/// The members of a parameter in the order of Kubernetes' types, of which the hash is made.
const MEMBERS: [&str; 7] = ["uniqueItems", "type", "description", "name", "in", "required", "schema"];
/// The definitions of bodies that operations share begin so.
const GENERIC: &str = "#/definitions/io.k8s.apimachinery";

/// Returns a path item: `own` are the parameters of the path, to which those are added that all of its
/// operations share.
pub fn item(mut own: Vec<Value>, operations: Vec<(&str, Value)>) -> Value {
    let of = |operation: &Value| operation["parameters"].as_array().cloned().unwrap_or_default();
    let mut common = operations.first().map(|(_, first)| of(first)).unwrap_or_default();
    common.retain(|parameter| operations.iter().all(|(_, other)| of(other).contains(parameter)));
    let mut item = Map::new();
    for (method, mut operation) in operations {
        let mut rest = of(&operation);
        rest.retain(|parameter| !common.contains(parameter));
        operation["parameters"] = rest.into();
        item.insert(method.to_owned(), operation);
    }
    own.append(&mut common);
    own.sort_by(|a, b| place(a).cmp(&place(b)));
    item.insert("parameters".to_owned(), own.into());
    Value::Object(item)
}

/// Returns the sort key of a parameter: its name, then its location.
pub fn place(parameter: &Value) -> (&str, &str) {
    (parameter["name"].as_str().unwrap_or_default(), parameter["in"].as_str().unwrap_or_default())
}

/// Replaces the shared parameters of a path and its operations by references, and adds them to `parameters`.
pub fn replace(item: &mut Value, parameters: &mut Map<String, Value>) {
    let Value::Object(item) = item else { return };
    let lists = item.iter_mut().filter_map(|(key, value)| match key.as_str() {
        "parameters" => Some(value),
        _ => value.get_mut("parameters"),
    });
    for parameter in lists.filter_map(Value::as_array_mut).flatten() {
        if is_shared(parameter) {
            let name = shared_name(parameter);
            let reference = json!({"$ref": format!("#/parameters/{name}")});
            parameters.insert(name, std::mem::replace(parameter, reference));
        }
    }
}

/// `true` if other operations have the same parameter. Two that old kubectl looks for stay where they are.
fn is_shared(parameter: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match (text(&parameter["in"]).as_str(), text(&parameter["name"]).as_str()) {
        (_, "name") | ("query", "fieldValidation" | "dryRun") => false,
        ("body", _) => text(&parameter["schema"]["$ref"]).starts_with(GENERIC),
        _ => true,
    }
}

fn shared_name(parameter: &Value) -> String {
    let members = MEMBERS.iter().filter_map(|name| Some(format!("\"{name}\":{}", parameter.get(name)?)));
    let text = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
    // Go escapes these in JSON.
    let text = text.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
    let hash = URL_SAFE.encode(&fnv(text.as_bytes()).to_be_bytes()[..6]);
    format!("{}-{hash}", parameter["name"].as_str().unwrap_or_default())
}

/// FNV-1, 64 bits. The build script compiles this module too, and has no other crate of ours.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
