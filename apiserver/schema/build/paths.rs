//! The operations of each resource, in the form of OpenAPI v3. `documents` derives v2 from them.

use serde_json::{Map, Value, json};

use crate::definitions::Definitions;
use crate::shared::{item, place};
use crate::{Served, connect, deleted, parameters};

pub const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// The media types of answers.
pub const ANSWERS: [&str; 3] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
/// The parameters of lists, which may be watched, in addition to the others.
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
    let make =
        |verb: &str, id: String| Operation { resource, definition, verb: verb.to_owned(), id, sub: "" };
    let has = |verb: &str| resource.verbs.iter().any(|v| v == verb);
    let (stem, scoped) = (stem(resource), if resource.namespaced { "Namespaced" } else { "" });
    let kind = &resource.kind;

    let mut many = Vec::new();
    for (verb, method, id) in [
        ("list", "get", format!("list{stem}{scoped}{kind}")),
        ("create", "post", format!("create{stem}{scoped}{kind}")),
        ("deletecollection", "delete", format!("delete{stem}Collection{scoped}{kind}")),
    ] {
        if has(verb) {
            many.push((method, make(verb, id).object()));
        }
    }
    let mut one = Vec::new();
    for (verb, method, word) in [
        ("get", "get", "read"),
        ("update", "put", "replace"),
        ("patch", "patch", "patch"),
        ("delete", "delete", "delete"),
    ] {
        if has(verb) {
            one.push((method, make(verb, format!("{word}{stem}{scoped}{kind}")).object()));
        }
    }
    paths.insert(collection.clone(), item(path_parameters(resource, false), many));
    if has("get") {
        paths.insert(format!("{collection}/{{name}}"), item(path_parameters(resource, true), one));
    }
    if resource.namespaced && has("list") {
        let all = make("list", format!("list{stem}{kind}ForAllNamespaces")).object();
        paths.insert(format!("{prefix}/{}", resource.plural), item(Vec::new(), vec![("get", all)]));
    }
    if has("watch") {
        add_watches(paths, resource, definition, &collection[prefix.len()..]);
    }
    add_subresources(paths, &collection, resource, definition);
}

/// The older paths of watches.
fn add_watches(paths: &mut Map<String, Value>, resource: &Served, definition: &str, collection: &str) {
    let prefix = format!("{}/watch", prefix(&resource.group, &resource.version));
    let (stem, kind) = (stem(resource), &resource.kind);
    let scoped = if resource.namespaced { "Namespaced" } else { "" };
    let mut add = |path: String, own: Vec<Value>, verb: &str, id: String| {
        let operation = Operation { resource, definition, verb: verb.to_owned(), id, sub: "" }.object();
        paths.insert(path, item(own, vec![("get", operation)]));
    };
    let (many, one) = (path_parameters(resource, false), path_parameters(resource, true));
    add(format!("{prefix}{collection}"), many, "watchlist", format!("watch{stem}{scoped}{kind}List"));
    add(format!("{prefix}{collection}/{{name}}"), one, "watch", format!("watch{stem}{scoped}{kind}"));
    if resource.namespaced {
        let id = format!("watch{stem}{kind}ListForAllNamespaces");
        add(format!("{prefix}/{}", resource.plural), Vec::new(), "watchlist", id);
    }
}

