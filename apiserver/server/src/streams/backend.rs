//! Finds the server that a request for the `proxy` of a pod or a Service is for: pure functions on names and
//! objects.

use std::net::IpAddr;

use apiserver_meta::pods;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;

use super::target::{Peer, Transport};
use crate::limits;

/// The name in a path before `/proxy`: `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyName<'a> {
    pub name: &'a str,
    /// A number, a name, or empty.
    pub port: &'a str,
    pub https: bool,
}

impl<'a> ProxyName<'a> {
    /// Splits the name; `None` if it has none of the three forms.
    pub fn split(id: &'a str) -> Option<Self> {
        let parts: Vec<&str> = id.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        let valid = !name.is_empty() && matches!(scheme, "" | "http" | "https");
        valid.then_some(Self { name, port, https: scheme == "https" })
    }

    /// The same, with the refusal of a `pod` or `service`; 400.
    pub fn parse(id: &'a str, kind: &str) -> Result<Self, ApiError> {
        Self::split(id).ok_or_else(|| ApiError::bad_request(format!("invalid {kind} request {id:?}")))
    }

    fn transport(&self) -> Transport {
        if self.https { Transport::Https } else { Transport::Http }
    }
}

/// A server that answers for a pod or a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub peer: Peer,
    /// `HOST[:PORT]` as the backend may write it into its links: the port only where it is not that of the
    /// scheme.
    pub authority: String,
}

/// Returns the server of a pod: at its first address, and the port that is asked for or else the first one
/// that a container has. 400 where the pod has no address, 503 where it has no such port or has ended.
pub fn pod_backend(pod: &Value, asked: &ProxyName<'_>) -> Result<Backend, ApiError> {
    if has_ended(pod) {
        return Err(unreachable("the pod has ended"));
    }
    let ip = pod.pointer("/status/podIPs/0/ip").and_then(Value::as_str).unwrap_or_default();
    let ip: IpAddr = ip.parse().map_err(|_| ApiError::bad_request("address not allowed"))?;
    let port = match asked.port {
        "" => first_port(pod),
        port if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            let number = port
                .parse::<u16>()
                .map_err(|_| unreachable(&format!("dial tcp: address {port}: invalid port")))?;
            Some(number)
        }
        name => Some(
            named_port(pod, name)
                .ok_or_else(|| unreachable(&format!("dial tcp: lookup tcp/{name}: unknown port")))?,
        ),
    };
    let default = if asked.https { 443 } else { 80 };
    let peer = Peer {
        node: meta::text(pod, "/spec/nodeName").to_owned(),
        host: ip.to_string(),
        port: port.unwrap_or(default),
        transport: asked.transport(),
    };
    let authority = if port.is_some() { peer.authority() } else { peer.bare_authority() };
    Ok(Backend { peer, authority })
}

/// Returns `true` for a pod that has ended: its address may be another's by now.
fn has_ended(pod: &Value) -> bool {
    pods::is_final(meta::text(pod, "/status/phase"))
}

fn ports(pod: &Value) -> impl Iterator<Item = &Value> {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    containers.filter_map(|container| container["ports"].as_array()).flatten()
}

fn number(port: &Value) -> Option<u16> {
    port["containerPort"].as_u64().and_then(|port| u16::try_from(port).ok())
}

fn first_port(pod: &Value) -> Option<u16> {
    ports(pod).next().and_then(number)
}

fn named_port(pod: &Value, name: &str) -> Option<u16> {
    ports(pod).find(|port| port["name"] == name).and_then(number)
}

/// An address of an Endpoints object that may be the backend of a Service, if it is that of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    pub pod: &'a str,
    ip: &'a str,
    port: u16,
}

impl Candidate<'_> {
    /// Returns the backend, if `pod`, the one that the address is said to be of, has this address.
    pub fn backend(&self, pod: &Value, asked: &ProxyName<'_>) -> Option<Backend> {
        let ips = pod.pointer("/status/podIPs").and_then(Value::as_array)?;
        if has_ended(pod) || !ips.iter().any(|ip| ip["ip"] == self.ip) {
            return None;
        }
        let host = self.ip.parse::<IpAddr>().ok()?.to_string();
        // The pod's own field: others may write the Endpoints.
        let node = meta::text(pod, "/spec/nodeName").to_owned();
        let peer = Peer { node, host, port: self.port, transport: asked.transport() };
        let authority = peer.authority();
        Some(Backend { peer, authority })
    }
}

/// Returns the name of the port that is asked for: that of a number is the Service's. 503 where it has none.
pub fn port_name<'a>(service: &'a Value, asked: &ProxyName<'_>, number: i64) -> Result<&'a str, ApiError> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let port = ports.into_iter().find(|port| port["port"].as_i64() == Some(number));
    port.map(|port| port["name"].as_str().unwrap_or_default())
        .ok_or_else(|| unavailable(format!("no service port {number} found for service {:?}", asked.name)))
}

/// Iterates over the addresses at which a Service may be reached by the port of that name, in the order in
/// which they are tried; `seed` decides the first. Only pods of the Service's namespace are included: a
/// client that may write Endpoints could send the API server anywhere else.
pub fn candidates<'a>(
    endpoints: &'a Value,
    (namespace, port): (&str, &str),
    seed: u64,
) -> impl Iterator<Item = Candidate<'a>> {
    let namespace = namespace.to_owned();
    let all = |value: &'a Value| value.as_array().map(Vec::as_slice).unwrap_or_default();
    let turned = move |list: &'a [Value], seed: u64| {
        let start = usize::try_from(seed % list.len().max(1) as u64).unwrap_or_default();
        list[start..].iter().chain(&list[..start])
    };
    let port = port.to_owned();
    turned(all(&endpoints["subsets"]), seed >> 32)
        .flat_map(move |subset| {
            let wanted = |found: &&Value| found["name"].as_str().unwrap_or_default() == port;
            let port = all(&subset["ports"]).iter().find(wanted);
            let port = port.and_then(|port| port["port"].as_u64()).and_then(|port| u16::try_from(port).ok());
            port.into_iter().flat_map(move |port| {
                turned(all(&subset["addresses"]), seed).map(move |address| (address, port))
            })
        })
        .take(limits::ENDPOINT_TRIES)
        .filter(move |(address, _)| meta::text(address, "/targetRef/namespace") == namespace)
        .filter_map(|(address, port)| {
            let pod = address.pointer("/targetRef/name")?.as_str()?;
            Some(Candidate { pod, ip: address["ip"].as_str()?, port })
        })
}

/// 503 for a Service that nothing answers for.
pub fn no_endpoints(service: &str) -> ApiError {
    unavailable(format!("no endpoints available for service {service:?}"))
}

/// 503 for a backend that cannot be reached.
pub fn unreachable(why: &str) -> ApiError {
    unavailable(format!("error trying to reach service: {why}"))
}

fn unavailable(message: String) -> ApiError {
    ApiError::new(503, "ServiceUnavailable", message)
}

#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
