//! Service load balancing for one node: watched Services, EndpointSlices and the own Node become
//! the desired tables of the data plane.
//!
//! ```text
//!  Service ─┐
//!  EndpointSlice ─┼─ caches ─▶ Inbox (what changed) ─▶ Worker ─ compile ─▶ Desired ─▶ DataPlane
//!  Node ────┘                                          ▲
//!  kernel's interfaces ─ Links ────────────────────────┘
//! ```
//!
//! `compile` is pure and total. The worker is one task: it owns the desired state and the data
//! plane, and acts on a change as soon as it is told of it.

pub mod compile;
pub mod config;
mod file;
mod inbox;
pub mod links;
mod metrics;
mod retry;
mod run;
mod serve;
mod status;
mod worker;

pub use compile::{Context, NodeView, compile, compile_service};
pub use config::{Config, ConfigError, Flags, NodePortAddresses};
pub use file::{FileConfiguration, FileError};
pub use links::{KernelLinks, Link, Links, NoLinks};
pub use run::{Caches, Listeners, run, run_with};
