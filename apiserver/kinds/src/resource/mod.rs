//! The group `resource.k8s.io`: devices and the claims for them.

mod admin_access;
pub(crate) mod capacities;
pub(crate) mod device_class;
pub(crate) mod device_taint_rule;
pub(crate) mod requests;
pub(crate) mod resource_claim;
pub(crate) mod resource_claim_template;
pub(crate) mod resource_pool_status_request;
pub(crate) mod resource_slice;
pub(crate) mod sets;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[
    &device_class::KIND,
    &device_taint_rule::KIND,
    &resource_claim::KIND,
    &resource_claim_template::KIND,
    &resource_pool_status_request::KIND,
    &resource_slice::KIND,
];
