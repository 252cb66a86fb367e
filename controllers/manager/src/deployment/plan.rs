//! Computes the next sizes of a Deployment's ReplicaSets.
//!
//! The plan is made on copies of the ReplicaSets, and the actions are the differences: creation and growth of
//! the new one first, then changes of the old ones, then deletions, then the status.
//!
//! `strategy.rs` resolves percentages of `maxSurge` (rounded up) and `maxUnavailable` (rounded down). The API server
//! sets no upper bound on `maxSurge` (`apiserver/kinds/src/apps/deployment.rs`).

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};

use super::revision::{self, DESIRED, MAX, annotate_size};
use super::status::{self, Progress};
use super::strategy::{is_recreate, max_surge, max_unavailable, replicas, set_replicas};
use crate::meta::{annotation, controller_of, is_deleted, name, uid};
use crate::pods::Pod;

/// Inputs that a plan is computed from.
pub(super) struct Input<'a> {
    pub deployment: &'a Deployment,
    /// ReplicaSets that the Deployment controls.
    pub sets: Vec<Arc<ReplicaSet>>,
    /// The pods of all sets; used only for `Recreate`.
    pub pods: &'a [Arc<Pod>],
    pub now: Timestamp,
}

/// A request to the API.
#[derive(Debug)]
pub(super) enum Action {
    Create(Box<ReplicaSet>),
    Update {
        old: Arc<ReplicaSet>,
        new: Box<ReplicaSet>,
    },
    Delete(Arc<ReplicaSet>),
    /// Record the new ReplicaSet's revision on the Deployment.
    Revision(String),
    Status(Box<DeploymentStatus>),
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Actions in order; a failure ends the attempt.
    pub actions: Vec<Action>,
    /// Delay until the next reconciliation, if one is needed without a change.
    pub again: Option<Duration>,
}

/// A ReplicaSet as it is and as it should be. `read` is `None` for one that is still to be created.
#[derive(Clone)]
pub(super) struct Set {
    read: Option<Arc<ReplicaSet>>,
    pub wanted: ReplicaSet,
    delete: bool,
}

impl Set {
    fn of(read: &Arc<ReplicaSet>) -> Self {
        Self { read: Some(Arc::clone(read)), wanted: ReplicaSet::clone(read), delete: false }
    }

    pub fn size(&self) -> i32 {
        set_replicas(&self.wanted)
    }

    /// Number of available pods, capped by the size, because the status may be older than the size: pods
    /// beyond it are already being removed and must not be counted again.
    fn available(&self) -> i32 {
        let reported = self.wanted.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0);
        reported.min(self.size())
    }

    /// Number of existing pods, regardless of the requested size.
    fn actual(&self) -> i32 {
        self.wanted.status.as_ref().map_or(0, |status| status.replicas)
    }
}

/// State of a rollout while it is being planned.
pub(super) struct Rollout<'a> {
    pub deployment: &'a Deployment,
    /// Status, including the conditions that this plan has set so far.
    pub status: DeploymentStatus,
    /// ReplicaSets of other templates, oldest first.
    pub old: Vec<Set>,
    /// ReplicaSet of the current template.
    pub new: Option<Set>,
    pub now: Timestamp,
}

pub(super) fn plan(input: &Input<'_>) -> Plan {
    let mut rollout = Rollout::new(input);
    let deployment = input.deployment;
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused).unwrap_or(false);
    if is_deleted(&deployment.metadata) {
        return rollout.finish(Progress::Unchecked);
    }
    status::record_pause(&mut rollout, paused);
    if paused || rollout.is_being_scaled() {
        rollout.number_new();
        rollout.scale();
        if paused {
            rollout.clean_up();
        }
        return rollout.finish(Progress::Unchecked);
    }
    if is_recreate(deployment) {
        rollout.recreate(input.pods);
    } else {
        rollout.roll();
    }
    rollout.finish(Progress::Checked)
}

