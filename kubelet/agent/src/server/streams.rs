//! Exec, attach and port-forward: the runtime serves the stream, and the node's server tunnels to it. The
//! client's upgrade request is repeated to the runtime with its headers; then bytes are copied both ways
//! unchanged.

use std::{io, pin::pin};

use bytes::Bytes;
use futures::{FutureExt, future::FusedFuture};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONNECTION, HOST, SEC_WEBSOCKET_PROTOCOL},
};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, client::conn::http1, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use kubelet_cri::{ContainerState, RuntimeError, StreamOptions};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tracing::debug;
use userspace_daemon::relay;

use super::{Body, StreamPermit, empty, frames::CloseFilter, query::Query, text};
use crate::{agent::Agent, limits, machine::PodPlace, tracked::TrackedPod};

/// WebSocket protocol that current runtimes support.
const V4: &str = "v4.channel.k8s.io";
/// WebSocket protocol that clients prefer; it can also close a single channel.
const V5: &str = "v5.channel.k8s.io";

pub(super) async fn exec(
    agent: &Agent,
    request: Request<Incoming>,
    tracked: &TrackedPod,
    container: &str,
    permit: StreamPermit,
) -> Response<Body> {
    let query = Query::parse(request.uri().query());
    let options = options(&query);
    let command: Vec<String> = query.all("command").map(str::to_owned).collect();
    let id = match running(tracked, container) {
        Ok(id) => id,
        Err(refusal) => return *refusal,
    };
    match agent.runtime.exec(&id, &command, options).await {
        Ok(url) => tunnel(request, &url, options, permit).await,
        Err(error) => failed(&error),
    }
}

pub(super) async fn attach(
    agent: &Agent,
    request: Request<Incoming>,
    tracked: &TrackedPod,
    container: &str,
    permit: StreamPermit,
) -> Response<Body> {
    let mut options = options(&Query::parse(request.uri().query()));
    let id = match running(tracked, container) {
        Ok(id) => id,
        Err(refusal) => return *refusal,
    };
    // A container has a terminal or not, regardless of the request.
    if let Some((_, container)) = crate::pod::container(&tracked.pod(), container) {
        options.tty = container.tty.unwrap_or_default();
    }
    match agent.runtime.attach(&id, options).await {
        Ok(url) => tunnel(request, &url, options, permit).await,
        Err(error) => failed(&error),
    }
}

pub(super) async fn port_forward(
    agent: &Agent,
    request: Request<Incoming>,
    tracked: &TrackedPod,
    permit: StreamPermit,
) -> Response<Body> {
    let query = Query::parse(request.uri().query());
    let ports: Vec<i32> = query
        .all("port")
        .chain(query.all("ports"))
        .flat_map(|list| list.split(','))
        .filter_map(|port| port.parse().ok())
        .collect();
    let sandbox = tracked.state().runtime.ready_sandbox().map(|sandbox| sandbox.summary.id.clone());
    let Some(sandbox) = sandbox else {
        let PodPlace { namespace, name, .. } = &tracked.place;
        return text(StatusCode::NOT_FOUND, format!("pod {namespace}/{name} is not running on this node"));
    };
    match agent.runtime.port_forward(&sandbox, &ports).await {
        Ok(url) => tunnel(request, &url, StreamOptions::default(), permit).await,
        Err(error) => failed(&error),
    }
}

fn options(query: &Query) -> StreamOptions {
    // Both spellings are in use: that of the API server and that of the kubelet.
    let any = |names: [&str; 2]| names.iter().any(|name| query.is_set(name));
    StreamOptions {
        tty: query.is_set("tty"),
        stdin: any(["input", "stdin"]),
        stdout: any(["output", "stdout"]),
        stderr: any(["error", "stderr"]),
    }
}

/// Returns the id of the running container with this name.
fn running(tracked: &TrackedPod, container: &str) -> Result<String, Box<Response<Body>>> {
    let state = tracked.state();
    let running = state.runtime.attempts(container).find(|status| status.state == ContainerState::Running);
    match running {
        Some(status) => Ok(status.id.clone()),
        None => {
            let message = format!("container not found (\"{container}\")");
            Err(Box::new(text(StatusCode::NOT_FOUND, message)))
        }
    }
}

