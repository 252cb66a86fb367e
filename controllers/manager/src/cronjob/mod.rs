//! The CronJob controller: starts Jobs at the times of a schedule.

mod plan;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Ledger, Outcome, Reconcile, Result, WorkQueue, resync};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};

use crate::context::{Context, Tasks};
use crate::index::Owned;
use crate::meta::{controller_key, is_controlled_by, is_deleted, name, namespace, only_this, uid};
use crate::metrics::{CRON_JOB_SKEW, Metrics};
use crate::patch;
use plan::{Note, Since, beyond_history, decide, missing, new_job, normal, observe, remove_active, warning};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("cronjob");
    let crons = context.informers.cache::<CronJob>();
    let jobs = Owned::new(context.informers.cache::<Job>());
    follow_jobs(jobs.cache(), &queue);
    follow_crons(&crons, &context.ambient, &queue);
    tasks.spawn(resync(crons.clone(), queue.clone(), context.resync, context.shutdown.clone()));
    let ready = {
        let (crons, jobs) = (crons.clone(), jobs.cache().clone());
        async move {
            crons.synced().await;
            jobs.synced().await;
        }
    };
    let controller = CronJobs {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("cronjob-controller"),
        crons,
        jobs,
        written_crons: Ledger::default(),
        written_jobs: Ledger::default(),
        metrics: context.config.metrics.clone(),
    };
    context.start(tasks, queue, controller, ready);
}

fn follow_jobs(jobs: &Cache<Job>, queue: &WorkQueue<ObjectKey>) {
    let queue = queue.clone();
    jobs.on_change(move |change| {
        let old = match change {
            Change::Applied { old: Some(old), .. } => controller_key::<CronJob>(&old.metadata),
            _ => None,
        };
        let new = controller_key::<CronJob>(&change.object().metadata);
        old.into_iter().chain(new).for_each(|key| queue.add(key));
    });
}

fn follow_crons(crons: &Cache<CronJob>, ambient: &Ambient, queue: &WorkQueue<ObjectKey>) {
    let (ambient, queue) = (ambient.clone(), queue.clone());
    crons.on_change(move |change| {
        if let Change::Applied { old: Some(old), new } = change
            && let Some(delay) = delay_of_new_schedule(old, new, ambient.now())
        {
            return queue.add_after(change.key(), delay);
        }
        queue.add(change.key());
    });
}

/// Returns the time until the next start if the schedule has changed: a new one starts nothing for times in the past.
fn delay_of_new_schedule(old: &CronJob, new: &CronJob, now: Timestamp) -> Option<std::time::Duration> {
    let (old, spec) = (&old.spec, &new.spec);
    if (&old.schedule, &old.time_zone) == (&spec.schedule, &spec.time_zone) {
        return None;
    }
    let status = new.status.clone().unwrap_or_default();
    Since::of(new, &status).wake(&plan::schedule(spec).ok()?, now)
}

struct CronJobs {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    crons: Cache<CronJob>,
    jobs: Owned<Job>,
    /// Written statuses.
    written_crons: Ledger<ObjectKey>,
    /// Created Jobs.
    written_jobs: Ledger<ObjectKey>,
    metrics: Metrics,
}

impl Reconcile for CronJobs {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        // Checked before the caches are read: what they show by now cannot be missing below.
        let shown = self.written_crons.is_shown(key, &self.crons)
            && self.written_jobs.is_shown(key, self.jobs.cache());
        let Some(cron) = self.crons.get(key) else {
            self.written_crons.forget(key);
            self.written_jobs.forget(key);
            return Ok(Outcome::Done);
        };
        let spec = &cron.spec;
        if !shown {
            return Ok(Outcome::Behind);
        }
        let jobs = self.jobs.controlled(uid(&cron.metadata));
        let mut status = cron.status.clone().unwrap_or_default();
        for job in beyond_history(spec, &jobs) {
            // The history is tidied up again by the next reconciliation.
            let _ = self.delete(&cron, &mut status, &job).await;
        }
        let notes = observe(&mut status, &jobs);
        self.record(&cron, notes);
        let done = self.run(key, &cron, spec, &jobs, &mut status).await;
        let new = CronJob { status: Some(status), ..CronJob::clone(&cron) };
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        if let Some(written) = patch::write_status(&api, cron.as_ref(), &new).await? {
            self.written_crons.wrote(key, &written);
        }
        done
    }
}

