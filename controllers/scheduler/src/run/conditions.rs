//! Writes of statuses, in tasks beside the loop.
//!
//! For each object at most one request is in flight, and at most one status waits: what a newer one does not say is taken from the
//! one that waits, and nothing is sent that the object shows already. A binding makes a waiting status of its pod unnecessary,
//! and begins only when none is in flight, which could come after it and show a pod with a node as refused. These are the rules of
//! kube-scheduler's `SchedulerAsyncAPICalls`; its gate switches nothing here but the metrics of these requests.

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
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::limits;
use crate::metrics::{Call, Metrics};
use crate::pod::PodInfo;

/// The condition `PodScheduled` of a pod that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub reason: &'static str,
    pub message: String,
    /// The generation of the pod that was refused.
    pub generation: Option<i64>,
    pub at: Timestamp,
}

/// A change of a pod's status. `None` leaves a part as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodStatus {
    pub refusal: Option<Refusal>,
    /// The node that the pod is nominated for from now on, if there is one.
    pub nomination: Option<Option<Arc<str>>>,
}

impl PodStatus {
    /// Takes from an older change what this one does not say.
    fn over(self, older: Self) -> Self {
        Self { refusal: self.refusal.or(older.refusal), nomination: self.nomination.or(older.nomination) }
    }

    fn is_shown_by(&self, pod: &PodInfo) -> bool {
        let shown = pod.refusal.as_deref();
        let is_shown =
            |new: &Refusal| shown.is_some_and(|(reason, text)| reason == new.reason && *text == new.message);
        self.refusal.as_ref().is_none_or(is_shown)
            && self.nomination.as_ref().is_none_or(|node| *node == pod.nominated)
    }

    /// Returns the patch that a pod with this status gets. The nomination is in it if the pod shows another one, or if it is
    /// not certain what the pod shows.
    fn patch(&self, pod: &PodInfo, is_certain: bool) -> Value {
        let mut status = json!({});
        if let Some(Refusal { reason, message, generation, at }) = &self.refusal {
            let mut condition = json!({
                "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
                "observedGeneration": generation,
            });
            if pod.refusal.as_deref().is_none_or(|(reason, _)| reason.is_empty()) {
                condition["lastTransitionTime"] = json!(Time(*at));
            }
            status["conditions"] = json!([condition]);
        }
        if let Some(node) = self.nomination.as_ref().filter(|node| !is_certain || **node != pod.nominated) {
            // Null removes the field.
            status["nominatedNodeName"] = json!(node.as_deref());
        }
        json!({"metadata": {"uid": pod.uid.to_string()}, "status": status})
    }
}

/// A change of a status that is to be written.
#[derive(Clone, Debug)]
enum Change {
    Pod {
        /// The pod as it was last seen.
        pod: Arc<PodInfo>,
        status: PodStatus,
        /// The pod shows nothing that was written meanwhile and is not seen yet.
        is_certain: bool,
    },
    Group {
        key: ObjectKey,
        patch: Value,
    },
}

impl Change {
    fn over(self, older: Self) -> Self {
        match (self, older) {
            (
                Self::Pod { pod, status, is_certain },
                Self::Pod { status: older, is_certain: was_certain, .. },
            ) => Self::Pod { pod, status: status.over(older), is_certain: is_certain && was_certain },
            (newer, _) => newer,
        }
    }

    /// Returns `true` if it would change nothing.
    fn is_shown(&self) -> bool {
        matches!(self, Self::Pod { pod, status, is_certain: true } if status.is_shown_by(pod))
    }

    fn key(&self) -> ObjectKey {
        match self {
            Self::Pod { pod, .. } => pod.key(),
            Self::Group { key, .. } => key.clone(),
        }
    }

    async fn send(&self, client: &Client) -> kube::Result<()> {
        let params = PatchParams::default();
        match self {
            Self::Pod { pod, status, is_certain } => {
                let pods = Api::<Pod>::namespaced(client.clone(), pod.namespace());
                let patch = Patch::Strategic(status.patch(pod, *is_certain));
                pods.patch_status(pod.name(), &params, &patch).await.map(drop)
            }
            Self::Group { key, patch } => {
                let groups = Api::<PodGroup>::namespaced(client.clone(), &key.namespace);
                groups.patch_status(&key.name, &params, &Patch::Strategic(patch)).await.map(drop)
            }
        }
    }
}

/// The requests about one object.
#[derive(Default)]
struct Requests {
    waiting: Option<Change>,
    /// Set while a status is being sent, and cancelled when that ends.
    in_flight: Option<CancellationToken>,
    /// The status in flight is not sent again if that fails.
    is_over: bool,
    /// A task sends what waits.
    has_task: bool,
    is_binding: bool,
}

type Objects = Arc<Mutex<BTreeMap<Uid, Requests>>>;

fn lock(objects: &Objects) -> MutexGuard<'_, BTreeMap<Uid, Requests>> {
    objects.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes statuses of pods that wait, and of groups.
#[derive(Clone)]
pub(super) struct Conditions {
    client: Client,
    /// Bounds the requests in flight.
    lanes: Arc<Semaphore>,
    metrics: Metrics,
    /// The objects with a status to write, and the pods that are being bound.
    objects: Objects,
}

