//! The search for peers that are gone without a word.

use std::io;

use h2::{Ping, PingPong};
use tokio::time::{sleep, timeout};

use super::io_error;
use crate::limits;

/// Sends pings for as long as they are answered, and returns the reason why one was not. Waits for ever without
/// `pings`.
pub(super) async fn keep_alive(pings: Option<PingPong>) -> io::Error {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(limits::TUNNEL_PING).await;
        match timeout(limits::TUNNEL_PING_ANSWER, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return io_error(error),
            Err(_) => return io::Error::new(io::ErrorKind::TimedOut, "a ping was not answered"),
        }
    }
}
