//! Writes to users why a pod waits: events, and the condition `PodScheduled`; and the condition of a group.

use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use jiff::Timestamp;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use tracing::debug;

use super::Scheduler;
use super::bind::reference;
use super::conditions::{PodStatus, Refusal};
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
        let (generation, at) = (pod.metadata.generation(), self.ambient.now());
        let refusal = Some(Refusal { reason, message, generation, at });
        let (node, is_certain) = match nominated {
            Nomination::Of(node) => (node, true),
            Nomination::Cleared => (None, false),
        };
        let status = PodStatus { refusal, nomination: Some(node) };
        self.binder.conditions.write_pod(pod, status, is_certain);
    }

    /// Writes the node that a pod waits on until it may be bound.
    pub(super) fn write_nomination(&self, pod: &Arc<PodInfo>, node: &Arc<str>) {
        let status = PodStatus { nomination: Some(Some(Arc::clone(node))), ..PodStatus::default() };
        self.binder.conditions.write_pod(pod, status, true);
    }

    /// Writes how the attempt to schedule a PodGroup has ended.
    pub(super) fn write_group_condition(&self, key: &ObjectKey, ended: GroupCondition) {
        let Some(group) = self.cluster.groups.object(key) else {
            return debug!(group = %key, "the PodGroup is gone, and its condition is not written");
        };
        if let Some(patch) = group_patch(group, ended, self.ambient.now()) {
            let uid = Uid::from(group.metadata.uid.as_deref().unwrap_or_default());
            self.binder.conditions.write_group(&uid, key.clone(), patch);
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
    use crate::framework;

    #[test]
    fn text_that_differs_for_each_node_is_cut() {
        let mut diagnosis = Diagnosis { nodes: 5000, ..Diagnosis::default() };
        for id in 0..5000 {
            diagnosis.refuse(
                NodeId::new(id),
                framework::Refusal::unschedulable(format!("reason {id} for the node ä")),
            );
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
