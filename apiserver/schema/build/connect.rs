//! The operations of subresources that requests are passed on through: `exec`, `attach`, `portforward` and
//! `proxy`. No schema describes what comes back.

use serde_json::{Map, Value, json};

use crate::paths::{self, capital, stem, tag};
use crate::{Served, shared};

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
    let operations = methods.iter().map(|method| (*method, operation(resource, name, method, behind)));
    shared::item(parameters(resource, name, behind), operations.collect())
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
        "responses": {
            "200": {"description": "OK", "content": {"*/*": {"schema": {"type": "string"}}}},
            "401": {"description": "Unauthorized"},
        },
        "x-kubernetes-action": "connect",
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": options(kind, name)},
    })
}

fn parameters(resource: &Served, name: &str, behind: bool) -> Vec<Value> {
    let own = [paths::name_of(&options(&resource.kind, name))];
    let namespace = resource.namespaced.then(|| paths::in_path("namespace"));
    let behind = behind.then(|| paths::in_path("path@path"));
    let query = of_query(name).iter().map(|name| (*name).to_owned());
    let path = (name == "proxy").then(|| format!("path@{}", resource.plural));
    own.into_iter()
        .chain(namespace)
        .chain(behind)
        .chain(query.chain(path).map(|key| paths::query(&key)))
        .collect()
}

/// Keys of the query parameters of a subresource, those of a proxy apart.
fn of_query(name: &str) -> &'static [&'static str] {
    match name {
        "exec" => &["command@exec", "container@exec", "stderr@exec", "stdin@exec", "stdout@exec", "tty@exec"],
        "attach" => &["container@attach", "stderr@attach", "stdin@attach", "stdout@attach", "tty@attach"],
        "portforward" => &["ports@portforward"],
        _ => &[],
    }
}