fn add_subresources(paths: &mut Map<String, Value>, collection: &str, resource: &Served, definition: &str) {
    let (stem, kind) = (stem(resource), &resource.kind);
    let scoped = if resource.namespaced { "Namespaced" } else { "" };
    for (name, verbs) in &resource.subresources {
        if verbs.iter().any(|verb| verb == "connect") {
            connect::add(paths, collection, resource, name);
            continue;
        }
        let target = subresource(name).map_or(definition, |(definition, ..)| definition);
        let operations = verbs.iter().map(|verb| {
            let (method, word) = match verb.as_str() {
                "get" => ("get", "read"),
                "update" => ("put", "replace"),
                "patch" => ("patch", "patch"),
                _ => ("post", "create"),
            };
            let id = format!("{word}{stem}{scoped}{kind}{}", capital(name));
            let operation = Operation { resource, definition: target, verb: verb.clone(), id, sub: name };
            (method, if name == "log" { operation.text() } else { operation.object() })
        });
        let mut own = path_parameters(resource, true);
        // They are named by their own kind.
        own[0] = name_of(subresource(name).map_or(kind.as_str(), |(.., kind)| kind));
        let item = item(own, operations.collect());
        paths.insert(format!("{collection}/{{name}}/{name}"), item);
    }
}

/// The definition of a subresource that is of another kind than its parent, with group, version and kind.
fn subresource(name: &str) -> Option<(&'static str, &'static str, &'static str, &'static str)> {
    match name {
        "scale" => Some(("io.k8s.api.autoscaling.v1.Scale", "autoscaling", "v1", "Scale")),
        "binding" => Some(("io.k8s.api.core.v1.Binding", "", "v1", "Binding")),
        "eviction" => Some(("io.k8s.api.policy.v1.Eviction", "policy", "v1", "Eviction")),
        "token" => {
            Some(("io.k8s.api.authentication.v1.TokenRequest", "authentication.k8s.io", "v1", "TokenRequest"))
        }
        _ => None,
    }
}

struct Operation<'a> {
    resource: &'a Served,
    definition: &'a str,
    verb: String,
    id: String,
    /// Empty for the object itself.
    sub: &'a str,
}

