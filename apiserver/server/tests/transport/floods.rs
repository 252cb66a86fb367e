//! Clients that send frames of HTTP/2 without end, and others that send many of them because they read
//! and write much.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde_json::json;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The objects of the large list.
const OBJECTS: usize = 12;
const SIZE: usize = 900_000;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    on_stream(kind, flags, stream.into(), payload)
}

fn on_stream(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

fn alpn(tls: &TlsConnector) -> TlsConnector {
    let mut config = ClientConfig::clone(tls.config());
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

impl Running {
    /// Returns `true` if the server ends a connection that sends 32 MB of such frames and reads all that comes.
    /// The frames get the number of a stream that was not opened before.
    async fn ends(&self, first: &[u8], frames: impl Fn(u32) -> Vec<u8>) -> bool {
        let (mut reading, mut writing) = tokio::io::split(self.connect_as(&alpn(&self.tls)).await);
        let reading = tokio::spawn(async move {
            let mut chunk = [0; 16_384];
            while let Ok(1..) = reading.read(&mut chunk).await {}
        });
        let settings = self::frame(4, 0, 0, b"");
        let mut sent = writing.write_all(&[PREFACE, &settings, first].concat()).await;
        let (mut stream, mut bytes) = (1, 0);
        while sent.is_ok() && bytes < 32_000_000 {
            let mut many = Vec::new();
            while many.len() < 32_000 {
                many.extend(frames(stream));
                stream += 2;
            }
            bytes += many.len();
            sent = writing.write_all(&many).await;
        }
        reading.abort();
        sent.is_err()
    }

    /// An honest client of HTTP/2 that is an administrator, and pings often.
    async fn second(&self, window: u32) -> SendRequest<Full<Bytes>> {
        let stream = self.connect_as(&alpn(&self.admin)).await;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(window)
            .keep_alive_interval(Some(Duration::from_millis(100)))
            .keep_alive_timeout(Duration::from_secs(60))
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    }
}

async fn ask(sender: &mut SendRequest<Full<Bytes>>, query: &str, body: String) -> Response<Incoming> {
    let request = Request::builder()
        .method(if body.is_empty() { "GET" } else { "POST" })
        .uri(format!("https://127.0.0.1{MAPS}{query}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    sender.send_request(request).await.unwrap()
}

fn map(name: &str, size: usize) -> String {
    json!({"metadata": {"name": name}, "data": {"a": "x".repeat(size)}}).to_string()
}

async fn create(sender: &mut SendRequest<Full<Bytes>>, name: &str, size: usize) {
    let answer = ask(sender, "", map(name, size)).await;
    assert_eq!(answer.status(), StatusCode::CREATED);
    answer.into_body().collect().await.unwrap();
}

#[tokio::test]
async fn floods_of_frames_end_and_who_watches_uploads_and_downloads_is_not_cut() {
    let running = run().await;
    let mut watcher = running.second(65_536).await;
    let mut watch = ask(&mut watcher, "?watch=1", String::new()).await.into_body();
    // POST https://a/api without the end of its body.
    let post = frame(1, 4, 1, b"\x83\x87\x04\x04/api\x01\x01a");
    let get = frame(1, 5, 1, b"\x82\x87\x04\x04/api\x01\x01a");
    let floods = [
        ("PING", vec![], frame(6, 0, 0, b"12345678")),
        ("PING acknowledged", vec![], frame(6, 1, 0, b"12345678")),
        ("SETTINGS", vec![], frame(4, 0, 0, b"\0\x03\0\0\0\x64")),
        ("SETTINGS that are empty", vec![], frame(4, 0, 0, b"")),
        ("PRIORITY", vec![], frame(2, 0, 1, b"\0\0\0\0\x10")),
        ("DATA that is empty", post.clone(), frame(0, 0, 1, b"")),
        ("DATA that is padding", post, frame(0, 8, 1, b"\x07\0\0\0\0\0\0\0")),
        // A window is full after two thousand million of these.
        ("WINDOW_UPDATE", vec![], frame(8, 0, 0, b"\0\0\0\x01")),
        ("WINDOW_UPDATE of an ended stream", get.clone(), frame(8, 0, 1, b"\0\0\0\x01")),
        ("RST_STREAM of an ended stream", get, frame(3, 0, 1, b"\0\0\0\x08")),
        ("unknown frames", vec![], frame(0x42, 0, 0, b"")),
        ("large unknown frames", vec![], frame(0x42, 0, 0, &[0; 16_000])),
    ];
    for (name, first, frame) in floods {
        assert!(running.ends(&first, |_| frame.clone()).await, "{name} without end");
    }
    // CVE-2023-44487 and CVE-2025-8671: streams that are opened, and reset by the client or, as their window
    // grows beyond what there is, by the server.
    let open = |stream| on_stream(1, 5, stream, b"\x82\x87\x04\x04/api\x01\x01a");
    let resets = |stream| [open(stream), on_stream(3, 0, stream, b"\0\0\0\x08")].concat();
    assert!(running.ends(b"", resets).await, "resets without end");
    let provoked = |stream| [open(stream), on_stream(8, 0, stream, b"\x7f\xff\xff\xff")].concat();
    assert!(running.ends(b"", provoked).await, "resets of the server without end");
    let mut uploader = running.second(65_536).await;
    for _ in 0..OBJECTS {
        // A name that is refused, so that the answer is short.
        assert_eq!(ask(&mut uploader, "", map("A", SIZE)).await.status(), StatusCode::UNPROCESSABLE_ENTITY);
    }
    // Objects, and then a download with a window so small that its frames are as many as they can be.
    let mut sender = running.second(4_096).await;
    for i in 0..OBJECTS {
        create(&mut sender, &format!("large-{i}"), SIZE).await;
    }
    let list = ask(&mut sender, "", String::new()).await.into_body().collect().await.unwrap();
    assert!(list.to_bytes().len() > OBJECTS * SIZE);
    create(&mut sender, "last", 1).await;
    let mut seen = Vec::new();
    while !seen.windows(6).any(|text| text == b"\"last\"") {
        let frame = watch.frame().await.expect("the watch goes on").unwrap();
        // A long frame is a large object.
        seen = frame.into_data().unwrap().to_vec();
    }
    drop((watch, watcher, sender));
    running.end().await;
}

/// Before these are accepted, as while the server is busy.
#[tokio::test]
async fn many_clients_may_wait_to_be_accepted() {
    let listener = apiserver_server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let most: usize =
        std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
    let clients = (0..most.min(500)).map(|_| TcpStream::connect(address));
    let connected = futures::future::join_all(clients);
    // The kernel answers at once, or not before it tries again and again.
    let connected = tokio::time::timeout(Duration::from_secs(60), connected).await.unwrap();
    assert!(connected.iter().all(Result::is_ok));
}
