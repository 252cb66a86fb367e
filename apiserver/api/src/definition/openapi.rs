//! What OpenAPI says of custom resources: schemas and operations, in the forms of v2 and v3.

use serde_json::{Map, Value, json};

use super::Custom;
use crate::openapi::parameters;
use crate::registry::Resource;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object.";
const KIND: &str = "Kind is the REST resource that this object represents.";

/// Which OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, name: &str) -> Value {
        match self {
            Self::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Self::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }

    /// A reference beside other keys.
    fn described(self, name: &str, description: &str) -> Value {
        match self {
            Self::V2 => {
                let mut value = self.reference(name);
                value["description"] = description.into();
                value
            }
            Self::V3 => json!({"description": description, "allOf": [self.reference(name)]}),
        }
    }
}

/// The schemas of an object and of a list, by their names.
pub fn schemas(custom: &Custom, resource: &Resource, dialect: Dialect) -> Vec<(String, Value)> {
    let gvk = json!([{"group": resource.group, "version": resource.version, "kind": resource.kind}]);
    let raw = custom.definition.raw_schema(custom.version());
    let mut schema = if raw.is_object() { raw } else { json!({"type": "object"}) };
    // v2 cannot say the half of it; what it cannot say is left open, as Kubernetes does.
    if dialect == Dialect::V2 {
        for_v2(&mut schema);
    }
    let preserved = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
    if !schema["properties"].is_object() && !preserved {
        schema["properties"] = json!({});
    }
    embedded(&mut schema, dialect);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        object_fields(properties, dialect);
    }
    schema["x-kubernetes-group-version-kind"] = gvk;
    if !resource.selectable.is_empty() {
        let fields: Vec<Value> = resource.selectable.iter().map(|path| json!({"fieldPath": path})).collect();
        schema["x-kubernetes-selectable-fields"] = Value::Array(fields);
    }
    let description = format!("{} is a list of {}", resource.list_kind(), resource.kind);
    let list = json!({
        "description": description, "type": "object", "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "metadata": dialect.described(&format!("{META}.ListMeta"), "Standard list metadata."),
            "items": {"type": "array", "description": format!("List of {}.", resource.plural),
                      "items": dialect.reference(&resource.schema)},
        },
        "x-kubernetes-group-version-kind":
            [{"group": resource.group, "version": resource.version, "kind": resource.list_kind()}],
    });
    vec![(resource.schema.clone(), schema), (resource.list_schema(), list)]
}

/// v2 has neither `nullable` nor alternatives, and takes a type that is empty for an error.
fn for_v2(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    for key in ["allOf", "anyOf", "oneOf", "not", "default"] {
        map.remove(key);
    }
    let open = map.remove("nullable") == Some(Value::Bool(true))
        || map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if open {
        for key in ["type", "items", "properties", "required", "additionalProperties"] {
            map.remove(key);
        }
    }
    if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        map.remove("type");
    }
    for key in ["items", "additionalProperties"] {
        map.get_mut(key).into_iter().for_each(for_v2);
    }
    if let Some(properties) = map.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(for_v2);
    }
}

/// The fields that every object of the API has.
fn object_fields(properties: &mut Map<String, Value>, dialect: Dialect) {
    let text = |description: &str| json!({"type": "string", "description": description});
    properties.insert("apiVersion".to_owned(), text(API_VERSION));
    properties.insert("kind".to_owned(), text(KIND));
    let metadata = dialect.described(&format!("{META}.ObjectMeta"), "Standard object's metadata.");
    properties.insert("metadata".to_owned(), metadata);
}

/// Objects of the API within the object have these fields as well, and must say what they are.
fn embedded(schema: &mut Value, dialect: Dialect) {
    let Some(map) = schema.as_object_mut() else { return };
    for key in ["items", "additionalProperties"] {
        map.get_mut(key).into_iter().for_each(|below| embedded(below, dialect));
    }
    for property in map.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        embedded(property.1, dialect);
    }
    let says = |key: &str| map.get(key) == Some(&Value::Bool(true));
    let open = dialect == Dialect::V2 && says("x-kubernetes-preserve-unknown-fields");
    if open || !says("x-kubernetes-embedded-resource") {
        return;
    }
    if let Some(properties) = map.entry("properties").or_insert_with(|| json!({})).as_object_mut() {
        object_fields(properties, dialect);
    }
    if let Some(required) = map.entry("required").or_insert_with(|| json!([])).as_array_mut() {
        for field in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == field) {
                required.push(field.into());
            }
        }
    }
}

