//! Attempts of PodGroups: all pods of a group that wait are placed in one turn of the loop, or none is.
//!
//! ```text
//!   pop ──▶ gather the others ──▶ place each, one after another ──▶ permitted? ──▶ bind those with a place
//!                                    │ an error, or none permitted
//!                                    ▼
//!                          undo all, return all to the queue
//! ```
//!
//! Nothing is copied for that: pods are counted on their nodes as they are placed, and removed again in reverse.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::ObjectKey;
use tokio::time::Instant;
use tracing::info;

use super::Scheduler;
use super::report::{GroupCondition, Refused, message_of};
use crate::cluster::NodeId;
use crate::framework::{Diagnosis, PreBind, Waits};
use crate::metrics::GroupResult;
use crate::pod::PodInfo;
use crate::preemption::Found;
use crate::queue::{Attempting, Failure};

/// Texts about a group that is not schedulable, and of its pods.
const UNSCHEDULABLE: &str = "pod group is unschedulable";
const PREEMPTING: &str = "pod group is unschedulable, pod group is waiting for preemption to complete";

/// A pod of a group, and what has become of it in the attempt.
struct Tried {
    attempting: Attempting,
    outcome: Outcome,
    took: Duration,
}

enum Outcome {
    Placed(Box<Place>),
    Refused {
        diagnosis: Box<Diagnosis>,
        nominated: Option<Arc<str>>,
    },
    /// Another pod has failed by an error before.
    Untried,
}

/// The place of a pod.
struct Place {
    id: NodeId,
    plans: Vec<PreBind>,
    /// Reasons for which plugins have it wait; empty if they permit it.
    waits: String,
    /// Set if other pods are preempted for it: why it did not fit.
    preempts: Option<Box<Diagnosis>>,
}

/// The end of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Ended {
    Scheduled,
    #[default]
    Unschedulable,
    /// It would fit, once pods are gone that are being preempted.
    Preempting,
    Failed(String),
}

impl Ended {
    fn result(&self) -> GroupResult {
        match self {
            Self::Scheduled => GroupResult::Scheduled,
            Self::Unschedulable => GroupResult::Unschedulable,
            Self::Preempting => GroupResult::WaitingOnPreemption,
            Self::Failed(_) => GroupResult::Error,
        }
    }

    fn condition(&self) -> GroupCondition {
        let (reason, message) = match self {
            Self::Scheduled => ("Scheduled", ""),
            Self::Unschedulable => ("Unschedulable", UNSCHEDULABLE),
            Self::Preempting => ("Unschedulable", PREEMPTING),
            Self::Failed(error) => ("SchedulerError", error.as_str()),
        };
        GroupCondition { is_scheduled: *self == Self::Scheduled, reason, message: message.to_owned() }
    }
}

/// The end of an attempt by the pods that were tried so far.
#[derive(Debug, Default)]
struct Progress {
    ended: Ended,
    /// Other pods are preempted for one of them.
    preempts: bool,
}

impl Progress {
    fn note(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Refused { diagnosis, .. } if diagnosis.is_error() => {
                let error = message_of(diagnosis);
                self.ended = Ended::Failed(format!("failed to schedule other pod from a pod group: {error}"));
            }
            Outcome::Placed(place) => {
                self.preempts |= place.preempts.is_some();
                if place.waits.is_empty() {
                    self.ended = if self.preempts { Ended::Preempting } else { Ended::Scheduled };
                }
            }
            Outcome::Refused { .. } | Outcome::Untried => {}
        }
    }
}

/// The end of an attempt for one of its pods.
enum Settled {
    /// It is to be bound.
    Bind(Box<Place>),
    /// It goes back to the queue.
    Return(Refused),
}

