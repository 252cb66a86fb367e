//! Attempts of PodGroups: all pods of a group that wait are placed in one turn of the loop, or none is.
//!
//! ```text
//!   pop ──▶ gather the others ──▶ place each, one after another ──▶ permitted? ──▶ bind those with a place
//!                                    │ an error, or none permitted
//!                                    ▼
//!                          undo all, return all to the queue
//! ```
//!
//! Nothing is copied for that: pods are counted on their nodes as they are placed, and removed again. The loop applies what
//! has happened meanwhile after each of them, and attempts no other pod before the turn has ended.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use tokio::time::Instant;
use tracing::info;

use super::Scheduler;
use super::extend::Answer;
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
    has_tried: bool,
}

impl Progress {
    fn note(&mut self, outcome: &Outcome) {
        self.has_tried = true;
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

/// The attempt of a group under way.
pub(super) struct Turn {
    group: ObjectKey,
    /// Index of the profile.
    profile: usize,
    began: Instant,
    /// The pod that the queue has handed out. It was found fit to take part before.
    first: Uid,
    untried: VecDeque<Attempting>,
    tried: VecDeque<Tried>,
    /// Those of the tried pods that have a place.
    placed: BTreeSet<Uid>,
    progress: Progress,
    /// All pods were tried.
    is_decided: bool,
    /// Answers of extenders about other pods, which wait for the end of the turn.
    answers: Vec<(u64, Answer)>,
}

/// The end of an attempt for one of its pods.
enum Settled {
    /// It is to be bound.
    Bind(Box<Place>),
    /// It goes back to the queue.
    Return(Refused),
}

impl Scheduler {
    /// Begins to place all pods of a group that wait. The first of them was handed out by the queue.
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
        let Some(profile) = self.profile_of(&first.pod) else { return };
        self.cluster.devices.begin_turn(key.clone());
        self.turn = Some(Box::new(Turn {
            group: key.clone(),
            profile,
            began: Instant::now(),
            first: first.pod.uid.clone(),
            untried: all.into(),
            tried: VecDeque::new(),
            placed: BTreeSet::new(),
            progress: Progress::default(),
            is_decided: false,
            answers: Vec::new(),
        }));
    }

    /// Goes on with the turn under way: tries a pod, or does with it what the end of the attempt asks for. Returns `false` if
    /// there is no turn.
    pub(super) fn go_on(&mut self) -> bool {
        let Some(mut turn) = self.turn.take() else { return false };
        if let Some(attempting) = turn.untried.pop_front() {
            self.try_next(&mut turn, attempting);
        } else if !turn.is_decided {
            turn.is_decided = true;
            self.cluster.devices.end_turn();
            self.measured.metrics.group_tried(turn.began.elapsed());
            let ended = &turn.progress.ended;
            info!(group = %turn.group, pods = turn.tried.len(), ?ended, "tried the pods of a group");
        } else if let Some(tried) = turn.tried.pop_front() {
            self.settle(&mut turn, tried);
        } else {
            self.end(*turn);
            return true;
        }
        self.turn = Some(turn);
        true
    }

    fn end(&mut self, turn: Turn) {
        if turn.progress.has_tried {
            let (profile, ended) = (turn.profile, &turn.progress.ended);
            self.measured.metrics.group_ended(profile, ended.result(), turn.began.elapsed());
            self.write_group_condition(&turn.group, ended.condition());
        }
        for (number, answer) in turn.answers {
            self.consulted(number, answer);
        }
    }

    /// Keeps the answer of extenders for the end of the turn under way; returns it if there is none.
    pub(super) fn hold(&mut self, number: u64, answer: Answer) -> Option<Answer> {
        match &mut self.turn {
            Some(turn) => turn.answers.push((number, answer)),
            None => return Some(answer),
        }
        None
    }

    /// Takes the place that a pod has got in the turn under way: the pod is being deleted, or somebody else has bound it.
    pub(super) fn leave_turn(&mut self, pod: &PodInfo) {
        let Some(turn) = &mut self.turn else { return };
        if turn.placed.remove(&pod.uid) {
            let profile = turn.profile;
            self.displace(profile, pod);
        }
    }

    /// Tries a pod, unless it is no longer to be attempted.
    fn try_next(&mut self, turn: &mut Turn, attempting: Attempting) {
        let began = Instant::now();
        let outcome = match turn.progress.ended {
            Ended::Failed(_) => Outcome::Untried,
            _ if !self.takes_part(&attempting, &turn.first) => return,
            _ => self.try_member(turn.profile, &attempting.pod),
        };
        turn.progress.note(&outcome);
        if matches!(outcome, Outcome::Placed(_)) {
            turn.placed.insert(attempting.pod.uid.clone());
        }
        turn.tried.push_back(Tried { attempting, outcome, took: began.elapsed() });
    }

    /// Returns `true` if a pod is to be tried with its group, and begins its attempt. One that interests extenders is tried
    /// alone.
    fn takes_part(&mut self, attempting: &Attempting, first: &Uid) -> bool {
        let pod = &attempting.pod;
        let current = self.pods.get(&pod.key()).filter(|current| current.uid == pod.uid);
        let Some(current) = current.filter(|current| !current.is_finished && current.node.is_none()) else {
            self.queue.done(&pod.uid);
            return false;
        };
        if self.admit(&Attempting { pod: current, ..attempting.clone() }).is_none() {
            return false;
        }
        self.begin();
        pod.uid == *first || !self.consult(attempting)
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

    /// Places a pod beside those before it.
    fn try_member(&mut self, index: usize, pod: &Arc<PodInfo>) -> Outcome {
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

    /// Binds a pod, or takes its place and returns it to the queue with what is to be told.
    fn settle(&mut self, turn: &mut Turn, tried: Tried) {
        let Tried { attempting, outcome, took } = tried;
        let (index, pod) = (turn.profile, &attempting.pod);
        let has_place = matches!(outcome, Outcome::Placed(_));
        if has_place && !turn.placed.remove(&pod.uid) {
            return self.queue.done(&pod.uid);
        }
        match settled(outcome, &turn.progress.ended, |id| Arc::clone(&self.cluster.node(id).name)) {
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
