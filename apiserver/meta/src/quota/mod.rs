//! The arithmetic of ResourceQuotas, which admission and the controller share: what an object uses, which resources of
//! a quota count it, and which scopes it is in.

mod amounts;
mod names;
mod scopes;
#[cfg(test)]
mod tests;
mod usage;

use k8s_openapi::api::core::v1::ResourceQuota;

pub use amounts::{Usage, add, beyond, masked, parsed, shown, subtract_to_zero, to_api};
pub use names::{by_name, counts, is_ignored, kind_name};
pub use scopes::{Selector, selectors};
pub use usage::{Object, ends, is_counted, is_terminating, names_of_container, usage};

/// A quota as admission applies it: by its status.
#[derive(Clone, Debug)]
pub struct Quota {
    pub name: String,
    /// `status.hard`
    pub hard: Usage,
    /// `status.used`
    pub used: Usage,
    /// The scopes, all of which an object must be in.
    pub selectors: Vec<Selector>,
}

impl Quota {
    /// Reads a quota.
    pub fn of(quota: &ResourceQuota) -> Self {
        let status = quota.status.as_ref();
        Self {
            name: quota.metadata.name.clone().unwrap_or_default(),
            hard: parsed(status.and_then(|status| status.hard.as_ref())),
            used: parsed(status.and_then(|status| status.used.as_ref())),
            selectors: quota.spec.as_ref().map(selectors).unwrap_or_default(),
        }
    }

    /// Returns the limited resources that count objects of a kind.
    pub fn limiting(&self, kind: &str) -> Vec<&str> {
        self.hard.keys().map(String::as_str).filter(|name| counts(kind, name)).collect()
    }

    /// Returns `true` if the quota limits an object: it counts the kind, and the object is in all of its scopes.
    pub fn limits(&self, kind: &str, object: Object<'_>) -> bool {
        self.hard.keys().any(|name| counts(kind, name)) && in_scope(&self.selectors, object)
    }
}

/// Returns `true` if an object is in all of these scopes.
pub fn in_scope(selectors: &[Selector], object: Object<'_>) -> bool {
    selectors.iter().all(|selector| selector.matches(object))
}
