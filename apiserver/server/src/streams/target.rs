//! Where a request for a pod or a node goes: pure functions on objects and query strings.

use apiserver_api::error::{ApiError, FieldError};
use serde_json::Value;

use crate::query::{Query, whole};

/// What kubelets listen on unless their node says otherwise.
const KUBELET_PORT: u16 = 10250;

/// A path at a kubelet's node server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// IP address (without brackets) or host name.
    pub address: String,
    pub port: u16,
    /// Begins with `/`, percent-encoded.
    pub path_and_query: String,
}

impl Target {
    /// `HOST:PORT`, IPv6 addresses in brackets.
    pub fn authority(&self) -> String {
        if self.address.contains(':') {
            format!("[{}]:{}", self.address, self.port)
        } else {
            format!("{}:{}", self.address, self.port)
        }
    }
}

/// Where `pods/SUBRESOURCE` of `pod` is served, for a client's query string. `None` for the log of
/// a pod that has no node yet; 400 if the pod or the container does not allow it.
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
    let (address, port) = kubelet_address(node)?;
    Ok(Some(Target { address, port, path_and_query: path }))
}

/// Where `nodes/proxy` of `node` is served: `path` is what follows `/proxy` in the URL (encoded,
/// may be empty), `port` the one given with the name as `NODE:PORT`.
pub fn node_target(
    node: &Value,
    port: Option<u16>,
    path: &str,
    query: Option<&str>,
) -> Result<Target, ApiError> {
    let (address, kubelet_port) = kubelet_address(node)?;
    let mut path_and_query = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    if let Some(query) = query.filter(|q| !q.is_empty()) {
        path_and_query.push('?');
        path_and_query.push_str(query);
    }
    Ok(Target { address, port: port.unwrap_or(kubelet_port), path_and_query })
}

/// The address to call a node at: its internal one before others.
fn kubelet_address(node: &Value) -> Result<(String, u16), ApiError> {
    let addresses =
        node.pointer("/status/addresses").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let of = |kind: &str| addresses.iter().find(|a| a["type"] == kind).and_then(|a| a["address"].as_str());
    let address = ["InternalIP", "ExternalIP", "Hostname"].into_iter().find_map(of).ok_or_else(|| {
        let name = node.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        ApiError::internal(format!("no address of node {name:?} is known"))
    })?;
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
    let port = port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p != 0).unwrap_or(KUBELET_PORT);
    Ok((address.to_owned(), port))
}

fn names<'a>(pod: &'a Value, list: &str) -> Vec<&'a str> {
    let containers = pod["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
    containers.iter().filter_map(|c| c["name"].as_str()).collect()
}

/// The container meant: the one asked for, the annotated default, or the only one.
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
