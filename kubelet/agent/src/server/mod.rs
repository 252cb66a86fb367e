//! The node's server: logs, exec, attach, port-forward and numbers, over TLS, for those whom the
//! cluster's certificate authority vouches for.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use userspace_daemon::{Bounds, Page, Places};

use crate::{agent::Agent, limits};

mod admission;
mod caller;
mod frames;
mod logs;
mod query;
mod stats;
mod streams;
mod tls;

use admission::{Length, Session, StreamPermit, Streams};
use caller::Caller;
pub use tls::TlsError;
pub(crate) use tls::tls;

/// How long a client may take for its handshake, and for its headers.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Serves until shutdown.
pub(crate) async fn serve(
    agent: Arc<Agent>,
    listener: TcpListener,
    tls: TlsAcceptor,
    shutdown: CancellationToken,
) {
    let places = Places::new(Bounds::new(limits::CONNECTIONS));
    let streams = Streams::new();
    userspace_daemon::accept(listener, places, shutdown, move |stream, place| {
        let (agent, tls, streams) = (Arc::clone(&agent), tls.clone(), streams.clone());
        async move {
            let made = admission::handshake(&tls, stream, place, streams, HANDSHAKE).await;
            let Some((stream, session)) = made else { return };
            connection(agent, stream, session).await;
        }
    })
    .await;
}

/// Serves `/healthz` in the clear until shutdown.
pub(crate) async fn serve_health(agent: Arc<Agent>, listener: TcpListener, shutdown: CancellationToken) {
    let handler = Arc::new(move |request: Request<Incoming>| -> BoxFuture<'static, Page> {
        Box::pin(std::future::ready(match request.uri().path() {
            "/healthz" => healthz(&agent),
            _ => page(StatusCode::NOT_FOUND, "404 page not found"),
        }))
    });
    userspace_daemon::serve(listener, None, handler, shutdown).await;
}

async fn connection<S>(agent: Arc<Agent>, stream: S, session: Session)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |request| {
        let (agent, session) = (Arc::clone(&agent), session.clone());
        async move { Ok::<_, Infallible>(route(agent, request, session).await) }
    });
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE).max_buf_size(limits::HEADERS);
    if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await {
        debug!(%error, "a connection to the node has ended");
    }
}

async fn route(agent: Arc<Agent>, request: Request<Incoming>, session: Session) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    if let ["healthz", ..] = parts.as_slice() {
        return healthz(&agent).map(|body| body.map_err(|never| match never {}).boxed_unsync());
    }
    match session.caller {
        Caller::Nobody => return text(StatusCode::UNAUTHORIZED, "Unauthorized"),
        Caller::Stranger => return text(StatusCode::FORBIDDEN, "Forbidden"),
        Caller::Permitted => {}
    }
    match parts.as_slice() {
        ["containerLogs" | "exec" | "attach" | "portForward", ..] => {
            stream(&agent, request, &parts, &session).await
        }
        ["pods"] | ["runningpods"] => pods(&agent),
        ["metrics"] => {
            typed(StatusCode::OK, "application/openmetrics-text; version=1.0.0", agent.metrics.text())
        }
        ["stats", "summary"] => stats::summary(&agent).await,
        _ => not_found(),
    }
}

/// Answers requests whose answers take long.
async fn stream(
    agent: &Arc<Agent>,
    request: Request<Incoming>,
    parts: &[&str],
    session: &Session,
) -> Response<Body> {
    // Before the runtime hears of it.
    if parts.first() != Some(&"containerLogs") && !request.headers().contains_key(header::UPGRADE) {
        return text(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    match (request.method(), parts) {
        (&Method::GET, ["containerLogs", namespace, pod, container]) => {
            match session.stream(logs::length(&request)) {
                Some(permit) => logs::serve(agent, &request, namespace, pod, container, permit).await,
                None => too_many_streams(),
            }
        }
        (&(Method::GET | Method::POST), ["exec" | "attach" | "portForward", ..]) => {
            match session.stream(Length::Open) {
                Some(permit) => upgraded(agent, request, parts, permit).await,
                None => too_many_streams(),
            }
        }
        _ => not_found(),
    }
}

/// Exec, attach and port-forward, also in the forms that name the pod's uid.
async fn upgraded(
    agent: &Agent,
    request: Request<Incoming>,
    parts: &[&str],
    permit: StreamPermit,
) -> Response<Body> {
    match parts {
        ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container] => {
            streams::exec(agent, request, namespace, pod, container, permit).await
        }
        ["attach", namespace, pod, container] | ["attach", namespace, pod, _, container] => {
            streams::attach(agent, request, namespace, pod, container, permit).await
        }
        ["portForward", namespace, pod] | ["portForward", namespace, pod, _] => {
            streams::port_forward(agent, request, namespace, pod, permit).await
        }
        _ => not_found(),
    }
}

fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found")
}

fn too_many_streams() -> Response<Body> {
    text(StatusCode::TOO_MANY_REQUESTS, "too many streams are open on this node, try again later")
}

fn healthz(agent: &Agent) -> Page {
    if agent.metrics.runtime_is_away() {
        return page(StatusCode::INTERNAL_SERVER_ERROR, "the container runtime does not answer");
    }
    page(StatusCode::OK, "ok")
}

fn page(status: StatusCode, text: &'static str) -> Page {
    let mut page = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *page.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/plain; charset=utf-8");
    page.headers_mut().insert(header::CONTENT_TYPE, kind);
    page
}

fn pods(agent: &Agent) -> Response<Body> {
    let items: Vec<serde_json::Value> = agent
        .cells()
        .values()
        .map(|cell| {
            let state = cell.state();
            let mut pod = k8s_openapi::api::core::v1::Pod::clone(&state.pod);
            pod.status = Some(state.status.clone());
            serde_json::to_value(&pod).unwrap_or_default()
        })
        .collect();
    let list = serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    typed(StatusCode::OK, "application/json", list.to_string())
}

pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    typed(status, "text/plain; charset=utf-8", text.into())
}

pub(crate) fn typed(status: StatusCode, kind: &'static str, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

pub(crate) fn empty() -> Body {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}
