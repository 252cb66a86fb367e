//! The EndpointSlice mirroring controller: copies Endpoints that people and other controllers write for Services
//! without a selector to EndpointSlices, which is what readers of endpoints follow.

mod plan;
#[cfg(test)]
mod tests;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder};
use controllers_runtime::limits::UNSEEN_WRITE;
use controllers_runtime::{Outcome, Reconcile, Result, WorkQueue, resync};
use k8s_openapi::api::core::v1::{Endpoints, Service};

use self::plan::{CONTROLLER, Plan, is_mirrored, plan};
use crate::context::{Context, Tasks};
use crate::limits::{MIRRORED_PAIRS, MIRRORED_SLICES};
use crate::metrics::MIRRORED_CHANGES;
use crate::slices::{Action, Slices};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("endpointslicemirroring");
    let services = context.services.cache().clone();
    let endpoints = context.informers.cache::<Endpoints>();
    let (changed, pause) = (queue.clone(), context.config.slicing.mirroring_pause);
    endpoints.on_change(move |change| changed.add_after(change.key(), pause));
    tasks.spawn(resync(endpoints.clone(), queue.clone(), context.resync, context.shutdown.clone()));
    follow_services(&services, &queue);
    let slices = Slices::new(context, CONTROLLER, &queue, &MIRRORED_CHANGES);
    let all_slices = slices.cache().clone();
    let controller = Mirror {
        recorder: context.recorder.named("endpoint-slice-mirroring-controller"),
        services: services.clone(),
        endpoints: endpoints.clone(),
        slices,
        most: context.config.slicing.mirrored_addresses,
    };
    context.start(tasks, queue, controller, async move {
        services.synced().await;
        endpoints.synced().await;
        all_slices.synced().await;
    });
}

/// Adds the keys of Services without a selector that come or go, and of those that get or lose their selector. Their
/// Endpoints have the same name.
fn follow_services(services: &Cache<Service>, queue: &WorkQueue<ObjectKey>) {
    let queue = queue.clone();
    services.on_change(move |change| {
        let concerned = match change {
            Change::Applied { old: Some(old), new } => has_selector(old) != has_selector(new),
            _ => !has_selector(change.object()),
        };
        if concerned {
            queue.add(change.key());
        }
    });
}

fn has_selector(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.selector.is_some())
}

struct Mirror {
    recorder: Recorder,
    services: Cache<Service>,
    endpoints: Cache<Endpoints>,
    slices: Slices,
    /// Maximum number of addresses of a subset.
    most: usize,
}

impl Reconcile for Mirror {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        if !self.slices.are_shown(key) {
            return Ok(Outcome::After(UNSEEN_WRITE));
        }
        let existing = self.slices.of(key);
        let wanted = self.services.get(key).is_some_and(|service| !has_selector(&service));
        let endpoints = self.endpoints.get(key).filter(|endpoints| wanted && is_mirrored(endpoints));
        let Some(endpoints) = endpoints else {
            let deleted = self.slices.execute(key, existing.into_iter().map(Action::Delete)).await;
            deleted.map_err(|(_, error)| error)?;
            return Ok(Outcome::Done);
        };
        let plan = plan(&endpoints, existing, self.most);
        self.report(&endpoints, &plan);
        self.slices.execute(key, plan.actions).await.map_err(|(_, error)| error)?;
        Ok(Outcome::Done)
    }
}

impl Mirror {
    /// Records what is not mirrored, in the words of Kubernetes.
    fn report(&self, endpoints: &Endpoints, plan: &Plan) {
        if plan.invalid > 0 {
            let message =
                format!("Skipped {} invalid IP addresses when mirroring to EndpointSlices", plan.invalid);
            self.recorder.warning(reference(endpoints), "InvalidIPAddress", message);
        }
        if plan.too_large {
            let message = format!(
                "Not mirrored: more than {MIRRORED_PAIRS} pairs of an address and a port, or more than \
                 {MIRRORED_SLICES} EndpointSlices"
            );
            self.recorder.warning(reference(endpoints), "TooManyAddressesToMirror", message);
        }
        if plan.skipped > plan.invalid {
            let message = format!(
                "A max of {most} addresses can be mirrored to EndpointSlices per Endpoints subset. {} \
                 addresses were skipped",
                plan.skipped,
                most = self.most,
            );
            self.recorder.warning(reference(endpoints), "TooManyAddressesToMirror", message);
        }
    }
}
