//! Every bound of this crate.

use std::time::Duration;

/// First pause after a failed attempt; it doubles up to [`MAX_BACKOFF`], as in kube-scheduler.
pub const MIN_BACKOFF: Duration = Duration::from_secs(1);
/// Longest pause after failed attempts.
pub const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A parked pod is tried again after this even if nothing seems to help.
pub const MAX_PARKED: Duration = Duration::from_secs(300);
/// Longest wait for the claims of a pod to be bound after its node was chosen, as in kube-scheduler.
pub const VOLUMES_BOUND: Duration = Duration::from_secs(600);
/// Longest wait for a change while no pod waits for a time.
pub const IDLE: Duration = Duration::from_secs(3600);
