//! The controller of ReplicaSets, and of ReplicationControllers: keeps a given number of pods of one template.

mod expectations;
mod kind;
mod plan;
mod ranking;

use controllers_runtime::parallel::{self, Done};
use std::sync::Arc;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::error_chain;
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::ReplicationController;
use kube::api::DeleteParams;
use kube::{Api, Client};

use crate::context::{Context, Tasks};
use crate::index::{Owned, Pods, Selector, Selectors};
use crate::meta::{self, controller_key, controller_of, is_deleted, name, namespace, uid};
use crate::pods::{Pod, Writes};
use crate::{ownership, patch};
use expectations::Expectations;
use kind::Replicated;
use plan::{Action, Input, new_pod, next_available, plan, status};

/// Starts the controller of ReplicaSets.
pub(crate) fn start_replica_sets(context: &Context, tasks: &mut Tasks) {
    start_kind(context, tasks, context.replica_sets.clone());
}

/// Starts the controller of ReplicationControllers.
pub(crate) fn start_replication_controllers(context: &Context, tasks: &mut Tasks) {
    start_kind(context, tasks, Owned::new(context.informers.cache::<ReplicationController>()));
}

fn start_kind<K: Replicated>(context: &Context, tasks: &mut Tasks, owned: Owned<K>) {
    let queue = WorkQueue::new(K::QUEUE);
    let sets = owned.cache().clone();
    let pods = context.pods.cache().clone();
    let expectations = Arc::new(Expectations::default());
    follow_pods(&pods, &Selectors::new(sets.clone()), &queue, &expectations);
    context.feed(tasks, &sets, &queue);
    let controller = ReplicaSets {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named(K::COMPONENT),
        sets: owned,
        pods: context.pods.clone(),
        expectations,
    };
    context.start(tasks, queue, controller, async move {
        sets.synced().await;
        pods.synced().await;
    });
}

fn follow_pods<K: Replicated>(
    pods: &Cache<Pod>,
    sets: &Selectors<K>,
    queue: &WorkQueue<ObjectKey>,
    expectations: &Arc<Expectations>,
) {
    let (sets, queue, expectations) = (sets.clone(), queue.clone(), Arc::clone(expectations));
    pods.on_change(move |change| {
        let pod = change.object();
        let Some(key) = controller_key::<K>(&pod.metadata) else {
            // The pod may have been released, or may be up for adoption.
            if let Change::Applied { old: Some(old), .. } = change {
                controller_key::<K>(&old.metadata).into_iter().for_each(|key| queue.add(key));
            }
            return offer(pod, &sets, &queue);
        };
        match change {
            Change::Applied { old: None, .. } => expectations.created(&key),
            Change::Applied { .. } => {}
            Change::Deleted(pod) => expectations.deleted(&key, uid(&pod.metadata)),
        }
        if is_deleted(&pod.metadata) {
            expectations.deleted(&key, uid(&pod.metadata));
        }
        queue.add(key);
    });
}

/// Enqueues the sets that may adopt a pod without a controller.
fn offer<K: Replicated>(pod: &Pod, sets: &Selectors<K>, queue: &WorkQueue<ObjectKey>) {
    if controller_of(&pod.metadata).is_some() || is_deleted(&pod.metadata) {
        return;
    }
    sets.selecting(pod).into_iter().for_each(|key| queue.add(key));
}

struct ReplicaSets<K: Replicated> {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    sets: Owned<K>,
    pods: Pods,
    expectations: Arc<Expectations>,
}

