//! The end of a server over real TLS: what clients see of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_auth::authorizer::Mode;
use apiserver_kinds::builtin;
use apiserver_meta::ambient::Ambient;
use apiserver_server::{Server, ServerConfig, serve};
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

struct Running {
    server: Arc<Server>,
    pki: Pki,
    address: SocketAddr,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

async fn run(config: ServerConfig) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let ambient = Ambient::system();
    let pki = Pki::open(&dir.path().join("pki"), &ambient).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // Writes take a while, so that one can be under way when the end comes.
    let disk = SimDisk::new(7).with_sync_time(Duration::from_millis(200));
    let store = Arc::new(Embedded::open(Arc::new(disk), Options::default()).await.unwrap());
    // The author of the request does not matter here.
    let config = ServerConfig { authorization: vec![Mode::AlwaysAllow], ..config };
    let server = Server::new(config, store, builtin::registry(), ambient).unwrap();
    let tls = pki.apiserver_tls(&Subject::apiserver("cluster.local", ["127.0.0.1".to_owned()])).unwrap();
    server.start();
    server.ready().await;
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, tls, Arc::clone(&server), shutdown.clone()));
    Running { server, pki, address, shutdown, serving, _dir: dir }
}

impl Running {
    async fn tls(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        let pem = std::fs::read(self._dir.path().join("pki/ca.crt")).unwrap();
        roots.add(certificate(&pem)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    async fn http2(&self) -> (http2::SendRequest<Full<Bytes>>, tokio::task::JoinHandle<hyper::Result<()>>) {
        let io = TokioIo::new(self.tls(b"h2").await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        (sender, tokio::spawn(connection))
    }

    async fn http1(&self) -> http1::SendRequest<Full<Bytes>> {
        let io = TokioIo::new(self.tls(b"http/1.1").await);
        let (sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    fn request(&self, method: &str, path: &str, body: Value) -> Request<Full<Bytes>> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address))
            .header("host", self.address.to_string())
            .header("content-type", "application/json")
            .body(Full::new(body))
            .unwrap()
    }
}

fn certificate(pem: &[u8]) -> rustls::pki_types::CertificateDer<'static> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::CertificateDer::from_pem_slice(pem).unwrap()
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "x".repeat(2000)}})
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn watches_end_whole_and_requests_in_flight_are_answered() {
    let running = run(ServerConfig::default()).await;
    let (mut sender, connection) = running.http2().await;
    let watch = running.request("GET", &format!("{MAPS}?watch=1"), Value::Null);
    let watch = sender.send_request(watch).await.unwrap();
    assert_eq!(watch.status(), 200);
    let reading = tokio::spawn(async move { watch.into_body().collect().await.map(|body| body.to_bytes()) });
    let mut creates = Vec::new();
    for number in 0..8 {
        creates.push(tokio::spawn(sender.send_request(running.request(
            "POST",
            MAPS,
            map(&format!("m{number}")),
        ))));
    }
    // The requests are on their way when the end comes.
    while running.server.in_flight() < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.shutdown.cancel();
    let mut codes = Vec::new();
    for create in creates {
        codes.push(create.await.unwrap().unwrap().status().as_u16());
    }
    assert!(codes.iter().all(|code| [201, 429].contains(code)), "{codes:?}");
    assert!(codes.contains(&201), "some were under way: {codes:?}");
    // The watch ends without an error, after a whole event.
    let events = reading.await.unwrap().expect("a clean end");
    for line in events.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        serde_json::from_slice::<Value>(line).expect("whole events");
    }
    assert!(events.is_empty() || events.ends_with(b"\n"));
    tokio::time::timeout(Duration::from_secs(10), running.serving).await.expect("it ends").unwrap();
    connection.await.unwrap().expect("the connection is ended with GOAWAY, not cut");
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn during_the_delay_everything_goes_on_but_readiness() {
    let delay = Duration::from_secs(4);
    let running = run(ServerConfig { shutdown_delay: delay, ..ServerConfig::default() }).await;
    let mut early = running.http1().await;
    let ready = early.send_request(running.request("GET", "/readyz", Value::Null)).await.unwrap();
    assert_eq!((ready.status().as_u16(), text(ready).await.as_str()), (200, "ok"));
    running.shutdown.cancel();
    let began = tokio::time::Instant::now();
    // New connections too.
    let mut late = running.http1().await;
    let ready = late.send_request(running.request("GET", "/readyz", Value::Null)).await.unwrap();
    assert_eq!(ready.status(), 500);
    assert!(text(ready).await.contains("[-]shutdown failed: reason withheld\n"));
    let live = late.send_request(running.request("GET", "/livez", Value::Null)).await.unwrap();
    assert_eq!(live.status(), 200);
    text(live).await;
    let made = early.send_request(running.request("POST", MAPS, map("a"))).await.unwrap();
    assert_eq!(made.status(), 201);
    tokio::time::timeout(Duration::from_secs(10), running.serving).await.expect("it ends").unwrap();
    assert!(began.elapsed() >= delay);
}

#[tokio::test]
async fn request_after_shutdown_gets_429_with_retry_after() {
    let config = ServerConfig { shutdown_send_retry_after: true, ..ServerConfig::default() };
    let running = run(config).await;
    let mut sender = running.http1().await;
    let first = sender.send_request(running.request("GET", "/version", Value::Null)).await.unwrap();
    text(first).await;
    running.server.refuse();
    let refused = sender.send_request(running.request("POST", MAPS, map("a"))).await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "5");
    assert_eq!(refused.headers()["connection"], "close");
    assert_eq!(text(refused).await, "The apiserver is shutting down, please try again later.");
    let mut probe = running.http1().await;
    let live = probe.send_request(running.request("GET", "/livez", Value::Null)).await.unwrap();
    assert_eq!(live.status(), 200);
    running.shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(10), running.serving).await.expect("it ends").unwrap();
    drop(running.pki);
}

#[tokio::test]
async fn handshakes_that_fail_are_counted() {
    let running = run(ServerConfig::default()).await;
    {
        use tokio::io::AsyncWriteExt;
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
    }
    let mut sender = running.http1().await;
    let page = sender.send_request(running.request("GET", "/metrics", Value::Null)).await.unwrap();
    let page = text(page).await;
    assert!(page.contains("apiserver_tls_handshake_errors_total 1\n"), "{page}");
    running.shutdown.cancel();
    running.serving.await.unwrap();
}
