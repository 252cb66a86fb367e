//! The listener: TLS, HTTP/1.1 and HTTP/2 on one port, upgrades.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{BoxError, Service};

use crate::chain::PeerCertificate;
use crate::cork::Corked;
use crate::limits;
use crate::server::Server;

/// Time that connections have to end after the shutdown began.
const DRAIN: Duration = Duration::from_secs(5);
/// A client has this long to send a request's head.
const HEAD: Duration = Duration::from_secs(30);
/// Pause after an error of `accept`, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// HTTP/2 connections are probed this often.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Accepts connections until `shutdown`, then ends watches and waits a while for what is left.
/// Client certificates that `tls` has verified become identities.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    server: Arc<Server>,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = connection(stream, acceptor.clone(), Arc::clone(&server), shutdown.clone());
                connections.spawn(async move {
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
    server.stop();
    connections.close();
    if tokio::time::timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::info!(left = connections.len(), "connections were cut off");
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    server: Arc<Server>,
    shutdown: CancellationToken,
) -> Result<(), BoxError> {
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(limits::HANDSHAKE, acceptor.accept(stream)).await??;
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate =
        certificates.and_then(|chain| chain.first()).map(|c| PeerCertificate(c.clone().into_owned()));
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(|body| body.map_err(BoxError::from).boxed_unsync());
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        server.service().call(request)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::STREAMS)
        .keep_alive_interval(Some(KEEP_ALIVE))
        // Informers hold many watches on one connection; each needs room of its own.
        .initial_connection_window_size(1 << 20)
        .max_send_buf_size(1 << 20);
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let connection = builder.serve_connection(TokioIo::new(Corked::new(stream)), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended,
            () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        return connection.await;
    }
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
