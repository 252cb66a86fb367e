//! The Job controller: runs pods until enough of them have succeeded.
//!
//! ```text
//!  pods, Job ─▶ plan: what to create and delete ─▶ requests ─▶ account: what counts ─▶ status, finalizers, status
//! ```

mod account;
mod backoff;
mod condition;
mod indexes;
mod intervals;
mod orphans;
mod plan;
mod policy;
#[cfg(test)]
mod simulation;
mod sync;
mod template;
#[cfg(test)]
mod tests;
mod unseen;

use std::sync::{Arc, Mutex};

use apiserver_client::{Cache, Change, ObjectKey};
use controllers_runtime::{Ledger, WorkQueue, resync};
use k8s_openapi::api::batch::v1::{Job, JobSpec};

use crate::context::{Context, Tasks};
use crate::index::{Pods, Selectors};
use crate::limits::JOB_BATCH;
use crate::meta::{controller_key, controller_of, is_deleted, uid};
use crate::pods::Pod;
pub(crate) use condition::finished;
use orphans::Orphans;
use plan::has_finalizer;
use sync::Jobs;
use unseen::{Awaited, Unseen};

/// Name of this controller in `spec.managedBy`.
const NAME: &str = "kubernetes.io/job-controller";

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let (queue, orphans) = (WorkQueue::new("job"), WorkQueue::new("job_orphan_pod"));
    let jobs = context.informers.cache::<Job>();
    let pods = context.pods.clone();
    let unseen = Arc::new(Unseen::default());
    let selectors = Selectors::new(jobs.clone());
    follow_pods(&pods, &selectors, &queue, &orphans, &unseen);
    follow_jobs(&jobs, &pods, &queue, &orphans);
    tasks.spawn(resync(jobs.clone(), queue.clone(), context.resync, context.shutdown.clone()));
    let controller = Jobs {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("job-controller"),
        jobs: jobs.clone(),
        pods: pods.clone(),
        unseen,
        written_jobs: Ledger::default(),
        written_pods: Ledger::default(),
        failures: Mutex::default(),
        metrics: context.config.metrics.clone(),
    };
    let cleaner = Orphans { client: context.client.clone(), jobs: jobs.clone(), pods: pods.cache().clone() };
    let ready = move || {
        let (jobs, pods) = (jobs.clone(), pods.cache().clone());
        async move {
            jobs.synced().await;
            pods.synced().await;
        }
    };
    context.start(tasks, queue, controller, ready());
    context.start(tasks, orphans, cleaner, ready());
}

/// Returns `true` if another controller manages the Job.
fn is_foreign(spec: &JobSpec) -> bool {
    spec.managed_by.as_deref().is_some_and(|manager| manager != NAME)
}

fn follow_jobs(jobs: &Cache<Job>, pods: &Pods, queue: &WorkQueue<ObjectKey>, orphans: &WorkQueue<ObjectKey>) {
    let (pods, queue, orphans) = (pods.clone(), queue.clone(), orphans.clone());
    jobs.on_change(move |change| match change {
        Change::Applied { old: Some(old), new } if old.metadata.generation == new.metadata.generation => {
            // Mostly our own write of the status.
            queue.add_after(change.key(), JOB_BATCH);
        }
        Change::Applied { .. } => queue.add(change.key()),
        Change::Deleted(job) => {
            queue.add(change.key());
            let left = pods.controlled(uid(&job.metadata)).into_iter().filter(|pod| has_finalizer(pod));
            left.for_each(|pod| orphans.add(ObjectKey::of(pod.as_ref())));
        }
    });
}

fn follow_pods(
    pods: &Pods,
    jobs: &Selectors<Job>,
    queue: &WorkQueue<ObjectKey>,
    orphans: &WorkQueue<ObjectKey>,
    unseen: &Arc<Unseen>,
) {
    let (jobs, queue, orphans, unseen) = (jobs.clone(), queue.clone(), orphans.clone(), Arc::clone(unseen));
    pods.cache().on_change(move |change| {
        let pod = change.object();
        let gone = matches!(change, Change::Deleted(_));
        if gone || is_deleted(&pod.metadata) {
            unseen.seen(uid(&pod.metadata), Awaited::Deletion);
        }
        if gone || !has_finalizer(pod) {
            unseen.seen(uid(&pod.metadata), Awaited::Release);
        }
        if let Change::Applied { old: Some(old), .. } = change {
            let before = controller_key::<Job>(&old.metadata);
            let lost = before.filter(|before| controller_key::<Job>(&pod.metadata).as_ref() != Some(before));
            lost.into_iter().for_each(|key| queue.add_after(key, JOB_BATCH));
        }
        let owner = controller_key::<Job>(&pod.metadata);
        let of_running_job = owner.as_ref().and_then(|key| jobs.cache().get(key)).is_some_and(|job| {
            controller_of(&pod.metadata).is_some_and(|owner| owner.uid == uid(&job.metadata))
                && finished(&job).is_none()
        });
        match owner {
            Some(key) => queue.add_after(key, JOB_BATCH),
            None => offer(pod, &jobs, &queue),
        }
        if has_finalizer(pod) && !of_running_job && matches!(change, Change::Applied { .. }) {
            orphans.add(change.key());
        }
    });
}

/// Enqueues the Jobs that may adopt a pod without a controller.
fn offer(pod: &Pod, jobs: &Selectors<Job>, queue: &WorkQueue<ObjectKey>) {
    if controller_of(&pod.metadata).is_none() && !is_deleted(&pod.metadata) {
        jobs.selecting(pod).into_iter().for_each(|key| queue.add_after(key, JOB_BATCH));
    }
}
