//! Permit: a placed pod is bound at once, or waits for plugins without holding up the loop, or loses its place.

use std::sync::Arc;

use apiserver_meta::period::Period;
use apiserver_meta::uid::Uid;
use tokio::time::Instant;
use tracing::{debug, info};

use super::Scheduler;
use super::bind::{Placed, reference};
use super::report::{Nomination, message_of};
use super::waiting::Expired;
use crate::cluster::NodeId;
use crate::framework::{Code, Diagnosis, Permitted, PreBind, Refusal, Stage, Status, Waits, permit};
use crate::metrics::{Placement, Verdict};
use crate::pod::PodInfo;
use crate::queue::{Attempting, Failure};

impl Scheduler {
    /// Asks plugins if a placed pod may be bound, and carries out what they decide about others. A pod that is refused loses
    /// its place.
    pub(super) fn permit(
        &mut self,
        index: usize,
        pod: &Arc<PodInfo>,
        id: NodeId,
    ) -> Result<Waits, Box<Diagnosis>> {
        if self.profiles[index].permit.is_empty() {
            return Ok(Waits::default());
        }
        let answers = self.ask(index, pod, id);
        for (uid, plugin) in answers.allows {
            if let Some((placed, since)) = self.waiting.allow(&uid, plugin) {
                self.allowed(placed, since);
            }
        }
        for (group, plugin) in answers.allowed_groups {
            for (placed, since) in self.waiting.allow_group(&group, plugin) {
                self.allowed(placed, since);
            }
        }
        for (uid, refusal) in answers.rejects {
            self.reject(&uid, refusal);
        }
        let now = Instant::now();
        self.queue.activate(&answers.activates, &self.cluster, now);
        for group in &answers.activated_groups {
            self.queue.activate_group(group, &self.cluster, now);
        }
        answers.answer.map_err(|refusal| refused_at("Permit", id, refusal))
    }

    /// Binds a pod that has waited for the permission.
    fn allowed(&mut self, placed: Placed, since: Instant) {
        self.measured.metrics.permit_waited(Status::Success, since.elapsed());
        self.binder.conditions.forget(&placed.pod.uid);
        self.begin_binding(placed);
    }

    /// Asks plugins if a placed pod may be bound, without any effect on others. A pod that is refused loses its place.
    pub(super) fn may_permit(
        &mut self,
        index: usize,
        pod: &PodInfo,
        id: NodeId,
    ) -> Result<Waits, Box<Diagnosis>> {
        if self.profiles[index].permit.is_empty() {
            return Ok(Waits::default());
        }
        self.ask(index, pod, id).answer.map_err(|refusal| refused_at("Permit", id, refusal))
    }

    fn ask(&mut self, index: usize, pod: &PodInfo, id: NodeId) -> Permitted {
        let began = Instant::now();
        let answers = permit(&self.profiles[index], pod, id, &self.cluster, &mut self.meter);
        let status = status(&answers.answer);
        self.measured.metrics.stage(index, Stage::Permit, status, began.elapsed());
        if answers.answer.is_err() {
            self.displace(index, pod);
        }
        answers
    }

    /// Hands a pod that is placed and reserved to its binding, once the plugins permit it that it waits for.
    pub(super) fn bind_when_permitted(
        &mut self,
        (index, began): (usize, Instant),
        attempting: &Attempting,
        id: NodeId,
        plans: Vec<PreBind>,
        waits: &Waits,
    ) {
        let pod = &attempting.pod;
        // The attempt ends with the binding: a pod whose binding fails is taken back by the queue.
        self.binding.insert(pod.uid.clone(), Arc::clone(pod));
        let attempt = Placement {
            profile: index,
            began,
            first_attempt: attempting.first_attempt,
            attempts: attempting.attempts,
            was_flushed: attempting.was_flushed,
        };
        let placed = Placed {
            pod: Arc::clone(pod),
            node: Arc::clone(&self.cluster.node(id).name),
            plans,
            extender: self.desk.binder_of(pod),
            recorder: self.recorders.get(&self.profiles[index].name).cloned(),
            attempt,
        };
        if waits.plugins.is_empty() {
            return self.begin_binding(placed);
        }
        debug!(pod = %pod.key(), node = %placed.node, reason = waits.message, "waits for the permission to be bound");
        self.write_nomination(pod, &placed.node);
        let group = self.cluster.groups.scheduled_with(pod);
        self.waiting.add((&pod.uid, group), placed, &waits.plugins, Instant::now());
    }

    fn begin_binding(&mut self, placed: Placed) {
        self.cluster.devices.are_written(&placed.pod);
        self.binder.bind(placed);
    }

    /// Removes a pod from its node before its binding, with all that was reserved for it.
    pub(super) fn displace(&mut self, index: usize, pod: &PodInfo) {
        self.unreserve(index, pod);
        self.cluster.remove_pod(pod);
    }

