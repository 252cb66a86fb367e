//! Deletions of pods and removals of their finalizer that the cache does not show yet.
//!
//! A pod whose finalizer has been removed but is still shown would be counted again, so that nothing is decided for
//! its Job meanwhile. There is no timeout: also a new list of the cache reports each change of a pod that it knew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use apiserver_client::ObjectKey;

/// Requested change of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaited {
    /// The pod is gone or being deleted.
    Deletion,
    /// The pod is gone or has no finalizer.
    Release,
}

/// Awaited changes of pods, given by their uids.
#[derive(Default)]
pub(super) struct Unseen(Mutex<State>);

#[derive(Default)]
struct State {
    by_job: BTreeMap<ObjectKey, BTreeSet<(String, Awaited)>>,
    job_of: BTreeMap<(String, Awaited), ObjectKey>,
}

impl Unseen {
    /// Notes that a change of a pod is about to be requested.
    pub fn expect(&self, job: &ObjectKey, pod: &str, awaited: Awaited) {
        let mut state = self.lock();
        let change = (pod.to_owned(), awaited);
        state.by_job.entry(job.clone()).or_default().insert(change.clone());
        state.job_of.insert(change, job.clone());
    }

    /// Notes that a change of a pod was seen, or will not be.
    pub fn seen(&self, pod: &str, awaited: Awaited) {
        let mut state = self.lock();
        let change = (pod.to_owned(), awaited);
        let Some(job) = state.job_of.remove(&change) else { return };
        if let Some(changes) = state.by_job.get_mut(&job) {
            changes.remove(&change);
            if changes.is_empty() {
                state.by_job.remove(&job);
            }
        }
    }

    /// Returns `true` if the cache shows every change of the pods of a Job.
    pub fn is_shown(&self, job: &ObjectKey) -> bool {
        !self.lock().by_job.contains_key(job)
    }

    /// Forgets the pods of a Job that is gone.
    pub fn forget(&self, job: &ObjectKey) {
        let mut state = self.lock();
        for change in state.by_job.remove(job).unwrap_or_default() {
            state.job_of.remove(&change);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_waits_for_each_awaited_change_and_for_no_others() {
        use Awaited::{Deletion, Release};

        let unseen = Unseen::default();
        let (a, b) = (ObjectKey::new("ns", "a"), ObjectKey::new("ns", "b"));
        unseen.expect(&a, "1", Deletion);
        unseen.expect(&a, "1", Release);
        unseen.expect(&b, "3", Release);
        unseen.seen("1", Deletion);
        unseen.seen("1", Deletion);
        assert!(!unseen.is_shown(&a), "its finalizer may still be shown");
        unseen.seen("1", Release);
        assert!(unseen.is_shown(&a) && !unseen.is_shown(&b));
        unseen.forget(&b);
        unseen.seen("3", Release);
        assert!(unseen.is_shown(&b));
    }
}
