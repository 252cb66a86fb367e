//! Service load balancing for one node: watched Services, EndpointSlices and the own Node become the desired
//! tables of the data plane.
//!
//! ```text
//!  Service ─┐
//!  EndpointSlice ─┼─ caches ─▶ ChangeTracker (what changed) ─▶ Worker ─ compile ─▶ Desired ─▶ DataPlane
//!  Node ────┘                                          ▲
//!  kernel's interfaces ─ Links ────────────────────────┘
//! ```
//!
//! Without an API server nothing is withdrawn: the caches retry (`apiserver_client::outage`), and the worker
//! keeps the last tables.
//!
//! `compile` is pure and total. The worker is one task: it owns the desired state and the data plane, and
//! acts on a change as soon as it is recorded.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod adjust;
mod announce;
mod bandwidth;
mod caches;
mod change_tracker;
pub mod cleanup;
pub mod compile;
pub mod config;
mod counters;
mod event_budget;
mod events;
mod exempt;
mod file;
mod health;
mod host_ports;

pub mod kube_proxy;
pub mod limits;
pub mod links;
mod local_server;
pub mod masquerade;
mod metrics;
mod node_tables;
mod notes;
pub mod policy;
mod requests;
mod retry;
pub mod route;
mod run;
#[cfg(test)]
#[path = "../../../tests/support/seeded.rs"]
mod seeded;
mod serve;
mod service_ranges;
mod service_warnings;
mod status;
mod takeover;
mod worker;

pub use caches::Caches;
pub use compile::{Context, NodeView, compile, compile_service};
pub use config::{Config, ConfigError, DetectLocal, NodePortAddresses, OWN_PREFIX, Own};
pub use exempt::Exemptions;
pub use file::{File, FileError, Oddity, write};
pub use host_ports::HostPod;
pub use kube_proxy::KubeProxyConfiguration;
pub use links::{KernelLinks, Link, Links, NoLinks};
pub use local_server::LocalServer;
pub use node_tables::{NodeInputs, interfaces, node_tables};
pub use notes::{Note, notes};
pub use run::{Listeners, run, run_with};
pub use service_ranges::ServiceRanges;
pub use takeover::Alone;
pub use userspace_announce::DEFAULT_PORT as ANNOUNCE_PORT;
