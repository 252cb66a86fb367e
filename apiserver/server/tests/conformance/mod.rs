//! Kubernetes' conformance tests of the API server, step by step, over HTTP requests in process.
//! `docs/conformance.md` lists which test stands for which.

mod definitions;
mod discovery;
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
