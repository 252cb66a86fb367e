//! Takes back the condition `DisruptionTarget` of pods that nobody has deleted after all.

use apiserver_client::{Cache, Object, ObjectKey};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Ledger, Outcome, Reconcile, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client};

use crate::limits::DISRUPTION_TARGET_TIMEOUT;
use crate::meta::is_deleted;
use crate::patch;
use crate::pods::{Condition, Pod, until};

/// Condition of a pod that is about to be deleted.
const TARGET: &str = "DisruptionTarget";
/// Reason of that condition if a kubelet ends the pod, which takes as long as it takes.
const BY_KUBELET: &str = "TerminationByKubelet";

/// Returns the condition of a pod that somebody was about to delete, and that is not being deleted.
pub(super) fn target(pod: &Pod) -> Option<Condition<'_>> {
    let target = pod.condition(TARGET).filter(Condition::is_true)?;
    let lasts = is_deleted(&pod.metadata) || pod.is_finished() || target.reason() == Some(BY_KUBELET);
    (!lasts).then_some(target)
}

/// Returns when the condition is to be taken back.
fn end(target: Condition<'_>) -> Timestamp {
    let since = target.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH);
    since.checked_add(DISRUPTION_TARGET_TIMEOUT).unwrap_or(Timestamp::MAX)
}

/// Returns the pod with the condition taken back.
fn cleared(pod: &v1::Pod, now: Timestamp) -> v1::Pod {
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
        let old = pod.to_api();
        if let Some(written) = patch::write_status(&api, &old, &cleared(&old, now)).await? {
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

    fn targeted(change: Value) -> v1::Pod {
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
        let target = |pod: &v1::Pod| super::target(&pod.clone().into()).is_some();
        assert!(target(&targeted(json!({}))));
        assert!(!target(&targeted(json!({"status": "False"}))));
        assert!(!target(&targeted(json!({"reason": BY_KUBELET}))));
        assert!(!target(&running("p", "n", "10.0.0.1")));
        let mut deleted = targeted(json!({}));
        deleted.metadata.deletion_timestamp = time(1);
        assert!(!target(&deleted));
        for phase in ["Succeeded", "Failed"] {
            let mut ended = targeted(json!({}));
            ended.status.as_mut().unwrap().phase = Some(phase.to_owned());
            assert!(!target(&ended), "{phase}");
        }
    }

    #[test]
    fn target_is_taken_back_two_minutes_after_it_was_set() {
        let end = |pod: &v1::Pod| super::end(target(&pod.clone().into()).unwrap());
        let pod = targeted(json!({}));
        assert_eq!(end(&pod), at(120));
        assert!(end(&targeted(json!({"lastTransitionTime": null}))) < at(0));
        let cleared = serde_json::to_value(cleared(&pod, at(120)).status.unwrap().conditions).unwrap();
        assert_eq!(cleared[0]["type"], "Ready");
        let taken_back = json!({"type": TARGET, "status": "False", "lastTransitionTime": time(120),
            "observedGeneration": 1});
        assert_eq!(cleared[1], taken_back);
    }
}
