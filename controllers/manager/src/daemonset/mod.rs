//! The DaemonSet controller: one pod on each node that the template fits, replaced node by node when it changes.

mod backoff;
mod placement;
mod plan;
mod revisions;
mod rolling;
#[cfg(test)]
mod simulation;
mod status;
mod template;
#[cfg(test)]
mod tests;
mod triggers;
mod view;
mod writes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::events::reference;
use apiserver_client::{Cache, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::limits::UNSEEN_WRITE;
use controllers_runtime::{Error, Ledger, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{Api, Client};

use crate::context::{Context, Tasks};
use crate::history::History;
use crate::index::{Pods, Selectors};
use crate::meta::{self, is_deleted, uid};
use crate::pods::Pod;
use crate::removals::Removals;
use crate::{ownership, patch};
use backoff::Backoff;
use plan::{Plan, Report};
use template::HASH_LABEL;
use view::View;

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("daemonset");
    let sets = context.informers.cache::<DaemonSet>();
    let nodes = context.informers.cache::<Node>();
    let history = History::new(context, HASH_LABEL);
    let revisions = history.cache().clone();
    let selectors = Selectors::new(sets.clone());
    ownership::follow(context.pods.cache(), &selectors, &queue);
    ownership::follow(&revisions, &selectors, &queue);
    triggers::follow_nodes(&nodes, &sets, &queue);
    context.feed(tasks, &sets, &queue);
    let pods = context.pods.cache().clone();
    let controller = DaemonSets {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("daemonset-controller"),
        sets: sets.clone(),
        nodes: nodes.clone(),
        pods: context.pods.clone(),
        history,
        written: Written::default(),
        backoffs: Mutex::default(),
    };
    context.start(tasks, queue, controller, async move {
        sets.synced().await;
        nodes.synced().await;
        pods.synced().await;
        revisions.synced().await;
    });
}

struct DaemonSets {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    sets: Cache<DaemonSet>,
    nodes: Cache<Node>,
    pods: Pods,
    history: History,
    written: Written,
    /// Back-off of the failed pods of each DaemonSet that has some.
    backoffs: Mutex<BTreeMap<ObjectKey, Backoff>>,
}

/// Own writes of pods that the cache may not show yet.
#[derive(Default)]
struct Written {
    pods: Ledger<ObjectKey>,
    removals: Removals,
}

impl Written {
    /// Returns `true` if the cache shows everything that was written for the DaemonSet.
    fn is_shown(&self, key: &ObjectKey, pods: &Cache<Pod>) -> bool {
        self.pods.is_shown(key, pods) && self.removals.are_shown(key, pods)
    }

    fn forget(&self, key: &ObjectKey) {
        self.pods.forget(key);
        self.removals.forget(key);
    }
}

impl Reconcile for DaemonSets {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(set) = self.sets.get(key) else {
            self.written.forget(key);
            self.history.forget(key);
            self.put_backoff(key, Backoff::default());
            return Ok(Outcome::Done);
        };
        let Some(spec) = set.spec.as_ref().filter(|_| !is_deleted(&set.metadata)) else {
            // The garbage collector deletes or orphans the pods and revisions.
            return Ok(Outcome::Done);
        };
        if spec.selector == LabelSelector::default() {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.recorder.warning(reference(set.as_ref()), "SelectingAll", message);
            return Ok(Outcome::Done);
        }
        meta::check_selector(set.as_ref(), &spec.selector)?;
        // Checked before the pods are listed: what has been seen by now cannot be missing in the list below. The
        // arrival of what was written triggers a reconciliation; the time covers what never arrives.
        if !self.written.is_shown(key, self.pods.cache()) || !self.history.is_shown(key) {
            return Ok(Outcome::After(UNSEEN_WRITE));
        }
        let owner = uid(&set.metadata);
        let pods = self.pods.concerned(&key.namespace, owner, &spec.selector);
        let pods = meta::claim(&set.metadata, &spec.selector, pods);
        let revisions = self.history.claims(&set.metadata, &spec.selector);
        let claims_pods = !pods.adopt.is_empty() || !pods.release.is_empty();
        if claims_pods || !revisions.adopt.is_empty() {
            ownership::adopt_and_release(&self.client, set.as_ref(), pods).await?;
            ownership::adopt_and_release(&self.client, set.as_ref(), revisions).await?;
            return Ok(Outcome::After(UNSEEN_WRITE));
        }
        match revisions::history(&set, revisions.owned, &pods.owned) {
            revisions::History::Mend(actions) => {
                self.mend(key, &set, actions).await?;
                Ok(Outcome::After(UNSEEN_WRITE))
            }
            revisions::History::Right { hash, old } => self.manage(key, &set, &hash, &old, &pods.owned).await,
        }
    }
}

impl DaemonSets {
    /// Creates and deletes pods, and writes the status.
    async fn manage(
        &self,
        key: &ObjectKey,
        set: &DaemonSet,
        hash: &str,
        old: &[Arc<ControllerRevision>],
        pods: &[Arc<Pod>],
    ) -> Result<Outcome> {
        let nodes = self.nodes.list();
        let view = View::new(set, hash, &nodes, pods, self.ambient.now());
        let mut plan = self.plan(key, &view);
        let again = plan.again;
        if plan.is_empty() && view.is_rolling() {
            plan = rolling::plan(&view);
        }
        let mut done = self.execute(key, &view, &plan).await;
        if done.is_ok() {
            done = self.history.delete(key, &revisions::surplus(set, old, pods)).await;
        }
        let mut new = set.clone();
        new.status = Some(status::status(&view));
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        let written = patch::update_status(&api, set, &new).await.map(drop);
        Error::collect(vec![done, written])?;
        let next = again.into_iter().chain(status::next_available(&view)).min();
        Ok(next.map_or(Outcome::Done, Outcome::After))
    }

    /// Returns the plan, after reporting the pods that it replaces because they have ended.
    fn plan(&self, key: &ObjectKey, view: &View<'_>) -> Plan {
        let mut backoff = self.take_backoff(key);
        let observed = view.set.status.as_ref().and_then(|status| status.observed_generation);
        backoff.refresh(uid(&view.set.metadata), observed.unwrap_or(0), view.now);
        let plan = plan::plan(view, &mut backoff);
        self.put_backoff(key, backoff);
        let set = || reference(view.set);
        for report in &plan.reports {
            match report {
                Report::Failed(message) => self.recorder.warning(set(), "FailedDaemonPod", message),
                Report::Succeeded(message) => self.recorder.normal(set(), "SucceededDaemonPod", message),
            }
        }
        plan
    }

    fn take_backoff(&self, key: &ObjectKey) -> Backoff {
        let mut backoffs = self.backoffs.lock().unwrap_or_else(PoisonError::into_inner);
        backoffs.remove(key).unwrap_or_default()
    }

    fn put_backoff(&self, key: &ObjectKey, backoff: Backoff) {
        let mut backoffs = self.backoffs.lock().unwrap_or_else(PoisonError::into_inner);
        if backoff.is_empty() {
            backoffs.remove(key);
        } else {
            backoffs.insert(key.clone(), backoff);
        }
    }
}
