//! The kubelet: runs the pods that are bound to one node, and reports their status to the API.
//!
//! ```text
//! API ──watch──▶ manager ──▶ one worker a pod:  plan (pure) ▶ act on runtime and machine ▶ look
//!                                │ shares a tracked pod ▲             ▲
//!                                ▼                      │ results     │ "looks different"
//!        status_manager ◀── status (pure)             probes        pleg ◀──list, hints── runtime
//!                    └──patch──▶ API
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod advertised;
mod agent;
pub mod certificates;
mod claims;
mod config;
pub mod containerd;
pub mod cri_log;
mod eviction;
pub mod images;
pub mod limits;
mod logs;
pub mod machine;
mod manager;
mod metrics;
mod node;
mod objects;
mod own_pods;
pub mod parsers;
mod pleg;
pub mod pod;
mod probe;
mod refresh;
mod restrictions;
mod run;
mod server;
mod status_manager;
mod storage;
mod tracked;
mod tunnels;
pub mod volumes;
mod worker;

pub use config::{ClientAuthority, Config, Identify, Listeners};
pub use eviction::{ThresholdError, Thresholds};
pub use machine::{DiskUsage, FakeMachine, LinuxMachine, Machine};
pub use own_pods::OwnPods;
pub use pod::resolv::ClusterDns;
pub use run::{RunError, run};
pub use tunnels::Tunnels;
