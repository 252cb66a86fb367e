//! Validation of objects. Each kind has a function from the object to its errors; the wording and the field
//! paths are those of Kubernetes, because people and programs read them.
//!
//! The functions see an object whose shape the schema check has accepted and whose defaults are
//! filled in.

pub mod admission;
pub mod aggregation;
pub mod autoscaling;
pub mod batch;
mod capacities;
mod changes;
pub mod classes;
pub mod cluster;
pub mod config;
pub mod container;
pub mod coordination;
mod cron;
pub mod csi;
mod device_status;
pub mod devices;
pub mod endpoints;
mod environment;
pub mod events;
pub mod flowcontrol;
pub mod groups;
mod handlers;
pub(crate) mod ip;
mod job_policy;
mod job_status;
pub mod migration;
mod mounts;
pub mod network;
pub mod node;
mod pem;
mod plugins;
pub mod pod;
pub mod pod_certificates;
pub mod pod_status;
pub mod pod_update;
pub mod policies;
pub mod quota;
pub mod rbac;
pub(crate) mod resources;
pub mod reviews;
pub mod scheduling;
mod security;
pub mod service;
mod service_addresses;
mod sets;
mod shared;
pub mod signing;
pub mod slices;
pub mod status;
pub mod storage;
pub mod trust;
mod url;
pub mod volume;
mod windows;
pub mod workload;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod cluster_tests;
#[cfg(test)]
mod depth_tests;
#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod extension_tests;
#[cfg(test)]
mod pod_tests;
#[cfg(test)]
mod pod_update_tests;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod tests;

pub use apiserver_schema::validation::metadata::subdomain_name;
use apiserver_schema::validation::*;
use serde_json::Value;

/// Returns true if a Job with this spec numbers its pods.
pub(crate) fn is_indexed_job(spec: &Value) -> bool {
    text(spec, "completionMode") == "Indexed"
}
