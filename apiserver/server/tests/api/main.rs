//! The API over HTTP requests, in process: a server on the embedded store and a simulated disk.

#![allow(clippy::unwrap_used, reason = "a test")]

mod admission;
mod apply;
mod crds;
mod crds_kubectl;
mod discovery;
mod envelope;
mod faults;
mod harness;
#[path = "../../../../tests/support/history.rs"]
mod history;
mod kubectl;
mod linear;
mod lists;
mod managed;
mod model;
mod pretty;
mod protobuf;
mod reads;
mod resources;
#[path = "../../../../tests/support/seeded.rs"]
mod seeded;
mod selectors;
mod subresources;
mod validation;
mod watch_options;
mod watches;
mod writes;
