//! Foundation of the controllers and the scheduler: a work queue with per-item back-off, workers that drain
//! it, a ledger of own writes, requests side by side, periodic resynchronisation and leader election.
//!
//! A reconciler takes a key and nothing else. Whatever made the key relevant (a watch event, a timer, a
//! failed attempt) is forgotten by the time it runs, so a missed event and a restart take the same code path
//! as ordinary work.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod durations;
pub mod error;
pub mod leader;
pub mod ledger;
pub mod limits;
pub mod metrics;
pub mod parallel;
pub mod queue;
pub mod worker;

pub use durations::Durations;
pub use error::{Attempt, Error, Result, is_already_exists, is_conflict, is_gone, is_not_found};
pub use leader::{Lane, LeaderElection, LeaderStatus, Leadership, lead};
pub use ledger::Ledger;
pub use queue::{Backoff, Job, QueueMetrics, WorkQueue};
pub use worker::{Outcome, Reconcile, resync, run_workers};
