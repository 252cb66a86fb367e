//! The EndpointSlice controller. Changes of pods are written immediately: nothing on the way from readiness
//! to traffic waits to be batched.

mod desired;
mod place;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder};
use controllers_runtime::limits::UNSEEN_WRITE;
use controllers_runtime::{Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{Node, Service};

use crate::context::{Context, Tasks};
use crate::index::{Pods, Services};
use crate::meta::{is_deleted, labels};
use crate::metrics::{Metrics, SLICE_CHANGES, SLICE_SYNCS, SLICES};
use crate::pods::Pod;
use crate::slices::{Slices, is_managed_by};
use crate::trigger::Seen;
use place::{CONTROLLER, place};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("endpointslice");
    let services = context.services.cache().clone();
    let pods = context.informers.cache::<Pod>();
    let nodes = context.informers.cache::<Node>();
    context.feed(tasks, &services, &queue);
    follow_pods(&pods, &context.services, &queue, context.config.slicing.slices_pause);
    let slices = Slices::new(context, CONTROLLER, &queue, &SLICE_CHANGES);
    let all_slices = slices.cache().clone();
    let controller = EndpointSlices {
        services: services.clone(),
        pods: context.pods.clone(),
        nodes: nodes.clone(),
        slices,
        recorder: context.recorder.named("endpoint-slice-controller"),
        per_slice: context.config.slicing.per_slice,
        changes: Mutex::default(),
        metrics: context.config.metrics.clone(),
    };
    let counted = all_slices.clone();
    context.config.metrics.add_gauge(&SLICES, move || {
        let slices = counted.list();
        let ours = slices.iter().filter(|slice| is_managed_by(slice, CONTROLLER)).count();
        vec![(Vec::new(), ours as f64)]
    });
    context.start(tasks, queue, controller, async move {
        services.synced().await;
        pods.synced().await;
        nodes.synced().await;
        all_slices.synced().await;
    });
}

/// Enqueues the Services that select a changed pod now or did before, after an optional delay.
pub(crate) fn follow_pods(
    pods: &Cache<Pod>,
    services: &Services,
    queue: &WorkQueue<ObjectKey>,
    pause: Duration,
) {
    let (services, queue) = (services.clone(), queue.clone());
    pods.on_change(move |change| {
        let new = change.object();
        services.selecting(new.as_ref()).into_iter().for_each(|key| queue.add_after(key, pause));
        if let Change::Applied { old: Some(old), .. } = change
            && labels(&old.metadata) != labels(&new.metadata)
        {
            services.selecting(old.as_ref()).into_iter().for_each(|key| queue.add_after(key, pause));
        }
    });
}

struct EndpointSlices {
    services: Cache<Service>,
    pods: Pods,
    nodes: Cache<Node>,
    slices: Slices,
    recorder: Recorder,
    /// Maximum number of endpoints in a slice.
    per_slice: usize,
    /// The changes of each Service's pods that are in its slices.
    changes: Mutex<BTreeMap<ObjectKey, Seen>>,
    metrics: Metrics,
}

impl Reconcile for EndpointSlices {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let service = self.services.get(key).filter(|service| !is_deleted(&service.metadata));
        let Some(service) = service else {
            // The garbage collector deletes the slices with their owner.
            self.slices.forget(key);
            self.lock().remove(key);
            return Ok(Outcome::Done);
        };
        let Some(spec) = &service.spec else { return Ok(Outcome::Done) };
        let Some(selector) = spec.selector.as_ref().filter(|selector| !selector.is_empty()) else {
            return Ok(Outcome::Done);
        };
        if spec.type_.as_deref() == Some("ExternalName") {
            return Ok(Outcome::Done);
        }
        if !self.slices.are_shown(key) {
            // The arrival of the slices triggers a reconciliation; the time covers those that never arrive.
            self.metrics.count(&SLICE_SYNCS, &["stale"]);
            return Ok(Outcome::After(UNSEEN_WRITE));
        }
        let pods = self.pods.selected(&key.namespace, selector);
        let node = |name: &str| self.nodes.get(&ObjectKey::new("", name));
        let wanted = desired::desired(&service, &pods, &node);
        let trigger = self.lock().entry(key.clone()).or_default().oldest_change(&service, &pods);
        let trigger = trigger.map(|time| time.to_string());
        let actions = place(&service, wanted, self.slices.of(key), trigger, self.per_slice);
        let done = self.slices.execute(key, actions).await;
        self.metrics.count(&SLICE_SYNCS, &[if done.is_ok() { "success" } else { "error" }]);
        let Err((words, error)) = done else { return Ok(Outcome::Done) };
        let message = format!("Error updating Endpoint Slices for Service {key}: {words}");
        self.recorder.warning(reference(service.as_ref()), "FailedToUpdateEndpointSlices", message);
        Err(error)
    }
}

impl EndpointSlices {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Seen>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
