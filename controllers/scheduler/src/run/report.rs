//! Writes to users why a pod waits: events, and the condition `PodScheduled`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_meta::uid::Uid;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tracing::debug;

use super::Scheduler;
use super::bind::reference;
use crate::limits;
use crate::pod::PodInfo;

/// Ends a message that was cut.
const CUT: &str = " ...";

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
        self.binder.conditions.write(pod, patch);
    }
}

/// Writes statuses of pods that wait, in their order for each pod. One that is not sent yet is replaced by the next, so that
/// a slow API does not make them pile up.
#[derive(Clone)]
pub(super) struct Conditions {
    client: Client,
    /// Bounds the requests in flight.
    lanes: Arc<Semaphore>,
    /// What is to be sent, for each pod that a task works for.
    waiting: Arc<Mutex<BTreeMap<Uid, Option<Value>>>>,
}

impl Conditions {
    pub fn new(client: Client, lanes: Arc<Semaphore>) -> Self {
        Self { client, lanes, waiting: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uid, Option<Value>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of pods whose status is being written.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn write(&self, pod: &Arc<PodInfo>, patch: Value) {
        if self.lock().insert(pod.uid.clone(), Some(patch)).is_some() {
            return;
        }
        let (this, pod) = (self.clone(), Arc::clone(pod));
        tokio::spawn(async move {
            let pods = Api::<Pod>::namespaced(this.client.clone(), pod.namespace());
            let _lane = this.lanes.acquire().await;
            while let Some(patch) = this.next(&pod.uid) {
                let patch = Patch::Strategic(patch);
                let patched = pods.patch_status(pod.name(), &PatchParams::default(), &patch).await;
                if let Err(error) = patched {
                    debug!(pod = %pod.key(), %error, "cannot write the condition PodScheduled");
                }
            }
        });
    }

    /// Returns what is to be sent for a pod; if that is nothing, its task ends.
    fn next(&self, uid: &Uid) -> Option<Value> {
        let mut waiting = self.lock();
        let patch = waiting.get_mut(uid)?.take();
        if patch.is_none() {
            waiting.remove(uid);
        }
        patch
    }
}
