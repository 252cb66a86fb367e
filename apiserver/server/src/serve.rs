//! The listener: TLS, HTTP/1.1 and HTTP/2 on one port, upgrades.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{BoxError, Service};

use crate::auth::listener::ListenerTls;
use crate::chain::{PeerCertificate, UnknownCertificate};
use crate::cork::Corked;
use crate::limits;
use crate::server::Server;
use crate::wire::{self, Spoken};

/// Time that connections have to end when no request is in flight any more.
const DRAIN: Duration = Duration::from_secs(5);
/// Requests in flight are counted this often at the end.
const IDLE_CHECK: Duration = Duration::from_millis(10);
/// Pause after an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown`, then ends in good order: readiness is answered with no and the server's
/// endpoint is withdrawn; after the configured delay new requests are refused, watches end after a
/// whole event, connections are told to go away; requests in flight are answered, as long as a
/// request may take; and what is left is cut off. Client certificates that `tls` vouches for
/// become identities, others are answered with 401.
pub async fn serve(
    listener: TcpListener,
    tls: ListenerTls,
    server: Arc<Server>,
    shutdown: CancellationToken,
) {
    if let Ok(address) = listener.local_addr() {
        server.listens_on(address);
    }
    let (delay, refuse_politely) =
        (server.config().shutdown_delay, server.config().shutdown_send_retry_after);
    let door = Door {
        acceptor: TlsAcceptor::from(tls.config()),
        tls,
        server: Arc::clone(&server),
        connections: TaskTracker::new(),
        closing: CancellationToken::new(),
    };
    door.open(&listener, shutdown.cancelled()).await;
    tracing::info!(?delay, "the server is told to end and is not ready any more");
    let withdrawal = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.drain().await }
    });
    if !delay.is_zero() {
        door.open(&listener, tokio::time::sleep(delay)).await;
    }
    server.refuse();
    if refuse_politely {
        door.open(&listener, idle(&server)).await;
    }
    drop(listener);
    door.closing.cancel();
    idle(&server).await;
    if let Err(error) = withdrawal.await {
        tracing::warn!(%error, "the server's endpoint was not withdrawn");
    }
    server.stop();
    door.connections.close();
    if tokio::time::timeout(DRAIN, door.connections.wait()).await.is_err() {
        tracing::info!(left = door.connections.len(), "connections were cut off");
    }
}

/// Waits until no request is in flight, as long as one may take.
async fn idle(server: &Server) {
    let work = async {
        while server.metrics().in_flight() > 0 {
            tokio::time::sleep(IDLE_CHECK).await;
        }
    };
    if tokio::time::timeout(server.config().request_timeout, work).await.is_err() {
        tracing::info!(left = server.metrics().in_flight(), "requests did not end in time");
    }
}

/// Where connections come in.
struct Door {
    acceptor: TlsAcceptor,
    tls: ListenerTls,
    server: Arc<Server>,
    connections: TaskTracker,
    /// Connections end when what is under way on them has ended.
    closing: CancellationToken,
}

impl Door {
    /// Accepts connections until `end`.
    async fn open(&self, listener: &TcpListener, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut end => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let (server, closing) = (Arc::clone(&self.server), self.closing.clone());
                    let (acceptor, tls) = (self.acceptor.clone(), self.tls.clone());
                    let connection = connection(stream, acceptor, tls, server, closing);
                    self.connections.spawn(async move {
                        if let Err(error) = connection.await {
                            tracing::debug!(%peer, error = &*error, "a connection ended with an error");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// The TLS handshake, within its time.
async fn handshake(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    server: &Server,
) -> Result<TlsStream<TcpStream>, BoxError> {
    stream.set_nodelay(true)?;
    let result = match tokio::time::timeout(limits::HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => error.into(),
        Err(elapsed) => elapsed.into(),
    };
    server.metrics().handshake_failed();
    Err(result)
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    tls: ListenerTls,
    server: Arc<Server>,
    shutdown: CancellationToken,
) -> Result<(), BoxError> {
    let places = server.connections();
    let Ok(_place) = places.try_acquire() else { return Err("there are too many connections".into()) };
    let stream = handshake(stream, acceptor, &server).await?;
    let chain = stream.get_ref().1.peer_certificates().filter(|chain| !chain.is_empty());
    let certificate = chain.map(|chain| match tls.vouches_for(chain) {
        true => Ok(PeerCertificate(chain[0].clone().into_owned())),
        false => Err(UnknownCertificate),
    });
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(|body| body.map_err(BoxError::from).boxed_unsync());
        match &certificate {
            Some(Ok(known)) => drop(request.extensions_mut().insert(known.clone())),
            Some(Err(unknown)) => drop(request.extensions_mut().insert(*unknown)),
            None => {}
        }
        let refused = wire::refusal(&request);
        let mut service = server.service();
        async move {
            match refused {
                Some(response) => Ok(response),
                None => service.call(request).await,
            }
        }
    });
    let builder = wire::builder();
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let stream = Corked::new(Spoken::soon(stream));
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended,
            () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        return connection.await;
    }
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(Spoken::soon(stream)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
