//! Parts of slim types: forms of objects that a cache stores instead of those of the API, with only what somebody reads,
//! and with one copy of what many objects have alike.
//!
//! A pod of `k8s-openapi` takes 7 to 9 KB, mostly in fields that are not set and in texts that all pods of a ReplicaSet
//! have: labels, owners, containers. A slim type has a field for what differs from object to object, and an `Arc` to what
//! usually does not, which an interner gives.

mod intern;
mod meta;
mod time;

pub use intern::FingerprintInterner;
pub use meta::{Meta, shared_text};
pub use time::OptionalTime;