/// The paths of a kind with their operations.
pub fn operations(resource: &Resource, dialect: Dialect) -> Map<String, Value> {
    let prefix = format!("/apis/{}/{}", resource.group, resource.version);
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{prefix}{scope}/{}", resource.plural);
    let scoped = if resource.namespaced { "Namespaced" } else { "" };
    let stem: String = resource.group.split('.').chain([resource.version.as_str()]).map(capital).collect();
    let make = |verb: &'static str, word: &str, suffix: &str, target: &str| {
        let id = format!("{word}{stem}{scoped}{}{suffix}", resource.kind);
        operation(resource, verb, &id, target, dialect)
    };
    let list = resource.list_schema();
    let status = format!("{META}.Status");
    let parameters = |named: bool| path_parameters(resource.namespaced, named, dialect);
    let mut paths = Map::new();
    paths.insert(
        collection.clone(),
        json!({
            "parameters": parameters(false),
            "get": make("list", "list", "", &list),
            "post": make("post", "create", "", &resource.schema),
            "delete": make("deletecollection", "deleteCollection", "", &status),
        }),
    );
    let one = |suffix: &str, target: &str| {
        json!({
            "parameters": parameters(true),
            "get": make("get", "read", suffix, target),
            "put": make("put", "replace", suffix, target),
            "patch": make("patch", "patch", suffix, target),
        })
    };
    let mut object = one("", &resource.schema);
    object["delete"] = make("delete", "delete", "", &status);
    paths.insert(format!("{collection}/{{name}}"), object);
    for sub in &resource.subresources {
        let scale = "io.k8s.api.autoscaling.v1.Scale";
        let target = if sub.name == "scale" { scale } else { &resource.schema };
        paths.insert(format!("{collection}/{{name}}/{}", sub.name), one(&capital(sub.name), target));
    }
    if resource.namespaced {
        let id = format!("list{stem}{}ForAllNamespaces", resource.kind);
        let mut all = json!({"get": operation(resource, "list", &id, &list, dialect)});
        all["parameters"] = Value::Array(path_parameters(false, false, dialect));
        paths.insert(format!("{prefix}/{}", resource.plural), all);
    }
    paths
}

fn operation(resource: &Resource, verb: &str, id: &str, target: &str, dialect: Dialect) -> Value {
    let body = match verb {
        "post" | "put" => Some((target.to_owned(), true, vec!["application/json", "application/yaml"])),
        "patch" => Some((
            format!("{META}.Patch"),
            true,
            parameters::PATCHES.into_iter().filter(|media| *media != parameters::STRATEGIC).collect(),
        )),
        "delete" | "deletecollection" => Some((format!("{META}.DeleteOptions"), false, vec!["*/*"])),
        _ => None,
    };
    let names = parameters::of_action(verb).iter();
    let mut parameters: Vec<Value> = names.map(|name| query(name, dialect)).collect();
    let what = match verb {
        "list" => format!("list objects of kind {}", resource.kind),
        "post" => format!("create {}", resource.kind),
        "put" => format!("replace the specified {}", resource.kind),
        "patch" => format!("partially update the specified {}", resource.kind),
        "deletecollection" => format!("delete collection of {}", resource.kind),
        "get" => format!("read the specified {}", resource.kind),
        other => format!("{other} {}", resource.kind),
    };
    let mut operation = json!({
        "description": what,
        "operationId": id,
        "tags": [format!("{}_{}", resource.group.replace('.', "_"), resource.version)],
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind":
            {"group": resource.group, "version": resource.version, "kind": resource.kind},
    });
    let schema = dialect.reference(target);
    match dialect {
        Dialect::V3 => {
            let entry = json!({"schema": schema});
            let content = json!({"application/json": entry, "application/yaml": entry});
            let answer = |text: &str| json!({"description": text, "content": content});
            operation["responses"] = json!({"200": answer("OK"), "401": {"description": "Unauthorized"}});
            for (code, text) in further_answers(verb) {
                operation["responses"][code] = answer(text);
            }
            if let Some((name, required, types)) = body {
                let entry = json!({"schema": dialect.reference(&name)});
                let content: Map<String, Value> =
                    types.into_iter().map(|t| (t.to_owned(), entry.clone())).collect();
                operation["requestBody"] = json!({"required": required, "content": content});
            }
        }
        Dialect::V2 => {
            let answer = |text: &str| json!({"description": text, "schema": schema});
            operation["responses"] = json!({"200": answer("OK"), "401": {"description": "Unauthorized"}});
            for (code, text) in further_answers(verb) {
                operation["responses"][code] = answer(text);
            }
            operation["produces"] = json!(["application/json", "application/yaml"]);
            operation["schemes"] = json!(["https"]);
            operation["consumes"] = json!(["application/json", "application/yaml"]);
            if let Some((name, required, types)) = body {
                operation["consumes"] = json!(types);
                let schema = dialect.reference(&name);
                parameters
                    .push(json!({"name": "body", "in": "body", "required": required, "schema": schema}));
            }
        }
    }
    operation["parameters"] = Value::Array(parameters);
    operation
}

/// Answers that mean success, beside 200.
fn further_answers(verb: &str) -> &'static [(&'static str, &'static str)] {
    match verb {
        "post" => &[("201", "Created"), ("202", "Accepted")],
        "put" => &[("201", "Created")],
        "patch" => &[("201", "Created")],
        "delete" => &[("202", "Accepted")],
        _ => &[],
    }
}

fn query(name: &str, dialect: Dialect) -> Value {
    let (kind, text) = parameters::described(name);
    let mut parameter = json!({"name": name, "in": "query", "description": text});
    match dialect {
        Dialect::V2 => {
            parameter["type"] = kind.into();
            parameter["uniqueItems"] = true.into();
        }
        Dialect::V3 => parameter["schema"] = json!({"type": kind, "uniqueItems": true}),
    }
    parameter
}

fn path_parameters(namespaced: bool, named: bool, dialect: Dialect) -> Vec<Value> {
    let names = [(named, "name"), (namespaced, "namespace")];
    let names = names.into_iter().filter(|(wanted, _)| *wanted);
    let of_path = names.map(|(_, name)| {
        let mut parameter = query(name, dialect);
        parameter["in"] = "path".into();
        parameter["required"] = true.into();
        parameter
    });
    of_path.chain([query("pretty", dialect)]).collect()
}

fn capital(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map(|c| c.to_uppercase().chain(characters).collect()).unwrap_or_default()
}
