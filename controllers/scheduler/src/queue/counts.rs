//! Counts of the queue for metrics.

use std::collections::BTreeMap;

use super::entry::Entry;
use crate::events;
use crate::framework::Event;

/// A pool of waiting pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pool {
    /// Is tried as soon as it is its turn.
    Active,
    /// Is tried after a pause.
    Backoff,
    /// Is tried once something has happened that may help.
    Unschedulable,
    /// Must not be tried: a plugin refuses it in PreEnqueue.
    Gated,
}

impl Pool {
    /// Returns the name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Backoff => "backoff",
            Self::Unschedulable => "unschedulable",
            Self::Gated => "gated",
        }
    }
}

/// The cause for which a pod came into a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    Event(Event),
    ScheduleAttemptFailure,
    BackoffComplete,
    PopFromBackoffQ,
    ForceActivate,
    UnschedulableTimeout,
}

impl Cause {
    /// Returns the name in metrics.
    pub fn label(self) -> String {
        let name = match self {
            Self::Event(event) => return events::label(event),
            Self::ScheduleAttemptFailure => "ScheduleAttemptFailure",
            Self::BackoffComplete => "BackoffComplete",
            Self::PopFromBackoffQ => "PopFromBackoffQ",
            Self::ForceActivate => "ForceActivate",
            Self::UnschedulableTimeout => "UnschedulableTimeout",
        };
        name.to_owned()
    }
}

/// Number of pods that came into each pool for each reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incoming(BTreeMap<(Pool, Cause), u64>);

impl Incoming {
    pub(super) fn count(&mut self, pool: Pool, cause: Cause) {
        // Kubernetes counts gated pods here as it counts unschedulable ones.
        let pool = if pool == Pool::Gated { Pool::Unschedulable } else { pool };
        *self.0.entry((pool, cause)).or_default() += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = (Pool, Cause, u64)> {
        self.0.iter().map(|((pool, cause), pods)| (*pool, *cause, *pods))
    }
}

/// Number of pods that each plugin of each profile has refused and that are not being attempted.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<(Option<usize>, &'static str), usize>);

impl Refusals {
    /// Counts a pod with all plugins that refuse it.
    pub fn add(&mut self, entry: &Entry) {
        for plugin in entry.plugins.iter().chain(entry.pending.iter()) {
            self.add_one(entry.profile, plugin.name);
        }
    }

    pub fn add_one(&mut self, profile: Option<usize>, plugin: &'static str) {
        *self.0.entry((profile, plugin)).or_default() += 1;
    }

    /// Undoes [`Self::add`].
    pub fn remove(&mut self, entry: &Entry) {
        for plugin in entry.plugins.iter().chain(entry.pending.iter()) {
            let Some(pods) = self.0.get_mut(&(entry.profile, plugin.name)) else { continue };
            *pods -= 1;
            if *pods == 0 {
                self.0.remove(&(entry.profile, plugin.name));
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Option<usize>, &'static str, usize)> {
        self.0.iter().map(|((profile, plugin), pods)| (*profile, *plugin, *pods))
    }
}
