//! Clients that send heads without end, streams without number, or nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::Instant;

use super::{Spoken, builder, refusal};
use crate::limits;

/// The number of requests that are being answered.
type Count = Arc<AtomicUsize>;

/// Returns a client's end of a connection whose requests are answered with `ok`, or never for `/hang`.
fn connect() -> (DuplexStream, Count, Count) {
    let (client, server) = tokio::io::duplex(1 << 16);
    let (running, most) = (Count::default(), Count::default());
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let stream = Spoken::soon(server);
    // The server's connections do the same.
    let earnings = Arc::clone(&stream.earnings);
    let service = service_fn(move |request: Request<Incoming>| {
        earnings.request();
        let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
        async move {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let guard = Ended(now);
            if request.uri().path() == "/hang" {
                std::future::pending::<()>().await;
            }
            drop(guard);
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
        }
    });
    tokio::spawn(async move {
        let _ = builder().serve_connection_with_upgrades(TokioIo::new(stream), service).await;
    });
    (client, running, most)
}

struct Ended(Count);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Sends a text and gives the first line of the answer, or nothing where there is none.
async fn say(text: &str) -> String {
    let (client, ..) = connect();
    let (mut reading, mut writing) = tokio::io::split(client);
    let bytes = text.as_bytes().to_vec();
    let sending = tokio::spawn(async move {
        // The server may have closed the connection already.
        let _ = writing.write_all(&bytes).await;
        writing
    });
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(read @ 1..) = reading.read(&mut chunk).await {
        answer.extend_from_slice(&chunk[..read]);
        if answer.contains(&b'\n') {
            break;
        }
    }
    drop(sending);
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test(start_paused = true)]
async fn heads_have_a_size() {
    let many: String = (0..=limits::HEADERS).map(|i| format!("x-{i}: 1\r\n")).collect();
    let long = "x".repeat(limits::HEAD_BYTES);
    let path = "p".repeat(u16::MAX.into());
    let table = [
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "HTTP/1.1 200 OK"),
        (format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"), "HTTP/1.1 431 Request Header Fields Too Large"),
        (format!("GET / HTTP/1.1\r\nx: {long}\r\n\r\n"), "HTTP/1.1 431 Request Header Fields Too Large"),
        (format!("GET /{path} HTTP/1.1\r\nhost: a\r\n\r\n"), "HTTP/1.1 414 URI Too Long"),
        ("GET / HTTP/1.1\r\nbroken\r\n\r\n".to_owned(), "HTTP/1.1 400 Bad Request"),
        ("nonsense\r\n\r\n".to_owned(), "HTTP/1.1 400 Bad Request"),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx".to_owned(),
            "HTTP/1.1 400 Bad Request",
        ),
    ];
    for (text, first) in table {
        assert_eq!(say(&text).await, first, "{}", &text[..text.len().min(60)]);
    }
}

