//! The end of a tunnel that opens connections.

use std::future::Future;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::{Method, Request, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::io_error;
use super::pings::keep_alive;
use super::stream::{Reader, TunnelStream, Writer};
use crate::limits;

/// A connection was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("the tunnel has as many connections as it may have, {}", limits::TUNNEL_STREAMS)]
    Full,
    #[error("the tunnel has ended")]
    Ended(#[source] io::Error),
    /// The node answered with another status than 200.
    #[error("the node refused the connection with {0}{meaning}", meaning = meaning(*.0))]
    Refused(StatusCode),
    #[error("the node did not answer")]
    Late,
}

/// Returns what the answer of an [`Acceptor`](super::Acceptor) says.
fn meaning(status: StatusCode) -> &'static str {
    match status {
        StatusCode::FORBIDDEN => ": neither its kubelet nor a pod that runs on it is there",
        StatusCode::BAD_GATEWAY => ": nothing accepts connections there",
        StatusCode::GATEWAY_TIMEOUT => ": no answer from there",
        _ => "",
    }
}

impl DialError {
    /// Returns `true` if another tunnel to the same node may do better.
    pub fn is_of_the_tunnel(&self) -> bool {
        matches!(self, Self::Full | Self::Ended(_) | Self::Late)
    }
}

/// Opens connections through a tunnel. Clones share it.
#[derive(Clone)]
pub struct Dialer {
    pub(super) requests: SendRequest<Bytes>,
    places: Arc<Semaphore>,
}

impl Dialer {
    /// Begins HTTP/2 over a stream whose peer is an [`Acceptor`](super::Acceptor). The future carries the bytes: it has to
    /// be polled, and ends with the tunnel.
    pub async fn open(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> io::Result<(Self, impl Future<Output = io::Result<()>> + Send)> {
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(limits::TUNNEL_STREAM_WINDOW)
            .initial_connection_window_size(limits::TUNNEL_WINDOW)
            .max_header_list_size(limits::TUNNEL_HEAD_BYTES)
            .max_send_buffer_size(limits::TUNNEL_SEND_BUFFER)
            .data_frame_budget(limits::TUNNEL_FRAMES);
        let begun = timeout(limits::TUNNEL_HANDSHAKE, builder.handshake(stream)).await;
        let (requests, mut connection) =
            begun.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io_error)?;
        let pings = keep_alive(connection.ping_pong());
        let carried = async move {
            tokio::select! {
                biased;
                ended = connection => ended.map_err(io_error),
                lost = pings => Err(lost),
            }
        };
        Ok((Self { requests, places: Arc::new(Semaphore::new(limits::TUNNEL_STREAMS)) }, carried))
    }

    /// Opens a connection to a destination, as [`kubelet`](super::kubelet) or [`pod`](super::pod) names it. Time is for the
    /// caller to limit.
    pub async fn dial(&self, to: &str) -> Result<TunnelStream<OwnedSemaphorePermit>, DialError> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| DialError::Full)?;
        let ended = |error| DialError::Ended(io_error(error));
        let mut request = Request::new(());
        *request.method_mut() = Method::CONNECT;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = to
            .parse()
            .map_err(|error| DialError::Ended(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        let mut requests = self.requests.clone().ready().await.map_err(ended)?;
        // A request beyond what the node admits would wait within HTTP/2, also after its client has gone.
        if requests.current_max_send_streams() < limits::TUNNEL_STREAMS - self.places.available_permits() {
            return Err(DialError::Full);
        }
        let (answer, send) = requests.send_request(request, false).map_err(ended)?;
        // Resets the stream unless it is handed out.
        let writer = Writer::new(send);
        let answer = answer.await.map_err(ended)?;
        if answer.status() != StatusCode::OK {
            return Err(DialError::Refused(answer.status()));
        }
        Ok(TunnelStream::new(Reader::new(answer.into_body()), writer, place))
    }
}
