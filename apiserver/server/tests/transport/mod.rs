//! Clients that misbehave on the wire, over TLS on the loopback interface: they get an answer or are
//! cut off, nothing is stored, and others are served meanwhile.

mod floods;

use std::net::SocketAddr;
use std::sync::Arc;

use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_auth::authentication::tokens::Issuer;
use apiserver_auth::authorizer::Mode;
use apiserver_kinds::builtin;
use apiserver_meta::ambient::Ambient;
use apiserver_server::{Server, ServerConfig, serve};
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

struct Running {
    address: SocketAddr,
    tls: TlsConnector,
    /// Shows the administrator's certificate.
    admin: TlsConnector,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
    _directory: tempfile::TempDir,
}

/// Starts a server in which all users may do everything.
async fn run() -> Running {
    run_with(ServerConfig { authorization: vec![Mode::AlwaysAllow], ..ServerConfig::default() }).await
}

async fn run_with(config: ServerConfig) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("pki");
    let ambient = Ambient::system();
    let pki = Pki::open(&place, &ambient).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = Arc::new(Embedded::open(Arc::new(SimDisk::new(7)), Options::default()).await.unwrap());
    // Certificates count where there are tokens.
    let issuer = Issuer::open(&pki, "https://kubernetes.default.svc", &[]).unwrap();
    let config = ServerConfig { issuer: Some(Arc::new(issuer)), ..config };
    let server = Server::new(config, store, builtin::registry(), ambient).unwrap();
    let tls = pki.apiserver_tls(&Subject::apiserver("cluster.local", ["127.0.0.1".to_owned()])).unwrap();
    server.start();
    server.ready().await;
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, tls, server, shutdown.clone()));
    let mut roots = RootCertStore::empty();
    let authority = std::fs::read(place.join("ca.crt")).unwrap();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&authority).map(Result::unwrap));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let pair = pki.issue(&Subject::admin()).unwrap();
    let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let admin = client.clone().with_client_auth_cert(chain, key).unwrap();
    let client = client.with_no_client_auth();
    let admin = TlsConnector::from(Arc::new(admin));
    Running {
        admin,
        address,
        tls: TlsConnector::from(Arc::new(client)),
        shutdown,
        serving,
        _directory: directory,
    }
}

impl Running {
    async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_as(&self.tls).await
    }

    async fn connect_as(&self, tls: &TlsConnector) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        tls.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap()
    }

    /// Sends bytes and gives the first line of the answer; nothing if the server just ends.
    async fn say(&self, bytes: &[u8]) -> String {
        let (mut reading, mut writing) = tokio::io::split(self.connect().await);
        // The server may close the connection before the end.
        let _ = writing.write_all(bytes).await;
        let _ = writing.flush().await;
        let mut answer = Vec::new();
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = reading.read(&mut chunk).await {
            answer.extend_from_slice(&chunk[..read]);
            if answer.contains(&b'\n') {
                break;
            }
        }
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    }

    async fn get(&self, path: &str) -> String {
        self.say(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.serving.await.unwrap();
    }
}

#[tokio::test]
async fn heads_that_are_too_large_or_no_heads() {
    let running = run().await;
    let headers: String = (0..200).map(|i| format!("x-{i}: 1\r\n")).collect();
    let table = [
        (
            format!("GET /livez HTTP/1.1\r\nhost: a\r\n{headers}\r\n"),
            "HTTP/1.1 431 Request Header Fields Too Large",
        ),
        (
            format!("GET /livez HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(1 << 20)),
            "HTTP/1.1 431 Request Header Fields Too Large",
        ),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)), "HTTP/1.1 414 URI Too Long"),
        ("nonsense\r\n\r\n".to_owned(), "HTTP/1.1 400 Bad Request"),
        // No host, and a malformed path.
        ("GET /livez HTTP/1.1\r\nx: y\r\n\r\n".to_owned(), "HTTP/1.1 400 Bad Request"),
        ("GET /api/v1/%zz HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "HTTP/1.1 400 Bad Request"),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(),
            "HTTP/1.1 400 Bad Request",
        ),
    ];
    for (text, expected) in table {
        let said = running.say(text.as_bytes()).await;
        // A body that breaks off after the head was answered for its path first.
        let chunked = text.contains("chunked") && said.starts_with("HTTP/1.1 4");
        assert!(said == expected || chunked, "{}: {said}", &text[..text.len().min(60)]);
        assert_eq!(running.get("/livez").await, "HTTP/1.1 200 OK");
    }
    // Without TLS no request is understood.
    let mut plain = TcpStream::connect(running.address).await.unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    running.end().await;
}

