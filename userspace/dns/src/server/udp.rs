//! Datagrams: a task a socket, with buffers that are used again for each query.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::UdpSocket;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::engine::{Engine, Origin, Outcome, Pending, Work};
use crate::limits;
use crate::metrics::Transport;

/// Answers the datagrams of a socket until `stop`.
pub async fn serve(socket: Arc<UdpSocket>, engine: Arc<Engine>, stop: CancellationToken) {
    let (mut request, mut out) = (vec![0; limits::REQUEST], vec![0; limits::REQUEST]);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            ready = socket.readable() => if let Err(error) = ready {
                debug!(%error, "cannot wait for datagrams");
                tokio::time::sleep(limits::BIND).await;
                continue;
            }
        }
        for _ in 0..limits::BATCH {
            match socket.try_recv_from(&mut request) {
                Ok((length, client)) => one(&socket, &engine, &request[..length], client, &mut out),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // The kernel reports here that an earlier answer did not arrive.
                Err(error) => debug!(%error, "a datagram was not received"),
            }
        }
        tokio::task::yield_now().await;
    }
}

fn one(socket: &Arc<UdpSocket>, engine: &Arc<Engine>, request: &[u8], client: SocketAddr, out: &mut [u8]) {
    if !engine.clients.load().contains(client.ip()) {
        engine.metrics.strangers.add(1);
        return;
    }
    let origin =
        Origin { client: client.ip(), transport: Transport::Udp, began: Instant::now(), is_step: false };
    match engine.answer(request, origin, out) {
        Outcome::Silence => {}
        Outcome::Done(length, renew) => {
            send(socket, &out[..length], client);
            if let Some(work) = renew {
                spawn_renewal(engine, &work);
            }
        }
        Outcome::Later(pending) => later(socket, engine, pending, client, out),
    }
}

/// Sends an answer, or drops it if the socket's queue is full: the client asks again.
fn send(socket: &UdpSocket, answer: &[u8], client: SocketAddr) {
    if let Err(error) = socket.try_send_to(answer, client) {
        debug!(%error, %client, "an answer was not sent");
    }
}

fn later(
    socket: &Arc<UdpSocket>,
    engine: &Arc<Engine>,
    pending: Pending,
    client: SocketAddr,
    out: &mut [u8],
) {
    let Some(place) = engine.waiting.enter(client.ip()) else {
        let length = engine.refuse(&pending, out);
        send(socket, &out[..length], client);
        return;
    };
    let (socket, engine) = (Arc::clone(socket), Arc::clone(engine));
    tokio::spawn(async move {
        let mut out = vec![0; limits::DATAGRAM];
        let length = engine.finish(&pending, place, &mut out).await;
        if length > 0 {
            send(&socket, &out[..length], client);
        }
    });
}

/// Renews an answer in the background, unless too many queries wait.
pub fn spawn_renewal(engine: &Engine, work: &Work) {
    engine.renew(work, engine.waiting.enter(work.origin().client));
}
