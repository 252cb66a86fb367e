//! Writes to users why a pod waits: events, and the condition `PodScheduled`; and the condition of a group.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tracing::debug;

use super::Scheduler;
use super::bind::reference;
use crate::framework::Diagnosis;
use crate::limits;
use crate::pod::PodInfo;
use crate::queue::Failure;

/// The end of an attempt that has not led to a binding.
pub(super) struct Refused {
    pub failure: Failure,
    /// Reason of the condition.
    pub reason: &'static str,
    pub message: String,
    /// The node that the pod is nominated for from now on.
    pub nominated: Option<Arc<str>>,
}

impl Refused {
    pub fn by(diagnosis: &Diagnosis, nominated: Option<Arc<str>>) -> Self {
        let (failure, message) = (Failure::from(diagnosis), message_of(diagnosis));
        Self { failure, reason: diagnosis.reason(), message, nominated }
    }
}

/// The end of an attempt to schedule a PodGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupCondition {
    pub is_scheduled: bool,
    pub reason: &'static str,
    pub message: String,
}

/// The node that a pod without a node shows as the one that it may get.
pub(super) enum Nomination {
    /// This one, or none.
    Of(Option<Arc<str>>),
    /// None; one may have been written that is not known from the pod yet.
    Cleared,
}

impl Scheduler {
    /// Records that a pod was not scheduled.
    pub(super) fn warn(&self, pod: &PodInfo, reason: &'static str, message: String) {
        if let Some(recorder) = self.recorders.get(&*pod.spec.scheduler) {
            recorder.warning(reference(pod), reason, "Scheduling", message);
        }
    }

    /// Writes the condition of a pod that was refused, and the node that it is nominated for. Nothing is written if the pod
    /// shows both already.
    pub(super) fn write_condition(
        &self,
        pod: &Arc<PodInfo>,
        reason: &'static str,
        message: String,
        nominated: Nomination,
    ) {
        let shown = pod.refusal.as_deref().is_some_and(|(why, text)| why == reason && *text == message);
        let (nominated, is_new) = match nominated {
            Nomination::Of(node) => (node.clone(), node != pod.nominated),
            Nomination::Cleared => (None, true),
        };
        if shown && !is_new {
            return;
        }
        let changed = pod.refusal.as_deref().is_none_or(|(why, _)| why.is_empty());
        let mut condition = json!({
            "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "observedGeneration": pod.metadata.generation(),
        });
        if changed {
            condition["lastTransitionTime"] = json!(Time(self.ambient.now()));
        }
        let mut status = json!({"conditions": [condition]});
        if is_new {
            // Null removes the field.
            status["nominatedNodeName"] = json!(nominated.as_deref());
        }
        let patch = json!({"metadata": {"uid": pod.uid.to_string()}, "status": status});
        self.binder.conditions.write_pod(pod, patch);
    }

    /// Writes the node that a pod waits on until it may be bound.
    pub(super) fn write_nomination(&self, pod: &Arc<PodInfo>, node: &Arc<str>) {
        if pod.nominated.as_ref() != Some(node) {
            let patch =
                json!({"metadata": {"uid": pod.uid.to_string()}, "status": {"nominatedNodeName": &**node}});
            self.binder.conditions.write_pod(pod, patch);
        }
    }

    /// Writes how the attempt to schedule a PodGroup has ended.
    pub(super) fn write_group_condition(&self, key: &ObjectKey, ended: GroupCondition) {
        let Some(group) = self.cluster.groups.object(key) else {
            return debug!(group = %key, "the PodGroup is gone, and its condition is not written");
        };
        if let Some(patch) = group_patch(group, ended, self.ambient.now()) {
            let uid = Uid::from(group.metadata.uid.as_deref().unwrap_or_default());
            self.binder.conditions.write(&uid, Subject::Group(key.clone()), patch);
        }
    }
}

