//! The ControllerRevisions of a DaemonSet: one per template, the current one with the highest number.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};

use super::template::{HASH_LABEL, hash_of};
use crate::history;
use crate::meta::name;
use crate::pods::Pod;

/// A change of the history.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Creates the revision of the current template, with this number.
    Create(i64),
    Update {
        old: Arc<ControllerRevision>,
        new: Box<ControllerRevision>,
    },
    Delete(Arc<ControllerRevision>),
    /// Gives a pod the hash of the revision that is kept of several equal ones.
    Relabel {
        pod: Arc<Pod>,
        hash: String,
    },
}

/// The history of a DaemonSet.
#[derive(Debug, PartialEq)]
pub(super) enum History {
    /// Changes that are due. Nothing else is done before them.
    Mend(Vec<Action>),
    Right {
        /// Hash of the current revision.
        hash: String,
        old: Vec<Arc<ControllerRevision>>,
    },
}

/// Returns the history from the revisions and the pods that the DaemonSet controls.
pub(super) fn history(
    set: &DaemonSet,
    revisions: Vec<Arc<ControllerRevision>>,
    pods: &[Arc<Pod>],
) -> History {
    let unlabelled: Vec<_> = revisions.iter().filter_map(labelled).collect();
    if !unlabelled.is_empty() {
        return History::Mend(unlabelled);
    }
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let (mut current, old): (Vec<_>, Vec<_>) =
        history::sorted(revisions).into_iter().partition(|revision| history::restores(revision, &template));
    let number = old.last().map_or(1, |newest| newest.revision.saturating_add(1));
    let Some(kept) = current.pop() else {
        return History::Mend(vec![Action::Create(number)]);
    };
    let hash = hash_of(&kept.metadata).unwrap_or_default().to_owned();
    let mut actions = merged(&hash, current, pods);
    if kept.revision < number {
        let mut new = ControllerRevision::clone(&kept);
        new.revision = number;
        actions.push(Action::Update { old: kept, new: Box::new(new) });
    }
    if actions.is_empty() { History::Right { hash, old } } else { History::Mend(actions) }
}

/// Adds the label with the hash to a revision that has none. Its name is as good as its hash.
fn labelled(revision: &Arc<ControllerRevision>) -> Option<Action> {
    if hash_of(&revision.metadata).is_some() {
        return None;
    }
    let mut new = ControllerRevision::clone(revision);
    let labels = new.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), name(&revision.metadata).to_owned());
    Some(Action::Update { old: Arc::clone(revision), new: Box::new(new) })
}

/// Deletes revisions that equal the one with `hash`, after their pods have been given that hash. Pods of other
/// revisions are left alone: they were made from another template.
fn merged(hash: &str, equal: Vec<Arc<ControllerRevision>>, pods: &[Arc<Pod>]) -> Vec<Action> {
    let hashes: BTreeSet<_> = equal.iter().filter_map(|revision| hash_of(&revision.metadata)).collect();
    let theirs = |pod: &&Arc<Pod>| hash_of(&pod.metadata).is_some_and(|of| of != hash && hashes.contains(of));
    let relabelled = pods.iter().filter(theirs);
    let relabelled = relabelled.map(|pod| Action::Relabel { pod: Arc::clone(pod), hash: hash.to_owned() });
    let mut actions: Vec<_> = relabelled.collect();
    actions.extend(equal.into_iter().map(Action::Delete));
    actions
}

/// Returns the old revisions, which are sorted, that the history has no place for. Those that pods were made from stay,
/// and count.
pub(super) fn surplus(
    set: &DaemonSet,
    old: &[Arc<ControllerRevision>],
    pods: &[Arc<Pod>],
) -> Vec<Arc<ControllerRevision>> {
    let hashes: BTreeSet<_> = pods.iter().filter_map(|pod| hash_of(&pod.metadata)).collect();
    let live = old.iter().filter(|one| hash_of(&one.metadata).is_some_and(|hash| hashes.contains(hash)));
    let live: BTreeSet<_> = live.map(|one| name(&one.metadata)).collect();
    let limit = set.spec.as_ref().and_then(|spec| spec.revision_history_limit);
    let places =
        limit.map(|limit| limit.saturating_sub(i32::try_from(live.len()).unwrap_or(i32::MAX)).max(0));
    history::surplus(old, &live, places)
}
