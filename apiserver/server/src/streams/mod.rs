//! The way from the API server to a node: logs, exec, attach, port-forward and the node's own
//! paths. Requests go to the kubelet's node server over TLS with the API server's client
//! certificate; the kubelet's certificate must be one of the cluster's authority for the address
//! called. Upgraded connections (WebSocket, SPDY) are passed through byte for byte, so every
//! subprotocol that client and kubelet agree on works.

mod connection;
mod target;

use std::time::Duration;

use apiserver_api::error::ApiError;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tower::BoxError;

pub use connection::{Dial, Kubelets, NodeStream};
pub use target::{Target, node_target, pod_target};

/// The body of requests and responses.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// How much of a kubelet's error text is passed on.
const MAX_ERROR_TEXT: usize = 64 * 1024;
/// How long a kubelet may take to send that text.
const ERROR_TEXT_TIME: Duration = Duration::from_secs(10);

/// How long a client may keep its side open after the kubelet has closed its own.
const LINGER: Duration = Duration::from_secs(10);

/// Headers that speak about one connection, or carry the caller's credentials, which are not the
/// kubelet's to see.
const NOT_FORWARDED: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::HOST,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Serves `pods/log`, `pods/exec`, `pods/attach` or `pods/portforward` (`subresource`) of `pod`;
/// `node` is the object named by its `spec.nodeName`, `None` if there is none.
pub async fn pod_subresource(
    kubelets: &Kubelets,
    subresource: &str,
    pod: &Value,
    node: Option<&Value>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let query = request.uri().query().unwrap_or_default();
    match pod_target(subresource, pod, node, query)? {
        Some(target) => proxy(kubelets, target, request).await,
        // The log of a pod that no node has is empty, as in Kubernetes.
        None => {
            let mut response = Response::new(empty());
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            Ok(response)
        }
    }
}

/// Passes `request` on to a kubelet and its answer back, whose body streams. An upgrade that the
/// kubelet accepts becomes a tunnel once the server has sent the 101; it needs a request that
/// hyper's HTTP/1 server received with upgrades enabled. 502 or 504 if the kubelet cannot be
/// reached; its refusals become a `Status`.
pub async fn proxy(
    kubelets: &Kubelets,
    target: Target,
    mut request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let upgrade = requested_upgrade(request.headers());
    let client = match &upgrade {
        None => None,
        Some(_) if request.extensions().get::<hyper::upgrade::OnUpgrade>().is_none() => {
            return Err(ApiError::bad_request("this connection cannot be upgraded; use HTTP/1.1"));
        }
        Some(_) => Some(hyper::upgrade::on(&mut request)),
    };
    let mut sender = kubelets.connect(&target).await?;
    let outgoing = outgoing(&target, request, upgrade.as_ref())?;
    let mut response = sender
        .send_request(outgoing)
        .await
        .map_err(|error| bad_gateway(&target, &format!("cannot be asked: {error}")))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client else {
            return Err(bad_gateway(&target, "switched protocols unasked"));
        };
        let kubelet = hyper::upgrade::on(&mut response);
        let mut answer = Response::new(empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = response.headers().clone();
        tokio::spawn(tunnel(client, kubelet));
        return Ok(answer);
    }
    if response.status().is_client_error() || response.status().is_server_error() {
        return Err(refusal(response).await);
    }
    let (mut parts, body) = response.into_parts();
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE] {
        parts.headers.remove(name);
    }
    // Any answer may be endless (`follow`), so nothing here waits for its end.
    Ok(Response::from_parts(parts, body.map_err(BoxError::from).boxed_unsync()))
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// The protocol that the client asks to switch to.
fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wants = headers.get_all(header::CONNECTION).iter().any(|value| {
        value.to_str().is_ok_and(|v| v.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")))
    });
    if wants { headers.get(header::UPGRADE).cloned() } else { None }
}

fn outgoing(
    target: &Target,
    request: Request<Body>,
    upgrade: Option<&HeaderValue>,
) -> Result<Request<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let mut headers = parts.headers;
    for name in NOT_FORWARDED {
        headers.remove(name);
    }
    crate::rbac::impersonation::strip(&mut headers);
    let host = HeaderValue::from_str(&target.authority()).map_err(|_| {
        ApiError::internal(format!("the address {:?} of a node is not valid", target.address))
    })?;
    headers.insert(header::HOST, host);
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
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

/// Joins the two sides once both have switched protocols.
async fn tunnel(client: hyper::upgrade::OnUpgrade, kubelet: hyper::upgrade::OnUpgrade) {
    let (client, kubelet) = match tokio::try_join!(client, kubelet) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "an upgrade to a kubelet did not happen");
            return;
        }
    };
    if let Err(error) = relay(TokioIo::new(client), TokioIo::new(kubelet)).await {
        // The usual end of a session that the client cut off.
        tracing::debug!(%error, "a stream to a kubelet ended");
    }
}

/// Carries bytes both ways until both sides are done or one breaks. A client may be silent for as
/// long as the kubelet still talks; a kubelet that has ended waits for the client no longer than
/// `LINGER`.
async fn relay(client: impl NodeStream, kubelet: impl NodeStream) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_kubelet, mut to_kubelet) = tokio::io::split(kubelet);
    let up = async {
        tokio::io::copy(&mut from_client, &mut to_kubelet).await?;
        to_kubelet.shutdown().await
    };
    let down = async {
        tokio::io::copy(&mut from_kubelet, &mut to_client).await?;
        to_client.shutdown().await
    };
    tokio::pin!(up, down);
    tokio::select! {
        ended = &mut up => {
            ended?;
            down.await
        }
        ended = &mut down => {
            ended?;
            tokio::time::timeout(LINGER, up).await.unwrap_or(Ok(()))
        }
    }
}

/// A kubelet's refusal as a `Status`; its text becomes the message.
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

fn bad_gateway(target: &Target, what: &str) -> ApiError {
    ApiError::new(502, "InternalError", format!("the kubelet at {} {what}", target.authority()))
}

#[cfg(test)]
#[path = "tunnel_tests.rs"]
mod tests;
