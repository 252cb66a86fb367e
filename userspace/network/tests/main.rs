//! The pod network, in network namespaces.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod encryption;
mod lab;
mod machine;
mod peers;
mod pods;
