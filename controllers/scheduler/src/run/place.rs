//! One attempt: find a node, reserve it, and hand the binding over; or report why there is none.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::{debug, info};

use super::Scheduler;
use super::bind::Placed;
use super::evict::{self, Eviction};
use crate::cluster::NodeId;
use crate::framework::{Diagnosis, NominatedFirst, PreBind, Refusal, best, find_feasible, score};
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
        match self.choose(index, pod) {
            Ok(id) => self.assume(index, pod, id),
            Err(diagnosis) => self.refuse(index, pod, *diagnosis),
        }
    }

    /// Returns the best node for a pod.
    fn choose(&mut self, index: usize, pod: &PodInfo) -> Result<NodeId, Box<Diagnosis>> {
        let profile = &self.profiles[index];
        let (cluster, views) = (&mut self.cluster, &mut self.views);
        let feasible = find_feasible(profile, pod, cluster, views, self.start, NominatedFirst::Yes)?;
        self.start = (self.start + feasible.evaluated) % cluster.capacity().max(1);
        if let [only] = feasible.nodes.as_slice() {
            return Ok(*only);
        }
        let totals = score(profile, pod, cluster, views, &feasible.nodes);
        let random = self.ambient.random.next_u64();
        Ok(best(&feasible.nodes, &totals, random).expect("there are feasible nodes"))
    }

    /// Counts a pod on its node from now on, and writes the binding.
    fn assume(&mut self, index: usize, pod: &Arc<PodInfo>, id: NodeId) {
        let node = Arc::clone(&self.cluster.node(id).name);
        debug!(pod = %pod.key(), %node, "placed");
        self.cluster.nominated.remove(pod);
        self.cluster.place(pod, &node);
        let plans = match self.reserve(index, pod, id) {
            Ok(plans) => plans,
            Err(refusal) => {
                self.cluster.remove_pod(pod);
                let mut diagnosis = Diagnosis { nodes: 1, ..Diagnosis::default() };
                diagnosis.refuse(id, refusal);
                self.report(pod, &diagnosis, None);
                return;
            }
        };
        // The attempt ends with the binding: a pod whose binding fails is taken back by the queue.
        self.binding.insert(pod.uid.clone(), Arc::clone(pod));
        let recorder = self.recorders.get(&self.profiles[index].name).cloned();
        self.binder.bind(Placed { pod: Arc::clone(pod), node, plans, recorder });
    }

    /// Runs the plugins' Reserve, and undoes it if one refuses.
    fn reserve(&mut self, index: usize, pod: &PodInfo, id: NodeId) -> Result<Vec<PreBind>, Refusal> {
        let profile = Arc::clone(&self.profiles);
        let profile = &profile[index];
        let mut plans = Vec::new();
        for &plugin in &profile.reserve {
            let plugin = profile.plugin(plugin);
            match plugin.reserve(pod, id, &mut self.cluster) {
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
    fn refuse(&mut self, index: usize, pod: &Arc<PodInfo>, mut diagnosis: Diagnosis) {
        let profiles = Arc::clone(&self.profiles);
        let profile = &profiles[index];
        let mut nominated = None;
        if diagnosis.nodes > 0 && !diagnosis.is_error() {
            let random = self.ambient.random.next_u64();
            nominated = match post_filter(profile, pod, &mut self.cluster, &mut diagnosis, random) {
                // The nomination stays as it is.
                Some(Found::NotEligible(_)) => pod.nominated.clone(),
                Some(Found::Nothing(_)) | None => None,
                Some(Found::Candidate(candidate)) => Some(self.evict(pod, candidate)),
            };
        }
        info!(pod = %pod.key(), error = %diagnosis, "no node is feasible");
        self.report(pod, &diagnosis, nominated);
    }

    /// Nominates a pod for a node, and removes the victims there; returns the node.
    fn evict(&mut self, pod: &Arc<PodInfo>, candidate: Candidate) -> Arc<str> {
        let node = Arc::clone(&self.cluster.node(candidate.node).name);
        let rivals = self.cluster.nominated.on(&node).iter();
        let outdone = rivals.filter(|other| other.spec.priority < pod.spec.priority).cloned().collect();
        let mut victims = candidate.victims;
        victims.retain(|victim| !victim.is_terminating());
        if victims.is_empty() {
            return node;
        }
        self.cluster.nominated.set_preempting(&pod.uid, true);
        self.victims.insert(pod.uid.clone(), victims.clone());
        let recorder = self.recorders.get(&*pod.spec.scheduler).cloned();
        let eviction =
            Eviction { preemptor: Arc::clone(pod), node: Arc::clone(&node), victims, outdone, recorder };
        evict::spawn(eviction, self.client.clone(), self.ambient.clone(), self.updates.clone());
        node
    }

    /// Returns the pod to the queue until something helps, and writes why.
    fn report(&mut self, pod: &Arc<PodInfo>, diagnosis: &Diagnosis, nominated: Option<Arc<str>>) {
        let failure = Failure {
            plugins: diagnosis.plugins.clone(),
            pending: diagnosis.pending.clone(),
            is_error: diagnosis.is_error(),
        };
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
        let message = diagnosis.to_string();
        self.warn(&current, "FailedScheduling", message.clone());
        self.write_condition(&current, reason, message, nominated);
    }
}
