//! Watches over real connections: HTTP/1.1 in chunks, HTTP/2, and WebSocket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_auth::authentication::tokens::Issuer;
use apiserver_kinds::builtin;
use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use apiserver_server::{Server, ServerConfig, serve};
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;
use tower::Service;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Nothing here takes as long.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

struct Running {
    server: Arc<Server>,
    address: SocketAddr,
    pki: Pki,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Running {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ambient = Ambient::system();
        let pki = Pki::open(&dir.path().join("pki"), &ambient).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Arc::new(Embedded::open(Arc::new(SimDisk::new(7)), Options::default()).await.unwrap());
        let issuer = Issuer::open(&pki, "https://kubernetes.default.svc.cluster.local", &[]).unwrap();
        let config = ServerConfig { issuer: Some(Arc::new(issuer)), ..ServerConfig::default() };
        let server = Server::new(config, store, builtin::registry(), ambient).unwrap();
        let tls = pki.apiserver_tls(&Subject::apiserver("cluster.local", ["127.0.0.1".to_owned()])).unwrap();
        server.start();
        server.ready().await;
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, tls, Arc::clone(&server), shutdown.clone()));
        Self { server, address, pki, shutdown, serving, _dir: dir }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.server.stop();
        self.serving.await.unwrap();
    }

    /// A connection as the administrator, with this protocol.
    async fn connect(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        let admin = self.pki.issue(&Subject::admin()).unwrap();
        let mut config = (*self.pki.client_tls(&admin).unwrap()).clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = "127.0.0.1".to_owned().try_into().unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    async fn map(&self, name: &str) {
        self.post(MAPS, json!({"metadata": {"name": name}})).await;
    }

    /// Sends a request as the administrator.
    async fn post(&self, path: &str, object: Value) -> Value {
        let body = Full::new(Bytes::from(object.to_string()));
        let mut request = Request::post(path)
            .header("content-type", "application/json")
            .body(body.map_err(|never| match never {}).boxed_unsync())
            .unwrap();
        request.extensions_mut().insert(Identity::authenticated("admin", &["system:masters"]));
        let response = self.server.service().call(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }

    /// Opens a connection without a client certificate.
    async fn connect_as_nobody(&self) -> TlsStream<TcpStream> {
        let admin = self.pki.issue(&Subject::admin()).unwrap();
        let mut config = (*self.pki.client_tls(&admin).unwrap()).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.client_auth_cert_resolver = Arc::new(NoCertificate);
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = "127.0.0.1".to_owned().try_into().unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }
}

#[derive(Debug)]
struct NoCertificate;

impl rustls::client::ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

fn request(path: &str, headers: &[(&str, &str)]) -> Request<Empty<Bytes>> {
    let request = headers.iter().fold(Request::get(path), |r, (key, value)| r.header(*key, *value));
    request.header("host", "127.0.0.1").body(Empty::new()).unwrap()
}

/// The events of a streamed answer.
async fn events(body: &mut hyper::body::Incoming, count: usize) -> Vec<String> {
    let (mut text, mut found) = (Vec::new(), Vec::new());
    while found.len() < count {
        let frame = tokio::time::timeout(READ_TIMEOUT, body.frame()).await.unwrap().unwrap().unwrap();
        text.extend_from_slice(&frame.into_data().unwrap());
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            found.push(brief(&serde_json::from_slice(&line).unwrap()));
        }
    }
    found
}

fn brief(event: &Value) -> String {
    let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
    format!("{} {name}", event["type"].as_str().unwrap())
}

fn check_head(headers: &HeaderMap) {
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["cache-control"], "no-cache, private");
    assert!(headers.contains_key("date") && headers.contains_key("audit-id"));
}

