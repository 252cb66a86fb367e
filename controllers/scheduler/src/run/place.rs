//! One attempt: find a node, reserve it, and hand the binding over; or report why there is none.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::{debug, info};

use super::Scheduler;
use super::bind::Placed;
use super::evict::{self, Eviction};
use crate::cluster::NodeId;
use crate::framework::{
    Code, Diagnosis, NominatedFirst, PreBind, Refusal, Stage, Status, best, find_feasible, score,
};
use crate::limits;
use crate::metrics::Placement;
use crate::pod::PodInfo;
use crate::preemption::{Candidate, Found, post_filter};
use crate::queue::{Attempting, Failure};

impl Scheduler {
    /// Attempts to place a pod.
    pub(super) fn attempt(&mut self, attempting: &Attempting) {
        let pod = &attempting.pod;
        let Some(index) = self.profile_of(pod) else {
            self.queue.done(&pod.uid);
            return;
        };
        if pod.is_terminating() {
            let message = format!("skip schedule deleting pod: {}", pod.key());
            self.warn(pod, "FailedScheduling", message);
            self.queue.done(&pod.uid);
            return;
        }
        if self.cluster.place_of(pod).is_some() {
            self.queue.done(&pod.uid);
            return;
        }
        if let Some(excess) = pod.spec.excess.as_deref() {
            self.give_up(pod, excess);
            return;
        }
        self.begin();
        if self.consult(attempting) {
            return;
        }
        match self.choose(index, pod) {
            Ok(id) => self.assume(index, attempting, id),
            Err(diagnosis) => self.refuse(index, pod, *diagnosis),
        }
    }

    /// Forgets a pod that asks for more than an attempt may cost, and tells its owner, unless the pod says so by now. Only a
    /// change of the pod brings it back.
    fn give_up(&mut self, pod: &Arc<PodInfo>, excess: &str) {
        self.queue.done(&pod.uid);
        if pod.refusal.as_deref().is_none_or(|(_, message)| message != excess) {
            self.warn(pod, "FailedScheduling", excess.to_owned());
            self.write_condition(pod, "Unschedulable", excess.to_owned(), None);
        }
    }

    /// Returns the best node for a pod.
    fn choose(&mut self, index: usize, pod: &PodInfo) -> Result<NodeId, Box<Diagnosis>> {
        let profile = &self.profiles[index];
        let (cluster, views, meter) = (&mut self.cluster, &mut self.views, &mut self.meter);
        let first = NominatedFirst::Yes;
        let feasible = find_feasible(profile, pod, cluster, views, self.start, first, meter)?;
        self.start = (self.start + feasible.evaluated) % cluster.capacity().max(1);
        if let [only] = feasible.nodes.as_slice() {
            return Ok(*only);
        }
        let totals = score(profile, pod, cluster, views, &feasible.nodes, meter);
        let random = self.ambient.random.next_u64();
        let best = best(&feasible.nodes, &totals, random).expect("there are feasible nodes");
        views.recycle(feasible.nodes, totals);
        Ok(best)
    }

