//! Limit on the wait for the store of answers that can also be given from memory.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time to wait for a store that is preferred, if there is an answer in memory too.
const WAIT: Duration = Duration::from_millis(500);
/// The time after a timeout or an error during which no request waits.
const PAUSE: Duration = Duration::from_secs(1);

/// Remembers whether the store has just kept a request waiting in vain, so that others do not wait too.
#[derive(Default)]
pub struct CircuitBreaker {
    /// The time until which no request waits.
    until: Mutex<Option<Instant>>,
}

impl CircuitBreaker {
    /// Waits for the answer; returns `None` if there was none soon, or none is to be expected.
    pub async fn ask<T, E: std::fmt::Display>(
        &self,
        question: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        let ill =
            self.until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|t| Instant::now() < t);
        if ill {
            return None;
        }
        let answer = tokio::time::timeout(WAIT, question).await;
        let until = match &answer {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => {
                tracing::debug!(%error, "discovery may be out of date");
                Some(Instant::now() + PAUSE)
            }
            Err(_) => {
                tracing::debug!("the store does not answer soon, discovery may be out of date");
                Some(Instant::now() + PAUSE)
            }
        };
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        answer.ok().and_then(Result::ok)
    }
}
