//! Attributes of a request, from its method and path alone.

use apiserver_meta::identity::Identity;
use apiserver_registry::FieldSelector;
use apiserver_registry::Resource;
use std::net::IpAddr;

use http::Method;
use rustls::pki_types::CertificateDer;

use crate::query::{Query, decode};
use apiserver_auth::attributes::Attributes;

/// The address of the client, in a request's extensions.
#[derive(Clone, Copy)]
pub struct ClientAddress(pub IpAddr);

/// The client certificate that an authority vouches for, in a request's extensions.
#[derive(Clone)]
pub struct PeerCertificate(pub CertificateDer<'static>);

/// The attributes of a request. They are read once, before anything else happens: the authorizer is
/// shown this very value, and the verbs take kind, place and name from it and from nowhere else. Only
/// this module can make one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// True for requests about an object or a collection of the API.
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
    /// The part of the path after the subresource as it was sent, with the slash before it: the path behind
    /// `proxy`.
    pub rest: String,
    /// True if the path leads through a namespace to the kind. False for the path of a Namespace, which
    /// counts as being in itself for authorization.
    pub below_namespace: bool,
    /// True if the path is one of the older ones for watches, `/api/v1/watch/…`.
    pub watch_path: bool,
    /// True if the client asks to switch to another protocol.
    pub upgrades: bool,
    /// The field selector of a `list`, `watch` or `deletecollection`. One that cannot be read narrows
    /// nothing; the verb refuses it.
    pub fields: Option<FieldSelector>,
    _made_here: (),
}

