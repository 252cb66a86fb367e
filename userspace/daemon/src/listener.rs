//! Small HTTP servers: health, probes, metrics.

use std::{convert::Infallible, future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{Bounds, Place, Places, limits, page::Handler};

/// Serves short pages until shutdown, over TLS if there is an acceptor.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    handler: Handler,
    shutdown: CancellationToken,
) {
    let places = Places::new(Bounds::new(limits::CONNECTIONS));
    accept(listener, places, shutdown, move |stream, place| {
        let (tls, handler) = (tls.clone(), Arc::clone(&handler));
        async move {
            let _place = place;
            let served = tokio::time::timeout(limits::LIFE, connection(stream, tls, handler, limits::HEAD));
            if let Ok(Err(error)) = served.await {
                debug!(%error, "a connection ended early");
            }
        }
    })
    .await;
}

/// Waits for the next connection. An error that concerns no single connection, such as too many open files,
/// is logged, and followed by another attempt after a pause. Nothing is lost if the future is dropped.
pub async fn next_connection(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                warn!(%error, at = ?listener.local_addr().ok(), "cannot accept a connection");
                tokio::time::sleep(limits::ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Passes connections that get a place to `serve`, until shutdown, and closes the others. A connection ends
/// with the shutdown, or when its place is given to a newer one.
pub async fn accept<F>(
    listener: TcpListener,
    places: Arc<Places>,
    shutdown: CancellationToken,
    serve: impl Fn(TcpStream, Place) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = next_connection(&listener) => accepted,
        };
        // A connection without a local address is gone already.
        let Ok(local) = stream.local_addr() else { continue };
        let Some(place) = places.take(peer.ip(), local.ip()) else {
            debug!("refused a connection: no place is left");
            continue;
        };
        if let Err(error) = keep_alive(&stream) {
            debug!(%error, "cannot enable keepalive on a connection");
        }
        let evicted = place.evicted();
        let served = serve(stream, place);
        connections.spawn(async move {
            tokio::select! {
                biased;
                () = evicted.cancelled() => debug!("closed a connection in favour of a newer one"),
                () = served => {}
            }
        });
    }
}

/// Enables TCP keepalive, so that a connection whose peer vanished silently, as after a power failure, does
/// not hold its place forever.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, limits::KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, limits::KEEP_ALIVE_PAUSE)?;
    sockopt::set_tcp_keepcnt(stream, limits::KEEP_ALIVE_PROBES)?;
    Ok(())
}

/// Returns `true` if a client has gone before its connection was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | NotConnected)
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    handler: Handler,
    head: Duration,
) -> Result<(), Failure> {
    match tls {
        None => answer(stream, handler, head).await,
        Some(tls) => answer(tokio::time::timeout(head, tls.accept(stream)).await??, handler, head).await,
    }
}

async fn answer<S>(stream: S, handler: Handler, head: Duration) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let service = service_fn(move |request| {
        let response = handler(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(limits::HEAD_BYTES);
    Ok(server.serve_connection(TokioIo::new(stream), service).await?)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::page;

    fn pages() -> Handler {
        crate::page::pages(|_| Some(page::ready(page::text(StatusCode::OK, "well"))))
    }

    async fn ask(address: std::net::SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let mut text = String::new();
        // A connection that is closed at once may fail the request or answer nothing.
        if stream.write_all(request).await.is_ok() {
            let _ = stream.read_to_string(&mut text).await;
        }
        text
    }

    #[tokio::test]
    async fn idle_connections_take_all_places_and_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let server = tokio::spawn(serve(listener, None, pages(), shutdown.clone()));
        let mut idle = Vec::new();
        for _ in 0..limits::CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // After one answer, the connection has certainly taken its place.
            stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            idle.push(stream);
        }
        for _ in 0..3 {
            assert_eq!(ask(address).await, "", "there is no place for another one");
        }
        drop(idle);
        // The server notices the end of the connection a moment later.
        while !ask(address).await.ends_with("well") {}
        shutdown.cancel();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_without_a_word_is_found_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        keep_alive(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let silence = sockopt::tcp_keepidle(&stream).unwrap()
            + sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
        assert!(silence <= Duration::from_secs(120), "{silence:?}");
    }

    #[tokio::test]
    async fn a_client_that_sends_no_head_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        assert!(connection(stream, None, pages(), Duration::from_millis(20)).await.is_err());
    }

    #[tokio::test]
    async fn probes_are_answered_and_other_paths_and_methods_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let server = tokio::spawn(serve(listener, None, crate::probes::always_well(), shutdown.clone()));
        for (line, code) in [
            ("GET /healthz", "200"),
            ("GET /livez", "200"),
            ("HEAD /readyz", "200"),
            ("GET /readyz/ping", "404"),
            ("GET /", "404"),
            ("POST /healthz", "405"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            assert_eq!(text.split(' ').nth(1), Some(code), "{line}");
        }
        shutdown.cancel();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let server = tokio::spawn(connection(stream, None, pages(), limits::HEAD));
        let head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 * limits::HEAD_BYTES));
        let _ = client.write_all(head.as_bytes()).await;
        let mut text = String::new();
        let _ = client.read_to_string(&mut text).await;
        assert!(!text.contains("well"), "{text}");
        assert!(server.await.unwrap().is_err());
    }
}
