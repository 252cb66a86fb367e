//! Signals that end a process become a token that every component watches.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A signal cannot be listened for.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for {name}")]
pub struct SignalError {
    name: &'static str,
    #[source]
    source: io::Error,
}

/// Returns a token that the first SIGTERM or SIGINT cancels. A second one exits the process at once, with the
/// code that shells use for that signal.
pub fn on_signal() -> Result<CancellationToken, SignalError> {
    let mut terminate = listen("SIGTERM", SignalKind::terminate())?;
    let mut interrupt = listen("SIGINT", SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancel = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        cancel.cancel();
        let code = tokio::select! {
            _ = terminate.recv() => 143,
            _ = interrupt.recv() => 130,
        };
        std::process::exit(code);
    });
    Ok(token)
}

fn listen(name: &'static str, kind: SignalKind) -> Result<Signal, SignalError> {
    signal(kind).map_err(|source| SignalError { name, source })
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn a_signal_cancels_the_token() {
        let token = super::on_signal().unwrap();
        assert!(!token.is_cancelled());
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::TERM).unwrap();
        token.cancelled().await;
    }
}