impl Scheduler {
    /// Attempts to place all pods of a group that wait. The first of them was handed out by the queue.
    pub(super) fn attempt_group(&mut self, key: &ObjectKey, first: &Attempting) {
        let all = self.gather(key, first);
        if let Some(error) = mixed(&all) {
            for one in all {
                match self.profile_of(&one.pod) {
                    Some(index) => {
                        self.return_to_queue(index, &one.pod, failed(error.clone()), Duration::ZERO)
                    }
                    None => self.queue.done(&one.pod.uid),
                }
            }
            return;
        }
        let mut members = Vec::new();
        for one in all {
            // The first one has come here by the same way.
            if one.pod.uid == first.pod.uid || self.takes_part(&one) {
                members.push(one);
            }
        }
        let Some(index) = self.profile_of(&first.pod) else { return };
        let began = Instant::now();
        let (tried, ended) = self.try_group(index, members);
        self.measured.metrics.group_tried(began.elapsed());
        if ended != Ended::Scheduled {
            self.undo(index, &tried);
        }
        info!(group = %key, pods = tried.len(), ?ended, "tried the pods of a group");
        for one in tried {
            self.settle(index, one, &ended);
        }
        self.measured.metrics.group_ended(index, ended.result(), began.elapsed());
        self.write_group_condition(key, ended.condition());
    }

    /// Returns `true` if a pod is to be tried with its group. One that interests extenders is tried alone.
    fn takes_part(&mut self, attempting: &Attempting) -> bool {
        if self.admit(attempting).is_none() {
            return false;
        }
        self.begin();
        !self.consult(attempting)
    }

    /// Takes the other pods of a group that wait out of the queue, but for those that must not be attempted. Returns all in
    /// the order in which they are tried: by priority, then by the time since which they wait.
    fn gather(&mut self, key: &ObjectKey, first: &Attempting) -> Vec<Attempting> {
        let members = self.cluster.groups.members(key);
        let waiting = members.into_iter().flat_map(|members| members.unscheduled());
        let others = waiting.map(|pod| pod.uid.clone()).filter(|uid| *uid != first.pod.uid);
        let others: Vec<_> = others.collect();
        let now = Instant::now();
        let others = others.iter().filter_map(|uid| self.queue.pop_this(uid, &self.cluster, now));
        let mut all: Vec<Attempting> = others.chain([first.clone()]).collect();
        all.sort_by(|a, b| order(a).cmp(&order(b)));
        all
    }

    /// Places one pod after another, each beside those before it.
    fn try_group(&mut self, index: usize, members: Vec<Attempting>) -> (Vec<Tried>, Ended) {
        let mut progress = Progress::default();
        let mut tried = Vec::with_capacity(members.len());
        for attempting in members {
            let began = Instant::now();
            let outcome = match progress.ended {
                Ended::Failed(_) => Outcome::Untried,
                _ => self.try_member(index, &attempting.pod),
            };
            progress.note(&outcome);
            tried.push(Tried { attempting, outcome, took: began.elapsed() });
        }
        (tried, progress.ended)
    }

    fn try_member(&mut self, index: usize, pod: &Arc<PodInfo>) -> Outcome {
        self.begin();
        let chosen = self.choose(index, pod);
        let outcome = match chosen {
            Ok(id) => {
                self.meter.decided();
                self.try_place(index, pod, id, None)
            }
            Err(mut diagnosis) => {
                let found = self.post_filter(index, pod, &mut diagnosis);
                self.meter.decided();
                let candidate = match &found {
                    Some(Found::Candidate(candidate)) => Some(candidate.node),
                    _ => None,
                };
                let nominated = self.preempt(pod, found);
                match candidate {
                    // Those after it see it in its place, though its victims are there too.
                    Some(id) => self.try_place(index, pod, id, Some(diagnosis)),
                    None => Outcome::Refused { diagnosis, nominated },
                }
            }
        };
        self.measured.metrics.decided(index, &self.meter);
        outcome
    }

    fn try_place(
        &mut self,
        index: usize,
        pod: &Arc<PodInfo>,
        id: NodeId,
        preempts: Option<Box<Diagnosis>>,
    ) -> Outcome {
        self.cluster.nominated.remove(pod);
        let reserved = self.reserve_on(index, pod, id);
        match reserved.and_then(|plans| Ok((plans, self.may_permit(index, pod, id)?))) {
            Ok((plans, Waits { message, .. })) => {
                Outcome::Placed(Box::new(Place { id, plans, waits: message, preempts }))
            }
            Err(diagnosis) => {
                self.nominate_again(pod);
                Outcome::Refused { diagnosis, nominated: None }
            }
        }
    }

