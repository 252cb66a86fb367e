//! One attempt: find a node, reserve it, and hand the binding over; or report why there is none.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info};

use super::Scheduler;
use super::evict::{self, Eviction};
use super::permit::refused_at;
use super::report::{Nomination, Refused, message_of};
use crate::cluster::NodeId;
use crate::framework::{
    Code, Diagnosis, NominatedFirst, PreBind, Refusal, Stage, Status, choose, find_feasible,
};
use crate::metrics::Verdict;
use crate::pod::PodInfo;
use crate::preemption::{Candidate, Found, post_filter};
use crate::queue::Attempting;

impl Scheduler {
    /// Attempts to place a pod, with the others of its group if it has one.
    pub(super) fn attempt(&mut self, attempting: &Attempting) {
        let pod = &attempting.pod;
        let Some(index) = self.admit(attempting) else { return };
        self.begin();
        if self.consult(attempting) {
            return;
        }
        if let Some(group) = self.cluster.groups.scheduled_with(pod) {
            return self.attempt_group(&group, attempting);
        }
        match self.choose(index, pod) {
            Ok(id) => self.assume(index, attempting, id),
            Err(diagnosis) => self.refuse(index, pod, *diagnosis),
        }
    }

    /// Returns the profile of a pod that was handed out; `None` if it is not to be attempted any more.
    pub(super) fn admit(&mut self, attempting: &Attempting) -> Option<usize> {
        let pod = &attempting.pod;
        let profile = self.profile_of(pod);
        if profile.is_none() || self.cluster.place_of(pod).is_some() {
            self.queue.done(&pod.uid);
            return None;
        }
        if pod.is_terminating() {
            let message = format!("skip schedule deleting pod: {}", pod.key());
            self.warn(pod, "FailedScheduling", message);
            self.queue.done(&pod.uid);
            return None;
        }
        if let Some(excess) = pod.spec.excess.as_deref() {
            self.give_up(pod, excess);
            return None;
        }
        profile
    }

    /// Forgets a pod that asks for more than an attempt may cost, and tells its owner, unless the pod says so by now. Only a
    /// change of the pod brings it back.
    fn give_up(&mut self, pod: &Arc<PodInfo>, excess: &str) {
        self.queue.done(&pod.uid);
        if pod.refusal.as_deref().is_none_or(|(_, message)| message != excess) {
            self.warn(pod, "FailedScheduling", excess.to_owned());
            self.write_condition(pod, "Unschedulable", excess.to_owned(), Nomination::Of(None));
        }
    }

    /// Returns the best node for a pod.
    pub(super) fn choose(&mut self, index: usize, pod: &PodInfo) -> Result<NodeId, Box<Diagnosis>> {
        let profile = &self.profiles[index];
        let (cluster, views, meter) = (&mut self.cluster, &mut self.views, &mut self.meter);
        let first = NominatedFirst::Yes;
        let feasible = find_feasible(profile, pod, cluster, views, self.start, first, meter)?;
        self.start = (self.start + feasible.evaluated) % cluster.capacity().max(1);
        if let Some(only) = feasible.only() {
            return Ok(only);
        }
        let random = self.ambient.random.next_u64();
        let chosen = choose(profile, pod, cluster, views, &feasible, random, meter);
        Ok(chosen.expect("there are feasible nodes"))
    }

    /// Counts a pod on its node from now on, and writes the binding when plugins permit it.
    pub(super) fn assume(&mut self, index: usize, attempting: &Attempting, id: NodeId) {
        let pod = &attempting.pod;
        self.meter.decided();
        self.cluster.nominated.remove(pod);
        let reserved = self.reserve_on(index, pod, id);
        let permitted = reserved.and_then(|plans| Ok((plans, self.permit(index, pod, id)?)));
        self.measured.metrics.decided(index, &self.meter);
        match permitted {
            Ok((plans, waits)) => {
                let began = self.meter.began().unwrap_or(attempting.first_attempt);
                self.bind_when_permitted((index, began), attempting, id, plans, &waits);
            }
            Err(diagnosis) => self.report(index, pod, &diagnosis, None),
        }
    }

    /// Counts a pod on a node, and reserves what it takes there.
    pub(super) fn reserve_on(
        &mut self,
        index: usize,
        pod: &Arc<PodInfo>,
        id: NodeId,
    ) -> Result<Vec<PreBind>, Box<Diagnosis>> {
        let node = Arc::clone(&self.cluster.node(id).name);
        debug!(pod = %pod.key(), %node, "placed");
        self.cluster.place(pod, &node);
        let reserved = self.reserve(index, pod, id);
        self.meter.ended(Stage::Reserve, Status::of(&reserved));
        reserved.map_err(|refusal| {
            self.cluster.remove_pod(pod);
            refused_at("Reserve", id, refusal)
        })
    }

    /// Runs the plugins' Reserve, and undoes it if one refuses.
    fn reserve(&mut self, index: usize, pod: &PodInfo, id: NodeId) -> Result<Vec<PreBind>, Refusal> {
        let profile = Arc::clone(&self.profiles);
        let profile = &profile[index];
        let mut plans = Vec::new();
        for &plugin in &profile.reserve {
            let (at, plugin) = ((Stage::Reserve, plugin), profile.plugin(plugin));
            let cluster = &mut self.cluster;
            match self.meter.time(at, 1, || plugin.reserve(pod, id, cluster), Status::of) {
                Ok(plan) => plans.extend(plan),
                Err(refusal) => {
                    self.unreserve(index, pod);
                    return Err(refusal.by(plugin.name()));
                }
            }
        }
        Ok(plans)
    }

