//! The API over HTTP requests, in process: a server on the embedded store and a simulated disk.

#![allow(clippy::unwrap_used, reason = "a test")]

mod admission;
mod apply;
mod bad_input;
mod bad_rules;
mod crds;
mod crds_kubectl;
mod crds_many;
mod crds_webhook;
mod discovery;
mod envelope;
mod faults;
mod harness;
mod kubectl;
mod lists;
mod managed;
mod model;
mod protobuf;
mod subresources;
mod watches;
mod writes;
