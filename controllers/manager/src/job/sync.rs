//! Carries out the plan for a Job, and writes its status and the finalizers of its pods in an order that survives a
//! crash between any two writes.

use k8s_openapi::api::core::v1;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::events::reference;
use apiserver_client::{Cache, Object, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Error, Ledger, Outcome, Reconcile, Result, parallel};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use kube::api::DeleteParams;
use kube::{Api, Client};
use tokio::time::Instant;

use super::account::{Done, account};
use super::backoff::Failures;
use super::orphans::{remove_finalizer, without_finalizer};
use super::plan::{Action, FINALIZER, Input, Plan, completions, count, has_finalizer, plan};
use super::template::new_pod;
use super::unseen::{Awaited, Unseen};
use super::{condition, finished, is_foreign};
use crate::index::Pods;
use crate::meta::{self, is_deleted, name, namespace, uid};
use crate::metrics::{
    JOB_PODS_CREATED, JOB_PODS_FINISHED, JOB_SYNC_DURATION, JOB_SYNCS, JOBS_FINISHED, Metrics,
};
use crate::patch;
use crate::pods::{Pod, Writes};

/// The controller of Jobs.
pub(super) struct Jobs {
    pub client: Client,
    pub ambient: Ambient,
    pub recorder: Recorder,
    pub jobs: Cache<Job>,
    pub pods: Pods,
    pub unseen: Arc<Unseen>,
    /// Written statuses.
    pub written_jobs: Ledger<ObjectKey>,
    /// Created and changed pods.
    pub written_pods: Ledger<ObjectKey>,
    pub failures: Mutex<BTreeMap<ObjectKey, Failures>>,
    pub metrics: Metrics,
}

impl Reconcile for Jobs {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        // Checked before the caches are read: what they show by now cannot be missing below.
        let shown = self.is_shown(key);
        let Some(job) = self.jobs.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        let Some(spec) = job.spec.as_ref().filter(|spec| !is_foreign(spec)) else { return Ok(Outcome::Done) };
        if finished(&job).is_some() {
            self.forget(key);
            return self.release_left(&job).await.map(|()| Outcome::Done);
        }
        if !matches!(spec.completion_mode.as_deref(), None | Some("NonIndexed" | "Indexed")) {
            let message = "Skipped Job sync because completion mode is unknown";
            self.recorder.warning(reference(job.as_ref()), "UnknownCompletionMode", message);
            return Ok(Outcome::Done);
        }
        if !shown {
            return Ok(Outcome::Behind);
        }
        let Some(selector) = &spec.selector else { return Ok(Outcome::Done) };
        meta::check_selector(job.as_ref(), selector)?;
        let candidates = self.pods.concerned(&key.namespace, uid(&job.metadata), selector);
        let claims = meta::claim(&job.metadata, selector, candidates);
        if !claims.adopt.is_empty() || !claims.release.is_empty() {
            // The changes of the pods trigger the next reconciliation.
            return self.claim_pods(key, &job, claims).await.map(|()| Outcome::Done);
        }
        let (started, mut action) = (Instant::now(), "reconciling");
        let done = self.run(key, &job, spec, claims.owned, &mut action).await;
        let result = if done.is_ok() { "succeeded" } else { "failed" };
        let labels = [mode(spec), result, action];
        self.metrics.count(&JOB_SYNCS, &labels);
        self.metrics.time(&JOB_SYNC_DURATION, &labels, started.elapsed());
        done
    }
}