impl<'a> Rollout<'a> {
    fn new(input: &Input<'a>) -> Self {
        let mut sets = input.sets.clone();
        sets.sort_by(|a, b| age(a).cmp(&age(b)));
        let new = revision::find_new(input.deployment, &sets).map(|set| uid(&set.metadata).to_owned());
        let is_new = |set: &Arc<ReplicaSet>| new.as_deref() == Some(uid(&set.metadata));
        Self {
            deployment: input.deployment,
            status: input.deployment.status.clone().unwrap_or_default(),
            old: sets.iter().filter(|set| !is_new(set)).map(Set::of).collect(),
            new: sets.iter().find(|set| is_new(set)).map(Set::of),
            now: input.now,
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Set> {
        self.old.iter().chain(&self.new)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Set> {
        self.old.iter_mut().chain(&mut self.new)
    }

    /// Returns the sum of the sizes. Those of several large sets may exceed what a number of replicas can be.
    fn total(&self) -> i32 {
        self.all().map(Set::size).fold(0, i32::saturating_add)
    }

    fn replicas(&self) -> i32 {
        replicas(self.deployment)
    }

    /// Returns the number of pods that may exist during an update.
    fn most(&self) -> i32 {
        self.replicas().saturating_add(max_surge(self.deployment))
    }

    fn next_revision(&self) -> i64 {
        self.old.iter().map(|set| revision::revision(&set.wanted.metadata)).max().unwrap_or(0) + 1
    }

    /// Gives the new ReplicaSet the highest revision number, also when a rollback has made an old one new
    /// again.
    fn number_new(&mut self) {
        let next = self.next_revision();
        let Some(set) = &mut self.new else { return };
        revision::annotate_new(self.deployment, &mut set.wanted, next, false);
        let spec = set.wanted.spec.get_or_insert_default();
        spec.min_ready_seconds = self.deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
        let name = name(&set.wanted.metadata).to_owned();
        status::record_found(self, &name);
    }

    /// Ensures that there is a new ReplicaSet. One that is created gets its size immediately.
    fn ensure_new(&mut self) {
        if self.new.is_some() {
            return self.number_new();
        }
        let mut wanted = revision::new_set(self.deployment);
        revision::annotate_new(self.deployment, &mut wanted, self.next_revision(), true);
        let name = name(&wanted.metadata).to_owned();
        self.new = Some(Set { read: None, wanted, delete: false });
        let size = self.grown_size();
        self.resize(|set| set.read.is_none(), size);
        status::record_created(self, &name);
    }

    /// Returns the size that the new ReplicaSet may grow to now.
    fn grown_size(&self) -> i32 {
        let size = self.new.as_ref().map_or(0, Set::size);
        if is_recreate(self.deployment) {
            return self.replicas();
        }
        let room = self.most() - self.total();
        if room <= 0 { size } else { size + room.min(self.replicas() - size) }
    }

    /// Sets the size of the ReplicaSets for which `which` is true; returns whether one changed.
    fn resize(&mut self, which: impl Fn(&Set) -> bool, size: i32) -> bool {
        let deployment = self.deployment;
        let mut changed = false;
        for set in self.all_mut().filter(|set| which(set)) {
            changed |= set.size() != size;
            set_size(deployment, set, size);
        }
        changed
    }

    /// Moves pods from the old ReplicaSets to the new one within the bounds: first the new one grows, and
    /// only if it cannot, the old ones shrink.
    fn roll(&mut self) {
        self.ensure_new();
        if self.resize_new() || self.shrink_old() {
            return;
        }
        if status::is_complete(self.deployment, &self.status) {
            self.clean_up();
        }
    }

    fn resize_new(&mut self) -> bool {
        let Some(size) = self.new.as_ref().map(Set::size) else { return false };
        let wanted = self.replicas();
        let size = if size > wanted { wanted } else { self.grown_size() };
        let deployment = self.deployment;
        self.new.as_mut().is_some_and(|set| {
            let changed = set.size() != size;
            if changed {
                set_size(deployment, set, size);
            }
            changed
        })
    }

    fn shrink_old(&mut self) -> bool {
        if self.old.iter().all(|set| set.size() == 0) {
            return false;
        }
        let least = self.replicas() - max_unavailable(self.deployment);
        let missing = self.new.as_ref().map_or(0, |set| set.size() - set.available());
        let spare = self.total().saturating_sub(least).saturating_sub(missing);
        if spare <= 0 {
            return false;
        }
        // Unavailable pods go first: removing them costs no availability.
        let removed = self.shrink(spare, |set| (set.size() - set.available()).max(0));
        let available = self.all().map(Set::available).fold(0, i32::saturating_add);
        let removed_too = self.shrink(available - least, Set::size);
        removed + removed_too > 0
    }

    /// Takes up to `budget` pods from the old ReplicaSets, oldest first, and from each at most `share`;
    /// returns how many were taken.
    fn shrink(&mut self, budget: i32, share: impl Fn(&Set) -> i32) -> i32 {
        let deployment = self.deployment;
        let mut left = budget.max(0);
        for set in &mut self.old {
            let take = share(set).min(set.size()).min(left);
            if take > 0 {
                let size = set.size() - take;
                set_size(deployment, set, size);
                left -= take;
            }
        }
        budget.max(0) - left
    }

    /// Removes all old pods before the first new one is created.
    fn recreate(&mut self, pods: &[Arc<Pod>]) {
        if self.new.is_some() {
            self.number_new();
        }
        let shrunk = self.shrink(i32::MAX, Set::size) > 0;
        if shrunk || self.old_pods_run(pods) {
            return;
        }
        self.ensure_new();
        self.resize_new();
        if status::is_complete(self.deployment, &self.status) {
            self.clean_up();
        }
    }

    fn old_pods_run(&self, all_pods: &[Arc<Pod>]) -> bool {
        if self.old.iter().any(|set| set.actual() > 0) {
            return true;
        }
        all_pods.iter().filter(|pod| !pod.is_finished()).any(|pod| {
            controller_of(&pod.metadata)
                .is_some_and(|owner| self.old.iter().any(|set| uid(&set.wanted.metadata) == owner.uid))
        })
    }

    /// Returns `true` if the Deployment's size has changed since its ReplicaSets were last scaled.
    fn is_being_scaled(&self) -> bool {
        self.all().filter(|set| set.size() > 0).any(|set| {
            revision::number(&set.wanted.metadata, DESIRED).is_some_and(|desired| desired != self.replicas())
        })
    }

    /// Applies a change of size during an update or while paused.
    fn scale(&mut self) {
        let wanted = self.replicas();
        if let Some(only) = self.only_active() {
            let deployment = self.deployment;
            if let Some(set) = self.all_mut().find(|set| uid(&set.wanted.metadata) == only) {
                if set.size() != wanted {
                    set_size(deployment, set, wanted);
                } else {
                    annotate_size(deployment, &mut set.wanted);
                }
            }
        } else if self.is_saturated() {
            self.shrink(i32::MAX, Set::size);
        } else if !is_recreate(self.deployment) {
            self.scale_proportionally();
        }
    }

    /// Returns the only ReplicaSet with pods; if none has any, the new one, or the newest.
    fn only_active(&self) -> Option<String> {
        let mut active = self.all().filter(|set| set.size() > 0);
        let set = match (active.next(), active.next()) {
            (Some(_), Some(_)) => return None,
            (Some(only), None) => only,
            (None, _) => self.new.as_ref().or(self.old.last())?,
        };
        Some(uid(&set.wanted.metadata).to_owned())
    }

    /// Returns `true` if the new ReplicaSet has all pods, so that the others can be scaled to zero.
    fn is_saturated(&self) -> bool {
        self.new.as_ref().is_some_and(|set| {
            revision::number(&set.wanted.metadata, DESIRED) == Some(self.replicas())
                && set.size() == self.replicas()
                && set.available() == self.replicas()
        })
    }

    /// Distributes the change over the ReplicaSets in proportion to their sizes, so that a broken new version
    /// does not receive all of it.
    fn scale_proportionally(&mut self) {
        let wanted = self.replicas();
        let allowed = if wanted > 0 { self.most() } else { 0 };
        let to_add = allowed - self.total();
        let mut order: Vec<(i32, usize)> = Vec::new();
        for (index, set) in self.all().enumerate().filter(|(_, set)| set.size() > 0) {
            order.push((set.size(), index));
        }
        // Largest first; among equals the newer when growing, the older when shrinking.
        order.sort_by_key(|(size, index)| {
            let index = i64::try_from(*index).unwrap_or(i64::MAX);
            (-size, if to_add > 0 { -index } else { index })
        });
        let sets: Vec<&Set> = self.all().collect();
        let mut added = 0;
        let mut sizes: Vec<(usize, i32)> = Vec::new();
        for (size, index) in &order {
            let share = self.share(sets[*index], to_add, added);
            added += share;
            sizes.push((*index, size + share));
        }
        // The remainder of rounding goes to the largest.
        if let Some((_, size)) = sizes.first_mut() {
            *size = (*size + to_add - added).max(0);
        }
        let deployment = self.deployment;
        for (index, set) in self.all_mut().enumerate() {
            if let Some((_, size)) = sizes.iter().find(|(at, _)| *at == index) {
                set_size(deployment, set, *size);
            }
        }
    }

    fn share(&self, set: &Set, to_add: i32, added: i32) -> i32 {
        if set.size() == 0 || to_add == added {
            return 0;
        }
        let fraction = self.fraction(set);
        if to_add > 0 { fraction.min(to_add - added) } else { fraction.max(to_add - added) }
    }

    /// Returns by how much a ReplicaSet grows to keep its proportion of the Deployment.
    fn fraction(&self, set: &Set) -> i32 {
        let wanted = self.replicas();
        if wanted == 0 {
            return -set.size();
        }
        let target = f64::from(self.most());
        let was =
            revision::number(&set.wanted.metadata, MAX).or(self.status.replicas).filter(|count| *count > 0);
        let Some(was) = was else { return 0 };
        let size = f64::from(set.size()) * target / f64::from(was);
        size.round() as i32 - set.size()
    }

    /// Deletes empty old ReplicaSets beyond the history limit, lowest revision first.
    fn clean_up(&mut self) {
        let limit = self.deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit).unwrap_or(10);
        let Ok(limit) = usize::try_from(limit) else { return };
        let mut alive: Vec<&mut Set> =
            self.old.iter_mut().filter(|set| !is_deleted(&set.wanted.metadata)).collect();
        let surplus = alive.len().saturating_sub(limit);
        alive.sort_by_key(|set| revision::revision(&set.wanted.metadata));
        for set in alive.into_iter().take(surplus) {
            let observed = set.wanted.status.as_ref().and_then(|status| status.observed_generation);
            let observed_latest = set.wanted.metadata.generation.unwrap_or(0) <= observed.unwrap_or(0);
            set.delete = observed_latest && set.size() == 0 && set.actual() == 0;
        }
    }

    fn finish(mut self, progress: Progress) -> Plan {
        let again = status::conclude(&mut self, progress);
        let mut actions = Vec::new();
        for set in self.new.iter().chain(&self.old) {
            match &set.read {
                None => actions.push(Action::Create(Box::new(set.wanted.clone()))),
                Some(read) if set.delete => actions.push(Action::Delete(Arc::clone(read))),
                Some(read) if **read != set.wanted => {
                    let new = Box::new(set.wanted.clone());
                    actions.push(Action::Update { old: Arc::clone(read), new });
                }
                Some(_) => {}
            }
        }
        let revision = self.new.as_ref().and_then(|set| annotation(&set.wanted.metadata, revision::REVISION));
        if revision.is_some() && revision != annotation(&self.deployment.metadata, revision::REVISION) {
            actions.extend(revision.map(|revision| Action::Revision(revision.to_owned())));
        }
        if self.deployment.status.as_ref() != Some(&self.status) {
            actions.push(Action::Status(Box::new(self.status)));
        }
        Plan { actions, again }
    }
}

fn set_size(deployment: &Deployment, set: &mut Set, size: i32) {
    set.wanted.spec.get_or_insert_default().replicas = Some(size);
    annotate_size(deployment, &mut set.wanted);
}

/// Returns a sort key: older sets first, sets of the same age by name.
fn age(set: &ReplicaSet) -> (Option<Timestamp>, &str) {
    (set.metadata.creation_timestamp.as_ref().map(|time| time.0), name(&set.metadata))
}
