//! The reverse proxy of pods and Services. Requests and answers pass unchanged except for hop-by-hop headers,
//! the caller's credentials, and links, which are rewritten so that clients come back through the proxy.
//!
//! A pod may be hostile, and its callers are more powerful than it is: it is shown none of their
//! credentials, and redirects none of them to any place but itself.

use std::io;
use std::net::IpAddr;

use apiserver_schema::error::ApiError;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};

use super::backend::{Backend, unreachable};
use super::connection::{Caller, ConnectError};
use super::links::Links;
use super::target::{Peer, Target, Upgrade, path_and_query};
use super::upgrade::Asked;
use super::{Body, REDIRECTED, data_only, empty, pages};
use crate::body;
use crate::errors::too_many_requests;
use crate::limits;
use crate::respond::PassedOn;
use crate::websocket;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Headers that concern one connection.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Headers of an answer that concern its whole host, which is the API server's.
const OF_THE_HOST: [HeaderName; 4] = [
    header::ALT_SVC,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    header::STRICT_TRANSPORT_SECURITY,
];

/// The proxy subresource that a request goes through.
pub struct Proxy<'a> {
    /// The decoded path, without a slash at its end.
    pub prefix: String,
    /// The part of the request's path after the prefix, as it was sent.
    pub rest: &'a str,
    /// The address of the client, if it has one.
    pub client: Option<IpAddr>,
}

/// Returns a redirect that adds the trailing slash to the root of a proxy, without which relative links would
/// leave the proxy. `None` for other requests.
pub fn slash_redirect(proxy: &Proxy<'_>, request: &Request<Body>) -> Option<Response<Body>> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !proxy.rest.is_empty() || !reads || super::requested_upgrade(request.headers()).is_some() {
        return None;
    }
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let location = HeaderValue::try_from(format!("{}/{query}", request.uri().path())).ok()?;
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response.headers_mut().insert(header::LOCATION, location);
    Some(response)
}

/// Passes `request` on to the backend and its answer back; both bodies stream. 400 for an address that is
/// not allowed, 429 for a client that has too many of them under way, 503 where the backend cannot be
/// reached, 502 where it redirects its callers elsewhere.
pub async fn pass_on(
    caller: Caller<'_>,
    backend: Backend,
    proxy: &Proxy<'_>,
    mut request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let asked = Asked::take(Upgrade::Optional, &mut request)?;
    let held = caller.budget.try_charge(limits::HELD_BY_BACKEND).ok_or_else(too_many_requests)?;
    let target = Target {
        path_and_query: path_and_query(proxy.rest, request.uri().query()),
        peer: backend.peer,
        upgrade: Upgrade::Optional,
        loopback: false,
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let host = host(&request).unwrap_or_else(|| backend.authority.clone());
    let links = Links { prefix: proxy.prefix.clone(), backend: backend.authority, asked: host };
    let outgoing = outgoing(&target, proxy, &links, request, asked.as_ref())?;
    let mut sender = caller.connect(&target).await.map_err(|error| match error {
        ConnectError::NotAllowed(refusal) => refusal,
        error if asked.is_some() => {
            ApiError::internal(format!("error dialing backend: {}", dial_error(&target.peer, &error)))
        }
        error => unreachable(&dial_error(&target.peer, &error)),
    })?;
    let response = sender.send_request(outgoing).await.map_err(|error| unreachable(&send_error(&error)))?;
    let status = response.status();
    let mut headers = response.headers().clone();
    drop_hop_by_hop(&mut headers);
    drop_of_the_host(&mut headers);
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let agreed = asked.filter(|asked| asked.is_agreed(response.headers()));
        let agreed = agreed.ok_or_else(|| unreachable("it switched protocols unasked"))?;
        agreed.name_in(&mut headers);
        return Ok(agreed.join(response, headers, held));
    }
    if asked.is_some() && !status.is_client_error() && !status.is_server_error() {
        let status = status.as_u16();
        return Err(ApiError::internal(format!("invalid upgrade response: status code {status}")));
    }
    let located = relocate(status, &mut headers, &links, &path)?;
    let page = if located { None } else { pages::Coding::of(&method, &headers) };
    let packing = match page {
        None | Some(pages::Coding::Plain) => 0,
        Some(pages::Coding::Gzip | pages::Coding::Deflate) => limits::HELD_BY_GZIP,
    };
    let packing = caller.budget.try_charge(packing).ok_or_else(too_many_requests)?;
    let (mut parts, body) = response.into_parts();
    let body = data_only(body);
    let body = match page {
        Some(coding) => pages::rewritten(coding, &mut headers, body, links),
        None => body,
    };
    parts.headers = headers;
    parts.extensions.insert(PassedOn);
    Ok(Response::from_parts(parts, body::counted(body, |_| (), (held, packing))))
}

