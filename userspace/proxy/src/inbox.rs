//! What changed since the worker last looked. Handlers of the caches write here and do no more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_client::{Change, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::compile::service_of;

/// When the pod or Service changed that made the slice change; set by the controller.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Trigger times remembered for one Service until it is applied.
const MAX_TRIGGERS: usize = 256;

/// Why a Service is to be compiled again.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    /// When the first change not yet applied arrived.
    pub since: Instant,
    /// Trigger times of the slices that changed.
    pub triggers: Vec<Timestamp>,
    pub service_changes: u64,
    pub endpoint_changes: u64,
}

impl Cause {
    fn new() -> Self {
        Self { since: Instant::now(), triggers: Vec::new(), service_changes: 0, endpoint_changes: 0 }
    }

    /// Adds what a later change says.
    pub fn merge(&mut self, later: Self) {
        self.since = self.since.min(later.since);
        self.service_changes += later.service_changes;
        self.endpoint_changes += later.endpoint_changes;
        self.triggers.extend(later.triggers);
        self.triggers.truncate(MAX_TRIGGERS);
    }
}

/// Everything noted since the last time.
#[derive(Default)]
pub(crate) struct Batch {
    pub services: BTreeMap<ObjectKey, Cause>,
    pub node: bool,
}

#[derive(Default)]
struct State {
    batch: Batch,
    /// Slices by the Service they belong to, then by name; the cache knows them by name only.
    slices: BTreeMap<ObjectKey, BTreeMap<String, Arc<EndpointSlice>>>,
}

/// Shared by the handlers and the worker.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    wake: Notify,
}

impl Inbox {
    pub fn service(&self, change: &Change<Service>) {
        let mut state = self.lock();
        let cause = state.batch.services.entry(change.key()).or_insert_with(Cause::new);
        cause.service_changes += 1;
        drop(state);
        self.wake.notify_one();
    }

    pub fn slice(&self, change: &Change<EndpointSlice>) {
        let mut state = self.lock();
        match change {
            Change::Applied { old, new } => {
                let (before, after) = (old.as_ref().and_then(|old| service_of(old)), service_of(new));
                if let Some(service) = before.filter(|before| Some(before) != after.as_ref()) {
                    state.forget(&service, new);
                    state.note(service, None);
                }
                if let Some(service) = after {
                    let name = new.metadata.name.clone().unwrap_or_default();
                    state.slices.entry(service.clone()).or_default().insert(name, Arc::clone(new));
                    state.note(service, fresh_trigger(old.as_deref(), new));
                }
            }
            Change::Deleted(last) => {
                if let Some(service) = service_of(last) {
                    state.forget(&service, last);
                    state.note(service, None);
                }
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    pub fn node(&self, _: &Change<Node>) {
        self.lock().batch.node = true;
        self.wake.notify_one();
    }

    /// Something changed that the node's own tables follow from.
    pub fn node_tables(&self) {
        self.lock().batch.node = true;
        self.wake.notify_one();
    }

    /// The slices of a Service, in the order of their names.
    pub fn slices(&self, service: &ObjectKey) -> Vec<Arc<EndpointSlice>> {
        let state = self.lock();
        state.slices.get(service).map(|slices| slices.values().cloned().collect()).unwrap_or_default()
    }

    /// Takes what was noted.
    pub fn take(&self) -> Batch {
        std::mem::take(&mut self.lock().batch)
    }

    /// Waits until something is noted.
    pub async fn noted(&self) {
        self.wake.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, service: ObjectKey, trigger: Option<Timestamp>) {
        let cause = self.batch.services.entry(service).or_insert_with(Cause::new);
        cause.endpoint_changes += 1;
        if cause.triggers.len() < MAX_TRIGGERS {
            cause.triggers.extend(trigger);
        }
    }

    fn forget(&mut self, service: &ObjectKey, slice: &EndpointSlice) {
        let Some(slices) = self.slices.get_mut(service) else { return };
        slices.remove(slice.metadata.name.as_deref().unwrap_or_default());
        if slices.is_empty() {
            self.slices.remove(service);
        }
    }
}

/// The trigger time of a slice, if this change brought it.
fn fresh_trigger(old: Option<&EndpointSlice>, new: &EndpointSlice) -> Option<Timestamp> {
    let read = |slice: &EndpointSlice| slice.metadata.annotations.as_ref()?.get(TRIGGER_TIME).cloned();
    let time = read(new)?;
    if old.and_then(read).as_ref() == Some(&time) {
        return None;
    }
    time.parse().ok()
}
