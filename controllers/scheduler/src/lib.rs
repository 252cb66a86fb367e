//! Finds a node for each pod. The core is pure: a [`cluster::Cluster`] that is updated change by change, plugins at
//! the extension points of the scheduling [`framework`], and the search for a node, which combines them. Around it are
//! a queue with ordering and back-off, and a loop that binds.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod bind_devices;
pub mod bind_volumes;
pub mod cluster;
pub mod config;
pub mod events;
pub mod extenders;
pub mod framework;
mod limits;
pub mod metrics;
pub mod plugins;
pub mod pod;
pub mod preemption;
pub mod queue;
pub mod resources;
mod run;
#[cfg(test)]
#[path = "../../../tests/support/seeded.rs"]
mod seeded;
pub mod selecting;
pub mod selector;
#[cfg(test)]
mod testing;

pub use run::{Config, run};
