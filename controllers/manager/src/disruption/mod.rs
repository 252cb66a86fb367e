//! The disruption controller: tells the API server how many pods of each PodDisruptionBudget may be evicted.
//!
//! ```text
//!  pods, budgets, workloads ─▶ judge ─▶ status of the budget: disruptionsAllowed ─▶ evictions take from it
//!                                ▲                             disruptedPods ◀───── and leave a note
//!                                └────── the note counts as a deletion until the pod's own shows, or it times out
//! ```
//!
//! Each status replaces the very version that it was computed from, so that no eviction in between is overlooked. An
//! eviction adds to `disruptedPods` with the same write that uses a disruption, and only this controller removes it,
//! when its cache shows the deletion of the pod, and is not older than the eviction: otherwise it may show a former pod
//! of that name, or not yet show the pod at all. Hence no pod whose eviction was allowed is counted as healthy.

mod budgets;
mod plan;
mod scales;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod simulation;
mod stale;
#[cfg(test)]
mod tests;
mod workloads;

use k8s_openapi::api::core::v1;
use std::sync::Mutex;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder};
use controllers_runtime::{Ledger, WorkQueue};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::context::{Context, Tasks};
use crate::index::Selectors;
use crate::meta::{labels, name, namespace};
use crate::pods::Pod;
use budgets::Budgets;
use scales::Scales;
use stale::StaleTargets;
use workloads::{Scaled, Workloads};

/// Source of the events.
const COMPONENT: &str = "controllermanager";

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let (queue, stale) = (WorkQueue::new("disruption"), WorkQueue::new("stale_pod_disruption"));
    let selectors = Selectors::new(context.informers.cache::<PodDisruptionBudget>());
    let budgets = selectors.cache().clone();
    let pods = context.pods.clone();
    let workloads = Workloads::new(context);
    let recorder = context.recorder.named(COMPONENT);
    context.feed(tasks, &budgets, &queue);
    follow_pods(pods.cache(), &selectors, (&queue, &stale), &recorder);
    follow_scales(&workloads.controllers, &selectors, &queue);
    follow_scales(&workloads.sets, &selectors, &queue);
    follow_scales(&workloads.deployments, &selectors, &queue);
    follow_scales(&workloads.stateful, &selectors, &queue);
    let cleaner = StaleTargets {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        pods: pods.cache().clone(),
        written: Ledger::default(),
    };
    let controller = Budgets {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder,
        selectors,
        pods: pods.clone(),
        scales: Scales::new(context.client.clone(), workloads.clone()),
        written: Ledger::default(),
        versions: Mutex::default(),
    };
    let synced = pods.cache().clone();
    context.start(tasks, stale, cleaner, async move { synced.synced().await });
    // Few: a pod that changes is counted for each budget that selects it, and tenants choose how many do.
    let workers = context.workers(crate::limits::DISRUPTION_WORKERS);
    context.start_with(tasks, queue, controller, workers, async move {
        budgets.synced().await;
        pods.cache().synced().await;
        workloads.synced().await;
    });
}

/// Enqueues the budgets of pods that have changed, and the pods that someone was about to delete.
fn follow_pods(
    pods: &Cache<Pod>,
    budgets: &Selectors<PodDisruptionBudget>,
    (queue, stale): (&WorkQueue<ObjectKey>, &WorkQueue<ObjectKey>),
    recorder: &Recorder,
) {
    let (budgets, queue, stale) = (budgets.clone(), queue.clone(), stale.clone());
    let recorder = recorder.clone();
    pods.on_change(move |change| {
        let pod = change.object();
        let selecting = budgets.selecting(pod.as_ref());
        if let Change::Applied { old, new } = change {
            let moved = old.as_ref().filter(|old| labels(&old.metadata) != labels(&new.metadata));
            moved.into_iter().flat_map(|old| budgets.selecting(old.as_ref())).for_each(|key| queue.add(key));
            if old.is_none() || moved.is_some() {
                report_several(&recorder, new, &selecting);
            }
            if stale::target(new).is_some() {
                stale.add(change.key());
            }
        }
        selecting.into_iter().for_each(|key| queue.add(key));
    });
}

/// Warns about a pod with several budgets, which cannot be evicted.
fn report_several(recorder: &Recorder, pod: &Pod, budgets: &[ObjectKey]) {
    let [first, _, ..] = budgets else { return };
    let message = format!(
        "Pod {:?}/{:?} matches multiple PodDisruptionBudgets.  Chose {:?} arbitrarily.",
        namespace(&pod.metadata),
        name(&pod.metadata),
        first.name
    );
    recorder.warning(reference(pod), "MultiplePodDisruptionBudgets", message);
}

/// Enqueues the budgets of the pods of a workload that is new or gone, or wants another number of pods.
fn follow_scales<K: Scaled>(
    cache: &Cache<K>,
    budgets: &Selectors<PodDisruptionBudget>,
    queue: &WorkQueue<ObjectKey>,
) {
    let (budgets, queue) = (budgets.clone(), queue.clone());
    cache.on_change(move |change| {
        if let Change::Applied { old: Some(old), new } = change
            && old.replicas() == new.replicas()
        {
            return;
        }
        let workload = change.object();
        let template = workload.template().and_then(|template| template.metadata.as_ref());
        let pod = v1::Pod {
            metadata: ObjectMeta {
                namespace: workload.meta().namespace.clone(),
                labels: template.and_then(|template| template.labels.clone()),
                ..ObjectMeta::default()
            },
            ..v1::Pod::default()
        };
        budgets.selecting(&pod).into_iter().for_each(|key| queue.add(key));
    });
}
