//! What a request is about, from its method and path alone.

use http::Method;

use crate::query::{Query, decode};

/// The attributes of a request, as authorization and routing see them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Whether it is about an object or a collection of the API.
    pub is_resource: bool,
    /// `get`, `list`, `watch`, `create`, …; for other paths the method in small letters.
    pub verb: &'static str,
    /// The whole path.
    pub path: String,
    /// `""` for core.
    pub group: String,
    pub version: String,
    pub namespace: String,
    /// Plural: `pods`.
    pub resource: String,
    pub subresource: String,
    /// Empty for collections.
    pub name: String,
    /// What follows the subresource, such as the path behind `proxy`.
    pub rest: String,
}

impl RequestInfo {
    /// Reads method, path and the few parameters that decide the verb.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let mut info = Self { path: path.to_owned(), verb: method_verb(method), ..Self::default() };
        if path.starts_with("//") {
            return info;
        }
        let parts: Vec<String> = path.trim_matches('/').split('/').map(segment).collect();
        let mut rest: &[String] = match parts.as_slice() {
            [api, version, rest @ ..] if api == "api" && !rest.is_empty() => {
                info.version.clone_from(version);
                rest
            }
            [apis, group, version, rest @ ..] if apis == "apis" && !rest.is_empty() => {
                info.group.clone_from(group);
                info.version.clone_from(version);
                rest
            }
            _ => return info,
        };
        info.is_resource = true;
        let legacy_watch = rest.first().is_some_and(|first| first == "watch") && rest.len() > 1;
        if legacy_watch {
            rest = &rest[1..];
        }
        // Below a namespace lies a kind, or one of the namespace's own subresources.
        if let [first, namespace, third, ..] = rest
            && first == "namespaces"
            && !matches!(third.as_str(), "status" | "finalize")
        {
            info.namespace.clone_from(namespace);
            rest = &rest[2..];
        } else if let [first, namespace, ..] = rest
            && first == "namespaces"
        {
            // A namespace lies in itself, as far as authorization is concerned.
            info.namespace.clone_from(namespace);
        }
        let mut rest = rest.iter();
        info.resource = rest.next().cloned().unwrap_or_default();
        info.name = rest.next().cloned().unwrap_or_default();
        info.subresource = rest.next().cloned().unwrap_or_default();
        let rest = rest.as_slice();
        info.rest = rest.join("/");
        if info.subresource == "proxy" && path.ends_with('/') && !info.rest.is_empty() {
            info.rest.push('/');
        }
        // What has an empty part before the name of a subresource is the path of nothing.
        let own = parts.len() - rest.len();
        if parts[..own].iter().any(String::is_empty) {
            return Self { path: info.path, verb: method_verb(method), ..Self::default() };
        }
        info.verb = resource_verb(method, &info, query, legacy_watch);
        if matches!(info.verb, "list" | "watch")
            && info.name.is_empty()
            && let Some(name) = named(query)
        {
            info.name = name;
        }
        info
    }

    /// Whether it may take as long as it likes.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
            || matches!(self.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy" | "log")
    }

    /// Whether it only reads.
    pub fn is_read(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
    }
}

/// A part of a path; most have nothing to decode.
fn segment(part: &str) -> String {
    if part.contains('%') { decode(part, false) } else { part.to_owned() }
}

fn method_verb(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "get",
        "HEAD" => "head",
        "POST" => "post",
        "PUT" => "put",
        "PATCH" => "patch",
        "DELETE" => "delete",
        "OPTIONS" => "options",
        _ => "",
    }
}

fn resource_verb(method: &Method, info: &RequestInfo, query: &Query, legacy_watch: bool) -> &'static str {
    let collection = info.name.is_empty();
    match method.as_str() {
        "GET" | "HEAD" if legacy_watch || (collection && query.flag("watch")) => "watch",
        "GET" | "HEAD" if collection => "list",
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if collection => "deletecollection",
        "DELETE" => "delete",
        _ => "",
    }
}

