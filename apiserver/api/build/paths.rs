//! The operations of each resource, in the form of OpenAPI v3. `documents` derives v2 from them.

use serde_json::{Map, Value, json};

use crate::definitions::Definitions;
use crate::{Served, connect, deleted, parameters};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// The media types of answers.
const ANSWERS: [&str; 3] = ["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"];
/// Those of lists, which may be watched, beside them.
const STREAMS: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

/// The prefix of a group and version: `/api/v1`, `/apis/apps/v1`.
pub fn prefix(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// Adds the paths of `resource`.
pub fn add(paths: &mut Map<String, Value>, resource: &Served, definitions: &Definitions) {
    let Some(definition) = definitions.of_kind(&resource.group, &resource.version, &resource.kind) else {
        panic!("no definition of {}/{} {}", resource.group, resource.version, resource.kind)
    };
    let prefix = prefix(&resource.group, &resource.version);
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{prefix}{scope}/{}", resource.plural);
    let make = |verb: &str, id: String| Operation { resource, definition, verb: verb.to_owned(), id };
    let has = |verb: &str| resource.verbs.iter().any(|v| v == verb);
    let (stem, scoped) = (stem(resource), if resource.namespaced { "Namespaced" } else { "" });
    let kind = &resource.kind;

    let mut many = path_parameters(resource.namespaced, false);
    let mut one = path_parameters(resource.namespaced, true);
    for (verb, method, word) in [
        ("list", "get", "list"),
        ("create", "post", "create"),
        ("deletecollection", "delete", "deleteCollection"),
    ] {
        if has(verb) {
            many[method] = make(verb, format!("{word}{stem}{scoped}{kind}")).object();
        }
    }
    for (verb, method, word) in [
        ("get", "get", "read"),
        ("update", "put", "replace"),
        ("patch", "patch", "patch"),
        ("delete", "delete", "delete"),
    ] {
        if has(verb) {
            one[method] = make(verb, format!("{word}{stem}{scoped}{kind}")).object();
        }
    }
    paths.insert(collection.clone(), many);
    if has("get") {
        paths.insert(format!("{collection}/{{name}}"), one);
    }
    if resource.namespaced && has("list") {
        let mut all = path_parameters(false, false);
        all["get"] = make("list", format!("list{stem}{kind}ForAllNamespaces")).object();
        paths.insert(format!("{prefix}/{}", resource.plural), all);
    }
    add_subresources(paths, &collection, resource, definition);
}

fn add_subresources(paths: &mut Map<String, Value>, collection: &str, resource: &Served, definition: &str) {
    let (stem, kind) = (stem(resource), &resource.kind);
    let scoped = if resource.namespaced { "Namespaced" } else { "" };
    for (name, verbs) in &resource.subresources {
        if verbs.iter().any(|verb| verb == "connect") {
            connect::add(paths, collection, resource, name);
            continue;
        }
        let mut item = path_parameters(resource.namespaced, true);
        let target = subresource_definition(name).unwrap_or(definition);
        for verb in verbs {
            let (method, word) = match verb.as_str() {
                "get" => ("get", "read"),
                "update" => ("put", "replace"),
                "patch" => ("patch", "patch"),
                _ => ("post", "create"),
            };
            let id = format!("{word}{stem}{scoped}{kind}{}", capital(name));
            let operation = Operation { resource, definition: target, verb: verb.clone(), id };
            item[method] = if name == "log" { operation.text() } else { operation.object() };
        }
        paths.insert(format!("{collection}/{{name}}/{name}"), item);
    }
}

fn subresource_definition(name: &str) -> Option<&'static str> {
    match name {
        "scale" => Some("io.k8s.api.autoscaling.v1.Scale"),
        "binding" => Some("io.k8s.api.core.v1.Binding"),
        "eviction" => Some("io.k8s.api.policy.v1.Eviction"),
        "token" => Some("io.k8s.api.authentication.v1.TokenRequest"),
        _ => None,
    }
}

struct Operation<'a> {
    resource: &'a Served,
    definition: &'a str,
    verb: String,
    id: String,
}