impl<K: Replicated> Reconcile for ReplicaSets<K> {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(set) = self.sets.cache().get(key) else {
            self.expectations.forget(key);
            return Ok(Outcome::Done);
        };
        let Some(selector) = set.selector().map(Selector::full) else { return Ok(Outcome::Done) };
        meta::check_selector(set.as_ref(), &selector)?;
        // Checked before the pods are listed: what has been seen by now cannot be missing in the list below.
        let expectations_met = self.expectations.are_met(key);
        let candidates = self.pods.concerned(&key.namespace, uid(set.meta()), &selector);
        let claims = meta::claim(set.meta(), &selector, candidates);
        if !claims.adopt.is_empty() || !claims.release.is_empty() {
            // The changes of the pods trigger the next reconciliation.
            ownership::adopt_and_release(&self.client, set.as_ref(), claims).await?;
            return Ok(Outcome::Done);
        }
        let now = self.ambient.now();
        let related = || self.related(&set);
        let input = Input { set: set.as_ref(), pods: claims.owned, related: &related, expectations_met, now };
        let done = match plan(&input) {
            Action::None => Ok(()),
            Action::Create(count) => self.create(key, &set, count).await,
            Action::Delete(pods) => self.delete(key, &set, pods).await,
        };
        let failure = done.as_ref().err().map(|(reason, error)| (*reason, error_chain(error)));
        let new = set.with_status(status(&input, failure));
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        patch::update_status(&api, set.as_ref(), &new).await?;
        done.map_err(|(_, error)| error)?;
        Ok(next_available(&input).map_or(Outcome::Done, Outcome::After))
    }
}

/// Reason of the condition, and the error.
type Failure = (&'static str, Error);

impl<K: Replicated> ReplicaSets<K> {
    fn writes(&self, set: &K) -> Writes {
        Writes::new(&self.client, namespace(set.meta()))
    }

    /// Returns the pods of all sets with the same controller as `set`.
    fn related(&self, set: &K) -> Vec<Arc<Pod>> {
        let Some(owner) = controller_of(set.meta()) else {
            return self.pods.controlled(uid(set.meta()));
        };
        let family = self.sets.controlled(&owner.uid).into_iter();
        family.flat_map(|set| self.pods.controlled(uid(set.meta()))).collect()
    }

    /// Creates pods, first one and then more and more at a time, so that an invalid template is refused once rather than
    /// five hundred times.
    async fn create(&self, key: &ObjectKey, set: &K, count: usize) -> std::result::Result<(), Failure> {
        let (writes, pod) = (self.writes(set), Arc::new(new_pod(set)));
        self.expectations.expect(key, count, []);
        let Done { results, left } = parallel::slow_start(0..count, |_| {
            let (writes, pod) = (writes.clone(), Arc::clone(&pod));
            async move { writes.create(&pod).await }
        })
        .await;
        // Creations that were not attempted will not be seen either.
        (0..left).for_each(|_| self.expectations.created(key));
        let mut failed = None;
        for result in results {
            match result.attempt(|| format!("create a pod of {} {key}", K::kind(&()))) {
                Ok(pod) => self.report(set, "SuccessfulCreate", "Created", name(&pod.metadata)),
                Err(error) => {
                    self.expectations.created(key);
                    failed.get_or_insert(error);
                }
            }
        }
        let Some(error) = failed.filter(|error| !error.is_namespace_terminating()) else { return Ok(()) };
        let message = format!("Error creating: {}", error.api_message());
        self.recorder.warning(reference(set), "FailedCreate", message);
        Err(("FailedCreate", error))
    }

    async fn delete(
        &self,
        key: &ObjectKey,
        set: &K,
        pods: Vec<Arc<Pod>>,
    ) -> std::result::Result<(), Failure> {
        let writes = self.writes(set);
        self.expectations.expect(key, 0, pods.iter().map(|pod| uid(&pod.metadata).to_owned()));
        let deleted = parallel::all(&pods, |pod| {
            let (writes, pod) = (writes.clone(), Arc::clone(pod));
            async move { writes.delete(&pod, DeleteParams::default()).await }
        })
        .await;
        let results = pods.iter().zip(deleted).map(|(pod, deleted)| {
            let name = name(&pod.metadata);
            let result = deleted.attempt(|| format!("delete pod {name}"));
            match &result {
                Ok(()) => self.report(set, "SuccessfulDelete", "Deleted", name),
                Err(error) => {
                    self.expectations.deleted(key, uid(&pod.metadata));
                    if error.is_not_found() {
                        return Ok(());
                    }
                    let message = format!("Error deleting: {}", error.api_message());
                    self.recorder.warning(reference(set), "FailedDelete", message);
                }
            }
            result
        });
        Error::collect(results.collect()).map_err(|error| ("FailedDelete", error))
    }

    fn report(&self, set: &K, reason: &'static str, verb: &str, pod: &str) {
        self.recorder.normal(reference(set), reason, format!("{verb} pod: {pod}"));
    }
}
