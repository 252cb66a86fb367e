//! Connections: one query after the other, each message behind its length (RFC 7766).

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;
use userspace_daemon::{Bounds, Places, accept};

use super::udp::spawn_renewal;
use crate::engine::{Engine, Origin, Outcome};
use crate::limits;
use crate::metrics::Transport;

/// Answers the connections of a listener until `stop`.
pub async fn serve(listener: TcpListener, engine: Arc<Engine>, stop: CancellationToken) {
    let places = Places::new(Bounds::new(limits::CONNECTIONS));
    accept(listener, places, stop, move |stream, place| {
        let engine = Arc::clone(&engine);
        async move {
            let _place = place;
            let Ok(peer) = stream.peer_addr() else { return };
            if !engine.clients.load().contains(peer.ip()) {
                engine.metrics.strangers.add(1);
                return;
            }
            if let Err(error) = connection(stream, peer.ip(), &engine).await {
                debug!(%error, "a connection ended early");
            }
        }
    })
    .await;
}

async fn connection(mut stream: TcpStream, client: IpAddr, engine: &Arc<Engine>) -> io::Result<()> {
    let _ = stream.set_nodelay(true);
    for _ in 0..limits::CONNECTION_QUERIES {
        let Some(request) = timeout(limits::IDLE, read(&mut stream)).await?? else { return Ok(()) };
        // Taken for the time of one query, so that idle connections hold none.
        let mut out = vec![0; limits::MESSAGE];
        let origin = Origin { client, transport: Transport::Tcp, began: Instant::now(), is_step: false };
        let length = match engine.answer(&request, origin, &mut out) {
            Outcome::Silence => return Ok(()),
            Outcome::Done(length, renew) => {
                if let Some(work) = renew {
                    spawn_renewal(engine, &work);
                }
                length
            }
            Outcome::Later(pending) => match engine.waiting.enter(client) {
                Some(place) => engine.finish(&pending, place, &mut out).await,
                None => engine.refuse(&pending, &mut out),
            },
        };
        if length == 0 {
            return Ok(());
        }
        let prefix = (length as u16).to_be_bytes();
        let message = [&prefix, &out[..length]].concat();
        timeout(limits::IDLE, stream.write_all(&message)).await??;
    }
    Ok(())
}

/// Reads a message; `None` at the end of the connection, and for one that is longer than any query.
async fn read(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => usize::from(length),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > limits::REQUEST {
        return Ok(None);
    }
    let mut request = vec![0; length];
    stream.read_exact(&mut request).await?;
    Ok(Some(request))
}
