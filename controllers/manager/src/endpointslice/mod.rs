//! The EndpointSlice controller. Changes of pods are written immediately: nothing on the way from readiness
//! to traffic waits to be batched.

mod desired;
mod place;
#[cfg(test)]
mod tests;
mod trigger;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver_client::{Cache, Change, Index, IndexBy, ObjectKey};
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use tokio::time::Instant;

use crate::context::{Context, Tasks};
use crate::index::{Pods, Services};
use crate::limits::UNSEEN_SLICE_TIMEOUT;
use crate::meta::{is_deleted, name, namespace};
use crate::patch;
use place::{Action, CONTROLLER, MANAGED_BY, SERVICE_NAME, place};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("endpointslice");
    let services = context.services.cache().clone();
    let pods = context.informers.cache::<Pod>();
    let nodes = context.informers.cache::<Node>();
    let slices = context.informers.cache::<EndpointSlice>();
    context.feed(tasks, &services, &queue);
    follow_pods(&pods, &context.services, &queue, Duration::ZERO);
    follow_slices(&slices, &queue);
    let controller = Slices {
        client: context.client.clone(),
        services: services.clone(),
        pods: context.pods.clone(),
        nodes: nodes.clone(),
        slices: slices.index(),
        known: Mutex::default(),
    };
    context.start(tasks, queue, controller, async move {
        services.synced().await;
        pods.synced().await;
        nodes.synced().await;
        slices.synced().await;
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
            && old.metadata.labels != new.metadata.labels
        {
            services.selecting(old.as_ref()).into_iter().for_each(|key| queue.add_after(key, pause));
        }
    });
}

fn follow_slices(slices: &Cache<EndpointSlice>, queue: &WorkQueue<ObjectKey>) {
    let queue = queue.clone();
    slices.on_change(move |change| {
        if let Some(service) = service_of(change.object()) {
            queue.add(ObjectKey::new(namespace(&change.object().metadata), service));
        }
    });
}

/// Returns the Service of a slice that this controller manages.
fn service_of(slice: &EndpointSlice) -> Option<&str> {
    let labels = slice.metadata.labels.as_ref()?;
    let ours = labels.get(MANAGED_BY).is_some_and(|by| by == CONTROLLER);
    labels.get(SERVICE_NAME).filter(|_| ours).map(String::as_str)
}

/// Index by the Service whose endpoints the EndpointSlice controller writes there.
struct ByService;

impl IndexBy<EndpointSlice> for ByService {
    type Value = ObjectKey;

    fn values(slice: &EndpointSlice) -> Vec<ObjectKey> {
        let service = service_of(slice);
        service.map(|service| ObjectKey::new(namespace(&slice.metadata), service)).into_iter().collect()
    }
}

struct Slices {
    client: Client,
    services: Cache<Service>,
    pods: Pods,
    nodes: Cache<Node>,
    slices: Index<EndpointSlice, ByService>,
    known: Mutex<BTreeMap<ObjectKey, Known>>,
}

/// State of one Service that is kept between reconciliations.
#[derive(Default)]
struct Known {
    changes: trigger::Seen,
    /// Slices that were written but have not been seen in the cache, each with its version and the time of
    /// the write.
    written: BTreeMap<String, (u64, Instant)>,
}

impl Reconcile for Slices {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let service = self.services.get(key).filter(|service| !is_deleted(&service.metadata));
        let Some(service) = service else {
            // The garbage collector deletes the slices with their owner.
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
        let existing = self.existing(key);
        if !self.sees_what_was_written(key, &existing) {
            // The arrival of the slices triggers a reconciliation; the timeout covers those that never
            // arrive.
            return Ok(Outcome::After(UNSEEN_SLICE_TIMEOUT));
        }
        let pods = self.pods.selected(&key.namespace, selector);
        let node = |name: &str| self.nodes.get(&ObjectKey::new("", name));
        let wanted = desired::desired(&service, &pods, &node);
        let trigger = self.with(key, |known| known.changes.oldest_change(&service, &pods));
        let trigger = trigger.map(|time| time.to_string());
        let mut results = Vec::new();
        for action in place(&service, wanted, existing, trigger) {
            results.push(self.execute(key, action).await);
        }
        Error::collect(results)?;
        Ok(Outcome::Done)
    }
}

impl Slices {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, key: &ObjectKey, f: impl FnOnce(&mut Known) -> T) -> T {
        f(self.lock().entry(key.clone()).or_default())
    }

    fn existing(&self, key: &ObjectKey) -> Vec<Arc<EndpointSlice>> {
        let mut slices = self.slices.get(key);
        slices.retain(|slice| !is_deleted(&slice.metadata));
        slices
    }

    /// Returns `true` if the cache shows every slice in its last written version or a newer one.
    fn sees_what_was_written(&self, key: &ObjectKey, existing: &[Arc<EndpointSlice>]) -> bool {
        self.with(key, |known| {
            known.written.retain(|written, (version, since)| {
                let seen = existing.iter().find(|slice| name(&slice.metadata) == written);
                let fresh = seen.is_some_and(|slice| version_of(slice) >= *version);
                !fresh && since.elapsed() < UNSEEN_SLICE_TIMEOUT
            });
            known.written.is_empty()
        })
    }

    async fn execute(&self, key: &ObjectKey, action: Action) -> Result<()> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &key.namespace);
        match action {
            Action::Create(slice) => {
                let created = api.create(&PostParams::default(), &slice).await;
                match created.attempt(|| format!("create an endpoint slice of service {key}")) {
                    Ok(slice) => {
                        self.remember(key, &slice);
                        Ok(())
                    }
                    Err(error) if error.is_namespace_terminating() => Ok(()),
                    Err(error) => Err(error),
                }
            }
            Action::Update { old, new } => {
                let Some(body) = patch::of(old.as_ref(), new.as_ref()) else { return Ok(()) };
                let slice = name(&old.metadata);
                let patched = api.patch(slice, &PatchParams::default(), &Patch::Merge(body)).await;
                let patched = patched.attempt(|| format!("update endpoint slice {slice}"))?;
                self.remember(key, &patched);
                Ok(())
            }
            Action::Delete(slice) => {
                let options = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: slice.metadata.uid.clone(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                let name = name(&slice.metadata);
                let deleted = api.delete(name, &options).await;
                let deleted = deleted.attempt(|| format!("delete endpoint slice {name}")).map(drop);
                if deleted.as_ref().is_err_and(Error::is_not_found) { Ok(()) } else { deleted }
            }
        }
    }

    fn remember(&self, key: &ObjectKey, slice: &EndpointSlice) {
        let entry = (version_of(slice), Instant::now());
        self.with(key, |known| known.written.insert(name(&slice.metadata).to_owned(), entry));
    }
}

/// Returns the version of a slice, a number that only grows within a kind; 0 if it is unknown.
fn version_of(slice: &EndpointSlice) -> u64 {
    slice.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}
