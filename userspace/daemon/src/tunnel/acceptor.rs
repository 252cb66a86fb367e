//! The end of a tunnel that answers: the node's.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::io_error;
use super::pings::keep_alive;
use super::stream::{Reader, Writer};
use crate::addresses::is_global_unicast;
use crate::{limits, relay};

/// Returns `true` if an address is that of a pod that runs on this node at this moment.
pub type RunsHere = Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// Answers for the kubelet of a node, and for the pods that run on the node.
#[derive(Clone)]
pub struct Acceptor {
    /// The destination by which the API server names the kubelet, as [`kubelet`](super::kubelet) returns it.
    pub name: String,
    /// The address at which the kubelet listens.
    pub address: SocketAddr,
    /// Decides on all other destinations, as [`pod`](super::pod) returns them.
    pub runs_here: RunsHere,
}

impl Acceptor {
    /// Returns the address to connect to for a destination. `None` if it is neither the kubelet nor a pod of this node:
    /// an API server could otherwise reach whatever the node can. Loopback, link-local addresses (where clouds serve
    /// credentials) and groups are refused even if a runtime reports one as that of a pod.
    fn address_of(&self, destination: &str) -> Option<SocketAddr> {
        if destination == self.name {
            return Some(self.address);
        }
        let pod: SocketAddr = destination.parse().ok()?;
        // Without the zone that the text of an IPv6 address may have.
        let pod = SocketAddr::new(pod.ip().to_canonical(), pod.port());
        (pod.port() != 0 && is_global_unicast(pod.ip()) && (self.runs_here)(pod)).then_some(pod)
    }

    /// Serves a stream whose peer is a [`Dialer`](super::Dialer) until the tunnel ends. Once `retired`, it accepts nothing
    /// new and ends with its last connection.
    pub async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        retired: CancellationToken,
    ) -> io::Result<()> {
        let begun = timeout(limits::TUNNEL_HANDSHAKE, Self::builder().handshake::<_, Bytes>(stream)).await;
        let mut connection =
            begun.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io_error)?;
        let mut pings = Box::pin(keep_alive(connection.ping_pong()));
        // Ends the connections with the tunnel.
        let mut carried = JoinSet::new();
        let mut retiring = false;
        loop {
            tokio::select! {
                next = connection.accept() => match next {
                    None => return Ok(()),
                    Some(request) => {
                        let (request, respond) = request.map_err(io_error)?;
                        carried.spawn(self.clone().answer(request, respond));
                    }
                },
                Some(_) = carried.join_next(), if !carried.is_empty() => {}
                lost = &mut pings => return Err(lost),
                () = retired.cancelled(), if !retiring => {
                    retiring = true;
                    connection.graceful_shutdown();
                }
            }
        }
    }

    fn builder() -> Builder {
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(limits::TUNNEL_STREAMS as u32)
            .initial_window_size(limits::TUNNEL_STREAM_WINDOW)
            .initial_connection_window_size(limits::TUNNEL_WINDOW)
            .max_header_list_size(limits::TUNNEL_HEAD_BYTES)
            .max_send_buffer_size(limits::TUNNEL_SEND_BUFFER)
            .data_frame_budget(limits::TUNNEL_FRAMES);
        builder
    }

    async fn answer(self, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        let destination = request.uri().authority().map(http::uri::Authority::as_str);
        let connects = request.method() == Method::CONNECT;
        let Some(address) = destination.filter(|_| connects).and_then(|to| self.address_of(to)) else {
            tracing::warn!(
                destination,
                "refused a destination in a tunnel: neither the own kubelet nor an own pod"
            );
            return refuse(respond, StatusCode::FORBIDDEN);
        };
        let socket = match timeout(limits::TUNNEL_CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => {
                tracing::debug!(%error, %address, "cannot connect for a tunnel");
                return refuse(respond, StatusCode::BAD_GATEWAY);
            }
            Err(_) => return refuse(respond, StatusCode::GATEWAY_TIMEOUT),
        };
        if let Err(error) = carry(socket, request.into_body(), respond).await {
            // The usual end of a session that the client cut off.
            tracing::debug!(%error, "a connection in a tunnel ended");
        }
    }
}

fn refuse(mut respond: SendResponse<Bytes>, status: StatusCode) {
    let mut answer = Response::new(());
    *answer.status_mut() = status;
    if let Err(error) = respond.send_response(answer, true) {
        tracing::debug!(%error, "cannot refuse a connection in a tunnel");
    }
}

/// Accepts a connection and carries its bytes both ways until both sides have ended, or one breaks.
async fn carry(
    mut socket: TcpStream,
    receive: RecvStream,
    mut respond: SendResponse<Bytes>,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (mut from_socket, mut to_socket) = socket.split();
    let mut from_tunnel = Reader::new(receive);
    let mut to_tunnel = Writer::new(respond.send_response(Response::new(()), false).map_err(io_error)?);
    let inwards = relay::copy_request(&mut from_tunnel, &mut to_socket);
    let outwards = async {
        let mut buffer = vec![0; limits::RELAY_BUFFER];
        loop {
            // A stream that is broken off while the server takes nothing is noticed here alone.
            let read = tokio::select! {
                read = from_socket.read(&mut buffer) => read?,
                error = to_tunnel.broken() => return Err(error),
            };
            if read == 0 {
                return to_tunnel.shutdown().await;
            }
            to_tunnel.write_all(&buffer[..read]).await?;
        }
    };
    tokio::try_join!(inwards, outwards).map(|((), ())| ())
}
