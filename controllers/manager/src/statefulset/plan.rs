//! Decides which pods and claims of a StatefulSet to create, change and delete, and in which order.
//!
//! ```text
//!  owners of claims ─▶ pods of the ordinals ─▶ pods beyond them ─▶ update
//! ```
//!
//! An ordered set takes one step after the other and none beyond a pod that is not available; a parallel one goes
//! through all of them at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{self, PersistentVolumeClaim, PodTemplateSpec};

use super::claims::{Parties, claim_name, new_claim, templates};
use super::identity::{corrected, new_pod, ordinal, pod_name, revision};
use super::status;
use crate::limits::POD_BURST;
use crate::meta::{is_deleted, name};
use crate::pods::{Pod, available_at, is_available, until};
use crate::scaled::scaled;

/// A revision of the set's template.
pub(super) struct Revision {
    pub name: String,
    pub template: PodTemplateSpec,
}

/// Inputs that a plan is computed from.
pub(super) struct Input<'a> {
    pub set: &'a StatefulSet,
    /// Pods of the set, also finished and terminating ones.
    pub pods: Vec<Arc<Pod>>,
    /// Returns the claim of this name in the namespace of the set.
    pub claim: &'a (dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>> + Sync),
    /// Revision that the pods had before the update, or that all have if there is none.
    pub current: &'a Revision,
    /// Revision that the pods are updated to.
    pub update: &'a Revision,
    /// Number of names of revisions that were taken.
    pub collisions: i32,
    pub now: Timestamp,
}

/// A request to the API.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    CreateClaim(Box<PersistentVolumeClaim>),
    UpdateClaim {
        old: Arc<PersistentVolumeClaim>,
        new: Box<PersistentVolumeClaim>,
    },
    CreatePod(Box<v1::Pod>),
    UpdatePod {
        old: Arc<Pod>,
        new: Box<v1::Pod>,
    },
    DeletePod(Arc<Pod>),
    /// Reports a claim of this name that another object manages.
    ReportConflict(String),
    /// Fails because the claim of this name, which a new pod needs, is being deleted.
    AwaitClaim(String),
}

/// Steps for one pod: each is taken only if those before it have succeeded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Task {
    pub pod: String,
    pub steps: Vec<Step>,
}

/// Everything to do for a set.
#[derive(Debug)]
pub(super) struct Plan {
    /// Tasks; those of a phase begin only after those of the phases before it have succeeded.
    pub phases: Vec<Vec<Task>>,
    /// `true` if tasks of one phase may run at the same time.
    pub parallel: bool,
    pub status: StatefulSetStatus,
}

pub(super) fn plan(input: &Input<'_>) -> Plan {
    let layout = Layout::new(input);
    let status = status::status(input, &layout);
    let mut plan = Plan { phases: Vec::new(), parallel: layout.parallel, status };
    if is_deleted(&input.set.metadata) {
        return plan;
    }
    plan.phases.push(layout.owners());
    let (tasks, mut done) = layout.pods();
    plan.phases.push(tasks);
    if done {
        let tasks;
        (tasks, done) = layout.scale_down();
        plan.phases.push(tasks);
    }
    if done {
        plan.phases.push(layout.update());
    }
    plan.phases.retain(|tasks| !tasks.is_empty());
    plan
}

/// Returns when the next ready pod will have been ready long enough to count as available.
pub(super) fn next_available(input: &Input<'_>) -> Option<Duration> {
    let min_ready = min_ready_seconds(input.set);
    let times = input.pods.iter().filter_map(|pod| available_at(pod, min_ready));
    let next = times.filter(|at| *at > input.now).min()?;
    Some(until(next, input.now))
}

pub(super) fn replicas(set: &StatefulSet) -> i64 {
    i64::from(set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)).max(0)
}

pub(super) fn min_ready_seconds(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
}

/// Returns `true` if pods are replaced only when users delete them.
fn is_on_delete(set: &StatefulSet) -> bool {
    update_type(set) == "OnDelete"
}

pub(super) fn update_type(set: &StatefulSet) -> &str {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()).unwrap_or_default()
}

fn rolling(set: &StatefulSet) -> Option<&RollingUpdateStatefulSetStrategy> {
    set.spec.as_ref()?.update_strategy.as_ref()?.rolling_update.as_ref()
}

/// Returns the number of pods that may be unavailable during an update; `None` if the set does not say, because
/// Kubernetes drops the field by default.
fn max_unavailable(set: &StatefulSet) -> Option<i64> {
    let total = i32::try_from(replicas(set)).unwrap_or(i32::MAX);
    let count = scaled(rolling(set)?.max_unavailable.as_ref()?, total, false);
    Some(i64::from(count.max(1)))
}

/// The pods of a set by their ordinals.
pub(super) struct Layout<'a> {
    input: &'a Input<'a>,
    pub pods: BTreeMap<i64, &'a Arc<Pod>>,
    /// First ordinal, and the one after the last.
    start: i64,
    end: i64,
    parallel: bool,
}

