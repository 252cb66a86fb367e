//! The way from the API server to a node: logs, exec, attach, port-forward and the node's own
//! paths; and to pods and Services ([`reverse`]). Requests for nodes go to the kubelet over TLS with a
//! client certificate that means nothing to an API server; the kubelet's certificate must be one of the
//! cluster's authority, for the address called and for the node of that name. Other ports of a node, and
//! pods, are called without credentials. Upgraded connections (WebSocket, SPDY) are passed through byte for
//! byte, so every subprotocol that client and server agree on works.
//!
//! A node may be hostile: of its answers only those headers are passed on that describe the content,
//! and nothing that makes a client go elsewhere or show its credentials.

mod backend;
mod connection;
pub mod endpoint;
mod html;
mod links;
mod node_tunnels;
mod pages;
mod reach;
mod reverse;
mod target;
mod upgrade;

use std::time::Duration;

use apiserver_schema::error::ApiError;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Frame, Incoming};
use serde_json::Value;
use tower::BoxError;

use crate::respond::PassedOn;
use crate::websocket;
use upgrade::Asked;

pub use backend::{Backend, ProxyName, candidates, no_endpoints, pod_backend, port_name};
pub use connection::{Caller, ConnectError, Dial, Kubelets, NodeStream};
pub(crate) use html::Rewriter;
pub(crate) use links::Links;
pub use node_tunnels::reachability::Destination;
pub use node_tunnels::{Tunnels, keep as keep_tunnel};
pub use reach::OwnAddresses;
pub use reverse::{Proxy, pass_on, slash_redirect};
pub use target::{NodeRequest, Peer, Target, Transport, Upgrade, node_target, pod_target};
pub use upgrade::requested_upgrade;

/// The body of requests and responses.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The number of bytes of a kubelet's error text that are passed on.
const MAX_ERROR_TEXT: usize = 64 * 1024;
/// The time that a kubelet may take to send that text.
const ERROR_TEXT_TIME: Duration = Duration::from_secs(10);

/// Headers that speak about one connection, or carry the caller's credentials, which are not the
/// kubelet's to see.
const NOT_FORWARDED: [HeaderName; 9] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::COOKIE,
    header::HOST,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Headers of an answer that are passed on. All others are dropped: a compromised node could redirect clients
/// elsewhere with their credentials, or make them log in to it.
const PASSED_ON: [HeaderName; 16] = [
    header::ACCEPT_RANGES,
    header::AGE,
    header::ALLOW,
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::DATE,
    header::ETAG,
    header::EXPIRES,
    header::LAST_MODIFIED,
    header::RETRY_AFTER,
    header::VARY,
];

/// The headers of an answer that switches protocols.
const PASSED_ON_SWITCHING: [HeaderName; 6] = [
    header::CONNECTION,
    header::SEC_WEBSOCKET_ACCEPT,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::UPGRADE,
    // For SPDY.
    HeaderName::from_static("x-stream-protocol-version"),
];

/// Serves `pods/log`, `pods/exec`, `pods/attach` or `pods/portforward` (`subresource`) of `pod`;
/// `node` is the object named by its `spec.nodeName`, `None` if there is none.
pub async fn pod_subresource(
    caller: Caller<'_>,
    subresource: &str,
    pod: &Value,
    node: Option<&Value>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let query = request.uri().query().unwrap_or_default();
    match pod_target(subresource, pod, node, query)? {
        Some(target) => proxy(caller, target, request).await,
        // The log of a pod that no node has is empty, as in Kubernetes.
        None => {
            let mut response = Response::new(empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            Ok(response)
        }
    }
}

/// Passes `request` on to a node and its answer back, whose body streams. An upgrade that the
/// kubelet accepts becomes a tunnel once the server has sent the 101; it needs a request that
/// hyper's HTTP/1 server received with upgrades enabled. 400 for an address that is not allowed, 502 or
/// 504 if the kubelet cannot be reached or redirects; its refusals become a `Status`.
pub async fn proxy(
    caller: Caller<'_>,
    target: Target,
    mut request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let upgrade = Asked::take(target.upgrade, &mut request)?;
    let mut sender = caller.connect(&target).await.map_err(|e| not_connected(&target.peer, e))?;
    let peer = &target.peer;
    let outgoing = outgoing(&target, request, upgrade.as_ref())?;
    let response = sender
        .send_request(outgoing)
        .await
        .map_err(|error| bad_gateway(peer, &format!("cannot be asked: {error}")))?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            let agreed = upgrade.filter(|asked| asked.is_agreed(response.headers()));
            let agreed = agreed.ok_or_else(|| bad_gateway(peer, "switched protocols unasked"))?;
            let headers = only(response.headers(), &PASSED_ON_SWITCHING);
            return Ok(agreed.join(response, headers, ()));
        }
        status if status.is_redirection() => {
            return Err(ApiError::new(502, "InternalError", REDIRECTED));
        }
        // It is the API server that it does not know. Clients would take it for their own fault, and log
        // in again or show other credentials.
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            return Err(bad_gateway(peer, "does not accept the credentials of the API server"));
        }
        status if status.is_client_error() || status.is_server_error() => {
            return Err(refusal(response).await);
        }
        _ => {}
    }
    let (mut parts, body) = response.into_parts();
    parts.headers = only(&parts.headers, &PASSED_ON);
    // A browser that shows the answer does not take it for a page of the API server.
    parts.headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    parts.headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    parts.extensions.insert(PassedOn);
    // Any answer may be endless (`follow`), so nothing here waits for its end.
    Ok(Response::from_parts(parts, data_only(body)))
}

