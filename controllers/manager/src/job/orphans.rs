//! Removes the finalizer from pods that no Job counts any more: their Job is gone or has ended, or they have none.

use apiserver_client::{Cache, Object, ObjectKey};
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::plan::{FINALIZER, has_finalizer};
use super::{finished, is_foreign};
use crate::meta::{controller_key, controller_of, name, uid};
use crate::patch;
use crate::pods::Pod;

pub(super) struct Orphans {
    pub client: Client,
    pub jobs: Cache<Job>,
    pub pods: Cache<Pod>,
}

impl Reconcile for Orphans {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(pod) = self.pods.get(key) else { return Ok(Outcome::Done) };
        let job = controller_key::<Job>(&pod.metadata).and_then(|key| self.jobs.get(&key));
        if has_finalizer(&pod) && is_orphan(&pod, job.as_deref()) {
            let api = Api::namespaced(self.client.clone(), &key.namespace);
            // Refused if the pod has changed since: a Job may just have adopted it.
            let pod = pod.to_api();
            let removed = patch::update(&api, &pod, &without_finalizer(&pod)).await;
            if !removed.as_ref().is_err_and(Error::is_not_found) {
                removed?;
            }
        }
        Ok(Outcome::Done)
    }
}

/// Returns `true` if nobody counts the pod. `job` has the name of its controller, if that is a Job.
fn is_orphan(pod: &Pod, job: Option<&Job>) -> bool {
    let Some(owner) = controller_of(&pod.metadata) else { return true };
    if controller_key::<Job>(&pod.metadata).is_none() {
        return false;
    }
    let Some(job) = job.filter(|job| uid(&job.metadata) == owner.uid) else { return true };
    finished(job).is_some() && !job.spec.as_ref().is_some_and(is_foreign)
}

/// Returns the pod without the finalizer.
pub(super) fn without_finalizer(pod: &v1::Pod) -> v1::Pod {
    let mut pod = pod.clone();
    pod.metadata.finalizers.iter_mut().for_each(|all| all.retain(|one| one != FINALIZER));
    pod
}

/// Removes the finalizer from a pod, if it is there, without regard to other changes of the pod.
pub(super) async fn remove_finalizer(api: &Api<v1::Pod>, pod: &Pod) -> Result<()> {
    let patch = json!({"metadata": {
        "uid": uid(&pod.metadata), "$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
    let name = name(&pod.metadata);
    let removed = api.patch_metadata(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
    removed.attempt(|| format!("remove the finalizer {FINALIZER} from pod {name}")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::job;
    use crate::meta::controller_reference;
    use crate::testing;
    use serde_json::json;

    #[test]
    fn only_pods_that_no_job_will_count_are_orphans() {
        let running = job(json!({}), json!({}));
        let complete = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        let ended = job(json!({}), complete.clone());
        let foreign = job(json!({"managedBy": "example.com/other"}), complete);
        let mut other = running.clone();
        other.metadata.uid = Some("another".to_owned());
        let mut pod = testing::pod("p");
        assert!(is_orphan(&pod.clone().into(), None), "no controller");
        pod.metadata.owner_references = Some(vec![controller_reference(&running)]);
        for (job, expected) in [
            (Some(&running), false),
            (Some(&ended), true),
            (Some(&foreign), false),
            (Some(&other), true),
            (None, true),
        ] {
            assert_eq!(is_orphan(&pod.clone().into(), job), expected, "{job:?}");
        }
        let set = testing::replica_set("rs", 1);
        pod.metadata.owner_references = Some(vec![controller_reference(&set)]);
        assert!(!is_orphan(&pod.into(), None), "the pod of another kind's object");
    }
}
