//! Loads, pins and attaches the programs; keeps their maps equal to the desired tables. The only
//! crate that names aya. Nothing here knows Kubernetes.
//!
//! ```text
//!   Tables ─▶ sync (diff, order) ─▶ store ─┬─ kernel: maps pinned under ROOT/vN
//!                                          └─ fake: memory
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// The fence: bpf(2), mmap(2) and mount(2) are reached from here, each block with its reason.
#![allow(unsafe_code)]

// Shared test modules name the crate as integration tests do.
#[cfg(test)]
extern crate self as userspace_dataplane;

mod arena;
mod bpffs;
mod connected;
mod convert;
mod data_plane;
mod destroy;
mod fake;
mod filters;
mod flows;
pub mod inspect;
mod kernel;
mod limits;
mod lock;
mod maglev;
mod map;
mod netlink;
mod netns;
pub mod policy;
mod preflight;
mod program;
#[cfg(test)]
#[path = "../../../tests/support/seeded.rs"]
mod seeded;
mod store;
mod sync;
mod sys;
pub mod tables;

pub use data_plane::DataPlane;
pub use fake::{Fake, FakeLimits, Resolution};
pub use kernel::{
    ClassifierHook, Config, Kernel, LimitError, Limits, NewerLayout, Trace, TraceError, TraceFlow,
    TraceFlowError, XdpMode, XdpState, others_pass, remove,
};
pub use lock::{Holder, LockError, RootLock};
pub use netns::{netns_cookie, own_netns_cookie};
pub use preflight::{Cgroup, Missing, find_cgroup2, preflight};
pub use program::Program;
pub use sys::TestRun;
