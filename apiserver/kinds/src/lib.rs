//! The built-in kinds: the table of them, and for each its defaults, validation, printer columns,
//! warnings and conversions. No IO and nothing asynchronous lives here.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod admin_access;
pub mod builtin;
pub mod certificate;
pub mod columns;
pub mod conversion;
pub mod defaulting;
mod disabled;
pub mod disruption;
pub mod enablement;
mod entries;
pub mod image;
pub mod lifecycle;
mod pod_status;
mod requests;
pub mod signing;
pub mod validation;
pub mod warnings;

pub use builtin::registry;