#[tokio::test]
async fn bodies_that_break_off_or_do_not_come() {
    let running = run().await;
    let object = r#"{"metadata":{"name":"half"}}"#;
    let head = |query: &str, length: usize| {
        format!(
            "POST {MAPS}{query} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    // The whole object is there, and less than was announced: then the connection ends.
    let mut stream = running.connect().await;
    stream.write_all(format!("{}{object}", head("", object.len() + 10)).as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    // A sender that stops in the middle is not waited for longer than a request may take.
    let slow = format!("{}{}", head("?timeout=300ms", object.len()), &object[..10]);
    assert_eq!(running.say(slow.as_bytes()).await, "HTTP/1.1 504 Gateway Timeout");
    // And one in chunks with a wrong length.
    let chunks = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
         ffffffffffffffffff\r\n{object}\r\n0\r\n\r\n"
    );
    let said = running.say(chunks.as_bytes()).await;
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 400"), "{said}");
    assert_eq!(running.get(&format!("{MAPS}/half")).await, "HTTP/1.1 404 Not Found");
    assert_eq!(
        running.say(format!("{}{object}", head("", object.len())).as_bytes()).await,
        "HTTP/1.1 201 Created"
    );
    running.end().await;
}

#[tokio::test]
async fn a_body_without_end_is_answered_while_it_is_sent() {
    let running = run().await;
    let size = 8 << 20;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n"
    );
    let mut text = head.into_bytes();
    text.resize(text.len() + size, b'x');
    assert_eq!(running.say(&text).await, "HTTP/1.1 413 Payload Too Large");
    assert_eq!(running.get("/livez").await, "HTTP/1.1 200 OK");
    running.end().await;
}

const LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n";

async fn first_line(stream: &mut TlsStream<TcpStream>) -> String {
    let mut chunk = [0; 4096];
    // A connection that was closed has no line.
    let read = stream.read(&mut chunk).await.unwrap_or(0);
    String::from_utf8_lossy(&chunk[..read]).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_client_that_leaves_a_watch_is_told_the_end_of_the_connection() {
    let running = run().await;
    let mut stream = running.connect().await;
    stream.write_all(format!("GET {MAPS}?watch=true HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    assert_eq!(first_line(&mut stream).await, "HTTP/1.1 200 OK");
    stream.shutdown().await.unwrap();
    // An end without close_notify would be an error, as an attacker may have cut off the rest.
    stream.read_to_end(&mut Vec::new()).await.unwrap();
    running.end().await;
}

/// The first connections are idle for longest, and give way to new ones; authenticated ones stay.
#[tokio::test]
async fn idle_connections_of_strangers_lock_nobody_out() {
    // Ten of these places are for unauthenticated clients of this host.
    let running = run_with(ServerConfig { connections: 500, ..ServerConfig::default() }).await;
    let mut admin = running.connect_as(&running.admin).await;
    admin.write_all(LIVEZ).await.unwrap();
    assert_eq!(first_line(&mut admin).await, "HTTP/1.1 200 OK");
    let mut idle = Vec::new();
    for _ in 0..60 {
        idle.push(running.connect().await);
    }
    let mut newcomer = running.connect_as(&running.admin).await;
    newcomer.write_all(LIVEZ).await.unwrap();
    assert_eq!(first_line(&mut newcomer).await, "HTTP/1.1 200 OK");
    for _ in 0..60 {
        idle.push(running.connect().await);
    }
    for mut known in [admin, newcomer] {
        known.write_all(LIVEZ).await.unwrap();
        assert_eq!(first_line(&mut known).await, "HTTP/1.1 200 OK");
    }
    // Without a certificate too.
    assert_eq!(running.get("/livez").await, "HTTP/1.1 200 OK");
    let mut open = 0;
    for mut stream in idle {
        let asked = stream.write_all(LIVEZ).await.is_ok();
        open += usize::from(asked && first_line(&mut stream).await == "HTTP/1.1 200 OK");
    }
    assert!(open <= 10, "{open} idle connections were kept");
    running.end().await;
}
