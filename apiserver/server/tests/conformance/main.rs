//! Kubernetes' conformance tests of the API server, step by step, over HTTP requests in process.
//! `docs/conformance.md` lists which test stands for which.

#![allow(clippy::unwrap_used, reason = "a test")]

mod definitions;
mod discovery;
#[allow(dead_code, reason = "shared with the suite `api`")]
#[path = "../api/harness.rs"]
mod harness;
mod kinds_api;
mod kinds_cluster;
mod kinds_storage;
mod kinds_workload;
mod lists;
mod namespaces;
mod operations;
mod services;
mod validation;
mod watches;
