//! Destination of a request for a pod or a node: pure functions on objects and query strings.

use std::net::IpAddr;

use apiserver_schema::error::{ApiError, FieldError};
use serde_json::Value;

use super::backend::ProxyName;
use crate::query::{Query, whole};

/// The port that kubelets listen on unless their node has another.
const KUBELET_PORT: u16 = 10250;

/// The transport of a connection to a node or pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The kubelet itself: over TLS, with the API server's certificate, for the node of that name alone.
    Kubelet,
    /// Another port, or a pod, over TLS. It is shown no credentials, and its own are not checked.
    Https,
    /// Another port, or a pod, in the clear.
    Http,
}

/// A server on a node or in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name of the node; empty for a pod of which none is known.
    pub node: String,
    /// IP address (without brackets) or host name, as the status of the node or pod has it.
    pub host: String,
    pub port: u16,
    pub transport: Transport,
}

impl Peer {
    /// `HOST:PORT`, IPv6 addresses in brackets.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.bare_authority(), self.port)
    }

    /// Returns the authority without the port.
    pub fn bare_authority(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

/// The possibility that a request switches to another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    Never,
    Optional,
    Required,
}

/// A path at a server on a node or in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub peer: Peer,
    /// Begins with `/`, percent-encoded.
    pub path_and_query: String,
    pub upgrade: Upgrade,
    /// True if the peer may be on the API server's own machine, by a loopback address.
    pub loopback: bool,
}

/// The node that `nodes/proxy` is asked of: `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRequest<'a> {
    pub name: &'a str,
    /// True if TLS is requested, for a port other than the kubelet's.
    https: bool,
    port: Option<u16>,
}

impl<'a> NodeRequest<'a> {
    /// Reads the name that the path has; 400.
    pub fn parse(id: &'a str) -> Result<Self, ApiError> {
        let invalid = || ApiError::bad_request(format!("invalid node request {id:?}"));
        let ProxyName { name, port, https } = ProxyName::split(id).ok_or_else(invalid)?;
        let port = if port.is_empty() { None } else { Some(port.parse().map_err(|_| invalid())?) };
        Ok(Self { name, https, port })
    }
}

/// Returns the target that serves `pods/SUBRESOURCE` of `pod`, for a client's query string. `None` for the
/// log of a pod that has no node yet; 400 if the pod or the container does not allow it.
pub fn pod_target(
    subresource: &str,
    pod: &Value,
    node: Option<&Value>,
    query: &str,
) -> Result<Option<Target>, ApiError> {
    let query = Query::parse(query);
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name, node_name) =
        (text("/metadata/namespace"), text("/metadata/name"), text("/spec/nodeName"));
    let path = match subresource {
        "log" => {
            let container = container(pod, query.get("container"))?;
            format!("/containerLogs/{namespace}/{name}/{container}{}", log_query(name, &query)?)
        }
        "exec" | "attach" => {
            let container = container(pod, query.get("container"))?;
            if subresource == "exec" && query.all("command").next().is_none_or(str::is_empty) {
                return Err(ApiError::bad_request("you must specify at least one command for the container"));
            }
            format!("/{subresource}/{namespace}/{name}/{container}{}", stream_query(&query, subresource)?)
        }
        "portforward" => {
            let ports = query.all("ports").flat_map(|ports| ports.split(','));
            let ports: Vec<(&str, &str)> = ports.map(|port| ("port", port)).collect();
            format!("/portForward/{namespace}/{name}{}", encode_query(&ports))
        }
        other => return Err(ApiError::not_found("", "pods", &format!("{name}/{other}"))),
    };
    if node_name.is_empty() {
        if subresource == "log" {
            return Ok(None);
        }
        return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let node = node.ok_or_else(|| ApiError::not_found("", "nodes", node_name))?;
    let upgrade = if subresource == "log" { Upgrade::Never } else { Upgrade::Required };
    Ok(Some(Target { peer: kubelet(node)?, path_and_query: path, upgrade, loopback: true }))
}

/// Returns the target that serves `nodes/proxy` of `node`: `path` is the part after `/proxy` in the URL
/// (encoded, may be empty). Only kubelets are called with the API server's certificate.
pub fn node_target(
    node: &Value,
    asked: &NodeRequest<'_>,
    path: &str,
    query: Option<&str>,
) -> Result<Target, ApiError> {
    let mut peer = kubelet(node)?;
    if let Some(port) = asked.port.filter(|port| *port != peer.port) {
        let transport = if asked.https { Transport::Https } else { Transport::Http };
        peer = Peer { port, transport, ..peer };
    }
    Ok(Target {
        peer,
        path_and_query: path_and_query(path, query),
        upgrade: Upgrade::Optional,
        loopback: false,
    })
}

/// Returns the part after `/proxy` in a URL as the path on another server, still encoded as it came.
pub fn path_and_query(path: &str, query: Option<&str>) -> String {
    let mut text = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    if let Some(query) = query.filter(|query| !query.is_empty()) {
        text.push('?');
        text.push_str(query);
    }
    text
}

/// The kinds of addresses by which a kubelet is called, the first before others.
const ADDRESS_TYPES: [&str; 5] = ["InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"];

