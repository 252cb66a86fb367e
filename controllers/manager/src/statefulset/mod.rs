//! The StatefulSet controller: pods with names and claims that outlive them, one for each ordinal.

mod claims;
mod identity;
mod plan;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod simulation;
mod status;
#[cfg(test)]
mod tests;
mod writes;

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_client::{Cache, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Error, Ledger, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};

use crate::context::{Context, Tasks};
use crate::history::{self, Choice, HASH, History};
use crate::index::{Pods, Selectors};
use crate::meta::{self, Claims, is_controlled_by, is_deleted, name, uid};
use crate::pods::Pod;
use crate::{ownership, patch};
use plan::{Input, Plan, Revision, next_available, plan};
use writes::Requests;

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
        written: Arc::default(),
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
    written: Arc<Written>,
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
        let Plan { phases, parallel, status } = plan(&input);
        let requests = Requests {
            key: key.clone(),
            set: Arc::clone(&set),
            client: self.client.clone(),
            recorder: self.recorder.clone(),
            written: Arc::clone(&self.written),
        };
        let done = Arc::new(requests).make(phases, parallel).await;
        let noted = self.write_status(key, &set, status).await;
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

    async fn write_status(
        &self,
        key: &ObjectKey,
        set: &StatefulSet,
        status: StatefulSetStatus,
    ) -> Result<()> {
        let new = StatefulSet { status: Some(status), ..set.clone() };
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        if let Some(written) = patch::write_status(&api, set, &new).await? {
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

fn restored(revision: &ControllerRevision) -> Result<Revision> {
    let name = name(&revision.metadata);
    let template = history::template(revision).ok_or_else(|| Error::Unusable {
        object: format!("controller revision {name}"),
        problem: "its data contains no template of pods".to_owned(),
    })?;
    Ok(Revision { name: name.to_owned(), template })
}