/// Returns a body without its trailers: these are headers too, of which a kubelet may set none but the above.
fn data_only<E: Into<BoxError> + 'static>(
    body: impl hyper::body::Body<Data = Bytes, Error = E> + Send + 'static,
) -> Body {
    let data = |frame: Frame<Bytes>| Frame::data(frame.into_data().unwrap_or_default());
    body.map_frame(data).map_err(Into::into).boxed_unsync()
}

/// The error for a client whose node would redirect it.
const REDIRECTED: &str = "the backend attempted to redirect this request, which is not permitted";

/// Returns the headers of these names.
fn only(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    let mut passed = HeaderMap::new();
    for name in names {
        for value in headers.get_all(name) {
            passed.append(name, value.clone());
        }
    }
    passed
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

fn outgoing(
    target: &Target,
    request: Request<Body>,
    upgrade: Option<&Asked>,
) -> Result<Request<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let mut headers = parts.headers;
    for name in NOT_FORWARDED {
        headers.remove(name);
    }
    apiserver_auth::impersonation::strip(&mut headers);
    websocket::drop_tokens(&mut headers);
    let host = HeaderValue::from_str(&target.peer.authority()).map_err(|_| {
        ApiError::internal(format!("the address {:?} of a node is not valid", target.peer.host))
    })?;
    headers.insert(header::HOST, host);
    if let Some(upgrade) = upgrade {
        upgrade.name_in(&mut headers);
    }
    let mut outgoing = Request::new(body);
    *outgoing.method_mut() = parts.method;
    *outgoing.uri_mut() = target
        .path_and_query
        .parse()
        .map_err(|_| ApiError::bad_request(format!("the path {:?} is not valid", target.path_and_query)))?;
    *outgoing.headers_mut() = headers;
    Ok(outgoing)
}

/// Returns a kubelet's refusal as a `Status`; its text becomes the message.
async fn refusal(response: Response<Incoming>) -> ApiError {
    let code = response.status();
    let body = Limited::new(response.into_body(), MAX_ERROR_TEXT).collect();
    let bytes = match tokio::time::timeout(ERROR_TEXT_TIME, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    };
    let status: Option<Value> = serde_json::from_slice(&bytes).ok().filter(|v: &Value| v["kind"] == "Status");
    let message = match status.as_ref().and_then(|s| s["message"].as_str()) {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(&bytes).trim().to_owned(),
    };
    let message =
        if message.is_empty() { code.canonical_reason().unwrap_or("refused").to_owned() } else { message };
    let mut error = ApiError::new(code.as_u16(), reason(code), message);
    error.details = status.and_then(|s| s.get("details").cloned());
    error
}

fn reason(code: StatusCode) -> &'static str {
    match code.as_u16() {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        406 => "NotAcceptable",
        409 => "Conflict",
        410 => "Gone",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    }
}

fn not_connected(peer: &Peer, error: ConnectError) -> ApiError {
    match error {
        ConnectError::NotAllowed(refusal) => refusal,
        ConnectError::Late => {
            ApiError::new(504, "Timeout", format!("no answer from the kubelet at {}", peer.authority()))
        }
        ConnectError::Http(error) => bad_gateway(peer, &format!("does not speak HTTP: {error}")),
        ConnectError::NoWay { direct, tunnel } => {
            let late = matches!((&*direct, &*tunnel), (ConnectError::Late, ConnectError::Late));
            let (code, reason) = if late { (504, "Timeout") } else { (502, "InternalError") };
            let (node, address) = (&peer.node, peer.authority());
            let message = format!(
                "the kubelet of node {node:?} cannot be reached, directly at {address}: {}; through the node's tunnel: {}",
                direct.why(),
                tunnel.why()
            );
            ApiError::new(code, reason, message)
        }
        error => bad_gateway(peer, &format!("cannot be reached: {}", error.why())),
    }
}

fn bad_gateway(peer: &Peer, what: &str) -> ApiError {
    ApiError::new(502, "InternalError", format!("the kubelet at {} {what}", peer.authority()))
}

#[cfg(test)]
#[path = "tunnel_tests.rs"]
mod tests;
