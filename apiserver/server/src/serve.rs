//! The listener: TLS, HTTP/1.1 and HTTP/2 on one port, upgrades.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tower::BoxError;

use crate::access::Access;
use crate::body::Body;
use crate::chain;
use crate::chain::UnknownCertificate;
use crate::clients::accounts::Accounts;
use crate::clients::connections::{Active, Connection, Connections, Place};
use crate::clients::delivery;
use crate::close_notify::Farewell;
use crate::connection_bounds;
use crate::connection_bounds::Spoken;
use crate::limits;
use crate::metrics::Metrics;
use crate::request::PeerCertificate;
use crate::server::Server;
use crate::write_coalescing::Corked;
use apiserver_auth::authentication::listener::ListenerTls;

/// Time that connections have to end when no request is in flight any more.
const DRAIN: Duration = Duration::from_secs(5);
/// Requests in flight are counted this often at the end.
const IDLE_CHECK: Duration = Duration::from_millis(10);

/// Listens for clients of an API server.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A server that starts again finds its port free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(limits::LISTEN_BACKLOG)
}

/// Serves until `shutdown`, then ends in good order: the server reports that it is not ready and withdraws
/// its endpoint; after the configured delay new requests are refused, watches end after a whole event,
/// connections are asked to go away; requests in flight are answered, as long as a request may take; and the
/// rest is cut off. Client certificates that `tls` accepts become identities, others are answered with 401.
pub async fn serve(
    listener: TcpListener,
    tls: ListenerTls,
    server: Arc<Server>,
    shutdown: CancellationToken,
) {
    if let Ok(address) = listener.local_addr() {
        server.addresses().listens_on(address);
    }
    let config = server.config();
    let (delay, refuse_politely) = (config.shutdown_delay, config.shutdown_send_retry_after);
    let idle = || idle(server.metrics(), config.request_timeout);
    let door = Door {
        acceptor: TlsAcceptor::from(tls.config()),
        tls,
        server: Arc::clone(&server),
        connections: TaskTracker::new(),
        closing: CancellationToken::new(),
    };
    let _sweeper = AbortOnDropHandle::new(tokio::spawn(sweep(
        Arc::clone(server.clients().connections()),
        Arc::clone(server.clients().accounts()),
    )));
    door.open(&listener, shutdown.cancelled()).await;
    tracing::info!(?delay, "shutting down: no longer ready");
    let withdrawal = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.drain().await }
    });
    if !delay.is_zero() {
        door.open(&listener, tokio::time::sleep(delay)).await;
    }
    server.refuse();
    if refuse_politely {
        door.open(&listener, idle()).await;
    }
    drop(listener);
    door.closing.cancel();
    idle().await;
    if let Err(error) = withdrawal.await {
        tracing::warn!(%error, "the server's endpoint was not withdrawn");
    }
    server.stop();
    door.connections.close();
    if tokio::time::timeout(DRAIN, door.connections.wait()).await.is_err() {
        tracing::info!(left = door.connections.len(), "connections were cut off");
    }
}

/// Closes idle connections, and cuts off answers that are not taken.
async fn sweep(connections: Arc<Connections>, accounts: Arc<Accounts>) {
    loop {
        tokio::time::sleep(limits::SWEEP_EVERY).await;
        connections.sweep();
        accounts.wake();
    }
}

/// Waits until no request is in flight, for at most the time that one may take.
async fn idle(metrics: &Metrics, request_timeout: Duration) {
    let work = async {
        while metrics.in_flight() > 0 {
            tokio::time::sleep(IDLE_CHECK).await;
        }
    };
    if tokio::time::timeout(request_timeout, work).await.is_err() {
        tracing::info!(left = metrics.in_flight(), "requests did not end in time");
    }
}

/// The acceptor of connections.
struct Door {
    acceptor: TlsAcceptor,
    tls: ListenerTls,
    server: Arc<Server>,
    connections: TaskTracker,
    /// Cancelled to end connections once the requests under way on them have ended.
    closing: CancellationToken,
}

impl Door {
    /// Accepts connections until `end`.
    async fn open(&self, listener: &TcpListener, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            let (stream, peer) = tokio::select! {
                biased;
                () = &mut end => return,
                accepted = userspace_daemon::next_connection(listener) => accepted,
            };
            let (server, closing) = (Arc::clone(&self.server), self.closing.clone());
            let (acceptor, tls) = (self.acceptor.clone(), self.tls.clone());
            let place = server.clients().connections().admit(peer);
            let connection = connection(stream, place, (acceptor, tls), server, closing);
            self.connections.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%peer, error = &*error, "a connection ended with an error");
                }
            });
        }
    }
}