impl<'a> Layout<'a> {
    fn new(input: &'a Input<'a>) -> Self {
        let spec = input.set.spec.as_ref();
        let ordinals = spec.and_then(|spec| spec.ordinals.as_ref());
        let start = i64::from(ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0));
        let policy = spec.and_then(|spec| spec.pod_management_policy.as_deref());
        let pods = input.pods.iter().filter_map(|pod| Some((ordinal(input.set, pod)?, pod))).collect();
        Self { input, pods, start, end: start + replicas(input.set), parallel: policy == Some("Parallel") }
    }

    fn wants(&self, ordinal: i64) -> bool {
        (self.start..self.end).contains(&ordinal)
    }

    /// Returns the pods beyond the ordinals, the last first.
    fn condemned(&self) -> impl DoubleEndedIterator<Item = (i64, &'a Arc<Pod>)> {
        self.pods
            .iter()
            .rev()
            .map(|(ordinal, pod)| (*ordinal, *pod))
            .filter(|(ordinal, _)| !self.wants(*ordinal))
    }

    /// Returns `true` if the pod is available and stays so: an ordered set may go on to the next.
    fn is_steady(&self, pod: &Pod) -> bool {
        let min_ready = min_ready_seconds(self.input.set);
        is_running(pod) && !is_deleted(&pod.metadata) && is_available(pod, min_ready, self.input.now)
    }

    /// Gives claims the owners that the retention policy wants. This comes before anything else, and for all pods: a
    /// claim that still names a pod as its owner would be deleted with it.
    fn owners(&self) -> Vec<Task> {
        let task = |(ordinal, pod): (&i64, &&Arc<Pod>)| {
            let parties = Parties::new(self.input.set, pod.as_ref(), !self.wants(*ordinal));
            let claims = self.claims(*ordinal);
            let steps: Vec<_> = claims.flat_map(|claim| corrected_owners(&parties, claim)).collect();
            (!steps.is_empty()).then(|| Task { pod: name(&pod.metadata).to_owned(), steps })
        };
        self.pods.iter().filter_map(task).collect()
    }

    /// Returns the claims of an ordinal that exist.
    fn claims(&self, ordinal: i64) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> {
        let names = templates(self.input.set).iter().map(move |one| claim_name(self.input.set, one, ordinal));
        names.filter_map(|name| (self.input.claim)(&name))
    }

    /// Creates, replaces and corrects the pods of the ordinals. Returns `true` if the next phase may begin.
    fn pods(&self) -> (Vec<Task>, bool) {
        let mut tasks = Vec::new();
        let mut created = 0;
        for ordinal in self.start..self.end {
            let (steps, goes_on) = match self.pods.get(&ordinal) {
                Some(pod) => self.keep(ordinal, pod),
                None => {
                    created += 1;
                    (self.create(ordinal), false)
                }
            };
            if !steps.is_empty() {
                tasks.push(Task { pod: pod_name(self.input.set, ordinal), steps });
            }
            if !goes_on && !self.parallel {
                return (tasks, false);
            }
            // The pods that were created trigger the next reconciliation.
            if created == POD_BURST {
                break;
            }
        }
        (tasks, true)
    }

    /// Returns the steps for an existing pod, and whether an ordered set may go on to the next.
    fn keep(&self, ordinal: i64, pod: &Arc<Pod>) -> (Vec<Step>, bool) {
        if pod.is_finished() {
            let steps =
                if is_deleted(&pod.metadata) { vec![] } else { vec![Step::DeletePod(Arc::clone(pod))] };
            return (steps, false);
        }
        let steady = self.is_steady(pod);
        let reached = steady || self.parallel;
        let new = reached.then(|| corrected(self.input.set, pod, ordinal)).flatten();
        let mut steps = Vec::new();
        if pod.phase() == "Pending" || new.is_some() {
            steps = self.missing_claims(ordinal);
        }
        if let Some(new) = new {
            steps.push(Step::UpdatePod { old: Arc::clone(pod), new: Box::new(new) });
        }
        (steps, steady)
    }

    fn missing_claims(&self, ordinal: i64) -> Vec<Step> {
        let set = self.input.set;
        let missing = templates(set)
            .iter()
            .filter(|template| (self.input.claim)(&claim_name(set, template, ordinal)).is_none());
        missing.map(|template| Step::CreateClaim(Box::new(new_claim(set, template, ordinal)))).collect()
    }

    /// Returns the steps that create a pod: first the claims that it uses.
    fn create(&self, ordinal: i64) -> Vec<Step> {
        let set = self.input.set;
        let revision = if self.is_held_back(ordinal) { self.input.current } else { self.input.update };
        let pod = new_pod(set, &revision.template, &revision.name, ordinal);
        let parties = Parties::new(set, &pod, false);
        let claims: Vec<_> = self.claims(ordinal).collect();
        if claims.iter().any(|claim| parties.blocks_new_pod(&claim.metadata)) {
            return Vec::new();
        }
        let mut steps = self.missing_claims(ordinal);
        let leaving = claims.iter().filter(|claim| is_deleted(&claim.metadata));
        steps.extend(leaving.map(|claim| Step::AwaitClaim(name(&claim.metadata).to_owned())));
        steps.push(Step::CreatePod(Box::new(pod)));
        let conflicts = claims.iter().filter(|claim| parties.is_managed_elsewhere(&claim.metadata));
        steps.extend(conflicts.map(|claim| Step::ReportConflict(name(&claim.metadata).to_owned())));
        steps
    }

    /// Returns `true` if a new pod of this ordinal has the current revision rather than that of the update.
    fn is_held_back(&self, ordinal: i64) -> bool {
        let set = self.input.set;
        let first_updated = match rolling(set) {
            Some(rolling) => i64::from(rolling.partition.unwrap_or(0)),
            None if update_type(set) == "RollingUpdate" => {
                set.status.as_ref().and_then(|status| status.current_replicas).unwrap_or(0).into()
            }
            None => 0,
        };
        ordinal < self.start + first_updated
    }

    /// Deletes the pods beyond the ordinals. Returns `true` if the next phase may begin.
    fn scale_down(&self) -> (Vec<Task>, bool) {
        let mut deleted = Vec::new();
        // An ordered set waits for pods that are not available, but not for the lowest of them, which may never be,
        // nor for finished ones, which never will be.
        let first_broken = self.condemned().rev().find(|(_, pod)| !self.is_steady(pod));
        for (ordinal, pod) in self.condemned() {
            let leaving = is_deleted(&pod.metadata);
            if !self.parallel {
                let broken = !self.is_steady(pod) && !pod.is_finished();
                let waits = leaving || broken && first_broken.is_none_or(|(first, _)| first != ordinal);
                return (if waits { Vec::new() } else { vec![deletion(pod)] }, false);
            }
            if !leaving {
                deleted.push(deletion(pod));
            }
        }
        deleted.truncate(POD_BURST);
        (deleted, true)
    }

    /// Deletes pods of other revisions than that of the update, the last first.
    fn update(&self) -> Vec<Task> {
        let set = self.input.set;
        if is_on_delete(set) {
            return Vec::new();
        }
        let partition = rolling(set).and_then(|rolling| rolling.partition).unwrap_or(0);
        let first = self.start.saturating_add(i64::from(partition));
        match max_unavailable(set) {
            None => self.update_one(first).into_iter().collect(),
            Some(most) => self.update_several(first, most),
        }
    }

    fn is_outdated(&self, pod: &Pod) -> bool {
        revision(pod) != self.input.update.name && !is_deleted(&pod.metadata) && !pod.is_finished()
    }

    /// Deletes the last outdated pod, unless a later one is not available yet.
    fn update_one(&self, first: i64) -> Option<Task> {
        for ordinal in (first..self.end).rev() {
            let pod = self.pods.get(&ordinal)?;
            if self.is_outdated(pod) {
                return Some(deletion(pod));
            }
            if !self.is_steady(pod) {
                return None;
            }
        }
        None
    }

    /// Deletes outdated pods while fewer than `most` of all pods are unavailable.
    fn update_several(&self, first: i64, most: i64) -> Vec<Task> {
        if first >= self.end {
            return Vec::new();
        }
        let kept = self.pods.range(self.start..self.end);
        let available = kept.filter(|(_, pod)| self.is_steady(pod)).count();
        let unavailable = (self.end - self.start) - i64::try_from(available).unwrap_or(i64::MAX);
        let budget = usize::try_from(most - unavailable).unwrap_or(0);
        let outdated = self.pods.range(first..self.end).rev().filter(|(_, pod)| self.is_outdated(pod));
        outdated.take(budget).map(|(_, pod)| deletion(pod)).collect()
    }
}

fn deletion(pod: &Arc<Pod>) -> Task {
    Task { pod: name(&pod.metadata).to_owned(), steps: vec![Step::DeletePod(Arc::clone(pod))] }
}

pub(super) fn is_running(pod: &Pod) -> bool {
    pod.phase() == "Running" && pod.is_ready()
}

fn corrected_owners(parties: &Parties, claim: Arc<PersistentVolumeClaim>) -> Vec<Step> {
    let Some(owners) = parties.wanted_owners(&claim.metadata) else { return Vec::new() };
    let mut new = PersistentVolumeClaim::clone(&claim);
    new.metadata.owner_references = (!owners.is_empty()).then_some(owners);
    let conflict = parties.is_managed_elsewhere(&claim.metadata);
    let report = conflict.then(|| Step::ReportConflict(name(&claim.metadata).to_owned()));
    report.into_iter().chain([Step::UpdateClaim { old: claim, new: Box::new(new) }]).collect()
}
