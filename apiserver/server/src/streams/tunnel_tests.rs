//! Client, API server and kubelet on loopback, with real TLS between the latter two.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{Full, StreamBody};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::upgrade::{LINGER, join};
use super::*;
use crate::clients::budget::Budget;
use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_meta::seeded::ambient;

fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Echoes in capitals what comes over an upgraded connection.
async fn shout(upgrade: hyper::upgrade::OnUpgrade) {
    let mut stream = TokioIo::new(upgrade.await.unwrap());
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => {
                let capitals = buffer[..length].to_ascii_uppercase();
                stream.write_all(&capitals).await.unwrap();
            }
        }
    }
    stream.shutdown().await.unwrap();
}

async fn kubelet(mut request: Request<Incoming>, user: String) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    assert!(!request.headers().contains_key(header::AUTHORIZATION), "credentials stay with the API server");
    if path.starts_with("/exec/") {
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, request.headers()[header::UPGRADE].clone());
        headers.insert("sec-websocket-protocol", request.headers()["sec-websocket-protocol"].clone());
        tokio::spawn(shout(hyper::upgrade::on(&mut request)));
        return Ok(response);
    }
    if path == "/containerLogs/ns/p/endless" {
        let lines = futures::stream::unfold(0, |number| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some((Ok(Frame::data(Bytes::from(format!("line {number}\n")))), number + 1))
        });
        return Ok(Response::new(StreamBody::new(lines).boxed_unsync()));
    }
    if path == "/containerLogs/ns/p/waiting" {
        let mut response = Response::new(full("container \"waiting\" in pod \"p\" is waiting to start\n"));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    }
    if let Some(code) = path.strip_prefix("/hostile/") {
        return Ok(hostile(code.parse().unwrap(), request.headers()));
    }
    Ok(Response::new(full(format!("{user} {} {}", request.method(), request.uri()))))
}

/// Returns an answer of a kubelet that tries to obtain the credentials of clients.
fn hostile(code: u16, asked: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(full("come here"));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    let headers = response.headers_mut();
    for (name, value) in [
        ("location", "https://evil.example/"),
        ("content-location", "https://evil.example/"),
        ("refresh", "0; url=https://evil.example/"),
        ("link", "<https://evil.example/>; rel=preload"),
        ("alt-svc", "h2=\"evil.example:443\""),
        ("set-cookie", "session=evil"),
        ("www-authenticate", "Basic realm=\"log in\""),
        ("proxy-authenticate", "Basic"),
        ("access-control-allow-origin", "*"),
        ("strict-transport-security", "max-age=0"),
        ("clear-site-data", "\"*\""),
        ("content-type", "text/plain"),
        ("x-stream-protocol-version", "v4.channel.k8s.io"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if code == 101 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        let asked = asked.get(header::UPGRADE).cloned();
        headers.insert(header::UPGRADE, asked.unwrap_or(HeaderValue::from_static("websocket")));
        *response.body_mut() = empty();
    }
    response
}

fn target(port: u16, path_and_query: String) -> Target {
    let (node, host) = ("a".to_owned(), "127.0.0.1".to_owned());
    let peer = Peer { node, host, port, transport: Transport::Kubelet };
    Target { peer, path_and_query, upgrade: Upgrade::Optional, loopback: true }
}

/// Serves as a node on loopback, and returns the port. It wants a client certificate, and tells the kubelet whose it is.
async fn serve_kubelet(pki: &Pki, certificate_for: &str) -> u16 {
    let pair = pki.issue(&Subject::kubelet("a", [certificate_for.to_owned()])).unwrap();
    let acceptor = TlsAcceptor::from(pki.node_server_tls(&pair).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
                use x509_parser::prelude::FromDer;
                let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&certificate).unwrap();
                let user = parsed.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned();
                let service = service_fn(move |request| kubelet(request, user.clone()));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                // The client of a test hangs up when it has seen enough.
                let _ = connection.await;
            });
        }
    });
    port
}