/// Makes the TLS handshake, within its time.
async fn handshake(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    metrics: &Metrics,
) -> Result<TlsStream<TcpStream>, BoxError> {
    stream.set_nodelay(true)?;
    let result = match tokio::time::timeout(limits::HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => error.into(),
        Err(elapsed) => elapsed.into(),
    };
    metrics.handshake_failed();
    Err(result)
}

/// Remembers whom a client certificate names, for every request of the connection.
fn certificate(
    stream: &TlsStream<TcpStream>,
    tls: &ListenerTls,
    place: &Place,
    (access, accounts): (&Access, &Arc<Accounts>),
) -> Option<Result<PeerCertificate, UnknownCertificate>> {
    let chain = stream.get_ref().1.peer_certificates().filter(|chain| !chain.is_empty())?;
    if !tls.vouches_for(chain) {
        return Some(Err(UnknownCertificate));
    }
    let own = chain[0].clone().into_owned();
    let identity = access.authenticator().map(|authenticator| authenticator.authenticate(Some(&own), None));
    if let Some(Ok(identity)) = identity {
        place.authenticated(&accounts.of(&identity));
    }
    Some(Ok(PeerCertificate(own)))
}

/// Answers one request of a connection. The answer is charged to who asked until it is sent.
async fn answer(
    server: Arc<Server>,
    connection: Arc<Connection>,
    active: Active,
    mut request: Request<Body>,
) -> Response<Body> {
    let response = match connection_bounds::refusal(&request) {
        Some(response) => response,
        None => {
            request.extensions_mut().insert(Arc::clone(&connection));
            chain::handle(Arc::clone(&server), request).await
        }
    };
    let anonymous = || server.clients().accounts().anonymous();
    delivery::deliver(server.clients().connections(), &connection, anonymous, active, response)
}

async fn connection(
    stream: TcpStream,
    place: Place,
    (acceptor, tls): (TlsAcceptor, ListenerTls),
    server: Arc<Server>,
    shutdown: CancellationToken,
) -> Result<(), BoxError> {
    let connection = Arc::clone(&place);
    let stream = tokio::select! {
        biased;
        () = connection.closed().cancelled() => return Err("it gave way to another connection".into()),
        stream = handshake(stream, acceptor, server.metrics()) => stream?,
    };
    let accounts = server.clients().accounts();
    let certificate = certificate(&stream, &tls, &place, (server.access(), accounts));
    place.shaken();
    let service = service_fn({
        let connection = Arc::clone(&connection);
        move |request: Request<Incoming>| {
            let earnings = Arc::clone(connection.earnings());
            let mut request = request.map(|body| {
                let read = move |frame: &Frame<Bytes>| earnings.body(frame.data_ref().map_or(0, Bytes::len));
                body.inspect_frame(read).map_err(BoxError::from).boxed_unsync()
            });
            match &certificate {
                Some(Ok(known)) => drop(request.extensions_mut().insert(known.clone())),
                Some(Err(unknown)) => drop(request.extensions_mut().insert(*unknown)),
                None => {}
            }
            let (server, connection) = (Arc::clone(&server), Arc::clone(&connection));
            let active = connection.begin();
            async move { Ok::<_, Infallible>(answer(server, connection, active, request).await) }
        }
    });
    let builder = connection_bounds::builder();
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = Spoken::soon(Farewell(stream)).with_place(place);
    if is_http2 {
        let serving = builder.serve_connection(TokioIo::new(Corked::new(stream)), service);
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            biased;
            ended = serving.as_mut() => return ended,
            () = connection.closed().cancelled() => return Err("it was closed".into()),
            () = connection.retired().cancelled() => {}
            () = shutdown.cancelled() => {}
        }
        serving.as_mut().graceful_shutdown();
        return or_closed(serving, &connection).await;
    }
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        biased;
        ended = serving.as_mut() => return ended,
        () = connection.closed().cancelled() => return Err("it was closed".into()),
        () = connection.retired().cancelled() => {}
        () = shutdown.cancelled() => {}
    }
    serving.as_mut().graceful_shutdown();
    or_closed(serving, &connection).await
}

/// Waits for a connection to end in good order, unless it is closed before.
async fn or_closed(
    serving: impl Future<Output = Result<(), BoxError>>,
    connection: &Connection,
) -> Result<(), BoxError> {
    tokio::select! {
        biased;
        ended = serving => ended,
        () = connection.closed().cancelled() => Err("it was closed".into()),
    }
}