impl Conditions {
    pub fn new(client: Client, lanes: Arc<Semaphore>, metrics: Metrics) -> Self {
        Self { client, lanes, metrics, objects: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uid, Requests>> {
        lock(&self.objects)
    }

    /// Returns the number of objects with a status to write, or with a binding.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Writes a change of a pod's status, unless the pod is being bound, or shows it. `is_certain` is false if something may have
    /// been written that is not known from the pod yet.
    pub fn write_pod(&self, pod: &Arc<PodInfo>, status: PodStatus, is_certain: bool) {
        self.write(&pod.uid, Change::Pod { pod: Arc::clone(pod), status, is_certain });
    }

    pub fn write_group(&self, uid: &Uid, key: ObjectKey, patch: Value) {
        self.write(uid, Change::Group { key, patch });
    }

    fn write(&self, uid: &Uid, change: Change) {
        let mut objects = self.lock();
        let requests = objects.entry(uid.clone()).or_default();
        if requests.is_binding {
            return;
        }
        let older = self.take_waiting(requests);
        let mut change = older.into_iter().fold(change, Change::over);
        if let (Some(_), Change::Pod { is_certain, .. }) = (&requests.in_flight, &mut change) {
            *is_certain = false;
        }
        requests.is_over = false;
        if !change.is_shown() {
            self.wait(requests, change);
            if !std::mem::replace(&mut requests.has_task, true) {
                drop(objects);
                tokio::spawn(self.clone().send_all(uid.clone()));
            }
        } else if !requests.has_task {
            objects.remove(uid);
        }
    }

    /// Notes a newer version of a pod, which may show what is to be written.
    pub fn seen(&self, newer: &Arc<PodInfo>) {
        let mut objects = self.lock();
        let Some(requests) = objects.get_mut(&newer.uid) else { return };
        let Some(change) = &mut requests.waiting else { return };
        if let Change::Pod { pod, .. } = change {
            *pod = Arc::clone(newer);
        }
        if change.is_shown() {
            self.take_waiting(requests);
        }
    }

    /// Drops what is not sent yet: the pod has a node now.
    pub fn forget(&self, uid: &Uid) {
        if let Some(requests) = self.lock().get_mut(uid) {
            self.take_waiting(requests);
            requests.is_over = true;
        }
    }

    /// Drops what is not sent yet of a pod, and waits for what is being sent. Until the end of what is returned, which is that of
    /// the binding, no status of the pod is written.
    pub async fn bind(&self, uid: &Uid) -> Binding {
        let in_flight = {
            let mut objects = self.lock();
            let requests = objects.entry(uid.clone()).or_default();
            self.take_waiting(requests);
            (requests.is_over, requests.is_binding) = (true, true);
            requests.in_flight.clone()
        };
        let binding = Binding { objects: Arc::clone(&self.objects), uid: uid.clone() };
        if let Some(in_flight) = in_flight {
            in_flight.cancelled().await;
        }
        binding
    }

    /// Has a change wait. It counts as pending if nothing of its object is in flight, as in kube-scheduler.
    fn wait(&self, requests: &mut Requests, change: Change) {
        if matches!(change, Change::Pod { .. }) && requests.in_flight.is_none() {
            self.metrics.call_waits(Call::StatusPatch);
        }
        requests.waiting = Some(change);
    }

    fn take_waiting(&self, requests: &mut Requests) -> Option<Change> {
        let change = requests.waiting.take()?;
        if matches!(change, Change::Pod { .. }) && requests.in_flight.is_none() {
            self.metrics.call_waits_no_more(Call::StatusPatch);
        }
        Some(change)
    }

    /// Sends what there is for an object. A pod that waits may not be tried again for minutes, so that what has failed by the
    /// API's bad day is repeated, together with what is newer.
    async fn send_all(self, uid: Uid) {
        let (mut failures, mut pause) = (0, limits::RESOLVE_PAUSE);
        loop {
            let lane = self.lanes.acquire().await;
            let Some(change) = self.next(&uid) else { return };
            let began = Instant::now();
            let sent = change.send(&self.client).await;
            drop(lane);
            if matches!(change, Change::Pod { .. }) {
                self.metrics.called(Call::StatusPatch, sent.is_ok(), began.elapsed());
            }
            let Err(error) = sent else {
                self.sent(&uid, None);
                continue;
            };
            debug!(object = %change.key(), %error, "cannot write the status");
            failures += 1;
            if failures < limits::STATUS_ATTEMPTS && may_pass(&error) {
                self.sent(&uid, Some(change));
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(limits::RESOLVE_PAUSE_MAX);
            } else {
                self.sent(&uid, None);
            }
        }
    }

    /// Returns what is to be sent for an object from now on; if that is nothing, its task ends.
    fn next(&self, uid: &Uid) -> Option<Change> {
        let mut objects = self.lock();
        let requests = objects.get_mut(uid)?;
        let Some(change) = self.take_waiting(requests) else {
            requests.has_task = false;
            if !requests.is_binding {
                objects.remove(uid);
            }
            return None;
        };
        requests.in_flight = Some(CancellationToken::new());
        requests.is_over = false;
        Some(change)
    }

    /// Notes that a request has ended; what is to be sent again gives way to what is newer.
    fn sent(&self, uid: &Uid, again: Option<Change>) {
        let mut objects = self.lock();
        let Some(requests) = objects.get_mut(uid) else { return };
        let newer = self.take_waiting(requests);
        if let Some(in_flight) = requests.in_flight.take() {
            in_flight.cancel();
        }
        let again = again.filter(|_| !requests.is_over);
        let change = match (newer, again) {
            (Some(newer), Some(again)) => Some(newer.over(again)),
            (newer, again) => newer.or(again),
        };
        if let Some(change) = change {
            self.wait(requests, change);
        }
    }
}

/// A binding of a pod that has begun.
pub(super) struct Binding {
    objects: Objects,
    uid: Uid,
}

impl Drop for Binding {
    fn drop(&mut self) {
        let mut objects = lock(&self.objects);
        let Some(requests) = objects.get_mut(&self.uid) else { return };
        requests.is_binding = false;
        if !requests.has_task {
            objects.remove(&self.uid);
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

#[cfg(test)]
mod tests;