fn failed(error: &RuntimeError) -> Response<Body> {
    let status = if error.is_not_found() { StatusCode::NOT_FOUND } else { StatusCode::INTERNAL_SERVER_ERROR };
    text(status, error.to_string())
}

/// Translation between the protocol that the client requests and one that the runtime supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Translation {
    /// No translation.
    None,
    /// Offer only v4, which the client supports, too.
    Downgrade,
    /// Offer v4 to the runtime, answer v5 to the client, and drop the messages that close a channel.
    Filter,
    /// v4 cannot signal the end of the input; the client must use another protocol.
    Impossible,
}

fn translation(headers: &HeaderMap, options: StreamOptions) -> Translation {
    let offered: Vec<&str> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    match (offered.contains(&V5), offered.contains(&V4)) {
        (false, _) => Translation::None,
        (true, true) => Translation::Downgrade,
        // A terminal carries the end of its input in-band.
        (true, false) if !options.stdin || options.tty => Translation::Filter,
        (true, false) => Translation::Impossible,
    }
}

/// Repeats the request to the runtime and connects the two ends.
async fn tunnel(
    mut request: Request<Incoming>,
    url: &str,
    options: StreamOptions,
    permit: StreamPermit,
) -> Response<Body> {
    let translation = translation(request.headers(), options);
    if translation == Translation::Impossible {
        return text(
            StatusCode::FORBIDDEN,
            format!("{V5} with standard input is not supported here; use SPDY/3.1 or {V4}"),
        );
    }
    let client = hyper::upgrade::on(&mut request);
    match connect(&request, url, translation).await {
        Ok(mut answer) => {
            let status = answer.status();
            let mut response = Response::new(empty());
            *response.status_mut() = status;
            for (name, value) in answer.headers() {
                response.headers_mut().append(name, value.clone());
            }
            if status != StatusCode::SWITCHING_PROTOCOLS {
                let body = answer.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                return text(status, String::from_utf8_lossy(&body).into_owned());
            }
            if translation == Translation::Filter {
                response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(V5));
            }
            let runtime = hyper::upgrade::on(&mut answer);
            tokio::spawn(async move {
                join(client, runtime, translation).await;
                drop(permit);
            });
            response
        }
        Err(why) => {
            text(StatusCode::BAD_GATEWAY, format!("cannot connect to the runtime's stream server: {why}"))
        }
    }
}

async fn connect(
    request: &Request<Incoming>,
    url: &str,
    translation: Translation,
) -> Result<Response<Incoming>, String> {
    let url: http::Uri = url.parse().map_err(|e| format!("{url}: {e}"))?;
    let authority = url.authority().ok_or("the URL has no host")?.clone();
    let stream = TcpStream::connect((authority.host(), authority.port_u16().unwrap_or(80)))
        .await
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "connection to the runtime's stream server failed");
        }
    });
    let path = url.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut repeated = Request::builder()
        .method(request.method())
        .uri(path)
        .body(Empty::<Bytes>::new())
        .map_err(|e| e.to_string())?;
    for (name, value) in request.headers() {
        // The caller's identity concerns this node, not the runtime.
        let private = name == HOST
            || name == http::header::AUTHORIZATION
            || name == http::header::ORIGIN
            || name == http::header::CONTENT_LENGTH
            || name == http::header::TRANSFER_ENCODING;
        if !private {
            repeated.headers_mut().append(name, value.clone());
        }
    }
    let host = HeaderValue::from_str(authority.as_str()).map_err(|e| e.to_string())?;
    repeated.headers_mut().insert(HOST, host);
    repeated.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if repeated.method() == Method::POST {
        repeated.headers_mut().insert(http::header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    if matches!(translation, Translation::Downgrade | Translation::Filter) {
        repeated.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(V4));
    }
    sender.send_request(repeated).await.map_err(|error| error.to_string())
}

/// Connects the two ends once both have upgraded.
async fn join(client: OnUpgrade, runtime: OnUpgrade, translation: Translation) {
    let (Ok(client), Ok(runtime)) = tokio::join!(client, runtime) else { return };
    let filter = (translation == Translation::Filter).then(CloseFilter::default);
    if let Err(error) = copy_both_ways(TokioIo::new(client), TokioIo::new(runtime), filter).await {
        debug!(%error, "stream failed");
    }
}

