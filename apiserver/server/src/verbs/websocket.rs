//! Watches and logs over a WebSocket (RFC 6455), for browsers. Of a watch each message is one event, as text
//! where it is JSON, else as bytes; of a log it is some bytes, as they are or in Base64.

use apiserver_schema::error::ApiError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use http::header::{
    CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use super::watch::Events;
use crate::body;
use crate::body::Body;
use crate::limits;
use crate::respond::Answer;
use apiserver_cache::form::Format;

/// Bytes of the length before each event of a protobuf stream; a message needs none.
const LENGTH: usize = 4;

/// Switches protocols; from then on the events are messages. 400 for a handshake that is none.
pub fn serve(request: Request<Body>, events: Events, format: Format) -> Answer {
    // A client that offers a single protocol gets it; which one does not matter to the events.
    let protocol = request.headers().get(SEC_WEBSOCKET_PROTOCOL);
    let protocol = protocol.filter(|value| !value.as_bytes().contains(&b',')).cloned();
    let (mut response, upgrade) = switch(request, protocol)?;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.media()));
    tokio::spawn(async move {
        if let Err(error) = run(upgrade, events, format).await {
            // The usual end of a client that went.
            tracing::debug!(error = &*error as &dyn std::error::Error, "a watch over a WebSocket ended");
        }
    });
    Ok(response)
}

/// Returns the answer that switches protocols, and the connection that has switched once it was sent. 400 for a
/// handshake that is none.
fn switch(
    mut request: Request<Body>,
    protocol: Option<HeaderValue>,
) -> Result<(Response<Body>, OnUpgrade), ApiError> {
    let headers = request.headers();
    let version = headers.get(SEC_WEBSOCKET_VERSION);
    let key = headers.get(SEC_WEBSOCKET_KEY).filter(|_| version.is_some_and(|version| version == "13"));
    let Some(accept) = key.map(|key| derive_accept_key(key.as_bytes())) else {
        return Err(ApiError::bad_request("the request is not a WebSocket handshake of version 13"));
    };
    if request.extensions().get::<OnUpgrade>().is_none() {
        return Err(ApiError::bad_request("this connection cannot be upgraded; use HTTP/1.1"));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    if let Some(protocol) = protocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok((response, upgrade))
}

/// Returns the server's side of a connection that has switched.
async fn accepted(upgrade: OnUpgrade) -> Result<Socket, hyper::Error> {
    let upgraded = TokioIo::new(upgrade.await?);
    // A client that watches or reads a log does not send data.
    let config = WebSocketConfig::default()
        .max_message_size(Some(limits::WEBSOCKET_MESSAGE))
        .max_frame_size(Some(limits::WEBSOCKET_MESSAGE));
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Server, Some(config)).await)
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Closes the socket. What the client has not read yet would be lost if the connection broke off, so it is
/// given the time to close its side.
async fn close(
    mut sender: SplitSink<Socket, Message>,
    mut receiver: SplitStream<Socket>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let normal = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
    match sender.send(Message::Close(Some(normal))).await {
        // A close of the client has been answered already.
        Ok(()) | Err(Error::ConnectionClosed) => {}
        Err(error) => return Err(error.into()),
    }
    let rest = async { while let Some(Ok(_)) = receiver.next().await {} };
    tokio::time::timeout(limits::WEBSOCKET_LINGER, rest).await.ok();
    Ok(sender.reunite(receiver)?.get_mut().shutdown().await?)
}

async fn run(
    upgrade: OnUpgrade,
    mut events: Events,
    format: Format,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, mut receiver) = accepted(upgrade).await?.split();
    loop {
        tokio::select! {
            event = events.one() => {
                let Some(event) = event else { break };
                let message = match format {
                    Format::Protobuf => Message::Binary(event.slice(LENGTH.min(event.len())..)),
                    _ => Message::Text(Utf8Bytes::try_from(event)?),
                };
                // The same limit as for any answer that is not taken.
                tokio::time::timeout(limits::STALL, sender.send(message)).await??;
            }
            // Pings are answered while reading; a close, or the end, ends the watch.
            message = receiver.next() => match message {
                Some(Ok(Message::Close(_))) | None => break,
                Some(Ok(_)) => sender.flush().await?,
                Some(Err(Error::ConnectionClosed)) => return Ok(()),
                Some(Err(error)) => return Err(error.into()),
            },
        }
    }
    close(sender, receiver).await
}

/// The encoding of a log in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogCoding {
    Bytes,
    Base64,
}

impl LogCoding {
    /// The first of the offered protocols that there is, and its coding. Without an offer it is bytes; 403
    /// where all that is offered is unknown.
    fn negotiate(headers: &HeaderMap) -> Result<(Option<HeaderValue>, Self), ApiError> {
        let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
        let offered: Vec<&str> = values
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect();
        let chosen = offered.iter().find_map(|name| match *name {
            "binary.k8s.io" => Some((Some(HeaderValue::from_static("binary.k8s.io")), Self::Bytes)),
            "base64.binary.k8s.io" => {
                Some((Some(HeaderValue::from_static("base64.binary.k8s.io")), Self::Base64))
            }
            _ => None,
        });
        match chosen {
            Some(chosen) => Ok(chosen),
            None if offered.is_empty() => Ok((None, Self::Bytes)),
            None => {
                let offered = offered.join(" ");
                Err(ApiError::new(
                    403,
                    "Forbidden",
                    format!(
                        "requested protocol(s) are not supported: [{offered}]; supports [ binary.k8s.io base64.binary.k8s.io]"
                    ),
                ))
            }
        }
    }

    fn message(self, bytes: Bytes) -> Message {
        match self {
            Self::Bytes => Message::Binary(bytes),
            Self::Base64 => Message::text(STANDARD.encode(bytes)),
        }
    }
}

/// Switches protocols; from then on the log comes in messages, the first of which is empty. 403 for
/// protocols that are unknown, 400 for a handshake that is none.
pub fn serve_log(request: Request<Body>, log: Response<Body>) -> Answer {
    let (protocol, coding) = LogCoding::negotiate(request.headers())?;
    let (response, upgrade) = switch(request, protocol)?;
    tokio::spawn(async move {
        if let Err(error) = send_log(upgrade, log.into_body(), coding).await {
            // The usual end of a client that went.
            tracing::debug!(error = &*error as &dyn std::error::Error, "a log over a WebSocket ended");
        }
    });
    Ok(response)
}

async fn send_log(
    upgrade: OnUpgrade,
    mut log: Body,
    coding: LogCoding,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, mut receiver) = accepted(upgrade).await?.split();
    sender.send(coding.message(Bytes::new())).await?;
    loop {
        tokio::select! {
            frame = log.frame() => {
                let Some(frame) = frame else { break };
                let mut bytes = frame?.into_data().unwrap_or_default();
                while !bytes.is_empty() {
                    let part = bytes.split_to(bytes.len().min(limits::WEBSOCKET_LOG));
                    tokio::time::timeout(limits::STALL_OF_LOGS, sender.send(coding.message(part))).await??;
                }
            }
            // A client that closes wants no more of it, also of a log that is followed.
            message = receiver.next() => match message {
                Some(Ok(Message::Close(_))) | None => break,
                Some(Ok(_)) => sender.flush().await?,
                Some(Err(Error::ConnectionClosed)) => return Ok(()),
                Some(Err(error)) => return Err(error.into()),
            },
        }
    }
    drop(log);
    close(sender, receiver).await
}