impl Jobs {
    /// Takes the next steps; `action` becomes the name in metrics of what is done with pods.
    async fn run(
        &self,
        key: &ObjectKey,
        job: &Job,
        spec: &JobSpec,
        pods: Vec<Arc<Pod>>,
        action: &mut &'static str,
    ) -> Result<Outcome> {
        let failures = self.failures(|all| all.get(key).copied()).unwrap_or_default();
        let input = Input { job, spec, pods, failures, now: self.ambient.now() };
        let plan = plan(&input);
        *action = match &plan.action {
            Action::Create(_) => "pods_created",
            Action::Remove(_) => "pods_deleted",
            Action::Terminate(_) => "reconciling",
            Action::None => "tracking",
        };
        let (done, acted) = self.act(key, &input, &plan).await;
        let account = account(&input, &plan, done);
        let written = self.write_status(key, job, &account.status).await?;
        if written.is_some() {
            self.failures(|all| all.insert(key.clone(), plan.failures));
        }
        match account.suspended {
            Some(true) => self.recorder.normal(reference(job), "Suspended", "Job suspended"),
            Some(false) => self.recorder.normal(reference(job), "Resumed", "Job resumed"),
            None => {}
        }
        let (released, removed) = self.release(key, &account.release).await;
        let (status, ending) = account.conclude(&released, input.now);
        let before = written.as_ref().unwrap_or(job);
        self.write_status(key, before, &status).await?;
        self.count_pods(spec, job.status.as_ref(), &status);
        if let Some(ending) = ending {
            let (succeeded, reason) = (ending.type_ == condition::COMPLETE, ending.reason.as_deref());
            let result = if succeeded { "succeeded" } else { "failed" };
            self.metrics.count(&JOBS_FINISHED, &[mode(spec), result, reason.unwrap_or_default()]);
            self.report_end(job, spec, &status, &ending);
        }
        removed.and(acted)?;
        Ok(plan.wake.map_or(Outcome::Done, Outcome::After))
    }

    /// Counts the pods that the new status counts and the old one did not.
    fn count_pods(&self, spec: &JobSpec, old: Option<&JobStatus>, new: &JobStatus) {
        let more = |of: fn(&JobStatus) -> Option<i32>| {
            let before = old.and_then(of).unwrap_or_default();
            usize::try_from(of(new).unwrap_or_default().saturating_sub(before)).unwrap_or(0)
        };
        let (succeeded, failed) = (more(|status| status.succeeded), more(|status| status.failed));
        for (result, number) in [("succeeded", succeeded), ("failed", failed)] {
            if number > 0 {
                self.metrics.add(&JOB_PODS_FINISHED, &[mode(spec), result], number);
            }
        }
    }