impl Operation<'_> {
    fn object(&self) -> Value {
        let mut operation = self.bare();
        let success = match self.verb.as_str() {
            "list" => json!({"$ref": format!("#/$defs/{}List", self.definition)}),
            "watch" | "watchlist" => json!({"$ref": format!("#/$defs/{META}.WatchEvent")}),
            "delete" if describes_deleted(self.resource) => {
                json!({"$ref": format!("#/$defs/{}", self.definition)})
            }
            "delete" | "deletecollection" => json!({"$ref": format!("#/$defs/{META}.Status")}),
            _ => json!({"$ref": format!("#/$defs/{}", self.definition)}),
        };
        let types: Vec<&str> = match self.verb.as_str() {
            "list" | "watch" | "watchlist" => ANSWERS.into_iter().chain(STREAMS).collect(),
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

    /// The logs of a pod: an operation that answers with plain text.
    fn text(&self) -> Value {
        let mut operation = self.bare();
        let text = json!({"schema": {"type": "string"}});
        let types = ["text/plain"].into_iter().chain(ANSWERS);
        let content: Map<String, Value> = types.map(|media| (media.to_owned(), text.clone())).collect();
        operation["responses"] = json!({
            "200": {"description": "OK", "content": content},
            "401": {"description": "Unauthorized"},
        });
        let names = [
            "container@log",
            "follow",
            "insecureSkipTLSVerifyBackend",
            "limitBytes",
            "pretty",
            "previous",
            "sinceSeconds",
            "stream",
            "tailLines",
            "timestamps",
        ];
        operation["parameters"] = names.into_iter().map(query).collect();
        operation
    }

    fn bare(&self) -> Value {
        let Served { group, version, kind, .. } = self.resource;
        let own = (group.as_str(), version.as_str(), kind.as_str());
        let (group, version, kind) =
            subresource(self.sub).map_or(own, |(_, group, version, kind)| (group, version, kind));
        let action = self.action();
        let mut names: Vec<&str> = parameters::of_action(action).to_vec();
        names.push("pretty");
        let mut list: Vec<Value> = names.into_iter().map(query).collect();
        list.sort_by(|a, b| place(a).cmp(&place(b)));
        json!({
            "description": self.description(),
            "operationId": self.id,
            "tags": [tag(self.resource)],
            "parameters": list,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        })
    }

    fn action(&self) -> &str {
        match self.verb.as_str() {
            "create" => "post",
            "update" => "put",
            other => other,
        }
    }

    fn description(&self) -> String {
        let kind = &self.resource.kind;
        let article = article(kind);
        let of = if self.sub.is_empty() { String::new() } else { format!("{} of ", self.sub) };
        match self.verb.as_str() {
            "list" if self.resource.verbs.iter().any(|verb| verb == "watch") => {
                format!("list or watch objects of kind {kind}")
            }
            "list" => format!("list objects of kind {kind}"),
            "create" => format!("create {of}{article}{kind}"),
            "update" => format!("replace {of}the specified {kind}"),
            "patch" => format!("partially update {of}the specified {kind}"),
            "get" => format!("read {of}the specified {kind}"),
            "deletecollection" => format!("delete collection of {kind}"),
            "watchlist" => format!(
                "watch individual changes to a list of {kind}. deprecated: use the 'watch' parameter with a list \
                 operation instead."
            ),
            "watch" => format!(
                "watch changes to an object of kind {kind}. deprecated: use the 'watch' parameter with a list \
                 operation instead, filtered to a single item with the 'fieldSelector' parameter."
            ),
            other => format!("{other} {article}{kind}"),
        }
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

/// The article of a kind; plurals have none.
fn article(kind: &str) -> &'static str {
    if kind.ends_with('s') && !kind.ends_with("ss") {
        ""
    } else if kind.starts_with(['A', 'E', 'I', 'O', 'U']) {
        "an "
    } else {
        "a "
    }
}

/// Returns `true` if the answer to a deletion is described as the object. It is not for namespaces, whose first
/// deletion only begins their end.
fn describes_deleted(resource: &Served) -> bool {
    deleted::answers_with_object(&resource.group, &resource.plural) && resource.kind != "Namespace"
}

/// A query parameter, by its key.
pub fn query(key: &str) -> Value {
    let (ty, text) = parameters::described(key);
    assert!(!ty.is_empty(), "data/parameters.txt has no {key}");
    let name = parameters::name(key);
    json!({"name": name, "in": "query", "description": text, "schema": {"type": ty, "uniqueItems": true}})
}

/// A parameter of the path, by its key.
pub fn in_path(key: &str) -> Value {
    let mut parameter = query(key);
    parameter["in"] = "path".into();
    parameter["required"] = true.into();
    parameter
}

/// The name in a path, of an object or of the options of a subresource.
pub fn name_of(kind: &str) -> Value {
    json!({"name": "name", "in": "path", "required": true, "description": format!("name of the {kind}"),
        "schema": {"type": "string", "uniqueItems": true}})
}

fn path_parameters(resource: &Served, name: bool) -> Vec<Value> {
    let name = name.then(|| name_of(&resource.kind));
    name.into_iter().chain(resource.namespaced.then(|| in_path("namespace"))).collect()
}

/// `AppsV1`, `CoreV1`, `RbacAuthorizationV1`.
pub fn stem(resource: &Served) -> String {
    format!("{}{}", group_stem(&resource.group), capital(&resource.version))
}

/// `Apps`, `Core`, `RbacAuthorization`.
pub fn group_stem(group: &str) -> String {
    words(group).map(capital).collect()
}

fn words(group: &str) -> impl Iterator<Item = &str> {
    let group = if group.is_empty() { "core" } else { group };
    group.strip_suffix(".k8s.io").unwrap_or(group).split('.')
}

/// `core`, `apps`, `rbacAuthorization`.
pub fn group_tag(group: &str) -> String {
    let mut words = words(group);
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |tag, word| tag + &capital(word))
}

/// `core_v1`, `apps_v1`.
pub fn tag(resource: &Served) -> String {
    format!("{}_{}", group_tag(&resource.group), resource.version)
}

/// A word with a capital letter.
pub fn capital(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map(|c| c.to_uppercase().chain(characters).collect()).unwrap_or_default()
}