/// Returns the `HOST[:PORT]` by which the client calls the API server.
fn host(request: &Request<Body>) -> Option<String> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    host.or_else(|| request.uri().authority().map(http::uri::Authority::as_str)).map(str::to_owned)
}

/// Returns the request as the backend sees it.
fn outgoing(
    target: &Target,
    proxy: &Proxy<'_>,
    links: &Links,
    request: Request<Body>,
    asked: Option<&Asked>,
) -> Result<Request<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let mut headers = parts.headers;
    drop_hop_by_hop(&mut headers);
    headers.remove(header::AUTHORIZATION);
    apiserver_auth::impersonation::strip(&mut headers);
    websocket::drop_tokens(&mut headers);
    let text = |text: &str| {
        HeaderValue::try_from(text)
            .map_err(|_| ApiError::bad_request(format!("{text:?} cannot be the value of a header")))
    };
    headers.insert(header::HOST, text(&links.asked)?);
    headers.insert(X_FORWARDED_URI, text(&format!("{}{}", proxy.prefix, proxy.rest))?);
    if let Some(client) = proxy.client {
        let client = client.to_canonical().to_string();
        let before = headers.get_all(X_FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
        let all: Vec<&str> = before.chain([client.as_str()]).collect();
        let all = text(&all.join(", "))?;
        headers.insert(X_FORWARDED_FOR, all);
    }
    // HTTP/2 may send a cookie in pieces, HTTP/1.1 has one line for all of them.
    let cookies: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(cookies) = HeaderValue::try_from(cookies.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, cookies);
    }
    if let Some(asked) = asked {
        asked.name_in(&mut headers);
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

/// Drops headers that concern one connection, those that `Connection` names among them.
fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Drops the headers of an answer that concern its whole host.
fn drop_of_the_host(headers: &mut HeaderMap) {
    let is_cors = |name: &&HeaderName| name.as_str().starts_with("access-control-");
    let cors: Vec<HeaderName> = headers.keys().filter(is_cors).cloned().collect();
    for name in cors.iter().chain(&OF_THE_HOST) {
        headers.remove(name);
    }
}

/// Rewrites where an answer sends its client. 502 where that is not the backend again: a client that follows
/// takes its credentials along. Returns whether the answer has a `Location`.
fn relocate(
    status: StatusCode,
    headers: &mut HeaderMap,
    links: &Links,
    path: &str,
) -> Result<bool, ApiError> {
    let Some(location) = headers.get(header::LOCATION) else { return Ok(false) };
    let new = if status.is_redirection() {
        let new = location.to_str().ok().and_then(|location| links.redirect(location, path));
        Some(new.ok_or_else(|| ApiError::new(502, "InternalError", REDIRECTED))?.into_bytes())
    } else {
        // The redirect is not followed here.
        links.rewrite(location.as_bytes())
    };
    if let Some(new) = new.and_then(|new| HeaderValue::from_maybe_shared(Bytes::from(new)).ok()) {
        headers.insert(header::LOCATION, new);
    }
    Ok(true)
}

/// Describes a failure to connect in Go's words.
fn dial_error(peer: &Peer, error: &ConnectError) -> String {
    let authority = peer.authority();
    if let ConnectError::NoWay { direct, tunnel } = error {
        let (node, why) = (&peer.node, tunnel.why());
        return format!("{}; through the tunnel of node {node:?}: {why}", dial_error(peer, direct));
    }
    let why = match error {
        ConnectError::Late => "i/o timeout".to_owned(),
        ConnectError::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
            io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
            io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
            io::ErrorKind::TimedOut => "connect: connection timed out".to_owned(),
            _ => error.to_string(),
        },
        other => other.why(),
    };
    format!("dial tcp {authority}: {why}")
}

/// Describes why a request that was sent has no answer, in Go's words.
fn send_error(error: &hyper::Error) -> String {
    if error.is_incomplete_message() { "EOF".to_owned() } else { error.to_string() }
}
