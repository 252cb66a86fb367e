//! The attempts that wait for extenders, or for their turn to ask them.
//!
//! There is a lane for each set of extenders that pods interest, with a bound on the attempts under way. So an extender
//! that hangs holds up the pods that interest it, and no others.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::{Fence, Informers};
use kube::Client;
use tokio::sync::Semaphore;

use super::bind::ExtenderBinder;
use super::preempt::Preemption;
use crate::extenders::{Extenders, Interested, Objects};
use crate::framework::Interrupted;
use crate::limits;
use crate::pod::PodInfo;
use crate::queue::Attempting;

/// An attempt that extenders take part in.
pub(super) struct Inquiry {
    pub pod: Arc<PodInfo>,
    /// The pod with the times of its attempts, as the queue has handed it out.
    pub attempting: Attempting,
    pub interested: Interested,
    pub stage: Stage,
    /// Number of times that the attempt has begun anew.
    pub rounds: u32,
    /// The measures of the attempt while it waits for an answer.
    pub measured: Interrupted,
}

/// The question to extenders.
pub(super) enum Stage {
    Nodes {
        /// They are asked for no more than the node that the pod is nominated for.
        nominated: bool,
    },
    Victims(Box<Preemption>),
}

/// The attempts of pods that interest the same extenders.
#[derive(Default)]
struct Lane {
    running: usize,
    /// In the order of the queue.
    waiting: BTreeMap<(Reverse<i32>, u64), Attempting>,
}

/// The means to ask.
struct Means {
    objects: Objects,
    fence: Fence,
    bindings: Arc<Semaphore>,
}

/// The place where attempts wait for extenders.
#[derive(Default)]
pub(in crate::run) struct Desk {
    pub(super) extenders: Extenders,
    /// `None` without extenders.
    means: Option<Means>,
    lanes: BTreeMap<Interested, Lane>,
    /// Attempts whose answers are awaited, by number.
    asked: BTreeMap<u64, Inquiry>,
    numbers: u64,
}

impl Desk {
    pub fn new(extenders: Extenders, client: Client, fence: Fence, informers: &Informers) -> Self {
        let means = (!extenders.is_empty()).then(|| Means {
            objects: Objects::new(client, informers, &extenders),
            fence,
            bindings: Arc::new(Semaphore::new(limits::EXTENDER_BINDINGS)),
        });
        Self { extenders, means, ..Self::default() }
    }

    /// Returns how a pod is bound by an extender; `None` if the scheduler binds it.
    pub fn binder_of(&self, pod: &PodInfo) -> Option<ExtenderBinder> {
        self.extenders.binder(pod)?;
        let means = self.means.as_ref()?;
        let lanes = Arc::clone(&means.bindings);
        Some(ExtenderBinder { extenders: self.extenders.clone(), fence: means.fence.clone(), lanes })
    }

    pub(super) fn objects(&self) -> Objects {
        self.means.as_ref().expect("a desk with extenders has the means to ask them").objects.clone()
    }

    /// Takes a pod up that interests extenders, at once or for later.
    pub(super) fn enter(&mut self, attempting: &Attempting) -> Entered {
        let pod = &attempting.pod;
        let interested = self.extenders.interested(pod);
        if interested.is_empty() {
            return Entered::Not;
        }
        let lane = self.lanes.entry(interested.clone()).or_default();
        if lane.running < limits::CONSULTATIONS && lane.waiting.is_empty() {
            lane.running += 1;
            return Entered::Now(Inquiry::new(attempting.clone(), interested));
        }
        self.numbers += 1;
        lane.waiting.insert((Reverse(pod.spec.priority), self.numbers), attempting.clone());
        Entered::Later
    }

    /// Returns an attempt whose turn it is.
    pub(super) fn next(&mut self) -> Option<Inquiry> {
        let has_room = |lane: &Lane| lane.running < limits::CONSULTATIONS && !lane.waiting.is_empty();
        let (interested, lane) = self.lanes.iter_mut().find(|(_, lane)| has_room(lane))?;
        let (_, attempting) = lane.waiting.pop_first()?;
        lane.running += 1;
        Some(Inquiry::new(attempting, interested.clone()))
    }

    /// Stores an attempt until it is answered; returns its number.
    pub(super) fn send(&mut self, inquiry: Inquiry) -> u64 {
        self.numbers += 1;
        self.asked.insert(self.numbers, inquiry);
        self.numbers
    }

    /// Returns the attempt that an answer belongs to.
    pub(super) fn answered(&mut self, number: u64) -> Option<Inquiry> {
        self.asked.remove(&number)
    }

    /// Ends an attempt.
    pub(super) fn leave(&mut self, inquiry: &Inquiry) {
        let Some(lane) = self.lanes.get_mut(&inquiry.interested) else { return };
        lane.running -= 1;
        if lane.running == 0 && lane.waiting.is_empty() {
            self.lanes.remove(&inquiry.interested);
        }
    }

    /// Returns a desk that reads objects with this reader, and whose fence is open.
    #[cfg(test)]
    pub(super) fn for_tests(extenders: Extenders, objects: Objects) -> Self {
        let bindings = Arc::new(Semaphore::new(limits::EXTENDER_BINDINGS));
        let means = Means { objects, fence: Fence::open(), bindings };
        Self { extenders, means: Some(means), ..Self::default() }
    }

    #[cfg(test)]
    pub(super) fn fence_for_tests(&self) -> &Fence {
        &self.means.as_ref().expect("the test has made it").fence
    }

    /// Returns the number of attempts under way, and of those that wait for their turn.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let sum = |of: fn(&Lane) -> usize| self.lanes.values().map(of).sum();
        (sum(|lane| lane.running), sum(|lane| lane.waiting.len()))
    }
}

/// The outcome of [`Desk::enter`].
pub(super) enum Entered {
    /// No extender takes part.
    Not,
    Now(Inquiry),
    /// The pod waits for its turn.
    Later,
}

impl Inquiry {
    fn new(attempting: Attempting, interested: Interested) -> Self {
        let pod = Arc::clone(&attempting.pod);
        let stage = Stage::Nodes { nominated: false };
        Self { pod, attempting, interested, stage, rounds: 0, measured: Interrupted::default() }
    }
}