/// Returns the change of a PodGroup's status after an attempt; `None` if the group shows the end of it already, or that it was
/// scheduled before.
fn group_patch(group: &PodGroup, ended: GroupCondition, now: Timestamp) -> Option<Value> {
    const KIND: &str = "PodGroupScheduled";
    let conditions = group.status.as_ref().and_then(|status| status.conditions.as_deref());
    let shown = conditions.unwrap_or_default().iter().find(|condition| condition.type_ == KIND);
    let status = if ended.is_scheduled { "True" } else { "False" };
    let generation = group.metadata.generation.unwrap_or_default();
    if let Some(shown) = shown {
        let is_same = shown.status == status
            && shown.reason == ended.reason
            && shown.message == ended.message
            && shown.observed_generation.unwrap_or_default() == generation;
        if is_same || shown.status == "True" && !ended.is_scheduled {
            return None;
        }
    }
    let mut condition = json!({
        "type": KIND, "status": status, "reason": ended.reason, "message": ended.message,
        "observedGeneration": generation,
    });
    if shown.is_none_or(|shown| shown.status != status) {
        condition["lastTransitionTime"] = json!(Time(now));
    }
    Some(json!({"metadata": {"uid": group.metadata.uid}, "status": {"conditions": [condition]}}))
}

/// The next step of the task that writes the status of a pod.
enum Next {
    Send(Value),
    /// Nothing is to be sent but what is being sent, again if that fails.
    Repeat,
    /// Nothing is to be sent any more.
    End,
}

/// The object whose status is written.
#[derive(Clone)]
enum Subject {
    Pod(Arc<PodInfo>),
    Group(ObjectKey),
}

impl Subject {
    fn key(&self) -> ObjectKey {
        match self {
            Self::Pod(pod) => pod.key(),
            Self::Group(key) => key.clone(),
        }
    }

    async fn patch(&self, client: &Client, patch: &Value) -> kube::Result<()> {
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        match self {
            Self::Pod(pod) => {
                let pods = Api::<Pod>::namespaced(client.clone(), pod.namespace());
                pods.patch_status(pod.name(), &params, &patch).await.map(drop)
            }
            Self::Group(key) => {
                let groups = Api::<PodGroup>::namespaced(client.clone(), &key.namespace);
                groups.patch_status(&key.name, &params, &patch).await.map(drop)
            }
        }
    }
}

/// Writes statuses of pods that wait, and of groups, in their order for each. One that is not sent yet is replaced by the
/// next, so that a slow API does not make them pile up.
#[derive(Clone)]
pub(super) struct Conditions {
    client: Client,
    /// Bounds the requests in flight.
    lanes: Arc<Semaphore>,
    /// The next step for each object that a task works for.
    waiting: Arc<Mutex<BTreeMap<Uid, Next>>>,
}

