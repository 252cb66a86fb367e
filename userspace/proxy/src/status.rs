//! What the worker tells the outside about itself.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

/// A change that is not in the tables after this long makes the proxy unhealthy.
const TOO_LATE: Duration = Duration::from_secs(60);
/// Names of failing Services in the answer.
const MAX_NAMED: usize = 10;

#[derive(Default)]
struct State {
    /// Everything was applied at least once.
    programmed: bool,
    last_applied: Option<Timestamp>,
    /// The oldest change that waits for its first or its next attempt.
    oldest_pending: Option<Instant>,
    failing: Vec<String>,
    last_error: Option<String>,
    eligible: bool,
}

/// Written by the worker, read by the health endpoints.
#[derive(Default)]
pub(crate) struct Status(Mutex<State>);

/// The body of `/healthz` and `/livez`; the first three fields are kube-proxy's.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Health {
    last_updated: Option<Timestamp>,
    current_time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    /// Whether the first lists arrived and were applied.
    programmed: bool,
    /// Seconds that the oldest change has waited; 0 when none does.
    pending_seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failing: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    #[serde(skip)]
    pub healthy: bool,
}

impl Status {
    pub fn applied(&self, now: Timestamp) {
        self.lock().last_applied = Some(now);
    }

    pub fn programmed(&self) {
        self.lock().programmed = true;
    }

    pub fn eligible(&self, eligible: bool) {
        self.lock().eligible = eligible;
    }

    pub fn failed(&self, error: String) {
        self.lock().last_error = Some(error);
    }

    /// What waits, and since when.
    pub fn pending(&self, oldest: Option<Instant>, failing: Vec<String>) {
        let mut state = self.lock();
        state.oldest_pending = oldest;
        if failing.is_empty() {
            state.last_error = None;
        }
        state.failing = failing;
        state.failing.truncate(MAX_NAMED);
    }

    /// `/livez` leaves out whether the node should get traffic from load balancers.
    pub fn health(&self, now: Timestamp, with_node: bool) -> Health {
        let state = self.lock();
        let waited = state.oldest_pending.map(|since| since.elapsed()).unwrap_or_default();
        let healthy = state.programmed && waited < TOO_LATE && (!with_node || state.eligible);
        Health {
            last_updated: state.last_applied,
            current_time: now,
            node_eligible: with_node.then_some(state.eligible),
            programmed: state.programmed,
            pending_seconds: waited.as_secs_f64(),
            failing: state.failing.clone(),
            last_error: state.last_error.clone(),
            healthy,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