#[tokio::test]
async fn over_http1_in_chunks_and_over_http2() {
    let running = Running::start().await;
    running.map("a").await;
    let path = format!("{MAPS}?watch=1");

    let (mut sender, connection) =
        http1::handshake(TokioIo::new(running.connect(b"http/1.1").await)).await.unwrap();
    let one = tokio::spawn(connection);
    let mut first = sender.send_request(request(&path, &[])).await.unwrap();
    check_head(first.headers());
    assert_eq!(first.headers()["transfer-encoding"], "chunked");
    assert_eq!(events(first.body_mut(), 1).await, ["ADDED a"]);

    let stream = TokioIo::new(running.connect(b"h2").await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let two = tokio::spawn(connection);
    let target = |path: &str| format!("https://{}{path}", running.address);
    let request = |path: &str| Request::get(target(path)).body(Empty::<Bytes>::new()).unwrap();
    // Many on one connection.
    let mut watches = Vec::new();
    for _ in 0..20 {
        let mut watch = sender.send_request(request(&path)).await.unwrap();
        check_head(watch.headers());
        assert_eq!(events(watch.body_mut(), 1).await, ["ADDED a"]);
        watches.push(watch);
    }
    running.map("b").await;
    for watch in [&mut first].into_iter().chain(&mut watches) {
        assert_eq!(events(watch.body_mut(), 1).await, ["ADDED b"]);
    }
    drop((first, watches, sender));
    running.stop().await;
    drop((one.await, two.await));
}

const HANDSHAKE: [(&str, &str); 4] = [
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// A socket and the head of the answer.
async fn socket(
    running: &Running,
    path: &str,
    more: &[(&str, &str)],
) -> (HeaderMap, WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>) {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(running.connect(b"http/1.1").await)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let headers: Vec<_> = HANDSHAKE.iter().chain(more).copied().collect();
    let mut response = sender.send_request(request(path, &headers)).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
    (response.headers().clone(), socket)
}

#[tokio::test]
async fn over_websocket_each_message_is_an_event() {
    let running = Running::start().await;
    running.map("a").await;
    let path = format!("{MAPS}?watch=1");
    let (headers, mut text) = socket(&running, &path, &[("sec-websocket-protocol", "own")]).await;
    assert_eq!(headers["sec-websocket-accept"], derive_accept_key(HANDSHAKE[3].1.as_bytes()).as_str());
    assert_eq!(headers["sec-websocket-protocol"], "own");
    let media = "application/vnd.kubernetes.protobuf";
    let (_, mut binary) = socket(&running, &path, &[("accept", media)]).await;
    let next = async |socket: &mut WebSocketStream<_>| {
        tokio::time::timeout(READ_TIMEOUT, socket.next()).await.unwrap().unwrap().unwrap()
    };
    for name in ["a", "b", "c"] {
        let Message::Text(event) = next(&mut text).await else { panic!("no text") };
        assert_eq!(brief(&serde_json::from_str(&event).unwrap()), format!("ADDED {name}"));
        let Message::Binary(event) = next(&mut binary).await else { panic!("no bytes") };
        let event = k8s_pb::apimachinery::pkg::apis::meta::v1::WatchEvent::decode(event).unwrap();
        assert_eq!(event.r#type(), "ADDED");
        match name {
            "a" => running.map("b").await,
            "b" => running.map("c").await,
            _ => {}
        }
    }
    // A ping is answered, and a close ends it.
    use futures::SinkExt as _;
    text.send(Message::Ping(Bytes::from_static(b"there?"))).await.unwrap();
    assert_eq!(next(&mut text).await, Message::Pong(Bytes::from_static(b"there?")));
    text.close(None).await.unwrap();
    while let Some(Ok(message)) = tokio::time::timeout(READ_TIMEOUT, text.next()).await.unwrap() {
        assert!(message.is_close(), "{message:?}");
    }
    // The end of the watch is the end of the socket.
    let (_, mut short) = socket(&running, &format!("{path}&timeoutSeconds=1&resourceVersion=0"), &[]).await;
    let mut names = Vec::new();
    while let Some(Ok(message)) = tokio::time::timeout(READ_TIMEOUT, short.next()).await.unwrap() {
        if let Message::Text(event) = message {
            names.push(brief(&serde_json::from_str(&event).unwrap()));
        }
    }
    assert_eq!(names, ["ADDED a", "ADDED b", "ADDED c"]);
    running.stop().await;
}

/// Browsers cannot set `Authorization`: the token is one of the protocols, and another one is answered.
#[tokio::test]
async fn a_token_may_come_as_a_protocol() {
    let running = Running::start().await;
    running.map("a").await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    running.post(accounts, json!({"metadata": {"name": "browser"}})).await;
    let binding = json!({"metadata": {"name": "browsers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "browser"}]});
    running.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    let token = running.post(&format!("{accounts}/browser/token"), json!({"spec": {"audiences": []}})).await;
    let token = token["status"]["token"].as_str().unwrap();
    let named =
        |token: &str| format!("base64url.bearer.authorization.k8s.io.{}", URL_SAFE_NO_PAD.encode(token));
    let good = named(token);
    for (protocols, code) in [
        (format!("own, {good}"), 101),
        (format!("{good}, own"), 101),
        // There must be one to answer.
        (good.clone(), 401),
        (format!("own, {good}, {good}"), 401),
        (format!("own, {}", named("forged")), 401),
        ("own, base64url.bearer.authorization.k8s.io.*".to_owned(), 401),
        ("own".to_owned(), 403),
    ] {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(running.connect_as_nobody().await)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let headers: Vec<_> =
            HANDSHAKE.into_iter().chain([("sec-websocket-protocol", &*protocols)]).collect();
        let path = format!("{MAPS}?watch=1&timeoutSeconds=1");
        let response = sender.send_request(request(&path, &headers)).await.unwrap();
        assert_eq!(response.status(), code, "{protocols}");
        if code == 101 {
            assert_eq!(response.headers()["sec-websocket-protocol"], "own");
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn handshakes_that_are_none_are_refused() {
    let running = Running::start().await;
    for broken in 2..4 {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(running.connect(b"http/1.1").await)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let mut headers = HANDSHAKE.to_vec();
        headers.remove(broken);
        let path = format!("{MAPS}?watch=1&timeoutSeconds=1");
        let response = sender.send_request(request(&path, &headers)).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let headers = [("connection", "keep-alive, Upgrade"), ("upgrade", "h3")];
        let response = sender.send_request(request(&path, &headers)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    running.stop().await;
}
