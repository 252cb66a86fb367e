//! Takes back the condition `DisruptionTarget` of pods that nobody has deleted after all.

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::pods::{condition, is_finished};
use controllers_runtime::{Ledger, Outcome, Reconcile, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client};

use crate::limits::DISRUPTION_TARGET_TIMEOUT;
use crate::meta::is_deleted;
use crate::patch;
use crate::pods::until;

/// Condition of a pod that is about to be deleted.
const TARGET: &str = "DisruptionTarget";
/// Reason of that condition if a kubelet ends the pod, which takes as long as it takes.
const BY_KUBELET: &str = "TerminationByKubelet";

/// Returns the condition of a pod that somebody was about to delete, and that is not being deleted.
pub(super) fn target(pod: &Pod) -> Option<&PodCondition> {
    let target = condition(pod, TARGET).filter(|target| target.status == "True")?;
    let lasts = is_deleted(&pod.metadata) || is_finished(pod) || target.reason.as_deref() == Some(BY_KUBELET);
    (!lasts).then_some(target)
}

/// Returns when the condition is to be taken back.
fn end(target: &PodCondition) -> Timestamp {
    let since = target.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |since| since.0);
    since.checked_add(DISRUPTION_TARGET_TIMEOUT).unwrap_or(Timestamp::MAX)
}

/// Returns the pod with the condition taken back.
fn cleared(pod: &Pod, now: Timestamp) -> Pod {
    let mut pod = pod.clone();
    let generation = pod.metadata.generation;
    let conditions = pod.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten());
    for condition in conditions.filter(|condition| condition.type_ == TARGET) {
        *condition = PodCondition {
            type_: TARGET.to_owned(),
            status: "False".to_owned(),
            last_transition_time: Some(Time(now)),
            observed_generation: generation,
            ..PodCondition::default()
        };
    }
    pod
}

/// The controller of these conditions.
pub(super) struct StaleTargets {
    pub client: Client,
    pub ambient: Ambient,
    pub pods: Cache<Pod>,
    pub written: Ledger<ObjectKey>,
}

impl Reconcile for StaleTargets {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        // Checked before the cache is read: what it shows by now cannot be missing below.
        let shown = self.written.is_shown(key, &self.pods);
        let Some(pod) = self.pods.get(key) else {
            self.written.forget(key);
            return Ok(Outcome::Done);
        };
        let Some(target) = target(&pod) else { return Ok(Outcome::Done) };
        if !shown {
            return Ok(Outcome::Behind);
        }
        let (now, end) = (self.ambient.now(), end(target));
        if end > now {
            return Ok(Outcome::After(until(end, now)));
        }
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        if let Some(written) = patch::write_status(&api, pod.as_ref(), &cleared(&pod, now)).await? {
            self.written.wrote(key, &written);
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, running, time};
    use serde_json::{Value, json};

    fn targeted(change: Value) -> Pod {
        let mut target = json!({"type": TARGET, "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastTransitionTime": time(0)});
        for (field, value) in change.as_object().unwrap() {
            target[field] = value.clone();
        }
        let mut pod = running("p", "n", "10.0.0.1");
        let conditions = pod.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.push(serde_json::from_value(target).unwrap());
        pod
    }

    #[test]
    fn only_the_target_of_a_disruption_that_did_not_happen_is_stale() {
        assert!(target(&targeted(json!({}))).is_some());
        assert!(target(&targeted(json!({"status": "False"}))).is_none());
        assert!(target(&targeted(json!({"reason": BY_KUBELET}))).is_none());
        assert!(target(&running("p", "n", "10.0.0.1")).is_none());
        let mut deleted = targeted(json!({}));
        deleted.metadata.deletion_timestamp = time(1);
        assert!(target(&deleted).is_none());
        for phase in ["Succeeded", "Failed"] {
            let mut ended = targeted(json!({}));
            ended.status.as_mut().unwrap().phase = Some(phase.to_owned());
            assert!(target(&ended).is_none(), "{phase}");
        }
    }

    #[test]
    fn target_is_taken_back_two_minutes_after_it_was_set() {
        let pod = targeted(json!({}));
        assert_eq!(end(target(&pod).unwrap()), at(120));
        let untimed = targeted(json!({"lastTransitionTime": null}));
        assert!(end(target(&untimed).unwrap()) < at(0));
        let cleared = serde_json::to_value(cleared(&pod, at(120)).status.unwrap().conditions).unwrap();
        assert_eq!(cleared[0]["type"], "Ready");
        let taken_back = json!({"type": TARGET, "status": "False", "lastTransitionTime": time(120),
            "observedGeneration": 1});
        assert_eq!(cleared[1], taken_back);
    }
}
