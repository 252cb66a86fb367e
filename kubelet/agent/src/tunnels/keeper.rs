//! The tunnel to one API server, opened again whenever it ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};
use userspace_daemon::tunnel::Acceptor;

use super::open::{OpenError, Opener, Stream};
use crate::limits;

/// Keeps the tunnel to a server.
pub struct Keeper<O> {
    pub opener: Arc<O>,
    pub acceptor: Acceptor,
    pub renewed: watch::Receiver<()>,
    pub ambient: Ambient,
}

impl<O> Clone for Keeper<O> {
    fn clone(&self) -> Self {
        let Self { opener, acceptor, renewed, ambient } = self;
        Self {
            opener: Arc::clone(opener),
            acceptor: acceptor.clone(),
            renewed: renewed.clone(),
            ambient: ambient.clone(),
        }
    }
}

/// A tunnel that is open.
struct Open {
    since: Instant,
    retired: CancellationToken,
    serving: AbortOnDropHandle<io::Result<()>>,
}

impl<O: Opener> Keeper<O> {
    /// Keeps the tunnel to `server` until that is `gone` from the list and the tunnel has ended.
    pub async fn keep(mut self, server: &str, gone: CancellationToken) {
        let mut current: Option<Open> = None;
        let mut draining = JoinSet::new();
        let mut failures = 0;
        let mut told = false;
        loop {
            // Certificates that are replaced from now on are newer than the one that is read.
            self.renewed.mark_unchanged();
            let mut most = limits::TUNNEL_RETRY_MAX;
            match self.opener.open(server).await {
                Ok(stream) => {
                    info!(server, "the tunnel to an API server is open");
                    told = false;
                    if let Some(Open { retired, serving, .. }) = current.take() {
                        // The server uses the newest, and this one ends with its last connection.
                        retired.cancel();
                        draining.spawn(serving);
                    }
                    let open = current.insert(self.serve(stream));
                    let ended = tokio::select! {
                        ended = &mut open.serving => Some(ended),
                        () = changed(&mut self.renewed) => None,
                    };
                    let Some(ended) = ended else { continue };
                    failures = if open.since.elapsed() >= limits::TUNNEL_STEADY { 0 } else { failures + 1 };
                    let error =
                        ended.map_err(io::Error::other).flatten().err().map(|error| error.to_string());
                    info!(server, error, "the tunnel to an API server ended");
                    current = None;
                }
                Err(error) => {
                    failures += 1;
                    tell(server, &error, &mut told);
                    if error.is_refusal() {
                        most = limits::TUNNEL_REFUSED;
                    }
                    // One that is open, with a certificate that was replaced, is still good for a while.
                    current = current.filter(|open| !open.serving.is_finished());
                }
            }
            while draining.try_join_next().is_some() {}
            if gone.is_cancelled() && current.is_none() {
                return;
            }
            let pause = pause(failures, most, self.ambient.random.next_u64());
            tokio::select! {
                () = sleep(pause) => {}
                () = gone.cancelled(), if current.is_none() => return,
            }
        }
    }

    fn serve(&self, stream: Box<dyn Stream>) -> Open {
        let (acceptor, retired) = (self.acceptor.clone(), CancellationToken::new());
        let token = retired.clone();
        let serving = tokio::spawn(async move { acceptor.serve(stream, token).await });
        Open { since: Instant::now(), retired, serving: AbortOnDropHandle::new(serving) }
    }
}

/// Waits for a change; for ever once there can be none.
async fn changed(renewed: &mut watch::Receiver<()>) {
    if renewed.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Reports the first failure of a row.
fn tell(server: &str, error: &OpenError, told: &mut bool) {
    let cause = error as &dyn std::error::Error;
    if std::mem::replace(told, true) {
        debug!(server, error = cause, "cannot open a tunnel to an API server");
    } else if error.is_refusal() {
        info!(server, error = cause, "the API server takes no tunnel, it has to reach this node directly");
    } else {
        warn!(server, error = cause, "cannot open a tunnel to an API server, trying again");
    }
}

/// Returns the pause after so many failures in a row, at most `most`: half of it is random, so that the nodes of a server
/// that is back do not all come at once.
fn pause(failures: u32, most: Duration, random: u64) -> Duration {
    let pause = limits::TUNNEL_RETRY.saturating_mul(2_u32.saturating_pow(failures.min(16))).min(most);
    pause / 2 + (pause / 2).mul_f64((random % 1024) as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_half_of_each_is_random() {
        assert_eq!(pause(0, limits::TUNNEL_RETRY_MAX, 0), limits::TUNNEL_RETRY / 2);
        assert_eq!(pause(2, limits::TUNNEL_RETRY_MAX, 0), limits::TUNNEL_RETRY * 2);
        for failures in [10, 1000, u32::MAX] {
            assert_eq!(pause(failures, limits::TUNNEL_RETRY_MAX, 0), limits::TUNNEL_RETRY_MAX / 2);
            assert!(pause(failures, limits::TUNNEL_RETRY_MAX, u64::MAX) < limits::TUNNEL_RETRY_MAX);
            assert_eq!(pause(failures, limits::TUNNEL_REFUSED, 0), limits::TUNNEL_REFUSED / 2);
        }
    }
}
