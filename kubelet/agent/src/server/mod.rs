//! The node's server: logs of containers and of the node, exec, attach, port-forward and metrics over TLS, for clients with a certificate
//! of the cluster's authority.

use std::{convert::Infallible, sync::Arc};

use apiserver_meta::volumes;
use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use userspace_daemon::{
    Bounds, Places,
    metrics::Format,
    page::{self, Page},
    probes::Probe,
};

use crate::{agent::Agent, limits};

mod admission;
mod caller;
mod frames;
mod local_volumes;
mod logs;
mod pool;
mod query;
mod stats;
mod streams;
mod system_logs;
mod tls;

use admission::{Session, StreamLength, StreamPermit, Streams};
use caller::Caller;
pub(crate) use frames::CloseFilter;
pub(crate) use tls::{NodeTls, tls};

/// Body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Serves until shutdown.
pub(crate) async fn serve(
    agent: Arc<Agent>,
    listener: TcpListener,
    tls: NodeTls,
    shutdown: CancellationToken,
) {
    let places = Places::new(Bounds::new(limits::CONNECTIONS));
    let streams = Streams::new();
    userspace_daemon::accept(listener, places, shutdown, move |stream, place| {
        let (agent, tls, streams) = (Arc::clone(&agent), tls.clone(), streams.clone());
        async move {
            let made = admission::handshake(&tls, stream, place, streams, limits::HANDSHAKE).await;
            let Some((stream, session)) = made else { return };
            connection(agent, stream, session).await;
        }
    })
    .await;
}

/// Serves `/healthz` without TLS until shutdown.
pub(crate) async fn serve_health(agent: Arc<Agent>, listener: TcpListener, shutdown: CancellationToken) {
    let handler = page::pages(move |request| {
        (Probe::at(request.uri().path()) == Some(Probe::Health)).then(|| page::ready(healthz(&agent)))
    });
    userspace_daemon::serve(listener, None, handler, shutdown).await;
}

/// Serves one connection with HTTP/1.1 only: upgrades need it, and HTTP/2 would expose its control frames to
/// unauthorized clients. A client without permission gets one answer.
async fn connection<S>(agent: Arc<Agent>, stream: S, session: Session)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let is_permitted = session.caller == Caller::Permitted;
    let service = hyper::service::service_fn(move |request| {
        let (agent, session) = (Arc::clone(&agent), session.clone());
        async move { Ok::<_, Infallible>(route(agent, request, session).await) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HANDSHAKE)
        .max_buf_size(limits::HEADERS)
        .keep_alive(is_permitted);
    let served = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let ended = if is_permitted {
        served.await
    } else {
        tokio::time::timeout(limits::UNAUTHORIZED_LIFETIME, served).await.unwrap_or(Ok(()))
    };
    if let Err(error) = ended {
        debug!(%error, "connection to the node's server failed");
    }
}

async fn route(agent: Arc<Agent>, request: Request<Incoming>, session: Session) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match session.caller {
        Caller::Anonymous => return text(StatusCode::UNAUTHORIZED, "Unauthorized"),
        Caller::Forbidden => return text(StatusCode::FORBIDDEN, "Forbidden"),
        Caller::Permitted => {}
    }
    match parts.as_slice() {
        ["containerLogs" | "exec" | "attach" | "portForward", ..] => {
            stream(&agent, request, &parts, &session).await
        }
        ["healthz", ..] => boxed(healthz(&agent)),
        ["pods"] | ["runningpods"] => pods(&agent),
        ["metrics"] => {
            let format = Format::accepted(request.headers());
            typed(StatusCode::OK, format.media(), agent.metrics.page(format))
        }
        ["stats", "summary"] => stats::summary(&agent).await,
        [volumes::LOCAL_PATH_DOOR, name] => local_volumes::serve(&agent, request.method(), name).await,
        ["logs", rest @ ..] => {
            system_logs::serve(&agent.config.system_logs, &request, rest, session.node_log()).await
        }
        _ => not_found(),
    }
}

/// Handles requests whose answers are streams.
async fn stream(
    agent: &Arc<Agent>,
    request: Request<Incoming>,
    parts: &[&str],
    session: &Session,
) -> Response<Body> {
    // Checked before the runtime is involved.
    if parts.first() != Some(&"containerLogs") && !request.headers().contains_key(header::UPGRADE) {
        return text(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    let [kind, namespace, pod, rest @ ..] = parts else { return not_found() };
    let Some(tracked) = agent.tracked_by_name(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod {namespace}/{pod} is not on this node"));
    };
    let length = if *kind == "containerLogs" { logs::length(&request) } else { StreamLength::Open };
    let permit = match session.stream(length, &tracked.place) {
        Ok(permit) => permit,
        Err(refusal) => return text(StatusCode::TOO_MANY_REQUESTS, refusal.text(&tracked.place)),
    };
    let may_upgrade = matches!(*request.method(), Method::GET | Method::POST);
    // Exec, attach and port-forward paths may also contain the pod's uid.
    match (*kind, rest) {
        ("containerLogs", [container]) if request.method() == Method::GET => {
            logs::serve(agent, &request, tracked, container, permit).await
        }
        ("exec", [container] | [_, container]) if may_upgrade => {
            streams::exec(agent, request, &tracked, container, permit).await
        }
        ("attach", [container] | [_, container]) if may_upgrade => {
            streams::attach(agent, request, &tracked, container, permit).await
        }
        ("portForward", [] | [_]) if may_upgrade => {
            streams::port_forward(agent, request, &tracked, permit).await
        }
        _ => not_found(),
    }
}

fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found")
}

fn healthz(agent: &Agent) -> Page {
    if agent.metrics.runtime_is_away() {
        return page::text(StatusCode::INTERNAL_SERVER_ERROR, "the container runtime is unavailable");
    }
    page::text(StatusCode::OK, "ok")
}

fn pods(agent: &Agent) -> Response<Body> {
    let items: Vec<serde_json::Value> = agent
        .tracked_pods()
        .values()
        .map(|tracked| {
            let state = tracked.state();
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
    boxed(page::typed(status, kind, text))
}

fn boxed(page: Page) -> Response<Body> {
    page.map(|body| body.map_err(|never| match never {}).boxed_unsync())
}

/// Returns a body of the pieces that a task sends.
fn pieces(receiver: mpsc::Receiver<std::io::Result<Frame<Bytes>>>) -> Body {
    let pieces = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    StreamBody::new(Box::pin(pieces)).boxed_unsync()
}

pub(crate) fn empty() -> Body {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}
