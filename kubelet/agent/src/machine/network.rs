//! HTTP, TCP and gRPC clients for probes and hooks: one request, no redirects, no verification of
//! certificates.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::{HttpAnswer, HttpCheck};
use crate::limits;

/// Sends an HTTP request and waits for the answer, for at most `timeout`.
pub(super) async fn http(check: &HttpCheck, timeout: Duration) -> Result<HttpAnswer, String> {
    let Ok(answer) = tokio::time::timeout(timeout, ask(check)).await else {
        return Err("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned());
    };
    let scheme = if check.https { "https" } else { "http" };
    answer.map_err(|why| format!("Get \"{scheme}://{}:{}{}\": {why}", check.host, check.port, check.path))
}

/// Opens a TCP connection within at most `timeout`.
pub(super) async fn tcp(host: &str, port: u16, timeout: Duration) -> Result<(), String> {
    match tokio::time::timeout(timeout, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("dial tcp {host}:{port}: {error}")),
        Err(_) => Err(format!("dial tcp {host}:{port}: i/o timeout")),
    }
}

/// Queries the health of a gRPC service within at most `timeout`.
pub(super) async fn grpc(host: &str, port: u16, service: &str, timeout: Duration) -> Result<(), String> {
    match tokio::time::timeout(timeout, query_health(host, port, service)).await {
        Ok(Ok(SERVING)) => Ok(()),
        Ok(Ok(status)) => Err(format!("service unhealthy (responded with status {status})")),
        Ok(Err(why)) => Err(format!("error: health rpc failed: {why}")),
        Err(_) => Err(format!("timeout: failed to connect service {host}:{port} within {timeout:?}")),
    }
}

/// `grpc.health.v1.HealthCheckResponse.SERVING`
const SERVING: u8 = 1;

/// Returns the status that the health service answers. Its two messages have one field each, so they are
/// encoded and decoded by hand here.
async fn query_health(host: &str, port: u16, service: &str) -> Result<u8, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let stream = TcpStream::connect((host, port)).await.map_err(|e| text(&e))?;
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(|e| text(&e))?;
    let connection = tokio::spawn(connection);
    let name = u8::try_from(service.len())
        .ok()
        .filter(|length| *length < 128)
        .ok_or("the service's name is too long")?;
    // Field 1, a string, preceded by the frame header: an uncompressed flag and the length.
    let message = if service.is_empty() { Vec::new() } else { [&[0x0a, name], service.as_bytes()].concat() };
    let length = u32::try_from(message.len()).map_err(|e| text(&e))?;
    let frame = [&[0u8], length.to_be_bytes().as_slice(), message.as_slice()].concat();
    let request = http::Request::post(format!("http://{host}:{port}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.36")
        .body(Full::new(Bytes::from(frame)))
        .map_err(|e| text(&e))?;
    let response = sender.send_request(request).await.map_err(|e| text(&e))?;
    let early = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.map_err(|e| text(&e))?;
    connection.abort();
    let status = body.trailers().and_then(|trailers| trailers.get("grpc-status")).cloned().or(early);
    match status.as_ref().and_then(|status| status.to_str().ok()) {
        Some("0") => {}
        Some(code) => return Err(format!("code {code}")),
        None => return Err("the answer has no status".to_owned()),
    }
    // Field 1, a number, which is omitted for UNKNOWN.
    match body.to_bytes().as_ref() {
        [_, _, _, _, _, 0x08, status, ..] => Ok(*status),
        _ => Ok(0),
    }
}

async fn ask(check: &HttpCheck) -> Result<HttpAnswer, String> {
    let stream = TcpStream::connect((check.host.as_str(), check.port)).await.map_err(|e| e.to_string())?;
    if !check.https {
        return exchange(check, stream).await;
    }
    let name = ServerName::try_from(check.host.clone()).map_err(|e| e.to_string())?;
    // A probe asks whether somebody answers, not who.
    let tls = userspace_daemon::tls::trusting_client().map_err(|e| e.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
    exchange(check, connector.connect(name, stream).await.map_err(|e| e.to_string())?).await
}

async fn exchange(
    check: &HttpCheck,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<HttpAnswer, String> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let connection = tokio::spawn(connection);
    let path = if check.path.starts_with('/') { check.path.clone() } else { format!("/{}", check.path) };
    let mut request = http::Request::get(path);
    let given = |name: &str| check.headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name));
    for (name, default) in [
        ("host", format!("{}:{}", check.host, check.port)),
        ("user-agent", "kube-probe/1.36".to_owned()),
        ("accept", "*/*".to_owned()),
        ("connection", "close".to_owned()),
    ] {
        if !given(name) {
            request = request.header(name, default);
        }
    }
    for (name, value) in &check.headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| e.to_string())?;
    let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        text.extend_from_slice(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
        if text.len() >= limits::PROBE_OUTPUT {
            text.truncate(limits::PROBE_OUTPUT);
            break;
        }
    }
    connection.abort();
    Ok(HttpAnswer { status, body: String::from_utf8_lossy(&text).into_owned() })
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    async fn answer_health(
        request: http::Request<hyper::body::Incoming>,
    ) -> Result<
        http::Response<http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>>,
        std::convert::Infallible,
    > {
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let status = if body.ends_with(b"good") { 1 } else { 2 };
        let trailers = http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        let answer = Full::new(Bytes::from(vec![0, 0, 0, 0, 2, 8, status]));
        Ok(http::Response::new(answer.with_trailers(async move { Some(Ok(trailers)) }).boxed()))
    }

    #[tokio::test]
    async fn grpc_health_reports_the_services_status() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = hyper::service::service_fn(answer_health);
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        let ask = |service: &'static str| grpc("127.0.0.1", port, service, Duration::from_secs(5));
        ask("good").await.unwrap();
        assert!(ask("bad").await.unwrap_err().contains("status 2"));
    }

    #[tokio::test]
    async fn an_http_check_sends_one_request_and_returns_its_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy").await.unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let check = HttpCheck {
            https: false,
            host: "127.0.0.1".into(),
            port,
            path: "/healthz?x=1".into(),
            headers: vec![("Host".into(), "example.com".into())],
        };
        let answer = http(&check, Duration::from_secs(5)).await.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (503, "busy"));
        let request = server.await.unwrap().to_lowercase();
        assert!(request.starts_with("get /healthz?x=1 http/1.1\r\n"), "{request}");
        assert!(request.contains("host: example.com\r\n") && request.contains("kube-probe"), "{request}");
        tcp("127.0.0.1", port, Duration::from_secs(1)).await.unwrap_err();
    }
}
