//! The operations on custom resources as OpenAPI describes them, in the forms of v2 and v3.

use serde_json::{Map, Value, json};

use crate::openapi::parameters;
use crate::registry::Resource;

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Which OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    V2,
    V3,
}

impl Dialect {
    pub(super) fn reference(self, name: &str) -> Value {
        match self {
            Self::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Self::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }

    /// A reference beside other keys.
    pub(super) fn described(self, name: &str, description: &str) -> Value {
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

/// The paths of a kind with their operations.
pub fn operations(resource: &Resource, dialect: Dialect) -> Map<String, Value> {
    let prefix = format!("/apis/{}/{}", resource.group, resource.version);
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{prefix}{scope}/{}", resource.plural);
    let scoped = if resource.namespaced { "Namespaced" } else { "" };
    let stem: String = resource.group.split('.').chain([resource.version.as_str()]).map(capital).collect();
    let make = |verb: &'static str, word: &str, sub: &str, target: &str| {
        let id = format!("{word}{stem}{scoped}{}{}", resource.kind, capital(sub));
        operation(resource, (verb, sub), &id, target, dialect)
    };
    let list = resource.list_schema();
    let status = format!("{META}.Status");
    let parameters = |named: bool| path_parameters(&resource.kind, (resource.namespaced, named), dialect);
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
    let one = |sub: &str, target: &str| {
        json!({
            "parameters": parameters(true),
            "get": make("get", "read", sub, target),
            "put": make("put", "replace", sub, target),
            "patch": make("patch", "patch", sub, target),
        })
    };
    let mut object = one("", &resource.schema);
    object["delete"] = make("delete", "delete", "", &status);
    paths.insert(format!("{collection}/{{name}}"), object);
    for sub in &resource.subresources {
        let scale = "io.k8s.api.autoscaling.v1.Scale";
        let target = if sub.name == "scale" { scale } else { &resource.schema };
        paths.insert(format!("{collection}/{{name}}/{}", sub.name), one(sub.name, target));
    }
    if resource.namespaced {
        let id = format!("list{stem}{}ForAllNamespaces", resource.kind);
        let mut all = json!({"get": operation(resource, ("list", ""), &id, &list, dialect)});
        all["parameters"] = Value::Array(path_parameters(&resource.kind, (false, false), dialect));
        paths.insert(format!("{prefix}/{}", resource.plural), all);
    }
    paths
}

fn operation(
    resource: &Resource,
    (verb, sub): (&str, &str),
    id: &str,
    target: &str,
    dialect: Dialect,
) -> Value {
    let body = match verb {
        "post" | "put" => Some((target.to_owned(), true, vec!["application/json", "application/yaml"])),
        "patch" => Some((
            format!("{META}.Patch"),
            true,
            parameters::PATCHES.into_iter().filter(|media| *media != parameters::STRATEGIC).collect(),
        )),
        "delete" | "deletecollection" => {
            Some((format!("{META}.DeleteOptions"), false, vec!["application/json", "application/yaml"]))
        }
        _ => None,
    };
    let names = parameters::of_action(verb).iter();
    let mut parameters: Vec<Value> = names.map(|name| query(name, dialect)).collect();
    let mut operation = json!({
        "description": what(&resource.kind, verb, sub),
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

/// The description of an operation, a sentence.
fn what(kind: &str, verb: &str, sub: &str) -> String {
    let of = if sub.is_empty() { String::new() } else { format!(" {sub} of") };
    let article = match kind {
        // Plurals have none.
        _ if kind.ends_with('s') && !kind.ends_with("ss") => "",
        _ if kind.to_lowercase().starts_with(['a', 'e', 'i', 'o', 'u']) => "an ",
        _ => "a ",
    };
    match verb {
        "list" => format!("list objects of kind {kind}"),
        "post" => format!("create {article}{kind}"),
        "put" => format!("replace{of} the specified {kind}"),
        "patch" => format!("partially update{of} the specified {kind}"),
        "deletecollection" => format!("delete collection of {kind}"),
        "get" => format!("read{of} the specified {kind}"),
        other => format!("{other} {article}{kind}"),
    }
}

/// Answers that mean success, beside 200.
fn further_answers(verb: &str) -> &'static [(&'static str, &'static str)] {
    match verb {
        "post" => &[("201", "Created"), ("202", "Accepted")],
        "put" => &[("201", "Created")],
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

fn path_parameters(kind: &str, (namespaced, named): (bool, bool), dialect: Dialect) -> Vec<Value> {
    let names = [(named, "name"), (namespaced, "namespace")];
    let names = names.into_iter().filter(|(wanted, _)| *wanted);
    let of_path = names.map(|(_, name)| {
        let mut parameter = query(name, dialect);
        parameter["in"] = "path".into();
        parameter["required"] = true.into();
        if name == "name" {
            parameter["description"] = format!("name of the {kind}").into();
        }
        parameter
    });
    of_path.chain([query("pretty", dialect)]).collect()
}

fn capital(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map(|c| c.to_uppercase().chain(characters).collect()).unwrap_or_default()
}
