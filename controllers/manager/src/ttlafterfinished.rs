//! Deletes Jobs some time after they have ended, as their `ttlSecondsAfterFinished` says.

use std::time::Duration;

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Outcome, Reconcile, Result, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::api::DeleteParams;
use kube::{Api, Client};

use crate::context::{Context, Tasks};
use crate::job::finished;
use crate::meta::{is_deleted, only_this};
use crate::metrics::{JOB_EXPIRY_DELAY, Metrics};
use crate::pods::until;

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("ttl_jobs_to_delete");
    let jobs = context.informers.cache::<Job>();
    context.feed(tasks, &jobs, &queue);
    let controller = EndedJobs {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        jobs: jobs.clone(),
        metrics: context.config.metrics.clone(),
    };
    context.start(tasks, queue, controller, async move { jobs.synced().await });
}

struct EndedJobs {
    client: Client,
    ambient: Ambient,
    jobs: Cache<Job>,
    metrics: Metrics,
}

impl Reconcile for EndedJobs {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(left) = self.jobs.get(key).and_then(|job| time_left(&job, self.ambient.now())) else {
            return Ok(Outcome::Done);
        };
        if !left.is_zero() {
            return Ok(Outcome::After(left));
        }
        // The user may have prolonged the time: what cannot be undone is decided by what the server has.
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        let Some(job) = api.get_opt(&key.name).await.attempt(|| format!("get job {key}"))? else {
            return Ok(Outcome::Done);
        };
        match time_left(&job, self.ambient.now()) {
            None => Ok(Outcome::Done),
            Some(left) if !left.is_zero() => Ok(Outcome::After(left)),
            Some(_) => {
                delete(&api, key, &job).await?;
                let late = due(&job).map(|at| self.ambient.now().duration_since(at).as_secs_f64());
                self.metrics.observe(&JOB_EXPIRY_DELAY, &[], late.unwrap_or_default().max(0.0));
                Ok(Outcome::Done)
            }
        }
    }
}

async fn delete(api: &Api<Job>, key: &ObjectKey, job: &Job) -> Result<()> {
    let options = only_this(&job.metadata, DeleteParams::foreground());
    let deleted = api.delete(&key.name, &options).await;
    match deleted.attempt(|| format!("delete job {key}, which has ended long enough ago")) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Returns the time until a Job is to be deleted; `None` if it is not, or not yet known.
fn time_left(job: &Job, now: Timestamp) -> Option<Duration> {
    due(job).map(|at| until(at, now))
}

/// Returns the time at which a Job is to be deleted; `None` if it is not, or not yet known.
fn due(job: &Job) -> Option<Timestamp> {
    let seconds = job.spec.as_ref()?.ttl_seconds_after_finished.filter(|_| !is_deleted(&job.metadata))?;
    let ended = finished(job)?.last_transition_time.as_ref()?.0;
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    ended.checked_add(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, meta, time};
    use serde_json::{from_value, json};

    #[test]
    fn only_jobs_that_have_ended_and_have_a_limit_are_deleted() {
        let job = |ttl: Option<i32>, kind: &str, status: &str| {
            let spec = json!({"template": {}, "ttlSecondsAfterFinished": ttl});
            let condition = json!({"type": kind, "status": status, "lastTransitionTime": time(10)});
            Job {
                metadata: meta("j"),
                spec: from_value(spec).unwrap(),
                status: from_value(json!({"conditions": [condition]})).unwrap(),
            }
        };
        let left = |job: &Job| time_left(job, at(15)).map(|left| left.as_secs());
        assert_eq!(left(&job(Some(20), "Complete", "True")), Some(15));
        assert_eq!(left(&job(Some(20), "Failed", "True")), Some(15));
        assert_eq!(left(&job(Some(0), "Complete", "True")), Some(0));
        assert_eq!(left(&job(Some(5), "Complete", "True")), Some(0));
        assert_eq!(left(&job(None, "Complete", "True")), None);
        assert_eq!(left(&job(Some(0), "Complete", "False")), None);
        assert_eq!(left(&job(Some(0), "FailureTarget", "True")), None);
        let mut deleted = job(Some(0), "Complete", "True");
        deleted.metadata.deletion_timestamp = time(11);
        assert_eq!(left(&deleted), None);
    }
}
