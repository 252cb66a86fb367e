//! The Deployment controller: one ReplicaSet per template, scaled from one to the next within bounds.

mod plan;
mod revision;
#[cfg(test)]
mod scenarios;
mod status;
mod strategy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::limits::UNSEEN_WRITE;
use controllers_runtime::{Attempt, Error, Ledger, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Selector;
use kube::{Api, Client};
use serde_json::json;

use crate::context::{Context, Tasks};
use crate::index::{Owned, Pods, Selectors};
use crate::meta::{self, controller_key, is_controlled_by, name, namespace, uid};
use crate::pods::Pod;
use crate::{ownership, patch};
use plan::{Action, Input, plan};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("deployment");
    let deployments = context.informers.cache::<Deployment>();
    let sets = context.replica_sets.cache().clone();
    let pods = context.pods.cache().clone();
    follow_sets(&sets, &Selectors::new(deployments.clone()), &queue);
    context.feed(tasks, &deployments, &queue);
    follow_pods(&pods, &sets, &queue);
    let controller = Deployments {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("deployment-controller"),
        deployments: deployments.clone(),
        sets: context.replica_sets.clone(),
        pods: context.pods.clone(),
        sizes: Ledger::certain(),
        written: Ledger::default(),
    };
    context.start(tasks, queue, controller, async move {
        deployments.synced().await;
        sets.synced().await;
        pods.synced().await;
    });
}

fn follow_sets(sets: &Cache<ReplicaSet>, deployments: &Selectors<Deployment>, queue: &WorkQueue<ObjectKey>) {
    let (deployments, queue) = (deployments.clone(), queue.clone());
    sets.on_change(move |change| {
        let mut owned = false;
        let before = if let Change::Applied { old, .. } = change { old.as_ref() } else { None };
        for set in before.into_iter().chain([change.object()]) {
            if let Some(key) = controller_key::<Deployment>(&set.metadata) {
                owned = true;
                queue.add(key);
            }
        }
        if owned {
            return;
        }
        let set = change.object();
        deployments.selecting(set.as_ref()).into_iter().for_each(|key| queue.add(key));
    });
}

/// `Recreate` waits until the last old pod is gone.
fn follow_pods(pods: &Cache<Pod>, sets: &Cache<ReplicaSet>, queue: &WorkQueue<ObjectKey>) {
    let (sets, queue) = (sets.clone(), queue.clone());
    pods.on_change(move |change| {
        let Change::Deleted(pod) = change else { return };
        let set = controller_key::<ReplicaSet>(&pod.metadata).and_then(|key| sets.get(&key));
        if let Some(key) = set.and_then(|set| controller_key::<Deployment>(&set.metadata)) {
            queue.add(key);
        }
    });
}

struct Deployments {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    deployments: Cache<Deployment>,
    sets: Owned<ReplicaSet>,
    pods: Pods,
    /// Writes to the ReplicaSets of each Deployment: no new size is chosen before the cache shows the others.
    sizes: Ledger<ObjectKey>,
    /// Writes to the Deployments: a status that is compared with an older one than the last would leave parts of the last.
    written: Ledger<ObjectKey>,
}

impl Reconcile for Deployments {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(deployment) = self.deployments.get(key) else {
            self.sizes.forget(key);
            self.written.forget(key);
            return Ok(Outcome::Done);
        };
        let Some(spec) = &deployment.spec else { return Ok(Outcome::Done) };
        meta::check_selector(deployment.as_ref(), &spec.selector)?;
        // Before the sets are listed: what has been seen by now is in the list. What arrives triggers the next
        // reconciliation.
        let shown =
            self.sizes.is_shown(key, self.sets.cache()) && self.written.is_shown(key, &self.deployments);
        if !shown {
            return Ok(Outcome::After(UNSEEN_WRITE));
        }
        let candidates = self.sets.concerned(&key.namespace, uid(&deployment.metadata), &spec.selector);
        let claims = meta::claim(&deployment.metadata, &spec.selector, candidates);
        if !claims.adopt.is_empty() || !claims.release.is_empty() {
            // The changes of the ReplicaSets trigger the next reconciliation.
            ownership::adopt_and_release(&self.client, deployment.as_ref(), claims).await?;
            return Ok(Outcome::Done);
        }
        let pods: Vec<_> =
            claims.owned.iter().flat_map(|set| self.pods.controlled(uid(&set.metadata))).collect();
        let input =
            Input { deployment: &deployment, sets: claims.owned, pods: &pods, now: self.ambient.now() };
        let plan = plan(&input);
        let resizes = |action: &Action| matches!(action, Action::Create(_) | Action::Update { .. });
        if !self.sizes.is_certain(key) && plan.actions.iter().any(resizes) {
            if !self.shows_all(&deployment, &input.sets).await? {
                return Ok(Outcome::Behind);
            }
            self.sizes.compared(key);
        }
        for action in plan.actions {
            if let Err(error) = self.execute(key, &deployment, action).await {
                if !error.is_refusal() {
                    self.sizes.forget(key);
                }
                return Err(error);
            }
        }
        Ok(plan.again.map_or(Outcome::Done, Outcome::After))
    }
}