    /// Gives a pod that has lost its place the nomination that it had before.
    fn nominate_again(&mut self, pod: &Arc<PodInfo>) {
        if let Some(node) = &pod.nominated {
            self.cluster.nominated.set(pod, node);
        }
    }

    /// Takes their places from all pods, the last one first.
    fn undo(&mut self, index: usize, tried: &[Tried]) {
        let placed = tried.iter().rev().filter(|one| matches!(one.outcome, Outcome::Placed(_)));
        for one in placed {
            self.displace(index, &one.attempting.pod);
            self.nominate_again(&one.attempting.pod);
        }
    }

    /// Binds a pod, or returns it to the queue with what is to be told.
    fn settle(&mut self, index: usize, tried: Tried, ended: &Ended) {
        let Tried { attempting, outcome, took } = tried;
        let pod = &attempting.pod;
        let has_place = matches!(outcome, Outcome::Placed(_)) && *ended == Ended::Scheduled;
        match settled(outcome, ended, |id| Arc::clone(&self.cluster.node(id).name)) {
            Settled::Bind(place) => self.bind_member(index, &attempting, *place, took),
            Settled::Return(refused) => {
                if has_place {
                    self.displace(index, pod);
                }
                self.return_to_queue(index, pod, refused, took);
            }
        }
    }

    fn bind_member(&mut self, index: usize, attempting: &Attempting, place: Place, took: Duration) {
        let pod = &attempting.pod;
        self.binder.conditions.forget(&pod.uid);
        match self.permit(index, pod, place.id) {
            Ok(waits) => {
                let began = Instant::now().checked_sub(took).unwrap_or(attempting.first_attempt);
                self.bind_when_permitted((index, began), attempting, place.id, place.plans, &waits);
            }
            Err(diagnosis) => self.return_to_queue(index, pod, Refused::by(&diagnosis, None), took),
        }
    }
}

/// Returns what becomes of a pod at the end of an attempt.
fn settled(outcome: Outcome, ended: &Ended, name_of: impl Fn(NodeId) -> Arc<str>) -> Settled {
    Settled::Return(match (outcome, ended) {
        (Outcome::Refused { diagnosis, .. }, Ended::Failed(_)) if diagnosis.is_error() => {
            Refused::by(&diagnosis, None)
        }
        (_, Ended::Failed(error)) => failed(error.clone()),
        (Outcome::Placed(place), Ended::Scheduled) if place.preempts.is_none() => {
            return Settled::Bind(place);
        }
        (Outcome::Placed(place), Ended::Preempting) => {
            let node = Some(name_of(place.id));
            match &place.preempts {
                Some(diagnosis) => Refused::by(diagnosis, node),
                None => Refused { nominated: node, ..unschedulable(PREEMPTING.to_owned()) },
            }
        }
        (Outcome::Placed(place), _) => unschedulable(format!("{UNSCHEDULABLE}, {}", place.waits)),
        (Outcome::Refused { diagnosis, nominated }, _) => Refused::by(&diagnosis, nominated),
        (Outcome::Untried, _) => unschedulable(UNSCHEDULABLE.to_owned()),
    })
}

/// Returns what is told of a pod whose group has met an error.
fn failed(error: String) -> Refused {
    let failure = Failure { is_error: true, ..Failure::default() };
    Refused { failure, reason: "SchedulerError", message: error, nominated: None }
}

/// Returns what is told of a pod that only its group keeps from being scheduled. It is tried again after its back-off.
fn unschedulable(message: String) -> Refused {
    Refused { failure: Failure::default(), reason: "Unschedulable", message, nominated: None }
}

/// Returns the order in which the pods of a group are tried.
fn order(one: &Attempting) -> (Reverse<i32>, Instant, &str) {
    (Reverse(one.pod.spec.priority), one.first_attempt, one.pod.name())
}

/// Returns the error of a group whose pods name several schedulers.
fn mixed(all: &[Attempting]) -> Option<String> {
    let first = &all.first()?.pod.spec.scheduler;
    let other = all.iter().map(|one| &one.pod.spec.scheduler).find(|scheduler| *scheduler != first)?;
    Some(format!(
        "all pods in a single pod group should have the same .spec.schedulerName set, got: {first:?} and {other:?}"
    ))
}

#[cfg(test)]
mod tests;
