//! The group `admissionregistration.k8s.io`.

pub(crate) mod matching;
pub(crate) mod policy;
pub(crate) mod policy_binding;
#[cfg(test)]
mod tests;
pub(crate) mod webhook_configuration;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[
    &policy::MUTATING,
    &policy::VALIDATING,
    &policy_binding::MUTATING,
    &policy_binding::VALIDATING,
    &webhook_configuration::MUTATING,
    &webhook_configuration::VALIDATING,
];