    /// Takes its place from a waiting pod, and returns it to the queue; other pods are not affected.
    pub(super) fn reject(&mut self, uid: &Uid, refusal: Refusal) {
        let Some((placed, since)) = self.waiting.remove(uid) else { return };
        let (pod, attempt, now) = (placed.pod, placed.attempt, Instant::now());
        self.measured.metrics.permit_waited(Status::Refused(refusal.code), now - since);
        let (id, as_placed) = (self.cluster.place_of(&pod), self.as_placed(&pod));
        self.displace(attempt.profile, &pod);
        self.binding.remove(uid);
        let diagnosis = match refusal.code {
            Code::Error => {
                let error = Some(format!("waiting on permit for pod: {}", refusal.message()));
                Box::new(Diagnosis { nodes: 1, error, ..Diagnosis::default() })
            }
            _ => refused_at("Permit", id.unwrap_or(NodeId::new(0)), refusal),
        };
        let verdict = if diagnosis.is_error() { Verdict::Error } else { Verdict::Unschedulable };
        self.measured.metrics.failed(attempt.profile, verdict, now - attempt.began);
        info!(pod = %pod.key(), error = message_of(&diagnosis), "not permitted");
        self.give_back(&pod, &diagnosis, now);
        // Its place, and all that was reserved for it, is free for others.
        self.queue.displaced(&as_placed, &self.cluster, now);
    }

    /// Returns a pod that was placed to the queue, and writes why.
    fn give_back(&mut self, pod: &PodInfo, diagnosis: &Diagnosis, now: Instant) {
        let current = self.pods.get(&pod.key()).filter(|current| current.uid == pod.uid);
        let Some(current) = current.filter(|current| current.node.is_none()) else {
            self.queue.done(&pod.uid);
            return;
        };
        // Updates of a placed pod have not reached the queue.
        self.queue.add(Arc::clone(&current), &self.cluster, now);
        if current.is_terminating() {
            self.queue.done(&current.uid);
        } else {
            self.queue.failed(&current, Failure::from(diagnosis), &self.cluster, now);
        }
        let message = message_of(diagnosis);
        self.warn(&current, "FailedScheduling", message.clone());
        self.write_condition(&current, diagnosis.reason(), message, Nomination::Cleared);
    }

    /// Rejects the pods that have waited for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(Expired { uid, plugin, timeout }) = self.waiting.expired(now) {
            let timeout = Period::milliseconds(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX));
            let reason = format!("rejected due to timeout after waiting {timeout} at plugin {plugin}");
            self.reject(&uid, Refusal::unschedulable(reason).by(plugin));
        }
    }

    /// Rejects a waiting pod that is being deleted; returns `false` if the pod does not wait.
    pub(super) fn reject_deleted(&mut self, uid: &Uid) -> bool {
        let waits = self.waiting.contains(uid);
        self.reject(uid, Refusal::unschedulable("removed"));
        waits
    }

    /// Ends the wait of a pod that has been bound by somebody else, or is gone.
    pub(super) fn stop_waiting(&mut self, uid: &Uid) {
        if let Some((placed, since)) = self.waiting.remove(uid) {
            let status = Status::Refused(Code::Unschedulable);
            self.measured.metrics.permit_waited(status, since.elapsed());
            self.unreserve(placed.attempt.profile, &placed.pod);
        }
    }

    /// Takes their places from those of the victims that are not about to be bound yet, which need not be deleted; returns
    /// the others.
    pub(super) fn preempt_waiting(
        &mut self,
        preemptor: &PodInfo,
        node: &str,
        victims: Vec<Arc<PodInfo>>,
    ) -> Vec<Arc<PodInfo>> {
        let mut others = Vec::new();
        for victim in victims {
            if self.waiting.contains(&victim.uid) {
                self.reject(&victim.uid, Refusal::new(Code::Error, "preempted").by("DefaultPreemption"));
            } else if !self.binder.call_off(&victim.uid) {
                others.push(victim);
                continue;
            }
            if let Some(recorder) = self.recorders.get(&*preemptor.spec.scheduler) {
                let message =
                    format!("Preempted by pod {} on node {node} (in kube-scheduler memory).", preemptor.uid);
                let about = apiserver_client::About {
                    regarding: reference(&victim),
                    related: Some(reference(preemptor)),
                };
                recorder.normal(about, "Preempted", "Preempting", message);
            }
        }
        others
    }
}

fn status(answer: &Result<Waits, Refusal>) -> Status {
    match answer {
        Ok(waits) if waits.plugins.is_empty() => Status::Success,
        Ok(_) => Status::Wait,
        Err(refusal) => Status::Refused(refusal.code),
    }
}

/// Returns the diagnosis of a pod that a plugin has refused on the node that was chosen.
pub(super) fn refused_at(stage: &str, id: NodeId, refusal: Refusal) -> Box<Diagnosis> {
    let mut diagnosis = Box::new(Diagnosis { nodes: 1, ..Diagnosis::default() });
    if refusal.code == Code::Error {
        let error = format!("running {stage} plugin {:?}: {}", refusal.plugin, refusal.message());
        diagnosis.error = Some(error);
    } else {
        diagnosis.refuse(id, refusal);
    }
    diagnosis
}

#[cfg(test)]
mod tests;