impl CronJobs {
    fn api(&self, cron: &CronJob) -> Api<Job> {
        Api::namespaced(self.client.clone(), namespace(&cron.metadata))
    }

    fn record(&self, cron: &CronJob, notes: impl IntoIterator<Item = Note>) {
        for Note { is_warning, reason, message } in notes {
            if is_warning {
                self.recorder.warning(reference(cron), reason, message);
            } else {
                self.recorder.normal(reference(cron), reason, message);
            }
        }
    }

    /// Starts what is due, and updates the status.
    async fn run(
        &self,
        key: &ObjectKey,
        cron: &CronJob,
        spec: &CronJobSpec,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> Result<Outcome> {
        for gone in missing(status, jobs) {
            let name = gone.name.unwrap_or_default();
            let live = self.api(cron).get_opt(&name).await.attempt(|| format!("get job {name}"))?;
            if live.is_none_or(|live| live.metadata.uid != gone.uid) {
                self.record(cron, [normal("MissingJob", format!("Active job went missing: {name}"))]);
                remove_active(status, gone.uid.as_deref().unwrap_or_default());
            }
        }
        let mut decision = decide(cron, spec, status, self.ambient.now());
        self.record(cron, std::mem::take(&mut decision.notes));
        if let Some(at) = decision.start {
            if decision.replaces {
                self.delete_active(cron, status, jobs).await?;
            }
            self.start_job(key, cron, spec, status, at).await?;
        }
        Ok(decision.wake.map_or(Outcome::Done, Outcome::After))
    }

    /// Deletes the Jobs that still run at the time of the next one.
    async fn delete_active(
        &self,
        cron: &CronJob,
        status: &mut CronJobStatus,
        jobs: &[Arc<Job>],
    ) -> Result<()> {
        for active in status.active.clone().unwrap_or_default() {
            let Some(job) = jobs.iter().find(|job| job.metadata.uid == active.uid) else { continue };
            self.delete(cron, status, job).await?;
        }
        Ok(())
    }

    /// Deletes a Job with its pods.
    async fn delete(&self, cron: &CronJob, status: &mut CronJobStatus, job: &Job) -> Result<()> {
        if is_deleted(&job.metadata) {
            remove_active(status, uid(&job.metadata));
            return Ok(());
        }
        let options = only_this(&job.metadata, DeleteParams::background());
        let name = name(&job.metadata);
        let deleted = self.api(cron).delete(name, &options).await;
        match deleted.attempt(|| format!("delete job {name}")) {
            Ok(_) => self.record(cron, [normal("SuccessfulDelete", format!("Deleted job {name}"))]),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                self.record(cron, [warning("FailedDelete", format!("Deleted job: {}", error.api_message()))]);
                return Err(error);
            }
        }
        remove_active(status, uid(&job.metadata));
        Ok(())
    }

    /// Starts the Job of a scheduled time. One that exists already was created before a crash.
    async fn start_job(
        &self,
        key: &ObjectKey,
        cron: &CronJob,
        spec: &CronJobSpec,
        status: &mut CronJobStatus,
        at: Timestamp,
    ) -> Result<()> {
        let (api, job) = (self.api(cron), new_job(cron, spec, at));
        let name = name(&job.metadata);
        let created = api.create(&PostParams::default(), &job).await;
        let job = match created.attempt(|| format!("create job {name}")) {
            Ok(created) => {
                let made = created.metadata.creation_timestamp.as_ref().map_or(at, |time| time.0);
                self.metrics.observe(&CRON_JOB_SKEW, &[], made.duration_since(at).as_secs_f64().max(0.0));
                self.record(cron, [normal("SuccessfulCreate", format!("Created job {name}"))]);
                created
            }
            Err(error) if error.is_already_exists() => {
                let live = api.get(name).await.attempt(|| format!("get job {name}"))?;
                if !is_controlled_by(&live.metadata, &cron.metadata) {
                    return Ok(());
                }
                live
            }
            Err(error) if error.is_namespace_terminating() => return Ok(()),
            Err(error) => {
                self.record(
                    cron,
                    [warning("FailedCreate", format!("Error creating job: {}", error.api_message()))],
                );
                return Err(error);
            }
        };
        self.written_jobs.wrote(key, &job);
        // One that has ended meanwhile is removed by the next reconciliation.
        status.active.get_or_insert_default().push(reference(&job));
        status.last_schedule_time = Some(Time(at));
        Ok(())
    }
}
