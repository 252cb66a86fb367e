//! Logs over WebSockets: "should support retrieving logs from the container over websockets".

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::*;

const LOG: &str = "/api/v1/namespaces/default/pods/p/log";

/// A kubelet with a short log, a long one, one that is followed, and none.
struct Logs {
    /// Told when the reader of a followed log has gone.
    gone: mpsc::UnboundedSender<()>,
}

#[async_trait]
impl Dial for Logs {
    async fn dial(&self, _: &Peer, _: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        let (near, far) = duplex(64 * 1024);
        let gone = self.gone.clone();
        let service = hyper::service::service_fn(move |request| log(request, gone.clone()));
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service));
        Ok(Box::new(near))
    }
}

type LogBody = UnsyncBoxBody<Bytes, Infallible>;

async fn log(
    request: Request<Incoming>,
    gone: mpsc::UnboundedSender<()>,
) -> Result<Response<LogBody>, Infallible> {
    assert_eq!(request.method(), "GET");
    assert!(
        !request.headers().contains_key("upgrade") && !request.headers().contains_key("sec-websocket-key")
    );
    let body = |text: String| Full::from(text).boxed_unsync();
    Ok(match request.uri().path_and_query().unwrap().as_str() {
        "/containerLogs/default/p/c" => Response::new(body("container is alive\n".to_owned())),
        "/containerLogs/default/p/c?tailLines=9" => Response::new(body("x".repeat(100_000))),
        "/containerLogs/default/p/c?follow=true" => {
            let first = futures::stream::iter([Ok(Frame::data(Bytes::from("first line\n")))]);
            let open = OnDrop(gone);
            let rest = futures::stream::unfold(open, |open| async move {
                std::future::pending::<()>().await;
                Some((Ok(Frame::data(Bytes::new())), open))
            });
            Response::new(StreamBody::new(first.chain(rest)).boxed_unsync())
        }
        _ => {
            let mut refused =
                Response::new(body("container \"c\" in pod \"p\" is waiting to start".to_owned()));
            *refused.status_mut() = StatusCode::BAD_REQUEST;
            refused
        }
    })
}

struct OnDrop(mpsc::UnboundedSender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Opens a WebSocket with these protocols; also returns the one that was chosen.
async fn open(running: &Running, path: &str, protocols: &str) -> Result<(Socket, Option<String>), Error> {
    let mut request = format!("wss://127.0.0.1{path}").into_client_request().unwrap();
    if !protocols.is_empty() {
        request.headers_mut().insert("sec-websocket-protocol", protocols.parse().unwrap());
    }
    let stream = running.connect().await;
    let (socket, answer) = tokio_tungstenite::client_async(request, stream).await?;
    let chosen =
        answer.headers().get("sec-websocket-protocol").map(|chosen| chosen.to_str().unwrap().to_owned());
    Ok((socket, chosen))
}

/// The status and text of a handshake's refusal.
fn refusal(opened: Result<(Socket, Option<String>), Error>) -> (u16, String) {
    match opened {
        Err(Error::Http(answer)) => {
            let body = answer.body().clone().unwrap_or_default();
            (answer.status().as_u16(), String::from_utf8(body).unwrap())
        }
        other => panic!("expected a refusal: {:?}", other.map(|(_, chosen)| chosen)),
    }
}

async fn start() -> (Running, mpsc::UnboundedReceiver<()>) {
    let (gone, going) = mpsc::unbounded_channel();
    let running = Running::start(|_| Kubelets::with_dial(Arc::new(Logs { gone }))).await;
    populate(&running.client).await;
    (running, going)
}

#[tokio::test]
async fn a_log_comes_over_a_websocket_in_every_protocol() {
    let (running, _going) = start().await;
    for (protocols, chosen, is_text) in [
        ("binary.k8s.io", Some("binary.k8s.io"), false),
        ("", None, false),
        ("base64.binary.k8s.io", Some("base64.binary.k8s.io"), true),
        ("unknown, base64.binary.k8s.io, binary.k8s.io", Some("base64.binary.k8s.io"), true),
    ] {
        for (query, expected) in
            [("?container=c", "container is alive\n".to_owned()), ("?tailLines=9", "x".repeat(100_000))]
        {
            let (mut socket, got) = open(&running, &format!("{LOG}{query}"), protocols).await.unwrap();
            assert_eq!(got.as_deref(), chosen);
            let (mut log, mut count, mut closed) = (Vec::new(), 0, false);
            while let Some(message) = socket.next().await {
                match message.unwrap() {
                    Message::Binary(data) if !is_text => log.extend_from_slice(&data),
                    Message::Text(text) if is_text => log.extend(STANDARD.decode(text.as_bytes()).unwrap()),
                    Message::Close(frame) => {
                        closed = frame.is_some_and(|frame| frame.code == CloseCode::Normal);
                        continue;
                    }
                    other => panic!("{protocols}: {other:?}"),
                }
                assert!(count > 0 || log.is_empty(), "the first message is empty");
                count += 1;
            }
            assert!(closed && log == expected.as_bytes(), "{protocols}: {} bytes", log.len());
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn a_client_that_closes_ends_a_followed_log() {
    let (running, mut going) = start().await;
    for politely in [true, false] {
        let (mut socket, _) = open(&running, &format!("{LOG}?follow=true"), "binary.k8s.io").await.unwrap();
        let mut log = Vec::new();
        while log != b"first line\n" {
            log.extend_from_slice(&socket.next().await.unwrap().unwrap().into_data());
        }
        socket.send(Message::Ping(Bytes::from("still there?"))).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::Pong(Bytes::from("still there?")));
        assert!(going.try_recv().is_err(), "nobody has gone");
        if politely {
            socket.close(None).await.unwrap();
            while let Some(Ok(_)) = socket.next().await {}
        } else {
            drop(socket);
        }
        let gone = tokio::time::timeout(Duration::from_secs(60), going.recv()).await;
        assert!(gone.is_ok_and(|gone| gone.is_some()), "the kubelet is told");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_handshake_that_cannot_be_answered_with_a_log_is_refused() {
    let (running, _going) = start().await;
    let (code, text) = refusal(open(&running, LOG, "channel.k8s.io").await);
    assert_eq!(code, 403);
    assert!(text.contains("requested protocol(s) are not supported: [channel.k8s.io]"), "{text}");
    let (code, text) = refusal(open(&running, &format!("{LOG}?previous=true"), "binary.k8s.io").await);
    assert_eq!(code, 400);
    assert!(text.contains("is waiting to start"), "{text}");
    assert_eq!(refusal(open(&running, "/api/v1/namespaces/default/pods/x/log", "").await).0, 404);
    running.stop().await;
}
