//! HTTP, TCP and gRPC clients for probes and hooks: one request, no redirects, no verification of
//! certificates.

use std::{sync::Arc, time::Duration};

use apiserver_meta::error_chain;
use bytes::Bytes;
use http::uri::PathAndQuery;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tonic::{
    client::Grpc,
    transport::{Channel, Endpoint},
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
    let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let unreachable = || format!("timeout: failed to connect service {place:?} within {timeout:?}");
    let endpoint = Endpoint::from_shared(format!("http://{place}"))
        .and_then(|endpoint| endpoint.user_agent("kube-probe/1.36"))
        .map_err(|error| format!("error: failed to connect service at {place:?}: {}", error_chain(&error)))?;
    let deadline = Instant::now() + timeout;
    let channel = match timeout_at(deadline, endpoint.connect()).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => {
            return Err(format!("error: failed to connect service at {place:?}: {}", error_chain(&error)));
        }
        Err(_) => return Err(unreachable()),
    };
    match timeout_at(deadline, query_health(channel, service)).await {
        Ok(Ok(ServingStatus::Serving)) => Ok(()),
        Ok(Ok(status)) => Err(format!("service unhealthy (responded with {:?})", status.name())),
        Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => Err(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        )),
        Ok(Err(status)) => Err(format!("error: health rpc probe failed: {status}")),
        Err(_) => Err(format!("timeout: health rpc did not complete within {timeout:?}")),
    }
}

/// `grpc.health.v1.HealthCheckRequest`
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServingStatus {
    /// Its name in the protocol.
    fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Serving => "SERVING",
            Self::NotServing => "NOT_SERVING",
            Self::ServiceUnknown => "SERVICE_UNKNOWN",
        }
    }
}

/// Returns the status that the health service answers.
async fn query_health(channel: Channel, service: &str) -> Result<ServingStatus, tonic::Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    Ok(client.unary(request, path, codec).await?.into_inner().status())
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
    use http_body_util::Full;
    use hyper_util::rt::TokioExecutor;

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
        assert_eq!(ask("bad").await.unwrap_err(), "service unhealthy (responded with \"NOT_SERVING\")");
        // A name whose length takes two bytes.
        let long: &'static str = format!("{}good", "g".repeat(200)).leak();
        ask(long).await.unwrap();
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
