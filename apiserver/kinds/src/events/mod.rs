//! The group `events.k8s.io`.

pub(crate) mod event;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&event::KIND];