/// A field selector for one name narrows what must be allowed to that name.
fn named(query: &Query) -> Option<String> {
    let selector = query.get("fieldSelector")?;
    selector.split(',').find_map(|term| {
        let (key, value) = term.split_once("==").or_else(|| term.split_once('='))?;
        let value = value.strip_prefix('=').unwrap_or(value);
        // What can be no name narrows nothing: nothing is found.
        let possible = !value.contains(['/', '%', '\\']) && !matches!(value, "." | "..");
        (key.trim() == "metadata.name" && possible).then(|| value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, uri: &str) -> String {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let i = RequestInfo::parse(&method, path, &Query::parse(query));
        format!(
            "{} {} {}/{} ns={} {}/{} name={} rest={}",
            i.is_resource, i.verb, i.group, i.version, i.namespace, i.resource, i.subresource, i.name, i.rest
        )
    }

    #[test]
    fn paths_and_methods_give_verbs_and_places() {
        let table = [
            ("GET", "/api/v1/pods", "true list /v1 ns= pods/ name= rest="),
            ("GET", "/api/v1/pods?watch=true", "true watch /v1 ns= pods/ name= rest="),
            ("GET", "/api/v1/watch/pods", "true watch /v1 ns= pods/ name= rest="),
            ("GET", "/api/v1/namespaces/a/pods/b", "true get /v1 ns=a pods/ name=b rest="),
            ("GET", "/api/v1/namespaces/a/pods/b/log", "true get /v1 ns=a pods/log name=b rest="),
            ("GET", "/api/v1/namespaces/a", "true get /v1 ns=a namespaces/ name=a rest="),
            ("PUT", "/api/v1/namespaces/a/finalize", "true update /v1 ns=a namespaces/finalize name=a rest="),
            (
                "POST",
                "/apis/apps/v1/namespaces/a/deployments",
                "true create apps/v1 ns=a deployments/ name= rest=",
            ),
            ("DELETE", "/api/v1/namespaces/a/pods", "true deletecollection /v1 ns=a pods/ name= rest="),
            ("GET", "/api/v1/nodes/n/proxy/a/b/", "true get /v1 ns= nodes/proxy name=n rest=a/b/"),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "true list /v1 ns= pods/ name=x rest="),
            ("GET", "/api/v1/watch/namespaces/a/pods/b", "true watch /v1 ns=a pods/ name=b rest="),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name%3D..", "true list /v1 ns= pods/ name= rest="),
            (
                "DELETE",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx",
                "true deletecollection /v1 ns=a pods/ name= rest=",
            ),
            ("GET", "/apis/apps/v1", "false get / ns= / name= rest="),
            ("GET", "/apis/apps/v1/", "false get / ns= / name= rest="),
            ("GET", "/api/v1/pods/", "true list /v1 ns= pods/ name= rest="),
            ("GET", "/api/v1/pods//", "true list /v1 ns= pods/ name= rest="),
            ("GET", "/api/v1/nodes/n/proxy/a//b", "true get /v1 ns= nodes/proxy name=n rest=a//b"),
            ("GET", "//api/v1/pods", "false get / ns= / name= rest="),
            ("GET", "/api//v1/pods", "false get / ns= / name= rest="),
            ("GET", "/api/v1//pods", "false get / ns= / name= rest="),
            ("GET", "/api/v1/watch//pods", "false get / ns= / name= rest="),
            ("DELETE", "/api/v1/namespaces//pods", "false delete / ns= / name= rest="),
            ("GET", "/api/v1/namespaces/a//pods", "false get / ns= / name= rest="),
            ("POST", "/api/v1/namespaces/a/pods//eviction", "false post / ns= / name= rest="),
            ("POST", "/healthz", "false post / ns= / name= rest="),
        ];
        for (method, uri, expected) in table {
            assert_eq!(parse(method, uri), expected, "{method} {uri}");
        }
    }
}
