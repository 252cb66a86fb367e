//! Writes to users why a pod waits: events, and the condition `PodScheduled`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tracing::debug;

use super::Scheduler;
use super::bind::reference;
use crate::limits;
use crate::pod::PodInfo;

/// Ends a message that was cut.
const CUT: &str = " ...";

/// The actions of events by their reasons, as kube-scheduler names them.
pub(super) const ACTIONS: &[(&str, &str)] =
    &[("Scheduled", "Binding"), ("FailedScheduling", "Scheduling"), ("Preempted", "Preempting")];

impl Scheduler {
    /// Records a warning about a pod.
    pub(super) fn warn(&self, pod: &PodInfo, reason: &'static str, mut message: String) {
        if message.len() > limits::NOTE {
            message.truncate(message.floor_char_boundary(limits::NOTE - CUT.len()));
            message.push_str(CUT);
        }
        if let Some(recorder) = self.recorders.get(&*pod.spec.scheduler) {
            recorder.warning(reference(pod), reason, message);
        }
    }

    /// Writes the condition of a pod that was refused, and the node that it is nominated for. Nothing is written if the pod
    /// shows both already.
    pub(super) fn write_condition(
        &self,
        pod: &Arc<PodInfo>,
        reason: &'static str,
        message: String,
        nominated: Option<Arc<str>>,
    ) {
        let shown = pod.refusal.as_deref().is_some_and(|(why, text)| why == reason && *text == message);
        if shown && nominated == pod.nominated {
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
        if nominated != pod.nominated {
            // Null removes the field.
            status["nominatedNodeName"] = json!(nominated.as_deref());
        }
        let patch = json!({"metadata": {"uid": pod.uid.to_string()}, "status": status});
        let pods = Api::<Pod>::namespaced(self.client.clone(), pod.namespace());
        let (name, key) = (pod.name().to_owned(), pod.key());
        let lanes = self.binder.lanes();
        tokio::spawn(async move {
            let _lane = lanes.acquire_owned().await;
            let patched = pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch)).await;
            if let Err(error) = patched {
                debug!(pod = %key, %error, "cannot write the condition PodScheduled");
            }
        });
    }
}