impl Conditions {
    pub fn new(client: Client, lanes: Arc<Semaphore>) -> Self {
        Self { client, lanes, waiting: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uid, Next>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of objects whose status is being written.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Drops what is not sent yet: the pod has a node now.
    pub fn forget(&self, uid: &Uid) {
        if let Some(waiting) = self.lock().get_mut(uid) {
            *waiting = Next::End;
        }
    }

    fn write_pod(&self, pod: &Arc<PodInfo>, patch: Value) {
        self.write(&pod.uid, Subject::Pod(Arc::clone(pod)), patch);
    }

    fn write(&self, uid: &Uid, subject: Subject, patch: Value) {
        if self.lock().insert(uid.clone(), Next::Send(patch)).is_some() {
            return;
        }
        tokio::spawn(self.clone().write_all(uid.clone(), subject));
    }

    /// Sends what there is for an object. A pod that waits may not be tried again for minutes, so that what has failed by the
    /// API's bad day is repeated, unless there is something newer.
    async fn write_all(self, uid: Uid, subject: Subject) {
        let (mut failures, mut pause) = (0, limits::RESOLVE_PAUSE);
        loop {
            let lane = self.lanes.acquire().await;
            let Some(patch) = self.next(&uid) else { return };
            let patched = subject.patch(&self.client, &patch).await;
            drop(lane);
            let Err(error) = patched else { continue };
            debug!(object = %subject.key(), %error, "cannot write the status");
            failures += 1;
            if failures < limits::STATUS_ATTEMPTS && may_pass(&error) {
                self.put_back(&uid, patch);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(limits::RESOLVE_PAUSE_MAX);
            }
        }
    }

    /// Returns what is to be sent for a pod; if that is nothing, its task ends.
    fn next(&self, uid: &Uid) -> Option<Value> {
        let mut waiting = self.lock();
        match std::mem::replace(waiting.get_mut(uid)?, Next::Repeat) {
            Next::Send(patch) => Some(patch),
            Next::Repeat | Next::End => {
                waiting.remove(uid);
                None
            }
        }
    }

    /// Has a status sent again, unless there is a newer one or none is to be sent any more.
    fn put_back(&self, uid: &Uid, patch: Value) {
        if let Some(waiting @ Next::Repeat) = self.lock().get_mut(uid) {
            *waiting = Next::Send(patch);
        }
    }
}

/// Returns `true` if a request that has failed may succeed later.
fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

/// Returns the text of a diagnosis for the pod's condition, cut if it is very long.
pub(super) fn message_of(diagnosis: &Diagnosis) -> String {
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
    use crate::cluster::NodeId;
    use crate::framework::Refusal;

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

    /// Returns a group of generation 5, with the condition that it shows.
    fn group(shown: Option<(bool, &str, &str)>) -> PodGroup {
        let condition = |(is_scheduled, reason, message): (bool, &str, &str)| {
            json!({"type": "PodGroupScheduled", "status": if is_scheduled { "True" } else { "False" },
                "reason": reason, "message": message, "observedGeneration": 5,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        serde_json::from_value(json!({
            "metadata": {"name": "g", "namespace": "ns", "uid": "u", "generation": 5},
            "spec": {"schedulingPolicy": {"basic": {}}},
            "status": {"conditions": shown.map(condition).into_iter().collect::<Vec<_>>()},
        }))
        .unwrap()
    }

    /// Covers 11 of the 12 cases that kube-scheduler's tests of this condition name; the other one is that of a missing group.
    #[test]
    fn condition_of_a_group_follows_its_attempts_but_not_back_from_scheduled() {
        let now: Timestamp = "2026-02-02T00:00:00Z".parse().unwrap();
        let (scheduled, refused, failed) =
            ((true, "Scheduled", ""), (false, "Unschedulable", "a"), (false, "SchedulerError", "b"));
        for (shown, (is_scheduled, reason, message), is_written, is_transition) in [
            (None, scheduled, true, true),
            (None, refused, true, true),
            (None, failed, true, true),
            (Some(refused), scheduled, true, true),
            (Some(failed), scheduled, true, true),
            (Some(scheduled), refused, false, false),
            (Some(scheduled), failed, false, false),
            (Some(refused), failed, true, false),
            (Some(failed), refused, true, false),
            (Some(scheduled), scheduled, false, false),
            (Some((true, "Scheduled", "other")), scheduled, true, false),
            (Some(refused), refused, false, false),
        ] {
            let ended = GroupCondition { is_scheduled, reason, message: message.to_owned() };
            let patch = group_patch(&group(shown), ended, now);
            assert_eq!(patch.is_some(), is_written, "{shown:?} {reason}");
            let Some(patch) = patch else { continue };
            assert_eq!(patch["metadata"]["uid"], "u");
            let condition = &patch["status"]["conditions"][0];
            let status = if is_scheduled { "True" } else { "False" };
            assert_eq!((&condition["status"], &condition["reason"]), (&json!(status), &json!(reason)));
            assert_eq!(
                (&condition["message"], &condition["observedGeneration"]),
                (&json!(message), &json!(5))
            );
            assert_eq!(
                condition["lastTransitionTime"] == json!(Time(now)),
                is_transition,
                "{shown:?} {reason}"
            );
        }
    }
}
