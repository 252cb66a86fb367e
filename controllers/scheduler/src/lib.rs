//! Finds a node for each pod. The core is pure: a [`snapshot::Snapshot`] of the cluster, plugins at the
//! extension points of the scheduling framework, and [`schedule::schedule`], which chooses. Around it are a
//! queue with ordering and back-off, and a loop that binds.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod bind_volumes;
pub mod framework;
mod limits;
pub mod model;
pub mod plugins;
pub mod queue;
mod run;
pub mod schedule;
pub mod selector;
pub mod snapshot;
pub mod storage;

pub use run::{Config, run};
