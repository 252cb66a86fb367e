//! The StatefulSet controller: pods with names and claims that outlive them, one for each ordinal.

mod claims;
mod identity;
mod plan;
#[cfg(test)]
mod simulation;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Object, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Error, Ledger, Outcome, Reconcile, Result, WorkQueue};
use futures::future::join_all;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{self, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use crate::context::{Context, Tasks};
use crate::history::{self, Choice, HASH, History};
use crate::index::{Pods, Selectors};
use crate::meta::{self, Claims, is_controlled_by, is_deleted, name, only_this, uid};
use crate::pods::Pod;
use crate::{limits, ownership, patch};
use plan::{Input, Plan, Revision, Step, Task, next_available, plan};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("statefulset");
    let sets = context.informers.cache::<StatefulSet>();
    let pods = context.pods.cache().clone();
    let claims = context.informers.cache::<PersistentVolumeClaim>();
    let history = History::new(context, HASH);
    let revisions = history.cache().clone();
    let selectors = Selectors::new(sets.clone());
    ownership::follow(&pods, &selectors, &queue);
    ownership::follow(&revisions, &selectors, &queue);
    follow_claims(&claims, &selectors, &queue);
    context.feed(tasks, &sets, &queue);
    let controller = StatefulSets {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("statefulset-controller"),
        sets: sets.clone(),
        pods: context.pods.clone(),
        claims: claims.clone(),
        history,
        written: Written::default(),
    };
    context.start(tasks, queue, controller, async move {
        sets.synced().await;
        pods.synced().await;
        claims.synced().await;
        revisions.synced().await;
    });
}

/// A pod may wait until a claim is gone, and a claim that is missing is created again.
fn follow_claims(
    claims: &Cache<PersistentVolumeClaim>,
    sets: &Selectors<StatefulSet>,
    queue: &WorkQueue<ObjectKey>,
) {
    let (sets, queue) = (sets.clone(), queue.clone());
    claims.on_change(move |change| {
        sets.selecting(change.object().as_ref()).into_iter().for_each(|key| queue.add(key));
    });
}

struct StatefulSets {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    sets: Cache<StatefulSet>,
    pods: Pods,
    claims: Cache<PersistentVolumeClaim>,
    history: History,
    written: Written,
}

/// The newest writes for each set.
#[derive(Default)]
struct Written {
    sets: Ledger<ObjectKey>,
    pods: Ledger<ObjectKey>,
    claims: Ledger<ObjectKey>,
}

/// The revisions of a set.
struct Revisions {
    /// From the oldest to the newest.
    all: Vec<Arc<ControllerRevision>>,
    current: Revision,
    update: Revision,
    collisions: i32,
}

impl Reconcile for StatefulSets {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(set) = self.sets.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        let Some(spec) = &set.spec else { return Ok(Outcome::Done) };
        meta::check_selector(set.as_ref(), &spec.selector)?;
        if !self.shows_all(key) {
            return Ok(Outcome::Behind);
        }
        let revisions = self.history.claims(&set.metadata, &spec.selector);
        let pods = self.claim_pods(&set);
        if !revisions.adopt.is_empty() || !pods.adopt.is_empty() || !pods.release.is_empty() {
            // The changes of the revisions and pods trigger the next reconciliation.
            ownership::adopt_and_release(&self.client, set.as_ref(), revisions).await?;
            ownership::adopt_and_release(&self.client, set.as_ref(), pods).await?;
            return Ok(Outcome::Done);
        }
        let Some(revisions) = self.revisions(key, &set, revisions.owned).await? else {
            return Ok(Outcome::Done);
        };
        let claim = |name: &str| self.claims.get(&ObjectKey::new(&key.namespace, name));
        let input = Input {
            set: &set,
            pods: pods.owned,
            claim: &claim,
            current: &revisions.current,
            update: &revisions.update,
            collisions: revisions.collisions,
            now: self.ambient.now(),
        };
        let plan = plan(&input);
        let done = self.execute(key, &set, &plan).await;
        let noted = self.write_status(key, &set, plan.status).await;
        let truncated = self.truncate(key, &set, &revisions, &input.pods).await;
        Error::collect(vec![done, noted, truncated])?;
        Ok(next_available(&input).map_or(Outcome::Done, Outcome::After))
    }
}

