//! The changes since the worker last looked. Handlers of the caches record changes here and do nothing else.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_client::{Change, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::compile::{ByService, ServiceProjection, Slice};
use crate::host_ports::HostPod;
use crate::limits;
use crate::metrics::FAMILIES;

/// The reason to compile a Service again.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    /// The time at which the first unapplied change arrived.
    pub since: Instant,
    /// Trigger times of the slices that changed, each with the slice's family.
    pub triggers: Vec<(Timestamp, &'static str)>,
    pub service_changes: u64,
    pub endpoint_changes: u64,
}

impl Cause {
    fn new() -> Self {
        Self { since: Instant::now(), triggers: Vec::new(), service_changes: 0, endpoint_changes: 0 }
    }

    /// Adds a later change.
    pub fn merge(&mut self, later: Self) {
        self.since = self.since.min(later.since);
        self.service_changes += later.service_changes;
        self.endpoint_changes += later.endpoint_changes;
        self.triggers.extend(later.triggers);
        self.triggers.truncate(limits::TRIGGERS);
    }
}

/// Everything recorded since the previous batch.
#[derive(Default)]
pub(crate) struct Batch {
    pub services: BTreeMap<ObjectKey, Cause>,
    /// Pods of the node that have host ports, or had some.
    pub pods: BTreeSet<ObjectKey>,
    /// Pods of the node that are new or gone, or whose limits of bandwidth have changed.
    pub limited: BTreeSet<ObjectKey>,
    pub node: bool,
    /// True if something has changed that policies depend on.
    pub policies: bool,
}

#[derive(Default)]
struct State {
    batch: Batch,
    /// The slices, by Service; the cache knows them by name only.
    slices: BTreeSet<Sorted>,
}

/// A slice, ordered by the Service it belongs to, then by name.
struct Sorted(Arc<Slice>);

impl<'a> Borrow<dyn ByService + 'a> for Sorted {
    fn borrow(&self) -> &(dyn ByService + 'a) {
        &*self.0
    }
}

impl PartialEq for Sorted {
    fn eq(&self, other: &Self) -> bool {
        self.0.place() == other.0.place()
    }
}

impl Eq for Sorted {}

impl PartialOrd for Sorted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sorted {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.place().cmp(&other.0.place())
    }
}

/// Shared by the handlers and the worker.
#[derive(Default)]
pub(crate) struct ChangeTracker {
    state: Mutex<State>,
    wake: Notify,
}

impl ChangeTracker {
    pub fn service(&self, change: &Change<ServiceProjection>) {
        let mut state = self.lock();
        let cause = state.batch.services.entry(change.key()).or_insert_with(Cause::new);
        cause.service_changes += 1;
        drop(state);
        self.wake.notify_one();
    }

    pub fn slice(&self, change: &Change<Slice>) {
        let mut state = self.lock();
        match change {
            Change::Applied { old, new } => {
                let (before, after) = (old.as_ref().and_then(|old| old.service()), new.service());
                if let (Some(old), Some(service)) =
                    (old, before.filter(|before| Some(before) != after.as_ref()))
                {
                    state.slices.remove(&Sorted(Arc::clone(old)));
                    state.note(service, None);
                }
                if let Some(service) = after {
                    state.slices.replace(Sorted(Arc::clone(new)));
                    state.note(service, fresh_trigger(old.as_deref(), new));
                }
            }
            Change::Deleted(last) => {
                if let Some(service) = last.service() {
                    state.slices.remove(&Sorted(Arc::clone(last)));
                    state.note(service, None);
                }
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    pub fn pod(&self, change: &Change<HostPod>) {
        let (new, old) = match change {
            Change::Applied { old, new } => (Some(new), old.as_ref()),
            Change::Deleted(last) => (None, Some(last)),
        };
        let matters = match (old, new) {
            (Some(old), Some(new)) => !old.serves_as(new),
            (one, other) => one.or(other).is_some_and(|pod| pod.has_ports()),
        };
        let limited = old.map(|pod| pod.bandwidth()) != new.map(|pod| pod.bandwidth());
        if !matters && !limited {
            return;
        }
        let mut state = self.lock();
        if matters {
            state.batch.pods.insert(change.key());
        }
        if limited {
            state.batch.limited.insert(change.key());
        }
        drop(state);
        self.wake.notify_one();
    }

    pub fn node(&self, _: &Change<Node>) {
        self.lock().batch.node = true;
        self.wake.notify_one();
    }

    /// Records a change that affects the node's own tables.
    pub fn node_tables(&self) {
        self.lock().batch.node = true;
        self.wake.notify_one();
    }

    /// Records a change of something that policies depend on.
    pub fn policies(&self) {
        self.lock().batch.policies = true;
        self.wake.notify_one();
    }

    /// Returns the slices of a Service, sorted by name.
    pub fn slices(&self, service: &ObjectKey) -> Vec<Arc<Slice>> {
        let state = self.lock();
        let first = (service.namespace.as_str(), service.name.as_str(), "");
        let from = (Bound::Included(&first as &dyn ByService), Bound::Unbounded);
        let slices = state.slices.range::<dyn ByService, _>(from).map(|slice| &slice.0);
        let own = slices.take_while(|slice| {
            let (namespace, name, _) = slice.place();
            (namespace, name) == (first.0, first.1)
        });
        own.cloned().collect()
    }

    /// Takes everything that was recorded.
    pub fn take(&self) -> Batch {
        std::mem::take(&mut self.lock().batch)
    }

    /// Waits until a change is recorded.
    pub async fn noted(&self) {
        self.wake.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, service: ObjectKey, trigger: Option<(Timestamp, &'static str)>) {
        let cause = self.batch.services.entry(service).or_insert_with(Cause::new);
        cause.endpoint_changes += 1;
        if cause.triggers.len() < limits::TRIGGERS {
            cause.triggers.extend(trigger);
        }
    }
}

/// Returns the trigger time of a slice with its family, if this change brought it.
fn fresh_trigger(old: Option<&Slice>, new: &Slice) -> Option<(Timestamp, &'static str)> {
    let [ipv4, ipv6] = FAMILIES;
    let family = if new.is_ipv4() { ipv4 } else { ipv6 };
    let fresh = new.trigger().filter(|time| old.and_then(Slice::trigger) != Some(*time));
    fresh.map(|time| (time, family))
}
