//! Kubernetes' protobuf encoding: the messages of the built-in kinds as a table, their bytes, and a reader that fills
//! any type of `serde` from them.
//!
//! An object is sent in an envelope: `k8s\0`, then the message `runtime.Unknown` with the type and the object's own
//! message. The table says which field of JSON a number is, so a type that can be read from JSON can be read from
//! protobuf too, and gets the same values ([`Encoded::read`]). Fields that it does not have are skipped by their length.
//!
//! The table is made at build time from `data/protobuf.txt`. It is a crate of its own because nodes and controllers need
//! it and must not be compiled with the rest of the API server's schemas.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod envelope;
pub mod limits;
mod lists;
pub mod random;
mod read;
pub mod scalars;
mod table;
mod wire;

pub use envelope::{MAGIC, MEDIA_TYPE, head, is_envelope};
pub use lists::{Event, List, event, list};
pub use read::{Encoded, Error, Reading, Unread};
pub use table::{Absent, Field, Kind, Message, Shape, at, kinds, message, messages, of_kind};
pub use wire::{BYTES, Backward, FIXED64, Malformed, Reader, VARINT, Wire};