    fn failures<T>(&self, f: impl FnOnce(&mut BTreeMap<ObjectKey, Failures>) -> T) -> T {
        f(&mut self.failures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns `true` if the caches show everything that was written for the Job.
    fn is_shown(&self, key: &ObjectKey) -> bool {
        self.unseen.is_shown(key)
            && self.written_jobs.is_shown(key, &self.jobs)
            && self.written_pods.is_shown(key, self.pods.cache())
    }

    /// Forgets what is known about a Job that is gone or has ended.
    fn forget(&self, key: &ObjectKey) {
        self.unseen.forget(key);
        self.written_jobs.forget(key);
        self.written_pods.forget(key);
        self.failures(|all| all.remove(key));
    }

    fn api(&self, job: &Job) -> Api<v1::Pod> {
        Api::namespaced(self.client.clone(), namespace(&job.metadata))
    }

    /// Writes the status of `job`; returns the Job as written, `None` if nothing differed.
    async fn write_status(&self, key: &ObjectKey, job: &Job, status: &JobStatus) -> Result<Option<Job>> {
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        let new = Job { status: Some(status.clone()), ..job.clone() };
        let written = patch::write_status(&api, job, &new).await?;
        if let Some(written) = &written {
            self.written_jobs.wrote(key, written);
        }
        Ok(written)
    }

    /// Carries out the action of the plan; returns the part of it that succeeded.
    async fn act(&self, key: &ObjectKey, input: &Input<'_>, plan: &Plan) -> (Done, Result<()>) {
        match &plan.action {
            Action::None => (Done::default(), Ok(())),
            Action::Create(indexes) => self.create(key, input, plan, indexes).await,
            Action::Remove(pods) => self.delete(key, input.job, pods, true).await,
            Action::Terminate(pods) => self.delete(key, input.job, pods, false).await,
        }
    }

    /// Creates pods, first one and then more and more at a time, so that an invalid template is refused once rather than
    /// many times.
    async fn create(
        &self,
        key: &ObjectKey,
        input: &Input<'_>,
        plan: &Plan,
        indexes: &[Option<usize>],
    ) -> (Done, Result<()>) {
        let (job, writes) = (input.job, Writes::new(&self.client, &key.namespace));
        let replaced = plan.indexes.as_ref().map(|indexes| &indexes.replaced);
        let create = |index: &Option<usize>| {
            let replaced = index.and_then(|index| replaced?.get(&index));
            let pod = new_pod(job, input.spec, *index, replaced.map(Arc::as_ref));
            let writes = writes.clone();
            async move { writes.create(&pod).await }
        };
        let reason = creation_reason(input);
        let (mut done, mut failed) = (Done::default(), None);
        for result in parallel::slow_start(indexes, create).await.results {
            match result.attempt(|| format!("create a pod of job {key}")) {
                Ok(pod) => {
                    done.created += 1;
                    self.metrics.count(&JOB_PODS_CREATED, &[reason, "succeeded"]);
                    self.written_pods.wrote(key, &pod);
                    let text = format!("Created pod: {}", name(&pod.metadata));
                    self.recorder.normal(reference(job), "SuccessfulCreate", text);
                }
                Err(error) => {
                    self.metrics.count(&JOB_PODS_CREATED, &[reason, "failed"]);
                    failed.get_or_insert(error);
                }
            }
        }
        let Some(error) = failed.filter(|error| !error.is_namespace_terminating()) else {
            return (done, Ok(()));
        };
        let text = format!("Error creating: {}", error.api_message());
        self.recorder.warning(reference(job), "FailedCreate", text);
        (done, Err(error))
    }

    /// Deletes pods. Those that are not to be counted lose their finalizer first.
    async fn delete(
        &self,
        key: &ObjectKey,
        job: &Job,
        pods: &[Arc<Pod>],
        uncounted: bool,
    ) -> (Done, Result<()>) {
        let (api, writes) = (self.api(job), Writes::new(&self.client, &key.namespace));
        let deleted = parallel::all(pods, |pod| {
            self.unseen.expect(key, uid(&pod.metadata), Awaited::Deletion);
            let (api, writes, pod) = (api.clone(), writes.clone(), Arc::clone(pod));
            async move { delete(&api, &writes, &pod, uncounted).await }
        })
        .await;
        let results: Vec<_> = pods
            .iter()
            .zip(deleted)
            .map(|(pod, result)| {
                if result.is_err() || self.shows_deletion(pod) {
                    self.unseen.seen(uid(&pod.metadata), Awaited::Deletion);
                }
                let name = name(&pod.metadata);
                match result {
                    Ok(()) => {
                        let text = format!("Deleted pod: {name}");
                        self.recorder.normal(reference(job), "SuccessfulDelete", text);
                        Ok(())
                    }
                    Err(error) if error.is_not_found() => Ok(()),
                    Err(error) if error.is_conflict() => Err(error),
                    Err(error) => {
                        let text = format!("Error deleting: {}", error.api_message());
                        self.recorder.warning(reference(job), "FailedDelete", text);
                        Err(error)
                    }
                }
            })
            .collect();
        let deleted = pods.iter().zip(&results).filter(|(_, result)| result.is_ok());
        let done = Done {
            created: 0,
            deleted: deleted.clone().count(),
            deleted_ready: deleted.filter(|(pod, _)| pod.is_ready()).count(),
        };
        (done, Error::collect(results))
    }

    /// Returns `true` if the cache shows that the pod is gone or being deleted.
    fn shows_deletion(&self, pod: &Pod) -> bool {
        let shown = self.pods.cache().get(&ObjectKey::of(pod));
        shown.is_none_or(|shown| uid(&shown.metadata) != uid(&pod.metadata) || is_deleted(&shown.metadata))
    }

    /// Removes the finalizer of pods that are counted; returns the uids of those that have none any more.
    async fn release(&self, key: &ObjectKey, pods: &[Arc<Pod>]) -> (BTreeSet<String>, Result<()>) {
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        let removed = parallel::all(pods, |pod| {
            self.unseen.expect(key, uid(&pod.metadata), Awaited::Release);
            release_one(api.clone(), Arc::clone(pod))
        })
        .await;
        let released = pods.iter().zip(&removed).filter(|(pod, result)| {
            let uid = uid(&pod.metadata);
            let shown = self.pods.cache().get(&ObjectKey::of(pod.as_ref()));
            let is_shown =
                shown.is_none_or(|shown| meta::uid(&shown.metadata) != uid || !has_finalizer(&shown));
            if result.is_err() || is_shown {
                self.unseen.seen(uid, Awaited::Release);
            }
            result.is_ok()
        });
        (released.map(|(pod, _)| uid(&pod.metadata).to_owned()).collect(), Error::collect(removed))
    }

    /// Removes the finalizer of all pods of a Job that has ended.
    async fn release_left(&self, job: &Job) -> Result<()> {
        let api = self.api(job);
        let mut pods = self.pods.controlled(uid(&job.metadata));
        pods.retain(|pod| has_finalizer(pod));
        Error::collect(parallel::all(pods, |pod| release_one(api.clone(), pod)).await)
    }

    /// Adopts pods, which are counted from now on, and releases those whose labels have changed.
    async fn claim_pods(&self, key: &ObjectKey, job: &Job, claims: meta::Claims<Arc<Pod>>) -> Result<()> {
        let adopts = claims.adopt.is_empty() || self.is_current(job).await?;
        let owner = meta::controller_reference(job);
        let adopted = claims.adopt.into_iter().filter(|_| adopts).map(|pod| {
            let old = pod.to_api();
            let mut new = old.clone();
            new.metadata.owner_references = Some(meta::with_owner(&pod.metadata, owner.clone()));
            if !has_finalizer(&pod) {
                new.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
            }
            (old, new)
        });
        let released = claims.release.into_iter().map(|pod| {
            let old = pod.to_api();
            let mut new = old.clone();
            new.metadata.owner_references = Some(meta::without_owner(&pod.metadata, uid(&job.metadata)));
            (old, without_finalizer(&new))
        });
        for (old, new) in adopted.chain(released) {
            if let Some(written) = patch::update(&self.api(job), &old, &new).await? {
                self.written_pods.wrote(key, &written);
            }
        }
        Ok(())
    }

    async fn is_current(&self, job: &Job) -> Result<bool> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), namespace(&job.metadata));
        let name = name(&job.metadata);
        let live = api.get_opt(name).await.attempt(|| format!("get job {name}"))?;
        Ok(live.is_some_and(|live| live.metadata.uid == job.metadata.uid && !is_deleted(&live.metadata)))
    }

    fn report_end(&self, job: &Job, spec: &JobSpec, status: &JobStatus, ending: &JobCondition) {
        if ending.type_ == condition::FAILED {
            let text = ending.message.clone().unwrap_or_default();
            return self.recorder.warning(reference(job), condition::event_reason(ending), text);
        }
        if completions(spec).is_some_and(|wanted| count(status.succeeded) > wanted) {
            let text = "Too many succeeded pods running after completion count reached";
            self.recorder.warning(reference(job), "TooManySucceededPods", text);
        }
        self.recorder.normal(reference(job), "Completed", "Job completed");
    }
}

