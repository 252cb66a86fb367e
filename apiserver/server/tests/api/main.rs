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
mod health;
mod kubectl;
mod limits;
mod lists;
mod managed;
mod metrics;
mod model;
mod protobuf;
mod ranges;
mod several;
mod subresources;
mod watches;
mod writes;
