//! The built-in kinds. A folder has the kinds of a group and a file has one kind: its defaults, its preparation,
//! its validation, its printer columns and its warnings, and the entry that names them (see `kind.rs`).
//! No IO and nothing asynchronous lives here.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod builtin;
pub mod certificate;
pub mod conversion;
pub mod enablement;
mod entries;
mod kind;
pub mod lifecycle;
pub mod limits;
mod shared;
mod table;
#[cfg(test)]
mod testing;

mod admissionregistration;
mod apiextensions;
mod apiregistration;
mod apps;
pub mod authorization;
mod autoscaling;
mod batch;
mod certificates;
mod coordination;
pub mod core;
mod discovery;
mod events;
mod flowcontrol;
mod internal;
mod networking;
mod node;
pub mod policy;
mod rbac;
mod resource;
mod scheduling;
mod storage;
mod storagemigration;

pub use builtin::registry;
pub use shared::labels;
pub use table::row_conditions;
