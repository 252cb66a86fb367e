//! The state that the worker reports.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use crate::limits;

struct State {
    /// Everything was applied at least once.
    programmed: bool,
    /// There are tables of an earlier process, which serve until everything is applied.
    adopted: bool,
    last_applied: Option<Timestamp>,
    /// The time of the oldest change that waits for its first or its next attempt.
    oldest_pending: Option<Instant>,
    failing: Vec<String>,
    last_error: Option<String>,
    eligible: bool,
    /// The faults that the last check of the data path found.
    faults: Vec<String>,
    /// Reasons why packets from outside do not reach the data path.
    unreachable: Vec<String>,
}

impl Default for State {
    /// Assumes that the node may get traffic until something else is known.
    fn default() -> Self {
        Self {
            programmed: false,
            adopted: false,
            last_applied: None,
            oldest_pending: None,
            failing: Vec::new(),
            last_error: None,
            eligible: true,
            faults: Vec::new(),
            unreachable: Vec::new(),
        }
    }
}

/// Written by the worker, read by the health endpoints.
#[derive(Default)]
pub(crate) struct Status(Mutex<State>);

/// The body of `/healthz` and `/livez`; the first three fields are kube-proxy's.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Health {
    /// Now while the proxy is healthy, as in kube-proxy; else the time of the last apply.
    last_updated: Option<Timestamp>,
    current_time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    /// The first lists arrived and were applied.
    programmed: bool,
    /// There are tables: those that were applied, or an earlier process's.
    pub serving: bool,
    /// Seconds that the oldest change has waited; 0 if there is none.
    pending_seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failing: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// Changes in the kernel by somebody else, which the worker is about to repair or cannot, and reasons why
    /// packets from outside do not reach the data path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    data_path_faults: Vec<String>,
    /// The reason why the proxy is not healthy, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip)]
    pub healthy: bool,
}

impl Status {
    pub fn applied(&self, now: Timestamp) {
        self.lock().last_applied = Some(now);
    }

    /// Records that an earlier process's tables serve.
    pub fn record_adopted(&self) {
        self.lock().adopted = true;
    }

    pub fn programmed(&self) {
        self.lock().programmed = true;
    }

    /// Returns `true` once there are tables that serve traffic.
    pub fn serving(&self) -> bool {
        self.lock().serving()
    }

    pub fn eligible(&self, eligible: bool) {
        self.lock().eligible = eligible;
    }

    pub fn failed(&self, error: String) {
        self.lock().last_error = Some(error);
    }

    /// Records what waits, and since when.
    pub fn pending(&self, oldest: Option<Instant>, failing: Vec<String>) {
        let mut state = self.lock();
        state.oldest_pending = oldest;
        if failing.is_empty() {
            state.last_error = None;
        }
        state.failing = failing;
        state.failing.truncate(limits::FAILING_NAMED);
    }

    /// Records the findings of the last check of the data path; empty if there are none.
    pub fn faults(&self, faults: Vec<String>) {
        self.lock().faults = faults;
    }

    /// Records reasons why packets from outside do not reach the data path. A restart would not help, so they
    /// concern `/healthz` alone.
    pub fn unreachable(&self, reasons: Vec<String>) {
        self.lock().unreachable = reasons;
    }

    /// Returns the body. `/livez` asks whether programming works; `/healthz` also asks whether load balancers
    /// should send traffic to the node: there are tables, and the node is to stay.
    pub fn health(&self, now: Timestamp, with_node: bool) -> Health {
        let state = self.lock();
        let waited = state.oldest_pending.map(|since| since.elapsed()).unwrap_or_default();
        let reason = state.reason(waited, with_node);
        let healthy = reason.is_none();
        Health {
            last_updated: if healthy { Some(now) } else { state.last_applied },
            current_time: now,
            node_eligible: with_node.then_some(state.eligible),
            programmed: state.programmed,
            serving: state.serving(),
            pending_seconds: waited.as_secs_f64(),
            failing: state.failing.clone(),
            last_error: state.last_error.clone(),
            data_path_faults: state.faults.iter().chain(&state.unreachable).cloned().collect(),
            reason,
            healthy,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn serving(&self) -> bool {
        self.programmed || self.adopted
    }

    /// Returns the reason why the proxy is not healthy; `None` if it is.
    fn reason(&self, waited: Duration, with_node: bool) -> Option<String> {
        if let Some(fault) = self.faults.first() {
            return Some(format!("the data path was changed by somebody else: {fault}"));
        }
        if waited >= limits::TOO_LATE {
            return Some(format!("a change has waited for {} s", waited.as_secs()));
        }
        if let Some(reason) = self.unreachable.first().filter(|_| with_node) {
            return Some(format!("packets from outside do not reach the data path: {reason}"));
        }
        if with_node && !self.serving() {
            return Some("the first lists have not been applied yet".to_owned());
        }
        if with_node && !self.eligible {
            return Some("the node is about to go, or gone".to_owned());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(status: &Status, with_node: bool) -> (bool, String) {
        let health = status.health(Timestamp::UNIX_EPOCH, with_node);
        (health.healthy, health.reason.unwrap_or_default())
    }

    #[tokio::test(start_paused = true)]
    async fn each_reason_is_told_and_only_one_is_the_nodes() {
        let status = Status::default();
        assert_eq!(health(&status, true), (false, "the first lists have not been applied yet".to_owned()));
        // A proxy that waits for its lists is healthy: a restart would not help.
        assert_eq!(health(&status, false), (true, String::new()));
        status.record_adopted();
        assert_eq!(health(&status, true), (true, String::new()));
        status.programmed();
        assert_eq!(health(&status, true), (true, String::new()));
        status.eligible(false);
        assert!(!health(&status, true).0);
        assert!(health(&status, false).0);
        status.faults(vec!["link if2-egress is detached".to_owned()]);
        assert!(health(&status, false).1.ends_with("link if2-egress is detached"));
        status.faults(Vec::new());
        status.unreachable(vec!["there is no interface eth9".to_owned()]);
        assert!(health(&status, false).0);
        assert!(health(&status, true).1.ends_with("there is no interface eth9"));
        let told = status.health(Timestamp::UNIX_EPOCH, false).data_path_faults;
        assert_eq!(told, ["there is no interface eth9"]);
        status.unreachable(Vec::new());
        status.pending(Some(Instant::now()), Vec::new());
        assert!(health(&status, false).0);
        tokio::time::advance(limits::TOO_LATE).await;
        assert_eq!(health(&status, false), (false, "a change has waited for 60 s".to_owned()));
    }
}