    /// Counts a pod on its node from now on, and writes the binding.
    pub(super) fn assume(&mut self, index: usize, attempting: &Attempting, id: NodeId) {
        let pod = &attempting.pod;
        self.meter.decided();
        let node = Arc::clone(&self.cluster.node(id).name);
        debug!(pod = %pod.key(), %node, "placed");
        self.cluster.nominated.remove(pod);
        self.binder.conditions.forget(&pod.uid);
        self.cluster.place(pod, &node);
        let reserved = self.reserve(index, pod, id);
        self.meter.ended(Stage::Reserve, Status::of(&reserved));
        self.measured.metrics.decided(index, &self.meter);
        let plans = match reserved {
            Ok(plans) => plans,
            Err(refusal) => {
                self.cluster.remove_pod(pod);
                let mut diagnosis = Diagnosis { nodes: 1, ..Diagnosis::default() };
                diagnosis.refuse(id, refusal);
                self.report(index, pod, &diagnosis, None);
                return;
            }
        };
        self.cluster.devices.are_written(pod);
        // The attempt ends with the binding: a pod whose binding fails is taken back by the queue.
        self.binding.insert(pod.uid.clone(), Arc::clone(pod));
        let recorder = self.recorders.get(&self.profiles[index].name).cloned();
        let attempt = Placement {
            profile: index,
            began: self.meter.began().unwrap_or(attempting.first_attempt),
            first_attempt: attempting.first_attempt,
            attempts: attempting.attempts,
            was_flushed: attempting.was_flushed,
        };
        let extender = self.desk.binder_of(pod);
        self.binder.bind(Placed { pod: Arc::clone(pod), node, plans, extender, recorder, attempt });
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
        let profiles = Arc::clone(&self.profiles);
        let profile = &profiles[index];
        let mut found = None;
        if diagnosis.nodes > 0 && !diagnosis.is_error() {
            let random = self.ambient.random.next_u64();
            found = post_filter(profile, pod, &mut self.cluster, &mut diagnosis, random);
            let status = match found {
                Some(Found::Candidate(_)) => Status::Success,
                _ => Status::Refused(Code::Unschedulable),
            };
            self.meter.ended(Stage::PostFilter, status);
        }
        self.free(pod, &mut diagnosis);
        self.refused(index, pod, &diagnosis, found);
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
        if found.is_some() {
            self.measured.metrics.preemption_tried();
        }
        let nominated = match found {
            // The nomination stays as it is.
            Some(Found::NotEligible(_) | Found::Failed(_)) => pod.nominated.clone(),
            Some(Found::Nothing(_)) | None => None,
            Some(Found::Candidate(candidate)) => Some(self.evict(pod, candidate)),
        };
        self.meter.decided();
        self.measured.metrics.decided(index, &self.meter);
        info!(pod = %pod.key(), error = message_of(diagnosis), "no node is feasible");
        self.report(index, pod, diagnosis, nominated);
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
        self.cluster.nominated.set_preempting(&pod.uid, true);
        self.victims.insert(pod.uid.clone(), victims.clone());
        let recorder = self.recorders.get(&*pod.spec.scheduler).cloned();
        let eviction = Eviction {
            preemptor: Arc::clone(pod),
            node: Arc::clone(&node),
            victims,
            outdone,
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
        let failure = Failure {
            plugins: diagnosis.plugins.clone(),
            pending: diagnosis.pending.clone(),
            is_error: diagnosis.is_error(),
        };
        self.failed(index, failure.is_error);
        let reason = if failure.is_error { "SchedulerError" } else { "Unschedulable" };
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
        let message = message_of(diagnosis);
        self.warn(&current, "FailedScheduling", message.clone());
        self.write_condition(&current, reason, message, nominated);
    }
}

/// Returns the text of a diagnosis for the pod's condition, cut if it is very long.
fn message_of(diagnosis: &Diagnosis) -> String {
    const CUT: &str = " …";
    let mut message = diagnosis.to_string();
    if message.len() > limits::CONDITION_MESSAGE {
        message.truncate(message.floor_char_boundary(limits::CONDITION_MESSAGE - CUT.len()));
        message.push_str(CUT);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_differs_for_each_node_is_cut() {
        let mut diagnosis = Diagnosis { nodes: 5000, ..Diagnosis::default() };
        for id in 0..5000 {
            diagnosis.refuse(NodeId::new(id), Refusal::unschedulable(format!("reason {id} for the node ä")));
        }
        let message = message_of(&diagnosis);
        assert!(message.len() <= limits::CONDITION_MESSAGE, "{}", message.len());
        assert!(message.starts_with("0/5000 nodes are available: 1 reason 0 for") && message.ends_with(" …"));
        let short = Diagnosis { nodes: 1, ..Diagnosis::default() };
        assert_eq!(message_of(&short), short.to_string());
    }
}
