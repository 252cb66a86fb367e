//! The requests to the API that carry out a plan.

use std::sync::Arc;

use apiserver_client::events::reference;
use apiserver_client::{Object, ObjectKey, Recorder};
use controllers_runtime::{Attempt, Error, Result, parallel};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1;
use kube::api::{DeleteParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use super::Written;
use super::plan::{Step, Task};
use crate::meta::{name, only_this};
use crate::patch;

/// The requests of one reconciliation of a set.
pub(super) struct Requests {
    pub key: ObjectKey,
    pub set: Arc<StatefulSet>,
    pub client: Client,
    pub recorder: Recorder,
    pub written: Arc<Written>,
}

impl Requests {
    /// Carries out the phases of a plan until one fails: the tasks of an ordered set one after the other, those of a
    /// parallel one at first one and then more and more at a time, so that an invalid template is refused once rather than
    /// five hundred times.
    pub async fn make(self: Arc<Self>, phases: Vec<Vec<Task>>, in_parallel: bool) -> Result<()> {
        for phase in phases {
            if !in_parallel {
                for task in phase {
                    self.carry_out(&task).await?;
                }
                continue;
            }
            let done = parallel::slow_start(phase, |task| {
                let requests = Arc::clone(&self);
                async move { requests.carry_out(&task).await }
            });
            Error::collect(done.await.results)?;
        }
        Ok(())
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.key.namespace)
    }

    async fn carry_out(&self, task: &Task) -> Result<()> {
        for step in &task.steps {
            let Err(error) = self.take(task, step).await else { continue };
            if error.is_namespace_terminating() {
                return Ok(());
            }
            // Either is ordinary with a cache that is behind; the next attempt sees more.
            if !error.is_conflict() && !error.is_already_exists() {
                self.report_failure(task, step, &error);
            }
            return Err(error);
        }
        Ok(())
    }

    async fn take(&self, task: &Task, step: &Step) -> Result<()> {
        let options = PostParams::default();
        match step {
            Step::CreateClaim(claim) => {
                let created = self.api().create(&options, claim.as_ref()).await;
                let created = created.attempt(|| format!("create claim {}", name(&claim.metadata)))?;
                self.written.claims.wrote(&self.key, &created);
                let (claim, set) = (name(&claim.metadata), &self.key.name);
                let message = format!("Create Claim {claim} Pod {} in StatefulSet {set} success", task.pod);
                self.recorder.normal(reference(self.set.as_ref()), "SuccessfulCreate", message);
            }
            Step::UpdateClaim { old, new } => {
                if let Some(written) = patch::update(&self.api(), old.as_ref(), new.as_ref()).await? {
                    self.written.claims.wrote(&self.key, &written);
                }
            }
            Step::CreatePod(pod) => {
                let created = self.api().create(&options, pod.as_ref()).await;
                let created: v1::Pod = created.attempt(|| format!("create pod {}", task.pod))?;
                self.written.pods.wrote(&self.key, &created);
                self.report_success("SuccessfulCreate", "Create", task);
            }
            Step::UpdatePod { old, new } => {
                if let Some(written) = patch::update(&self.api(), &old.to_api(), new.as_ref()).await? {
                    self.written.pods.wrote(&self.key, &written);
                    self.report_success("SuccessfulUpdate", "Update", task);
                }
            }
            Step::DeletePod(pod) => {
                let options = only_this(&pod.metadata, DeleteParams::default());
                let deleted = self.api::<v1::Pod>().delete(&task.pod, &options).await;
                match deleted.attempt(|| format!("delete pod {}", task.pod)) {
                    Ok(answer) => {
                        answer.left().iter().for_each(|pod| self.written.pods.wrote(&self.key, pod));
                    }
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
                self.report_success("SuccessfulDelete", "Delete", task);
            }
            Step::ReportConflict(claim) => {
                let message = format!(
                    "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a manging \
                     controller, the retention policy is ignored for this claim"
                );
                self.recorder.warning(reference(self.set.as_ref()), "ConflictingController", message);
            }
            Step::AwaitClaim(claim) => {
                let object = format!("pvc {claim}");
                return Err(Error::Unusable { object, problem: "is being deleted".to_owned() });
            }
        }
        Ok(())
    }

    fn report_success(&self, reason: &'static str, verb: &str, task: &Task) {
        let message = format!("{verb} Pod {} in StatefulSet {} successful", task.pod, self.key.name);
        self.recorder.normal(reference(self.set.as_ref()), reason, message);
    }

    fn report_failure(&self, task: &Task, step: &Step, error: &Error) {
        let set = &self.key.name;
        let mut cause = error.api_message();
        match step {
            Step::CreateClaim(claim) => {
                let claim = name(&claim.metadata);
                let message = format!(
                    "Create Claim {claim} for Pod {} in StatefulSet {set} failed error: {cause}",
                    task.pod
                );
                self.recorder.warning(reference(self.set.as_ref()), "FailedCreate", message);
                cause = format!("failed to create PVC {claim}: {cause}");
            }
            Step::UpdateClaim { old, .. } => {
                let claim = name(&old.metadata);
                cause = format!("could not update claim {claim} for delete policy ownerRefs: {cause}");
            }
            Step::AwaitClaim(claim) => cause = format!("pvc {claim} is being deleted"),
            _ => {}
        }
        let Some((reason, verb)) = failed_verb(task) else { return };
        let message = format!("{verb} Pod {} in StatefulSet {set} failed error: {cause}", task.pod);
        self.recorder.warning(reference(self.set.as_ref()), reason, message);
    }
}

/// Returns what a task does to its pod, as reason and verb of the event of its failure.
fn failed_verb(task: &Task) -> Option<(&'static str, &'static str)> {
    task.steps.iter().find_map(|step| match step {
        Step::CreatePod(_) => Some(("FailedCreate", "Create")),
        Step::UpdatePod { .. } | Step::UpdateClaim { .. } => Some(("FailedUpdate", "Update")),
        Step::DeletePod(_) => Some(("FailedDelete", "Delete")),
        _ => None,
    })
}
