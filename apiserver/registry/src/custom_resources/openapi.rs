//! The operations on custom resources as OpenAPI describes them, in the forms of v2 and v3.

use serde_json::{Map, Value, json};

use crate::resource::Resource;
use apiserver_schema::openapi::{parameters, shared};

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The version of OpenAPI.
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

    /// Returns a reference with other keys next to it.
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
        let (word, many) = word.split_once('-').unwrap_or((word, ""));
        let id = format!("{word}{stem}{many}{scoped}{}{}", resource.kind, capital(sub));
        operation(resource, (verb, sub), &id, target, dialect)
    };
    let list = resource.list_schema();
    let status = format!("{META}.Status");
    let parameters = |named: bool| path_parameters(&resource.kind, (resource.namespaced, named), dialect);
    let mut paths = Map::new();
    let many = vec![
        ("get", make("list", "list", "", &list)),
        ("post", make("post", "create", "", &resource.schema)),
        ("delete", make("deletecollection", "delete-Collection", "", &status)),
    ];
    paths.insert(collection.clone(), shared::item(parameters(false), many));
    let one = |sub: &str, target: &str| {
        vec![
            ("get", make("get", "read", sub, target)),
            ("put", make("put", "replace", sub, target)),
            ("patch", make("patch", "patch", sub, target)),
        ]
    };
    let mut object = one("", &resource.schema);
    object.push(("delete", make("delete", "delete", "", &status)));
    paths.insert(format!("{collection}/{{name}}"), shared::item(parameters(true), object));
    for sub in &resource.subresources {
        let scale = "io.k8s.api.autoscaling.v1.Scale";
        let target = if sub.name == "scale" { scale } else { &resource.schema };
        let item = shared::item(parameters(true), one(sub.name, target));
        paths.insert(format!("{collection}/{{name}}/{}", sub.name), item);
    }
    if resource.namespaced {
        let id = format!("list{stem}{}ForAllNamespaces", resource.kind);
        let all = operation(resource, ("list", ""), &id, &list, dialect);
        paths.insert(format!("{prefix}/{}", resource.plural), shared::item(Vec::new(), vec![("get", all)]));
    }
    for item in paths.values_mut() {
        tidy(item);
    }
    paths
}

/// Removes empty lists of parameters; in v2, moves parameters that all operations share to the path.
fn tidy(item: &mut Value) {
    // The document of built-in kinds has them.
    if item.pointer("/get/produces").is_some() {
        shared::replace(item, &mut Map::new());
    }
    for holder in item.as_object_mut().into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut)
    {
        if holder.get("parameters").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            holder.remove("parameters");
        }
    }
}

/// The media types that are taken and answered with.
const MEDIA: [&str; 2] = ["application/json", "application/yaml"];

fn operation(
    resource: &Resource,
    (verb, sub): (&str, &str),
    id: &str,
    target: &str,
    dialect: Dialect,
) -> Value {
    let body = match verb {
        "post" | "put" => Some((target.to_owned(), true, MEDIA.to_vec())),
        "patch" => Some((
            format!("{META}.Patch"),
            true,
            parameters::PATCHES.into_iter().filter(|media| *media != parameters::STRATEGIC).collect(),
        )),
        "delete" => Some((format!("{META}.DeleteOptions"), false, MEDIA.to_vec())),
        _ => None,
    };
    let mut parameters = query_parameters(verb, dialect);
    let mut words = resource.group.split('.');
    let tag: String = words.next().into_iter().map(str::to_owned).chain(words.map(capital)).collect();
    let mut operation = json!({
        "description": what(&resource.kind, verb, sub),
        "operationId": id,
        "tags": [format!("{tag}_{}", resource.version)],
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind":
            {"group": resource.group, "version": resource.version, "kind": resource.kind},
    });
    let schema = dialect.reference(target);
    let content = json!({"application/json": {"schema": schema}, "application/yaml": {"schema": schema}});
    let answer = |text: &str| match dialect {
        Dialect::V2 => json!({"description": text, "schema": schema}),
        Dialect::V3 => json!({"description": text, "content": content}),
    };
    operation["responses"] = json!({"200": answer("OK"), "401": {"description": "Unauthorized"}});
    for (code, text) in further_answers(verb) {
        operation["responses"][code] = answer(text);
    }
    if dialect == Dialect::V2 {
        operation["produces"] = json!(MEDIA);
        operation["schemes"] = json!(["https"]);
        operation["consumes"] = json!(MEDIA);
    }
    if let Some((name, required, types)) = body {
        let schema = dialect.reference(&name);
        let mut body = match dialect {
            Dialect::V2 => {
                operation["consumes"] = json!(types);
                json!({"name": "body", "in": "body", "schema": schema})
            }
            Dialect::V3 => {
                let entry = |media: &str| (media.to_owned(), json!({"schema": schema}));
                json!({"content": types.into_iter().map(entry).collect::<Map<String, Value>>()})
            }
        };
        if required {
            body["required"] = true.into();
        }
        match dialect {
            Dialect::V2 => parameters.push(body),
            Dialect::V3 => operation["requestBody"] = body,
        }
    }
    parameters.sort_by(|a, b| shared::place(a).cmp(&shared::place(b)));
    operation["parameters"] = Value::Array(parameters);
    operation
}

fn query_parameters(verb: &str, dialect: Dialect) -> Vec<Value> {
    let names = match verb {
        "get" => &["resourceVersion"][..],
        // The parameters that select objects are those of a list.
        "deletecollection" => parameters::of_action("list"),
        verb => parameters::of_action(verb),
    };
    names.iter().copied().chain(["pretty"]).map(|name| query(name, dialect)).collect()
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

/// Returns the answers besides 200 that mean success.
fn further_answers(verb: &str) -> &'static [(&'static str, &'static str)] {
    match verb {
        "post" => &[("201", "Created"), ("202", "Accepted")],
        "put" => &[("201", "Created")],
        "delete" => &[("202", "Accepted")],
        _ => &[],
    }
}

fn query(key: &str, dialect: Dialect) -> Value {
    let (kind, text) = parameters::described(key);
    let mut parameter = json!({"name": parameters::name(key), "in": "query", "description": text});
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
    let in_path = |mut parameter: Value| {
        parameter["in"] = "path".into();
        parameter["required"] = true.into();
        parameter
    };
    let name = named.then(|| {
        // It is a text, as the namespace is.
        let mut name = in_path(query("namespace", dialect));
        name["name"] = "name".into();
        name["description"] = format!("name of the {kind}").into();
        name
    });
    name.into_iter().chain(namespaced.then(|| in_path(query("namespace", dialect)))).collect()
}

fn capital(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map(|c| c.to_uppercase().chain(characters).collect()).unwrap_or_default()
}