#[tokio::test(start_paused = true)]
async fn silent_and_half_sent_requests_time_out() {
    for said in ["", "GET / HT", "GET / HTTP/1.1\r\nhost: a\r\n", "PRI * HTTP/2.0\r\n"] {
        let (mut client, ..) = connect();
        let begun = Instant::now();
        client.write_all(said.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        let waited = begun.elapsed();
        assert!(waited >= limits::HEAD && waited < 2 * limits::HEAD, "{said:?}: {waited:?}");
    }
}

async fn second() -> (http2::SendRequest<Empty<Bytes>>, Count, Count) {
    let (client, running, most) = connect();
    let (send, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.expect("HTTP/2");
    tokio::spawn(connection);
    (send, running, most)
}

fn request(path: &str, header: Option<String>) -> Request<Empty<Bytes>> {
    let mut request = Request::get(format!("http://a{path}"));
    if let Some(value) = header {
        request = request.header("x", value);
    }
    request.body(Empty::new()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn lists_of_headers_have_a_size() {
    let (mut send, ..) = second().await;
    let size = usize::try_from(limits::HEADER_LIST_BYTES).unwrap();
    let answer = send.send_request(request("/", Some("x".repeat(size / 2)))).await.unwrap();
    assert_eq!(answer.status(), 200);
    let answer = send.send_request(request("/", Some("x".repeat(size)))).await.unwrap();
    assert_eq!(answer.status(), 431);
}

#[tokio::test(start_paused = true)]
async fn streams_have_a_number() {
    let (mut send, running, most) = second().await;
    let streams = usize::try_from(limits::STREAMS).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..2 * streams {
        let answer = send.send_request(request("/hang", None));
        waiting.push(tokio::spawn(answer));
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((running.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (streams, streams));
}

/// Asks for `/hang`, with the end of its headers or without.
fn hang(stream: u32, flags: u8) -> Vec<u8> {
    frame(1, flags, stream, b"\x82\x87\x04\x05/hang\x01\x01a")
}

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// An error code of HTTP/2, "enhance your calm".
const CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// Streams of HTTP/2 that a client opens.
fn ids(count: usize) -> impl Iterator<Item = u32> {
    (0..u32::try_from(count).unwrap()).map(|index| 2 * index + 1)
}

/// Sends these frames at once, or each when the one before was handled, and returns the error with which the
/// server ends the connection; nothing if it does not, and `Some(None)` if it gives no error.
async fn end(frames: impl Iterator<Item = Vec<u8>>, at_once: bool) -> Option<Option<u32>> {
    let (client, ..) = connect();
    let (mut reading, mut writing) = tokio::io::split(client);
    let reading = tokio::spawn(async move {
        let mut said = Vec::new();
        reading.read_to_end(&mut said).await.map(|_| said)
    });
    let mut pieces: Vec<Vec<u8>> = [super::PREFACE.to_vec(), frame(4, 0, 0, b"")].into();
    pieces.extend(frames);
    if at_once {
        pieces = vec![pieces.concat()];
    }
    for piece in pieces {
        if writing.write_all(&piece).await.is_err() {
            break;
        }
        // Paused time stands still while any task is busy.
        tokio::time::sleep(Duration::from_nanos(1)).await;
    }
    // Long before the connection is probed.
    let said = tokio::time::timeout(Duration::from_secs(10), reading).await.ok()?.unwrap().unwrap();
    let mut rest = &said[..];
    let mut error = None;
    while let [a, b, c, kind, _, _, _, _, _, payload @ ..] = rest {
        let (payload, others) = payload.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        if *kind == GOAWAY {
            error = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        rest = others;
    }
    Some(error)
}

/// Streams that are opened and reset before they are processed (CVE-2023-44487).
#[tokio::test(start_paused = true)]
async fn resets_without_end_end_the_connection() {
    let resets = |count| {
        ids(count)
            .map(|id| [hang(id, END_STREAM | END_HEADERS), frame(RST_STREAM, 0, id, b"\0\0\0\x08")].concat())
    };
    assert_eq!(end(resets(limits::PENDING_RESETS), true).await, None);
    assert_eq!(end(resets(limits::PENDING_RESETS + 1), true).await, Some(Some(CALM)));
}

/// Streams that the server has to reset because of what the client does to them (CVE-2025-8671): here
/// a window grows beyond what there is.
#[tokio::test(start_paused = true)]
async fn resets_that_the_server_is_made_to_send_end_the_connection() {
    let resets = |count| {
        ids(count).map(|id| {
            let window = frame(WINDOW_UPDATE, 0, id, &i32::MAX.to_be_bytes());
            [hang(id, END_STREAM | END_HEADERS), window].concat()
        })
    };
    assert_eq!(end(resets(limits::ERROR_RESETS), false).await, None);
    assert_eq!(end(resets(limits::ERROR_RESETS + 1), false).await, Some(Some(CALM)));
    // Here no processed request pays for the frames.
    assert!(end(resets(limits::ERROR_RESETS + 1), true).await.is_some());
}

/// Headers of a request that has no end of them (CVE-2023-45288).
#[tokio::test(start_paused = true)]
async fn continuations_without_end_end_the_connection() {
    // A header that is not to be remembered: `x`, and its value.
    let header = |size: usize| {
        let rest = size - 127;
        let (low, high) = (u8::try_from(rest % 128).unwrap(), u8::try_from(rest / 128).unwrap());
        [&[0x10, 1, b'x', 127, 128 | low, high], &vec![b'x'; size][..]].concat()
    };
    for (name, payload) in
        [("empty", vec![]), ("small", b"\x10\x01x\x01x".to_vec()), ("large", header(16_000))]
    {
        let frames = (0..64).map(|_| frame(CONTINUATION, 0, 1, &payload));
        let frames = std::iter::once(hang(1, END_STREAM)).chain(frames);
        let ended = end(frames, false).await;
        assert!(matches!(ended, Some(Some(_))), "{name}: {ended:?}");
    }
}

#[test]
fn requests_that_are_none_are_refused_in_gos_words() {
    let request = |version: Version, path: &str, hosts: usize| {
        let mut request = Request::get(path).version(version).body(()).unwrap();
        for _ in 0..hosts {
            request.headers_mut().append("host", "a".parse().unwrap());
        }
        refusal(&request)
    };
    let (one, two) = (Version::HTTP_11, Version::HTTP_2);
    for (version, path, hosts) in
        [(one, "/api", 1), (Version::HTTP_10, "/api", 0), (two, "/api", 0), (one, "/a%2Fb?x=%zz", 1)]
    {
        assert!(request(version, path, hosts).is_none(), "{version:?} {path} {hosts}");
    }
    for (version, path, hosts) in
        [(one, "/api", 0), (one, "/api", 2), (one, "/api/v1/%zz", 1), (one, "/a%2", 1), (two, "/%", 0)]
    {
        let refused = request(version, path, hosts).unwrap();
        assert_eq!(refused.status(), 400, "{version:?} {path} {hosts}");
        assert_eq!(refused.headers().contains_key("connection"), version == one);
    }
}