impl StatefulSets {
    fn shows_all(&self, key: &ObjectKey) -> bool {
        self.written.sets.is_shown(key, &self.sets)
            && self.written.pods.is_shown(key, self.pods.cache())
            && self.written.claims.is_shown(key, &self.claims)
            && self.history.is_shown(key)
    }

    fn forget(&self, key: &ObjectKey) {
        self.written.sets.forget(key);
        self.written.pods.forget(key);
        self.written.claims.forget(key);
        self.history.forget(key);
    }

    fn api<K>(&self, key: &ObjectKey) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// Sorts the pods that concern the set. A pod whose name is not one of the set's is none of its pods.
    fn claim_pods(&self, set: &StatefulSet) -> Claims<Arc<Pod>> {
        let selector = set.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
        let candidates = self.pods.concerned(meta::namespace(&set.metadata), uid(&set.metadata), &selector);
        let (members, others): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|pod| identity::ordinal(set, pod).is_some());
        let mut claims = meta::claim(&set.metadata, &selector, members);
        if !is_deleted(&set.metadata) {
            let owned = others.into_iter().filter(|pod| is_controlled_by(&pod.metadata, &set.metadata));
            claims.release.extend(owned);
        }
        claims
    }

    /// Returns the revisions of the set, with that of its template, which is created if there is none; `None` if the
    /// set is being deleted and has none.
    async fn revisions(
        &self,
        key: &ObjectKey,
        set: &StatefulSet,
        owned: Vec<Arc<ControllerRevision>>,
    ) -> Result<Option<Revisions>> {
        let all = history::sorted(owned);
        let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
        let status = set.status.as_ref();
        // The generation grows with each change of the spec, and is observed together with the choice.
        let settled = status
            .filter(|status| status.observed_generation == set.metadata.generation)
            .and_then(|status| status.update_revision.as_deref());
        let mut collisions = status.and_then(|status| status.collision_count).unwrap_or(0);
        let update = match history::choose(&all, &template, settled) {
            Choice::Newest(revision) => revision,
            _ if is_deleted(&set.metadata) => return Ok(None),
            Choice::Renumber(revision, number) => self.history.renumber(key, &revision, number).await?,
            Choice::Create(number) => {
                self.history.create(key, set, &template, number, &mut collisions).await?
            }
        };
        let update = Revision { name: name(&update.metadata).to_owned(), template };
        let current = status.and_then(|status| status.current_revision.as_deref());
        let current = all.iter().find(|one| Some(name(&one.metadata)) == current);
        let current = match current.filter(|current| name(&current.metadata) != update.name) {
            None => Revision { name: update.name.clone(), template: update.template.clone() },
            Some(revision) => restored(revision)?,
        };
        Ok(Some(Revisions { all, current, update, collisions }))
    }

    /// Carries out the phases of a plan until one fails. Tasks of a parallel set run in batches of 1, 2, 4, …, so that
    /// an invalid template is refused once rather than five hundred times.
    async fn execute(&self, key: &ObjectKey, set: &StatefulSet, plan: &Plan) -> Result<()> {
        for phase in &plan.phases {
            let mut left = phase.as_slice();
            let mut size = 1;
            while !left.is_empty() {
                let (batch, rest) = left.split_at(size.min(left.len()));
                let results = join_all(batch.iter().map(|task| self.carry_out(key, set, task))).await;
                Error::collect(results)?;
                left = rest;
                if plan.parallel {
                    size = (size * 2).min(limits::POD_BURST);
                }
            }
        }
        Ok(())
    }

    async fn carry_out(&self, key: &ObjectKey, set: &StatefulSet, task: &Task) -> Result<()> {
        for step in &task.steps {
            let Err(error) = self.take(key, set, task, step).await else { continue };
            if error.is_namespace_terminating() {
                return Ok(());
            }
            // Either is ordinary with a cache that is behind; the next attempt sees more.
            if !error.is_conflict() && !error.is_already_exists() {
                self.report_failure(set, task, step, &error);
            }
            return Err(error);
        }
        Ok(())
    }

    async fn take(&self, key: &ObjectKey, set: &StatefulSet, task: &Task, step: &Step) -> Result<()> {
        let options = PostParams::default();
        match step {
            Step::CreateClaim(claim) => {
                let created = self.api(key).create(&options, claim.as_ref()).await;
                let created = created.attempt(|| format!("create claim {}", name(&claim.metadata)))?;
                self.written.claims.wrote(key, &created);
                let claim = name(&claim.metadata);
                let message =
                    format!("Create Claim {claim} Pod {} in StatefulSet {} success", task.pod, key.name);
                self.recorder.normal(reference(set), "SuccessfulCreate", message);
            }
            Step::UpdateClaim { old, new } => {
                if let Some(written) = patch::update(&self.api(key), old.as_ref(), new.as_ref()).await? {
                    self.written.claims.wrote(key, &written);
                }
            }
            Step::CreatePod(pod) => {
                let created = self.api(key).create(&options, pod.as_ref()).await;
                let created: v1::Pod = created.attempt(|| format!("create pod {}", task.pod))?;
                self.written.pods.wrote(key, &created);
                self.report_success(set, "SuccessfulCreate", "Create", task);
            }
            Step::UpdatePod { old, new } => {
                if let Some(written) = patch::update(&self.api(key), &old.to_api(), new.as_ref()).await? {
                    self.written.pods.wrote(key, &written);
                    self.report_success(set, "SuccessfulUpdate", "Update", task);
                }
            }
            Step::DeletePod(pod) => {
                let options = only_this(&pod.metadata, DeleteParams::default());
                let deleted = self.api::<v1::Pod>(key).delete(&task.pod, &options).await;
                match deleted.attempt(|| format!("delete pod {}", task.pod)) {
                    Ok(answer) => answer.left().iter().for_each(|pod| self.written.pods.wrote(key, pod)),
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
                self.report_success(set, "SuccessfulDelete", "Delete", task);
            }
            Step::ReportConflict(claim) => {
                let message = format!(
                    "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a manging \
                     controller, the retention policy is ignored for this claim"
                );
                self.recorder.warning(reference(set), "ConflictingController", message);
            }
            Step::AwaitClaim(claim) => {
                let object = format!("pvc {claim}");
                return Err(Error::Unusable { object, problem: "is being deleted".to_owned() });
            }
        }
        Ok(())
    }

    fn report_success(&self, set: &StatefulSet, reason: &'static str, verb: &str, task: &Task) {
        let message = format!("{verb} Pod {} in StatefulSet {} successful", task.pod, name(&set.metadata));
        self.recorder.normal(reference(set), reason, message);
    }

    fn report_failure(&self, set: &StatefulSet, task: &Task, step: &Step, error: &Error) {
        let set_name = name(&set.metadata);
        let mut cause = error.api_message();
        match step {
            Step::CreateClaim(claim) => {
                let claim = name(&claim.metadata);
                let message = format!(
                    "Create Claim {claim} for Pod {} in StatefulSet {set_name} failed error: {cause}",
                    task.pod
                );
                self.recorder.warning(reference(set), "FailedCreate", message);
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
        let message = format!("{verb} Pod {} in StatefulSet {set_name} failed error: {cause}", task.pod);
        self.recorder.warning(reference(set), reason, message);
    }

    async fn write_status(
        &self,
        key: &ObjectKey,
        set: &StatefulSet,
        status: StatefulSetStatus,
    ) -> Result<()> {
        let new = StatefulSet { status: Some(status), ..set.clone() };
        if let Some(written) = patch::write_status(&self.api(key), set, &new).await? {
            self.written.sets.wrote(key, &written);
        }
        Ok(())
    }

    /// Deletes old revisions that no pod has.
    async fn truncate(
        &self,
        key: &ObjectKey,
        set: &StatefulSet,
        revisions: &Revisions,
        pods: &[Arc<Pod>],
    ) -> Result<()> {
        let mut live: BTreeSet<&str> = pods.iter().map(|pod| identity::revision(pod)).collect();
        live.extend([revisions.current.name.as_str(), revisions.update.name.as_str()]);
        let limit = set.spec.as_ref().and_then(|spec| spec.revision_history_limit);
        self.history.delete(key, &history::surplus(&revisions.all, &live, limit)).await
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

fn restored(revision: &ControllerRevision) -> Result<Revision> {
    let name = name(&revision.metadata);
    let template = history::template(revision).ok_or_else(|| Error::Unusable {
        object: format!("controller revision {name}"),
        problem: "its data contains no template of pods".to_owned(),
    })?;
    Ok(Revision { name: name.to_owned(), template })
}