/// Runs an API server that forwards such requests, with `/CONTAINER` or `/exec` as the path.
async fn serve_api(kubelets: Kubelets, kubelet_port: u16) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kubelets = kubelets.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let kubelets = kubelets.clone();
                let path_and_query = request.uri().to_string();
                let target = target(kubelet_port, path_and_query);
                async move {
                    let request = request.map(|body| body.map_err(BoxError::from).boxed_unsync());
                    let own = OwnAddresses::default();
                    let (own, budget) = (&own, &Budget::default());
                    let caller = Caller { kubelets: &kubelets, own, budget, webhook: false };
                    let answer = proxy(caller, target, request).await;
                    Ok::<_, Infallible>(answer.unwrap_or_else(|error| {
                        let mut response = Response::new(full(error.to_status().to_string()));
                        *response.status_mut() = StatusCode::from_u16(error.code).unwrap();
                        response
                    }))
                }
            });
            tokio::spawn(async move {
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                let _ = connection.await;
            });
        }
    });
    address
}

struct Setup {
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

async fn setup(certificate_for: &str) -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path(), &ambient(1).0).unwrap();
    let port = serve_kubelet(&pki, certificate_for).await;
    let address = serve_api(Kubelets::new(pki.kubelet_client_tls().unwrap()), port).await;
    Setup { address, _dir: dir }
}

async fn exchange(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(end.as_bytes()) {
        assert_ne!(stream.read(&mut byte).await.unwrap(), 0, "{}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_plain_request_arrives_as_the_api_servers_own() {
    let setup = setup("127.0.0.1").await;
    let request =
        "GET /stats?x=1 HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer t\r\nConnection: close\r\n\r\n";
    let mut stream = exchange(setup.address, request).await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("kube-apiserver-kubelet-client GET /stats?x=1"), "{answer}");
}

#[tokio::test]
async fn an_upgrade_becomes_a_tunnel() {
    let setup = setup("127.0.0.1").await;
    let request = "GET /exec/ns/p/c?command=cat&input=1 HTTP/1.1\r\nHost: api\r\nConnection: keep-alive, Upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n";
    let mut stream = exchange(setup.address, request).await;
    let head = read_until(&mut stream, "\r\n\r\n").await.to_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(
        head.contains("upgrade: websocket") && head.contains("sec-websocket-protocol: v5.channel.k8s.io")
    );
    for word in ["hello", "\0bytes\u{1}"] {
        stream.write_all(word.as_bytes()).await.unwrap();
        assert_eq!(read_until(&mut stream, &word.to_ascii_uppercase()).await, word.to_ascii_uppercase());
    }
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty(), "the end goes through both ways");
}

#[tokio::test]
async fn a_followed_log_arrives_while_it_is_written() {
    let setup = setup("127.0.0.1").await;
    let mut stream =
        exchange(setup.address, "GET /containerLogs/ns/p/endless HTTP/1.1\r\nHost: api\r\n\r\n").await;
    let text = read_until(&mut stream, "line 5\n").await;
    assert!(text.contains("line 0\n"), "{text}");
}

#[tokio::test]
async fn refusals_become_a_status() {
    let setup = setup("127.0.0.1").await;
    for upgrade in ["", "Upgrade: websocket\r\n"] {
        let connection = if upgrade.is_empty() { "close" } else { "Upgrade" };
        let request = format!(
            "GET /containerLogs/ns/p/waiting HTTP/1.1\r\nHost: api\r\nConnection: {connection}\r\n{upgrade}\r\n"
        );
        let mut stream = exchange(setup.address, &request).await;
        let answer = read_until(&mut stream, "}").await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains(r#"container \"waiting\" in pod \"p\" is waiting to start"#), "{answer}");
    }
}

#[tokio::test]
async fn a_kubelet_that_is_another_one_or_not_there_is_a_bad_gateway() {
    let setup = setup("10.9.9.9").await;
    let request = "GET /stats HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    exchange(setup.address, request).await.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");

    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path(), &ambient(2).0).unwrap();
    let kubelets = Kubelets::new(pki.kubelet_client_tls().unwrap());
    let target = target(unused, "/".to_owned());
    let way = Caller {
        kubelets: &kubelets,
        own: &OwnAddresses::default(),
        budget: &Budget::default(),
        webhook: false,
    };
    let error = proxy(way, target.clone(), Request::new(empty())).await.unwrap_err();
    assert_eq!(error.code, 502);

    // The in-process transport has no connection that could be upgraded.
    let mut request = Request::new(empty());
    request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    request.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    assert_eq!(proxy(way, target, request).await.unwrap_err().code, 400);
}