    /// Undoes what plugins have reserved for a pod.
    pub(super) fn unreserve(&mut self, index: usize, pod: &PodInfo) {
        let profiles = Arc::clone(&self.profiles);
        let profile = &profiles[index];
        for &plugin in profile.reserve.iter().rev() {
            profile.plugin(plugin).unreserve(pod, &mut self.cluster);
        }
    }

    /// Looks for pods to preempt for a pod that fits nowhere, and reports the outcome.
    pub(super) fn refuse(&mut self, index: usize, pod: &Arc<PodInfo>, mut diagnosis: Diagnosis) {
        let found = self.post_filter(index, pod, &mut diagnosis);
        self.refused(index, pod, &diagnosis, found);
    }

    /// Looks for pods to preempt for a pod that fits nowhere.
    pub(super) fn post_filter(
        &mut self,
        index: usize,
        pod: &Arc<PodInfo>,
        diagnosis: &mut Diagnosis,
    ) -> Option<Found> {
        let profiles = Arc::clone(&self.profiles);
        let profile = &profiles[index];
        let mut found = None;
        if diagnosis.nodes > 0 && !diagnosis.is_error() {
            let random = self.ambient.random.next_u64();
            found = post_filter(profile, pod, &mut self.cluster, diagnosis, random);
            let status = match found {
                Some(Found::Candidate(_)) => Status::Success,
                _ => Status::Refused(Code::Unschedulable),
            };
            self.meter.ended(Stage::PostFilter, status);
        }
        self.free(pod, diagnosis);
        found
    }

    /// Has the claims freed that plugins have found in the way of a pod.
    pub(super) fn free(&self, pod: &PodInfo, diagnosis: &mut Diagnosis) {
        if !diagnosis.cleanups.is_empty() {
            self.binder.clean(pod, std::mem::take(&mut diagnosis.cleanups));
        }
    }

    /// Preempts pods for a pod that fits nowhere, if some were found, and reports the outcome.
    pub(super) fn refused(
        &mut self,
        index: usize,
        pod: &Arc<PodInfo>,
        diagnosis: &Diagnosis,
        found: Option<Found>,
    ) {
        let nominated = self.preempt(pod, found);
        self.meter.decided();
        self.measured.metrics.decided(index, &self.meter);
        info!(pod = %pod.key(), error = message_of(diagnosis), "no node is feasible");
        self.report(index, pod, diagnosis, nominated);
    }

    /// Preempts pods for a pod that fits nowhere, if some were found; returns the node that it is nominated for.
    pub(super) fn preempt(&mut self, pod: &Arc<PodInfo>, found: Option<Found>) -> Option<Arc<str>> {
        if found.is_some() {
            self.measured.metrics.preemption_tried();
        }
        match found {
            // The nomination stays as it is.
            Some(Found::NotEligible(_) | Found::Failed(_)) => pod.nominated.clone(),
            Some(Found::Nothing(_)) | None => None,
            Some(Found::Candidate(candidate)) => Some(self.evict(pod, candidate)),
        }
    }

    /// Nominates a pod for a node, and removes the victims there; returns the node.
    fn evict(&mut self, pod: &Arc<PodInfo>, candidate: Candidate) -> Arc<str> {
        let node = Arc::clone(&self.cluster.node(candidate.node).name);
        let rivals = self.cluster.nominated.on(&node).iter();
        let outdone = rivals.filter(|other| other.spec.priority < pod.spec.priority).cloned().collect();
        let mut victims = candidate.victims;
        let number = victims.len();
        victims.retain(|victim| !victim.is_terminating());
        if victims.is_empty() {
            return node;
        }
        self.measured.metrics.preempting(number);
        let deleted = self.preempt_waiting(pod, &node, victims.clone());
        self.cluster.nominated.set_preempting(&pod.uid, true);
        // Those whose bindings are called off keep their places until that is done.
        victims.retain(|victim| self.cluster.placed(victim).is_some());
        self.victims.insert(pod.uid.clone(), victims);
        let recorder = self.recorders.get(&*pod.spec.scheduler).cloned();
        let eviction = Eviction {
            preemptor: Arc::clone(pod),
            node: Arc::clone(&node),
            victims: deleted,
            outdone,
            conditions: self.binder.conditions.clone(),
            recorder,
            lanes: self.binder.lanes(),
            metrics: self.measured.metrics.clone(),
        };
        evict::spawn(eviction, self.client.clone(), self.ambient.clone(), self.updates.clone());
        node
    }

    /// Returns the pod to the queue until something helps, and writes why.
    fn report(
        &mut self,
        index: usize,
        pod: &Arc<PodInfo>,
        diagnosis: &Diagnosis,
        nominated: Option<Arc<str>>,
    ) {
        let took = self.meter.began().map_or(Duration::ZERO, |began| began.elapsed());
        self.return_to_queue(index, pod, Refused::by(diagnosis, nominated), took);
    }

    /// Returns a pod to the queue whose attempt has taken so long, and writes why.
    pub(super) fn return_to_queue(
        &mut self,
        index: usize,
        pod: &Arc<PodInfo>,
        refused: Refused,
        took: Duration,
    ) {
        let Refused { failure, reason, message, nominated } = refused;
        let verdict = if reason == "Unschedulable" { Verdict::Unschedulable } else { Verdict::Error };
        self.measured.metrics.failed(index, verdict, took);
        let current = self.pods.get(&pod.key()).filter(|current| current.uid == pod.uid);
        let Some(current) = current.filter(|current| current.node.is_none()) else {
            self.queue.done(&pod.uid);
            return;
        };
        match &nominated {
            Some(node) => self.cluster.nominated.set(&current, node),
            None => self.cluster.nominated.remove(&current),
        }
        self.queue.failed(&current, failure, &self.cluster, Instant::now());
        self.warn(&current, "FailedScheduling", message.clone());
        self.write_condition(&current, reason, message, Nomination::Of(nominated));
    }
}
