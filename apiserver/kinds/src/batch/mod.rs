//! The group `batch`: pods that run to completion.

pub(crate) mod cron_job;
pub(crate) mod job;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&cron_job::KIND, &job::KIND];