impl RequestInfo {
    /// Reads method, path and the few parameters that decide the verb.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let other = || Self { path: path.to_owned(), verb: method_verb(method), ..Self::default() };
        if path.starts_with("//") {
            return other();
        }
        let parts: Vec<String> = path.trim_matches('/').split('/').map(segment).collect();
        let mut info = other();
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
        info.watch_path = rest.first().is_some_and(|first| first == "watch") && rest.len() > 1;
        if info.watch_path {
            rest = &rest[1..];
        }
        if let [first, namespace, below @ ..] = rest
            && first == "namespaces"
        {
            info.namespace.clone_from(namespace);
            // Below a namespace is a kind, or one of the namespace's own subresources.
            info.below_namespace =
                below.first().is_some_and(|third| !matches!(third.as_str(), "status" | "finalize"));
            if info.below_namespace {
                rest = below;
            }
        }
        let mut rest = rest.iter();
        info.resource = rest.next().cloned().unwrap_or_default();
        info.name = rest.next().cloned().unwrap_or_default();
        info.subresource = rest.next().cloned().unwrap_or_default();
        // A path with an empty part before the name of a subresource is invalid.
        let own = parts.len() - rest.len();
        if parts[..own].iter().any(String::is_empty) {
            return other();
        }
        let behind = path.trim_start_matches('/').splitn(own + 1, '/').nth(own);
        info.rest = behind.map(|behind| format!("/{behind}")).unwrap_or_default();
        info.verb = resource_verb(method, &info, query);
        if matches!(info.verb, "list" | "watch" | "deletecollection") {
            info.fields = query.get("fieldSelector").and_then(|text| FieldSelector::parse(text).ok());
        }
        if matches!(info.verb, "list" | "watch")
            && info.name.is_empty()
            && let Some(name) = info.fields.as_ref().and_then(named)
        {
            info.name = name;
        }
        info
    }

    /// Returns the same request, of which it is known whether the client asks to switch protocols.
    pub fn upgrading(self, upgrades: bool) -> Self {
        Self { upgrades, ..self }
    }

    /// Returns a request of the server's own: writes in a namespace, to the object of that name if there is one.
    pub fn internal(namespace: &str, name: &str, subresource: &str) -> Self {
        Self {
            is_resource: true,
            verb: "create",
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the attributes for the authorizer.
    pub fn attributes<'a>(&'a self, identity: &'a Identity) -> Attributes<'a> {
        Attributes {
            identity,
            verb: self.verb,
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            path: &self.path,
            fields: self.fields.as_ref(),
            is_resource: self.is_resource,
        }
    }

    /// Returns `true` if `create` must be allowed besides the request's own verb: running commands in
    /// containers, or opening connections into them, is a `create` whatever method asks for it.
    pub fn also_creates(&self) -> bool {
        if !self.is_resource || !self.group.is_empty() || self.verb == "create" {
            return false;
        }
        match (self.resource.as_str(), self.subresource.as_str()) {
            ("pods", "exec" | "attach" | "portforward") => true,
            ("nodes", "proxy") => self.upgrades || is_command(&self.rest),
            _ => false,
        }
    }

    /// Returns the namespace of the objects of a kind that the request is about; empty where they have none.
    pub fn namespace_of(&self, resource: &Resource) -> &str {
        if resource.namespaced { &self.namespace } else { "" }
    }

    /// Returns `true` if the request is about the object of this name in this namespace, or about a collection
    /// that it belongs to.
    pub fn covers(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        (!resource.namespaced || self.namespace == namespace) && (self.name.is_empty() || self.name == name)
    }

    /// Returns `true` if it may take any time.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
            || matches!(self.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy" | "log")
    }

    /// Returns `true` if it only reads.
    pub fn is_read(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
    }
}

/// Returns a part of a path; most have nothing to decode.
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

fn resource_verb(method: &Method, info: &RequestInfo, query: &Query) -> &'static str {
    let collection = info.name.is_empty();
    match method.as_str() {
        _ if info.watch_path => "watch",
        "GET" | "HEAD" if collection && query.flag("watch") => "watch",
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

/// A field selector for one name narrows what must be allowed to that name; [`crate::selection::filter::Filter`] reads
/// it with the same parser and selects no other.
fn named(selector: &FieldSelector) -> Option<String> {
    // A value that cannot be a name narrows nothing: nothing is found.
    selector.requires_exact("metadata.name").filter(|name| is_segment(name)).map(str::to_owned)
}

/// Returns `true` if a text can be a part of a path, and of a key in the store.
pub fn is_segment(text: &str) -> bool {
    !text.contains(['/', '%']) && !matches!(text, "." | "..")
}

/// Returns `true` if a path of a kubelet, in any notation, runs a command or opens a stream.
fn is_command(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    let decoded = decode(path, false);
    let mut parts: Vec<&str> = Vec::new();
    for part in decoded.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    const COMMANDS: [&str; 5] = ["run", "exec", "attach", "portforward", "cri"];
    parts.first().is_some_and(|first| COMMANDS.iter().any(|command| first.eq_ignore_ascii_case(command)))
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
            ("GET", "/api/v1/nodes/n/proxy/a/b/", "true get /v1 ns= nodes/proxy name=n rest=/a/b/"),
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
            ("GET", "/api/v1/pods/", "true list /v1 ns= pods/ name= rest=/"),
            ("GET", "/api/v1/pods//", "true list /v1 ns= pods/ name= rest=//"),
            ("GET", "/api/v1/nodes/n/proxy/a//b", "true get /v1 ns= nodes/proxy name=n rest=/a//b"),
            ("GET", "//api/v1/pods", "false get / ns= / name= rest="),
            ("GET", "/api//v1/pods", "false get / ns= / name= rest="),
            ("GET", "/api/v1//pods", "false get / ns= / name= rest="),
            ("GET", "/api/v1/watch//pods", "false get / ns= / name= rest="),
            ("DELETE", "/api/v1/namespaces//pods", "false delete / ns= / name= rest="),
            ("GET", "/api/v1/namespaces/a//pods", "false get / ns= / name= rest="),
            ("POST", "/api/v1/namespaces/a/pods//eviction", "false post / ns= / name= rest="),
            ("GET", "/api/v1/nodes/n/proxy", "true get /v1 ns= nodes/proxy name=n rest="),
            (
                "GET",
                "/api/v1/nodes/n:1/proxy/a%2Fb//c/",
                "true get /v1 ns= nodes/proxy name=n:1 rest=/a%2Fb//c/",
            ),
            ("GET", "/api/v1/nodes/proxy/proxy/proxy", "true get /v1 ns= nodes/proxy name=proxy rest=/proxy"),
            ("GET", "/api/v1/namespaces/a/namespaces/b", "true get /v1 ns=a namespaces/ name=b rest="),
            ("POST", "/api/v1/watch/pods", "true watch /v1 ns= pods/ name= rest="),
            ("DELETE", "/api/v1/watch/namespaces/a/pods/b", "true watch /v1 ns=a pods/ name=b rest="),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Dx%2Cmetadata.name%3Dy",
                "true list /v1 ns= pods/ name=x rest=",
            ),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name!%3Dx", "true list /v1 ns= pods/ name= rest="),
            ("POST", "/healthz", "false post / ns= / name= rest="),
        ];
        for (method, uri, expected) in table {
            assert_eq!(parse(method, uri), expected, "{method} {uri}");
        }
    }
    #[test]
    fn commands_are_known_however_they_are_spelled() {
        let commands = [
            "/exec/ns/p/c?command=sh",
            "/run/ns/p/c",
            "/attach/x",
            "/portForward/ns/p",
            "/cri/exec/token",
            "//exec/x",
            "/./exec",
            "/stats/../exec/x",
            "/%65xec/x",
            "/EXEC/x",
            "/stats%2F..%2Fexec",
            "/exec",
        ];
        for path in commands {
            assert!(is_command(path), "{path}");
        }
        for path in ["", "/", "/pods", "/stats/summary", "/executor", "/logs/exec", "/metrics?x=/exec"] {
            assert!(!is_command(path), "{path}");
        }
    }

    #[test]
    fn exec_by_get_is_authorized_as_create() {
        let info = |method: Method, path: &str| RequestInfo::parse(&method, path, &Query::default());
        for subresource in ["exec", "attach", "portforward"] {
            let path = format!("/api/v1/namespaces/a/pods/p/{subresource}");
            assert!(info(Method::GET, &path).also_creates());
            assert!(!info(Method::POST, &path).also_creates(), "it is one already");
        }
        assert!(!info(Method::GET, "/api/v1/namespaces/a/pods/p/log").also_creates());
        let stats = info(Method::GET, "/api/v1/nodes/n/proxy/stats/summary");
        assert!(!stats.also_creates());
        assert!(stats.upgrading(true).also_creates());
        assert!(info(Method::PUT, "/api/v1/nodes/n/proxy/run/ns/p/c").also_creates());
        assert!(!info(Method::GET, "/apis/example.com/v1/nodes/n/proxy/exec").also_creates());
    }
}
