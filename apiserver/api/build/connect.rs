//! The operations of subresources that requests are passed on through: `exec`, `attach`, `portforward` and
//! `proxy`. No schema describes what comes back.

use serde_json::{Map, Value, json};

use crate::Served;
use crate::paths::{capital, query, stem, tag};

/// Methods of a proxy; streams have the first two.
const METHODS: [&str; 7] = ["get", "post", "put", "patch", "delete", "head", "options"];

/// Adds the paths of a subresource: of a proxy also those behind it.
pub fn add(paths: &mut Map<String, Value>, collection: &str, resource: &Served, name: &str) {
    let proxy = name == "proxy";
    let path = format!("{collection}/{{name}}/{name}");
    paths.insert(path.clone(), item(resource, name, false));
    if proxy {
        paths.insert(format!("{path}/{{path}}"), item(resource, name, true));
    }
}

fn item(resource: &Served, name: &str, behind: bool) -> Value {
    let methods = if name == "proxy" { &METHODS[..] } else { &METHODS[..2] };
    let mut item = json!({"parameters": parameters(resource, name, behind)});
    for method in methods {
        item[*method] = operation(resource, name, method, behind);
    }
    item
}

/// The kind of the options: `PodExecOptions`, `NodeProxyOptions`.
fn options(kind: &str, name: &str) -> String {
    let name = if name == "portforward" { "PortForward".to_owned() } else { capital(name) };
    format!("{kind}{name}Options")
}

fn operation(resource: &Served, name: &str, method: &str, behind: bool) -> Value {
    let Served { group, version, kind, namespaced, .. } = resource;
    let (stem, scoped) = (capital(&stem(resource)), if *namespaced { "Namespaced" } else { "" });
    let path = if behind { "WithPath" } else { "" };
    json!({
        "description": format!("connect {} requests to {name} of {kind}", method.to_uppercase()),
        "operationId": format!("connect{stem}{}{scoped}{kind}{}{path}", capital(method), capital(name)),
        "tags": [tag(resource)],
        "parameters": [],
        "responses": {
            "200": {"description": "OK", "content": {"*/*": {"schema": {"type": "string"}}}},
            "401": {"description": "Unauthorized"},
        },
        "x-kubernetes-action": "connect",
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": options(kind, name)},
    })
}

fn parameters(resource: &Served, name: &str, behind: bool) -> Vec<Value> {
    let in_path = |name: &str, text: &str| {
        json!({"name": name, "in": "path", "required": true, "description": text,
            "schema": {"type": "string", "uniqueItems": true}})
    };
    let mut list = vec![in_path("name", &format!("name of the {}", options(&resource.kind, name)))];
    if resource.namespaced {
        let mut namespace = query("namespace");
        namespace["in"] = "path".into();
        namespace["required"] = true.into();
        list.push(namespace);
    }
    if behind {
        list.push(in_path("path", "path to the resource"));
    }
    list.extend(of_query(name).iter().map(|(name, ty, text)| {
        json!({"name": name, "in": "query", "description": text, "schema": {"type": ty, "uniqueItems": true}})
    }));
    list
}

type Parameter = (&'static str, &'static str, &'static str);

/// Query parameters of a subresource, with their types and what they do.
fn of_query(name: &str) -> &'static [Parameter] {
    const CONTAINER: Parameter =
        ("container", "string", "The container, by default the only one of the pod.");
    const STDERR: Parameter = ("stderr", "boolean", "Passes the standard error of the container on.");
    const STDIN: Parameter = ("stdin", "boolean", "Passes the client's input on to the container.");
    const STDOUT: Parameter = ("stdout", "boolean", "Passes the standard output of the container on.");
    const TTY: Parameter = ("tty", "boolean", "Allocates a terminal.");
    match name {
        "exec" => &[
            ("command", "string", "The program and its arguments, one a parameter; no shell reads it."),
            CONTAINER,
            STDERR,
            STDIN,
            STDOUT,
            TTY,
        ],
        "attach" => &[CONTAINER, STDERR, STDIN, STDOUT, TTY],
        "portforward" => &[("ports", "integer", "The ports to forward, required with WebSockets.")],
        _ => &[("path", "string", "The path of the request that is passed on.")],
    }
}