impl Deployments {
    /// Returns `true` if the cache shows the current sizes of the Deployment's ReplicaSets. A ReplicaSet that grows
    /// while another one has grown unnoticed would exceed the surge.
    async fn shows_all(&self, deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Result<bool> {
        let name = name(&deployment.metadata);
        // Sets with other labels are released, and count for neither side.
        let selector =
            deployment.spec.as_ref().and_then(|spec| Selector::try_from(spec.selector.clone()).ok());
        let ours = selector.iter().fold(ListParams::default(), ListParams::labels_from);
        let live = self.sets_of(deployment).list(&ours).await;
        let live = live.attempt(|| format!("list the replica sets of deployment {name}"))?;
        let sizes = |sets: &mut dyn Iterator<Item = &ReplicaSet>| -> BTreeMap<String, i32> {
            sets.filter(|set| is_controlled_by(&set.metadata, &deployment.metadata))
                .map(|set| (uid(&set.metadata).to_owned(), strategy::set_replicas(set)))
                .collect()
        };
        Ok(sizes(&mut live.items.iter()) == sizes(&mut sets.iter().map(AsRef::as_ref)))
    }

    fn sets_of(&self, deployment: &Deployment) -> Api<ReplicaSet> {
        Api::namespaced(self.client.clone(), namespace(&deployment.metadata))
    }

    fn api(&self, deployment: &Deployment) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), namespace(&deployment.metadata))
    }

    async fn execute(&self, key: &ObjectKey, deployment: &Deployment, action: Action) -> Result<()> {
        match action {
            Action::Create(set) => self.create(key, deployment, &set).await,
            Action::Update { old, new } => {
                let written = patch::update(&self.sets_of(deployment), old.as_ref(), new.as_ref()).await?;
                written.iter().for_each(|set| self.sizes.wrote(key, set));
                self.report_size(deployment, &new, strategy::set_replicas(&old));
                Ok(())
            }
            Action::Delete(set) => {
                let options = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: set.metadata.uid.clone(),
                        resource_version: set.metadata.resource_version.clone(),
                    }),
                    ..DeleteParams::background()
                };
                let name = name(&set.metadata);
                let deleted = self.sets_of(deployment).delete(name, &options).await;
                let deleted = deleted.attempt(|| format!("delete replica set {name}")).map(drop);
                if deleted.as_ref().is_err_and(Error::is_not_found) { Ok(()) } else { deleted }
            }
            Action::Revision(revision) => {
                let patch = json!({"metadata": {
                    "annotations": {revision::REVISION: revision},
                    "uid": deployment.metadata.uid,
                }});
                let name = name(&deployment.metadata);
                let api = self.api(deployment);
                // Written through the status subresource, because it would otherwise increment the
                // generation.
                let patched = api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
                let patched = patched.attempt(|| format!("record the revision of deployment {name}"))?;
                self.written.wrote(key, &patched);
                Ok(())
            }
            Action::Status(status) => self.write_status(key, deployment, *status).await,
        }
    }

    async fn write_status(
        &self,
        key: &ObjectKey,
        deployment: &Deployment,
        status: DeploymentStatus,
    ) -> Result<()> {
        // Noting the revision may have changed the resource version. Only this controller writes the status,
        // with one worker per object and once the cache shows what it wrote before, so the write need not be
        // conditional.
        let mut old = deployment.clone();
        old.metadata.resource_version = None;
        let mut new = old.clone();
        new.status = Some(status);
        if let Some(written) = patch::write_status(&self.api(deployment), &old, &new).await? {
            self.written.wrote(key, &written);
        }
        Ok(())
    }

    async fn create(&self, key: &ObjectKey, deployment: &Deployment, set: &ReplicaSet) -> Result<()> {
        let api = self.sets_of(deployment);
        let set_name = name(&set.metadata);
        let created = api.create(&PostParams::default(), set).await;
        let error = match created.attempt(|| format!("create replica set {set_name}")) {
            Ok(created) => {
                self.sizes.wrote(key, &created);
                self.report_size(deployment, set, 0);
                return Ok(());
            }
            Err(error) if error.is_namespace_terminating() => return Ok(()),
            Err(error) => error,
        };
        if !error.is_already_exists() {
            self.report_refusal(key, deployment, set_name, &error).await;
            return Err(error);
        }
        let Some(live) = api.get_opt(set_name).await.attempt(|| format!("get replica set {set_name}"))?
        else {
            return Err(error);
        };
        let template = |set: &ReplicaSet| set.spec.as_ref().and_then(|spec| spec.template.clone());
        let ours = is_controlled_by(&live.metadata, &deployment.metadata)
            && template(&live)
                .zip(template(set))
                .is_some_and(|(live, wanted)| revision::same_template(&live, &wanted));
        if ours {
            self.sizes.wrote(key, &live);
            // The cache does not show the set yet; its arrival triggers a reconciliation.
            return Ok(());
        }
        let mut status = deployment.status.clone().unwrap_or_default();
        status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
        self.write_status(key, deployment, status).await?;
        Err(error)
    }

    /// Reports that the API has refused a ReplicaSet.
    async fn report_refusal(&self, key: &ObjectKey, deployment: &Deployment, set: &str, error: &Error) {
        let message = format!("Failed to create new replica set {set:?}: {}", error.api_message());
        if status::has_progress_deadline(deployment) {
            let mut status = deployment.status.clone().unwrap_or_default();
            status::create_failed(&mut status, message.clone(), Time(self.ambient.now()));
            // The refusal is the greater problem.
            let _ = self.write_status(key, deployment, status).await;
        }
        self.recorder.warning(reference(deployment), "ReplicaSetCreateError", message);
    }

    fn report_size(&self, deployment: &Deployment, set: &ReplicaSet, before: i32) {
        let size = strategy::set_replicas(set);
        if size == before {
            return;
        }
        let direction = if size > before { "up" } else { "down" };
        let set_name = name(&set.metadata);
        self.recorder.normal(
            reference(deployment),
            "ScalingReplicaSet",
            format!("Scaled {direction} replica set {set_name} from {before} to {size}"),
        );
    }
}