/// Returns the kubelet of a node, at its internal address before others. A name is used only if the node has no address
/// that needs no lookup, whatever its kind.
fn kubelet(node: &Value) -> Result<Peer, ApiError> {
    let name = node.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let addresses =
        node.pointer("/status/addresses").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let of = |kind: &'static str| {
        addresses.iter().filter(move |a| a["type"] == kind).filter_map(|a| a["address"].as_str())
    };
    let mut known = ADDRESS_TYPES.into_iter().flat_map(of);
    let first = known.clone().next();
    let host = known
        .find(|address| address.parse::<IpAddr>().is_ok())
        .or(first)
        .ok_or_else(|| ApiError::internal(format!("no address of node {name:?} is known")))?;
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
    let port = port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p != 0).unwrap_or(KUBELET_PORT);
    Ok(Peer { node: name.to_owned(), host: host.to_owned(), port, transport: Transport::Kubelet })
}

fn names<'a>(pod: &'a Value, list: &str) -> Vec<&'a str> {
    let containers = pod["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
    containers.iter().filter_map(|c| c["name"].as_str()).collect()
}

/// Returns the container meant: the one asked for, the annotated default, or the only one.
fn container<'a>(pod: &'a Value, asked: Option<&str>) -> Result<&'a str, ApiError> {
    let pod_name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let (containers, init) = (names(pod, "containers"), names(pod, "initContainers"));
    let ephemeral = names(pod, "ephemeralContainers");
    let all = || containers.iter().chain(&init).chain(&ephemeral).copied();
    if let Some(asked) = asked.filter(|name| !name.is_empty()) {
        return all().find(|name| *name == asked).ok_or_else(|| {
            ApiError::bad_request(format!("container {asked} is not valid for pod {pod_name}"))
        });
    }
    let annotation = &pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"];
    if let Some(name) = annotation.as_str().and_then(|wanted| all().find(|name| *name == wanted)) {
        return Ok(name);
    }
    if let [only] = containers.as_slice() {
        return Ok(only);
    }
    let mut message = format!("a container name must be specified for pod {pod_name}");
    if !containers.is_empty() {
        message.push_str(&format!(", choose one of: [{}]", containers.join(" ")));
    }
    if !init.is_empty() {
        message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
    }
    if !ephemeral.is_empty() {
        message.push_str(&format!(" or one of the ephemeral containers: [{}]", ephemeral.join(" ")));
    }
    Err(ApiError::bad_request(message))
}

/// `PodLogOptions` in the kubelet's spelling. What cannot be read is 400, what makes no sense 422.
fn log_query(pod: &str, query: &Query) -> Result<String, ApiError> {
    let mut parameters = Vec::new();
    for key in ["follow", "previous", "timestamps"] {
        if query.flag(key) {
            parameters.push((key, "true".to_owned()));
        }
    }
    let time = query.get("sinceTime").filter(|time| *time != "null");
    if let Some(time) = time {
        time.parse::<jiff::Timestamp>().map_err(|_| {
            ApiError::bad_request(format!(
                "parsing time {time:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {time:?} as \"2006\""
            ))
        })?;
        parameters.push(("sinceTime", time.to_owned()));
    }
    let mut errors = Vec::new();
    for (key, least) in [("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)] {
        let Some(number) = query.all(key).next().map(whole).transpose()? else { continue };
        if key == "sinceSeconds" && time.is_some() {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            errors.push(FieldError::forbidden("", why));
        } else if number < least {
            let bound =
                if least == 0 { "must be greater than or equal to 0" } else { "must be greater than 0" };
            errors.push(FieldError::invalid(key, &number.into(), bound));
        }
        parameters.push((key, number.to_string()));
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid("", "PodLogOptions", pod, &errors));
    }
    if let Some(stream) = query.get("stream").filter(|stream| *stream != "All") {
        parameters.push(("stream", stream.to_owned()));
    }
    let parameters: Vec<(&str, &str)> =
        parameters.iter().map(|(key, value)| (*key, value.as_str())).collect();
    Ok(encode_query(&parameters))
}

/// `PodExecOptions` in the kubelet's spelling.
fn stream_query(query: &Query, subresource: &str) -> Result<String, ApiError> {
    let mut parameters = Vec::new();
    let (stdin, stdout, stderr, tty) =
        (query.flag("stdin"), query.flag("stdout"), query.flag("stderr"), query.flag("tty"));
    if !(stdin || stdout || stderr) {
        return Err(ApiError::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
    }
    if tty && stderr {
        return Err(ApiError::bad_request("tty and stderr cannot both be true"));
    }
    for (key, set) in [("input", stdin), ("output", stdout), ("error", stderr), ("tty", tty)] {
        if set {
            parameters.push((key, "1"));
        }
    }
    if subresource == "exec" {
        parameters.extend(query.all("command").map(|command| ("command", command)));
    }
    Ok(encode_query(&parameters))
}

/// `?a=b&c=d`, empty without parameters.
fn encode_query(parameters: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (key, value) in parameters {
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(key);
        text.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                text.push(char::from(byte));
            } else {
                text.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    text
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
