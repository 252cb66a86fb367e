//! The phases of a server's life: starting, ready, announced to end, refusing requests, stopped.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::hooks::Hooks;

/// The phase that a server is in.
pub struct Lifetime {
    hooks: Hooks,
    ready: watch::Sender<bool>,
    /// The end was announced: not ready any more.
    draining: CancellationToken,
    /// New requests are refused and watches end.
    refusing: CancellationToken,
    /// Cancelled to stop everything.
    shutdown: CancellationToken,
}

impl Default for Lifetime {
    /// Starting.
    fn default() -> Self {
        Self {
            hooks: Hooks::default(),
            ready: watch::Sender::new(false),
            draining: CancellationToken::new(),
            refusing: CancellationToken::new(),
            shutdown: CancellationToken::new(),
        }
    }
}

impl Lifetime {
    /// Ends watches and upkeep. Requests in flight are answered.
    pub fn stop(&self) {
        self.draining.cancel();
        self.refusing.cancel();
        self.shutdown.cancel();
    }

    /// New requests are refused, watches end after a whole event.
    pub fn refuse(&self) {
        self.draining.cancel();
        self.refusing.cancel();
    }

    /// Waits until the server has what a new cluster needs and answers readiness with yes.
    pub async fn ready(&self) {
        let mut ready = self.ready.subscribe();
        // The sender lives in `self`, so the wait ends only with the value.
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// Returns `true` if [`Lifetime::ready`] would return at once.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Answers readiness with yes from now on.
    pub fn set_ready(&self) {
        self.ready.send_replace(true);
    }

    /// Returns the token that is cancelled when the end is announced.
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Returns the token that is cancelled when requests are refused.
    pub fn refusing(&self) -> &CancellationToken {
        &self.refusing
    }

    /// Returns the token that is cancelled to stop everything.
    pub fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// Returns the steps of the start, as `/readyz` shows them.
    pub fn hooks(&self) -> &Hooks {
        &self.hooks
    }
}
