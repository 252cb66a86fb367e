//! The core group, `v1`.

pub(crate) mod component_status;
pub(crate) mod config_map;
pub(crate) mod endpoints;
pub(crate) mod event;
pub(crate) mod limit_range;
pub(crate) mod namespace;
pub(crate) mod node;
pub mod persistent_volume;
pub(crate) mod persistent_volume_claim;
pub mod pod;
pub(crate) mod pod_template;
pub(crate) mod replication_controller;
pub(crate) mod resource_quota;
pub(crate) mod secret;
pub mod service;
pub(crate) mod service_account;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod volume_tests;
pub(crate) mod workload;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[
    &component_status::KIND,
    &config_map::KIND,
    &endpoints::KIND,
    &event::KIND,
    &limit_range::KIND,
    &namespace::KIND,
    &node::KIND,
    &persistent_volume::KIND,
    &persistent_volume_claim::KIND,
    &pod::KIND,
    &pod_template::KIND,
    &replication_controller::KIND,
    &resource_quota::KIND,
    &secret::KIND,
    &service::KIND,
    &service_account::KIND,
];
