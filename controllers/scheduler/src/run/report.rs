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

/// The next step of the task that writes the status of a pod.
enum Next {
    Send(Value),
    /// Nothing is to be sent but what is being sent, again if that fails.
    Repeat,
    /// Nothing is to be sent any more.
    End,
}

/// Writes statuses of pods that wait, in their order for each pod. One that is not sent yet is replaced by the next, so that
/// a slow API does not make them pile up.
#[derive(Clone)]
pub(super) struct Conditions {
    client: Client,
    /// Bounds the requests in flight.
    lanes: Arc<Semaphore>,
    /// The next step for each pod that a task works for.
    waiting: Arc<Mutex<BTreeMap<Uid, Next>>>,
}

impl Conditions {
    pub fn new(client: Client, lanes: Arc<Semaphore>) -> Self {
        Self { client, lanes, waiting: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uid, Next>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of pods whose status is being written.
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

    fn write(&self, pod: &Arc<PodInfo>, patch: Value) {
        if self.lock().insert(pod.uid.clone(), Next::Send(patch)).is_some() {
            return;
        }
        tokio::spawn(self.clone().write_all(Arc::clone(pod)));
    }

    /// Sends what there is for a pod. A pod that waits may not be tried again for minutes, so that what has failed by the
    /// API's bad day is repeated, unless there is something newer.
    async fn write_all(self, pod: Arc<PodInfo>) {
        let pods = Api::<Pod>::namespaced(self.client.clone(), pod.namespace());
        let (mut failures, mut pause) = (0, limits::RESOLVE_PAUSE);
        loop {
            let lane = self.lanes.acquire().await;
            let Some(patch) = self.next(&pod.uid) else { return };
            let body = Patch::Strategic(&patch);
            let patched = pods.patch_status(pod.name(), &PatchParams::default(), &body).await;
            drop(lane);
            let Err(error) = patched else { continue };
            debug!(pod = %pod.key(), %error, "cannot write the condition PodScheduled");
            failures += 1;
            if failures < limits::STATUS_ATTEMPTS && may_pass(&error) {
                self.put_back(&pod.uid, patch);
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