impl Operation<'_> {
    fn object(&self) -> Value {
        let mut operation = self.bare();
        let success = match self.verb.as_str() {
            "list" => json!({"$ref": format!("#/$defs/{}List", self.definition)}),
            "delete" if describes_deleted(self.resource) => {
                json!({"$ref": format!("#/$defs/{}", self.definition)})
            }
            "delete" | "deletecollection" => json!({"$ref": format!("#/$defs/{META}.Status")}),
            _ => json!({"$ref": format!("#/$defs/{}", self.definition)}),
        };
        let types: Vec<&str> = match self.verb.as_str() {
            "list" => ANSWERS.into_iter().chain(STREAMS).collect(),
            _ => ANSWERS.to_vec(),
        };
        let content: Map<String, Value> =
            types.into_iter().map(|media| (media.to_owned(), json!({"schema": success}))).collect();
        let response = |text: &str| json!({"description": text, "content": content});
        let mut responses = json!({"200": response("OK"), "401": {"description": "Unauthorized"}});
        if matches!(self.verb.as_str(), "create" | "update" | "patch") {
            responses["201"] = response("Created");
        }
        if matches!(self.verb.as_str(), "create" | "delete") {
            responses["202"] = response("Accepted");
        }
        operation["responses"] = responses;
        if let Some(body) = self.body() {
            operation["requestBody"] = body;
        }
        operation
    }

    /// An operation that answers with plain text.
    fn text(&self) -> Value {
        let mut operation = self.bare();
        operation["responses"] = json!({
            "200": {"description": "OK", "content": {"text/plain": {"schema": {"type": "string"}}}},
            "401": {"description": "Unauthorized"},
        });
        operation
    }

    fn bare(&self) -> Value {
        let Served { group, version, kind, .. } = self.resource;
        let action = match self.verb.as_str() {
            "create" => "post",
            "update" => "put",
            other => other,
        };
        let verb = if self.id.starts_with("read") { "read" } else { self.verb.as_str() };
        json!({
            "description": format!("{verb} {}{kind}", if self.verb == "list" { "objects of kind " } else { "the specified " }),
            "operationId": self.id,
            "tags": [tag(self.resource)],
            "parameters": self.parameters(),
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        })
    }

    fn parameters(&self) -> Vec<Value> {
        let action = match self.verb.as_str() {
            "create" => "post",
            "update" => "put",
            other => other,
        };
        let names = parameters::of_action(action);
        names.iter().map(|name| query(name)).collect()
    }

    fn body(&self) -> Option<Value> {
        let reference = |name: &str| json!({"schema": {"$ref": format!("#/$defs/{name}")}});
        match self.verb.as_str() {
            "create" | "update" => {
                Some(json!({"required": true, "content": {"*/*": reference(self.definition)}}))
            }
            "patch" => {
                let patch = reference(&format!("{META}.Patch"));
                let content: Map<String, Value> =
                    parameters::PATCHES.iter().map(|t| ((*t).to_owned(), patch.clone())).collect();
                Some(json!({"required": true, "content": content}))
            }
            "delete" | "deletecollection" => {
                Some(json!({"content": {"*/*": reference(&format!("{META}.DeleteOptions"))}}))
            }
            _ => None,
        }
    }
}

/// Whether the answer to a deletion is described as the object. It is not for namespaces, whose first
/// deletion only begins their end.
fn describes_deleted(resource: &Served) -> bool {
    deleted::answers_with_object(&resource.group, &resource.plural) && resource.kind != "Namespace"
}

/// A query parameter.
pub fn query(name: &str) -> Value {
    let (ty, text) = parameters::described(name);
    json!({"name": name, "in": "query", "description": text, "schema": {"type": ty, "uniqueItems": true}})
}

fn path_parameters(namespace: bool, name: bool) -> Value {
    let parameter = |name: &str| {
        let mut parameter = query(name);
        parameter["in"] = "path".into();
        parameter["required"] = true.into();
        parameter
    };
    let mut list = Vec::new();
    if name {
        list.push(parameter("name"));
    }
    if namespace {
        list.push(parameter("namespace"));
    }
    list.push(query("pretty"));
    json!({"parameters": list})
}

/// `AppsV1`, `CoreV1`, `RbacAuthorizationV1`.
pub fn stem(resource: &Served) -> String {
    let group = if resource.group.is_empty() { "core" } else { &resource.group };
    let group = group.strip_suffix(".k8s.io").unwrap_or(group);
    let words: String = group.split('.').map(capital).collect();
    format!("{words}{}", capital(&resource.version))
}

/// `core_v1`, `apps_v1`.
pub fn tag(resource: &Served) -> String {
    let group = if resource.group.is_empty() { "core" } else { &resource.group };
    let group = group.strip_suffix(".k8s.io").unwrap_or(group);
    let words: Vec<String> =
        group.split('.').enumerate().map(|(i, w)| if i == 0 { w.to_owned() } else { capital(w) }).collect();
    format!("{}_{}", words.concat(), resource.version)
}

/// A word with a capital letter.
pub fn capital(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map(|c| c.to_uppercase().chain(characters).collect()).unwrap_or_default()
}