/// Copies bytes both ways until the runtime closes. What the client sends after that is discarded, so that it
/// cannot keep the stream open, and it has a moment to read the rest and to close.
async fn copy_both_ways<C, R>(client: C, runtime: R, filter: Option<CloseFilter>) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    R: AsyncRead + AsyncWrite,
{
    let (from_client, mut to_client) = tokio::io::split(client);
    let (mut from_runtime, to_runtime) = tokio::io::split(runtime);
    let mut copy_input = pin!(copy_input(from_client, to_runtime, filter).fuse());
    let mut downward = pin!(relay::copy(&mut from_runtime, &mut to_client));
    loop {
        tokio::select! {
            biased;
            ended = &mut downward => {
                ended?;
                break;
            }
            ended = &mut copy_input, if !copy_input.is_terminated() => ended?,
        }
    }
    if copy_input.is_terminated() {
        return Ok(());
    }
    tokio::time::timeout(limits::STREAM_LINGER, copy_input).await.unwrap_or(Ok(()))
}

/// Copies bytes from the client to the runtime until the client closes.
async fn copy_input(
    mut from_client: impl AsyncRead + Unpin,
    mut to_runtime: impl AsyncWrite + Unpin,
    filter: Option<CloseFilter>,
) -> io::Result<()> {
    match filter {
        None => relay::copy_request(&mut from_client, &mut to_runtime).await,
        Some(mut filter) => {
            let pass = |bytes: &[u8], passed: &mut Vec<u8>| filter.feed(bytes, passed);
            relay::copy_filtered(&mut from_client, &mut to_runtime, pass).await
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn stream_protocols_are_translated() {
        let asked = |offered: &'static str, stdin, tty| {
            let mut headers = HeaderMap::new();
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offered));
            translation(&headers, StreamOptions { stdin, tty, ..StreamOptions::default() })
        };
        assert_eq!(asked("v4.channel.k8s.io", true, false), Translation::None);
        assert_eq!(asked("v5.channel.k8s.io, v4.channel.k8s.io", true, false), Translation::Downgrade);
        assert_eq!(asked("v5.channel.k8s.io", false, false), Translation::Filter);
        assert_eq!(asked("v5.channel.k8s.io", true, true), Translation::Filter);
        assert_eq!(asked("v5.channel.k8s.io", true, false), Translation::Impossible);
        assert_eq!(translation(&HeaderMap::new(), StreamOptions::default()), Translation::None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_close_cannot_keep_an_ended_stream_open() {
        for filter in [None, Some(CloseFilter::default())] {
            let (near, mut client) = tokio::io::duplex(1024);
            let (far, mut runtime) = tokio::io::duplex(1024);
            let stream = tokio::spawn(copy_both_ways(near, far, filter));
            runtime.write_all(b"last words").await.unwrap();
            runtime.shutdown().await.unwrap();
            let mut received = String::new();
            client.read_to_string(&mut received).await.unwrap();
            assert_eq!(received, "last words");
            // Time is paused in this test.
            tokio::time::timeout(2 * limits::STREAM_LINGER, stream).await.unwrap().unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_client_that_sends_to_an_ended_runtime_still_gets_its_last_words() {
        let (near, mut client) = tokio::io::duplex(1024);
        let (far, mut runtime) = tokio::io::duplex(1024);
        runtime.write_all(b"last words").await.unwrap();
        drop(runtime);
        client.write_all(b"ping").await.unwrap();
        let stream = tokio::spawn(copy_both_ways(near, far, None));
        let mut received = String::new();
        client.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "last words");
        drop(client);
        stream.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_client_that_ended_its_input_still_gets_the_answer() {
        let (near, mut client) = tokio::io::duplex(1024);
        let (far, mut runtime) = tokio::io::duplex(1024);
        let stream = tokio::spawn(copy_both_ways(near, far, None));
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut sent = String::new();
        runtime.read_to_string(&mut sent).await.unwrap();
        runtime.write_all(b"answer").await.unwrap();
        drop(runtime);
        let mut received = String::new();
        client.read_to_string(&mut received).await.unwrap();
        assert_eq!((sent.as_str(), received.as_str()), ("question", "answer"));
        stream.await.unwrap().unwrap();
    }
}