/// Returns the reason for which pods are created, in metrics.
pub(super) fn creation_reason(input: &Input<'_>) -> &'static str {
    let counted = input.job.status.as_ref().and_then(|status| status.failed).unwrap_or(0) > 0;
    let has_failed = |pod: &Arc<Pod>| pod.phase() == "Failed";
    let failed = counted || input.pods.iter().any(has_failed);
    let terminating = input.pods.iter().any(|pod| is_deleted(&pod.metadata));
    match input.spec.pod_replacement_policy.as_deref() {
        Some("Failed") if failed => "recreate_failed",
        _ if failed || terminating => "recreate_terminating_or_failed",
        _ => "new",
    }
}

/// Returns the completion mode in metrics.
fn mode(spec: &JobSpec) -> &'static str {
    if spec.completion_mode.as_deref() == Some("Indexed") { "Indexed" } else { "NonIndexed" }
}

/// Removes the finalizer of a pod, which may be gone by now.
async fn release_one(api: Api<v1::Pod>, pod: Arc<Pod>) -> Result<()> {
    match remove_finalizer(&api, &pod).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

async fn delete(api: &Api<v1::Pod>, writes: &Writes, pod: &Pod, uncounted: bool) -> Result<()> {
    if uncounted && has_finalizer(pod) {
        // Refused if the pod has changed since: it may have ended, and then it counts.
        let old = pod.to_api();
        patch::update(api, &old, &without_finalizer(&old)).await?;
    }
    let deleted = writes.delete(pod, DeleteParams::default()).await;
    deleted.attempt(|| format!("delete pod {}", name(&pod.metadata)))
}