/// Returns the whole answer to a request for a path of the hostile kubelet.
async fn hostile_answer(setup: &Setup, code: u16, more: &str) -> String {
    let request = format!("GET /hostile/{code} HTTP/1.1\r\nHost: api\r\n{more}\r\n");
    let mut stream = exchange(setup.address, &request).await;
    let mut answer = read_until(&mut stream, "\r\n\r\n").await.to_lowercase();
    let length = answer.split_once("content-length: ").and_then(|(_, rest)| rest.split_once('\r'));
    let mut body = vec![0; length.map_or(0, |(length, _)| length.parse().unwrap())];
    stream.read_exact(&mut body).await.unwrap();
    answer.push_str(&String::from_utf8(body).unwrap().to_lowercase());
    answer
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n";

#[tokio::test]
async fn a_hostile_kubelet_redirects_nobody() {
    let setup = setup("127.0.0.1").await;
    for code in [300, 301, 302, 303, 304, 305, 307, 308, 399] {
        for more in ["", UPGRADE] {
            let answer = hostile_answer(&setup, code, more).await;
            assert!(answer.starts_with("http/1.1 502"), "{code} {more}: {answer}");
            assert!(
                answer.contains("attempted to redirect this request, which is not permitted"),
                "{answer}"
            );
            assert!(!answer.contains("evil"), "{code} {more}: {answer}");
        }
    }
}

#[tokio::test]
async fn trailers_of_a_hostile_kubelet_end_here() {
    let mut trailers = HeaderMap::new();
    trailers.insert(header::SET_COOKIE, HeaderValue::from_static("session=evil"));
    let frames = [Frame::data(Bytes::from("a line\n")), Frame::trailers(trailers)];
    let frames = futures::stream::iter(frames.map(Ok::<_, Infallible>));
    let passed = data_only(StreamBody::new(frames)).collect().await.unwrap();
    assert!(passed.trailers().is_none());
    assert_eq!(passed.to_bytes(), "a line\n");
}

#[tokio::test]
async fn a_hostile_kubelet_makes_no_client_show_its_credentials() {
    let setup = setup("127.0.0.1").await;
    for code in [200, 201, 400, 401, 403, 407, 500, 511] {
        for more in ["", UPGRADE] {
            let answer = hostile_answer(&setup, code, more).await;
            let own = if matches!(code, 401 | 407) { 502 } else { code };
            assert!(answer.starts_with(&format!("http/1.1 {own}")), "{code} {more}: {answer}");
            for word in ["evil", "log in", "basic", "clear-site-data", "access-control", "strict-transport"] {
                assert!(!answer.contains(word), "{word} in {code} {more}: {answer}");
            }
        }
    }
    let plain = hostile_answer(&setup, 200, "").await;
    assert!(plain.contains("content-type: text/plain") && plain.ends_with("come here"), "{plain}");
    let switched = hostile_answer(&setup, 101, UPGRADE).await;
    assert!(switched.starts_with("http/1.1 101"), "{switched}");
    assert!(switched.contains("x-stream-protocol-version") && !switched.contains("evil"), "{switched}");
    let unasked = hostile_answer(&setup, 101, "").await;
    assert!(unasked.starts_with("http/1.1 502"), "{unasked}");
}

#[tokio::test]
async fn a_token_among_the_protocols_of_a_websocket_stays_here() {
    let bearer = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
    let protocols = format!("v5.channel.k8s.io, {bearer}, v4.channel.k8s.io");
    let request = Request::builder()
        .header(header::AUTHORIZATION, "Bearer t")
        .header(header::COOKIE, "session=mine")
        .header(header::SEC_WEBSOCKET_PROTOCOL, protocols)
        .body(empty())
        .unwrap();
    let sent = outgoing(&target(1, "/".to_owned()), request, None).unwrap();
    assert_eq!(sent.headers()[header::SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io,v4.channel.k8s.io");
    assert!(!format!("{:?}", sent.headers()).contains("mine"));
    assert!(!sent.headers().contains_key(header::AUTHORIZATION));
}

#[tokio::test]
async fn streams_need_an_upgrade_and_logs_have_none() {
    let kubelets = Kubelets::with_dial(Arc::new(Asked::default()));
    let way = Caller {
        kubelets: &kubelets,
        own: &OwnAddresses::default(),
        budget: &Budget::default(),
        webhook: false,
    };
    let required = Target { upgrade: Upgrade::Required, ..target(1, "/exec/x".to_owned()) };
    let error = proxy(way, required, Request::new(empty())).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (400, "Upgrade request required"));
    let mut request = Request::new(empty());
    request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    request.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    let never = Target { upgrade: Upgrade::Never, ..target(1, "/containerLogs/x".to_owned()) };
    // It is passed on to the kubelet as a plain request.
    assert_eq!(proxy(way, never, request).await.unwrap_err().code, 502);
}

/// Answers for a name once with one address, and later with another; dials nothing.
#[derive(Default)]
struct Asked {
    resolved: std::sync::Mutex<Vec<SocketAddr>>,
    dialled: std::sync::Mutex<Vec<SocketAddr>>,
}

#[async_trait::async_trait]
impl Dial for Asked {
    async fn resolve(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let mut resolved = self.resolved.lock().unwrap();
        let own = [127, 0, 0, 1];
        let ip = if host == "rebinding.example" && resolved.is_empty() { [192, 0, 2, 9] } else { own };
        resolved.push(SocketAddr::from((ip, port)));
        Ok(resolved.last().copied().into_iter().collect())
    }

    async fn dial(&self, _: &Peer, address: SocketAddr) -> std::io::Result<Box<dyn NodeStream>> {
        self.dialled.lock().unwrap().push(address);
        Err(std::io::Error::other("nobody there"))
    }
}

#[tokio::test]
async fn the_address_that_was_checked_is_the_one_that_is_dialled() {
    let asked = Arc::new(Asked::default());
    let kubelets = Kubelets::with_dial(Arc::<Asked>::clone(&asked));
    let way = Caller {
        kubelets: &kubelets,
        own: &OwnAddresses::default(),
        budget: &Budget::default(),
        webhook: false,
    };
    let to = |host: &str| {
        let target = target(10250, "/".to_owned());
        let peer = Peer { host: host.to_owned(), ..target.peer };
        Target { peer, loopback: false, ..target }
    };
    // The name server answers differently from the second question on.
    let error = proxy(way, to("rebinding.example"), Request::new(empty())).await.unwrap_err();
    assert_eq!(error.code, 502, "{}", error.message);
    assert_eq!(*asked.dialled.lock().unwrap(), ["192.0.2.9:10250".parse().unwrap()]);
    assert_eq!(asked.resolved.lock().unwrap().len(), 1, "asked once");
    for host in ["rebinding.example", "localhost", "127.0.0.1", "169.254.169.254", "::1", "0.0.0.0"] {
        let error = proxy(way, to(host), Request::new(empty())).await.unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, "address not allowed"), "{host}");
    }
    assert_eq!(asked.dialled.lock().unwrap().len(), 1, "nothing else was dialled");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stays_after_the_kubelet_has_gone_is_let_go() {
    let (client, near) = tokio::io::duplex(64);
    let (far, mut kubelet) = tokio::io::duplex(64);
    let joined = tokio::spawn(join(near, far));
    kubelet.write_all(b"bye").await.unwrap();
    drop(kubelet);
    let (mut reader, mut writer) = tokio::io::split(client);
    let mut text = String::new();
    reader.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "bye");
    let before = tokio::time::Instant::now();
    joined.await.unwrap().unwrap();
    assert_eq!(before.elapsed(), LINGER);
    assert!(writer.write_all(b"late").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_may_talk_long_after_the_client_has_said_everything() {
    let (mut client, near) = tokio::io::duplex(64);
    let (far, mut kubelet) = tokio::io::duplex(64);
    let joined = tokio::spawn(join(near, far));
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut text = String::new();
    kubelet.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "question");
    tokio::time::sleep(100 * LINGER).await;
    kubelet.write_all(b"answer").await.unwrap();
    drop(kubelet);
    text.clear();
    client.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "answer");
    joined.await.unwrap().unwrap();
}
