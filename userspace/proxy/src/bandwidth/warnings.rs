//! Reports annotations that are not followed to the owners of pods: in the log, and as a Warning Event about
//! the pod. Each is reported once for as long as the pod has it, and the number of Events is bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_client::events::Recorder;
use k8s_openapi::api::core::v1::ObjectReference;
use tracing::warn;

use super::annotation::Fault;
use super::limiter::Known;
use crate::event_budget::EventBudget;

/// The reason of the Events.
const REASON: &str = "InvalidBandwidth";

/// The warnings that have been reported.
pub(crate) struct PodWarnings {
    /// `None` if there is no API server.
    recorder: Option<Recorder>,
    told: BTreeMap<ObjectKey, Vec<Fault>>,
    budget: EventBudget,
}

impl PodWarnings {
    pub fn new(recorder: Option<Recorder>) -> Self {
        Self { recorder, told: BTreeMap::new(), budget: EventBudget::new() }
    }

    /// Reports the new faults of a pod, and forgets those that it has no more; `None` if it is gone.
    pub fn report_new(&mut self, key: &ObjectKey, pod: Option<Known<'_>>) {
        let pod = pod.and_then(|(uid, pod)| Some((uid, pod.filter(|pod| !pod.faults.is_empty())?)));
        let Some((uid, pod)) = pod else {
            self.told.remove(key);
            return;
        };
        let told = self.told.insert(key.clone(), pod.faults.clone()).unwrap_or_default();
        for fault in pod.faults.iter().filter(|fault| !told.contains(fault)) {
            if !self.budget.may_write(&Arc::from(key.to_string())) {
                return;
            }
            warn!(pod = %key, "ignored: {fault}");
            if let Some(recorder) = &self.recorder {
                // Shared with the process before this one.
                recorder.shared_warning(reference(key, uid), REASON, fault.to_string());
            }
        }
    }
}

fn reference(key: &ObjectKey, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
