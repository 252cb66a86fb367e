//! The requests to the API that carry out a plan.

use std::fmt::Debug;
use std::sync::Arc;

use apiserver_client::events::reference;
use apiserver_client::{ObjectKey, message};
use controllers_runtime::{Attempt, Error, Ledger, Result};
use futures::future::join_all;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::DaemonSets;
use super::plan::Plan;
use super::revisions::Action;
use super::template::new_pod;
use super::view::View;
use crate::history::{HASH_LABEL, holds};
use crate::limits::DAEMON_BURST;
use crate::meta::{self, Claims, controller_of, is_deleted, name, uid};
use crate::patch;

impl DaemonSets {
    /// Creates and deletes the pods of a plan, at most [`DAEMON_BURST`] of each: the next reconciliation goes on.
    pub(super) async fn execute(&self, key: &ObjectKey, view: &View<'_>, plan: &Plan) -> Result<()> {
        let nodes = plan.create.get(..DAEMON_BURST).unwrap_or(&plan.create);
        let pods = plan.delete.get(..DAEMON_BURST).unwrap_or(&plan.delete);
        let created = self.create(key, view, nodes).await;
        let deleted = join_all(pods.iter().map(|pod| self.delete(key, view.set, pod))).await;
        Error::collect(deleted.into_iter().chain([created]).collect())
    }

    /// Creates pods in batches of 1, 2, 4, …, so that an invalid template is refused once rather than on each node.
    async fn create(&self, key: &ObjectKey, view: &View<'_>, nodes: &[String]) -> Result<()> {
        let (mut left, mut batch) = (nodes, 1);
        while !left.is_empty() {
            let (now, later) = left.split_at(batch.min(left.len()));
            let results = join_all(now.iter().map(|node| self.create_one(key, view, node))).await;
            if results.iter().any(|result| result.as_ref().is_err_and(Error::is_namespace_terminating)) {
                return Ok(());
            }
            Error::collect(results)?;
            (left, batch) = (later, batch * 2);
        }
        Ok(())
    }

    async fn create_one(&self, key: &ObjectKey, view: &View<'_>, node: &str) -> Result<()> {
        let pod = new_pod(view.set, view.current, node);
        let created = self.pods_in(key).create(&PostParams::default(), &pod).await;
        match created.attempt(|| format!("create a pod of daemon set {key} for node {node}")) {
            Ok(pod) => {
                self.written.pods.wrote(key, &pod);
                let message = format!("Created pod: {}", name(&pod.metadata));
                self.recorder.normal(reference(view.set), "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) => {
                if !error.is_namespace_terminating() {
                    let message = format!("Error creating: {}", cause(&error));
                    self.recorder.warning(reference(view.set), "FailedCreate", message);
                }
                Err(error)
            }
        }
    }

    async fn delete(&self, key: &ObjectKey, set: &DaemonSet, pod: &Pod) -> Result<()> {
        let name = name(&pod.metadata);
        let deleted = self.pods_in(key).delete(name, &only(pod.metadata.uid.as_ref())).await;
        match deleted.attempt(|| format!("delete pod {name}")) {
            Ok(_) => {
                self.written.removals.deleted(key, pod);
                self.recorder.normal(reference(set), "SuccessfulDelete", format!("Deleted pod: {name}"));
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => {
                let message = format!("Error deleting: {}", cause(&error));
                self.recorder.warning(reference(set), "FailedDelete", message);
                Err(error)
            }
        }
    }

    /// Adopts and releases objects whose labels or owners have changed.
    pub(super) async fn claim<K>(
        &self,
        key: &ObjectKey,
        set: &DaemonSet,
        claims: Claims<Arc<K>>,
        written: &Ledger<ObjectKey>,
    ) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Serialize
            + DeserializeOwned
            + Clone
            + Debug
            + Send
            + Sync,
    {
        let mut changes = Vec::new();
        // Adoption by a deleted DaemonSet would leave objects with a dead owner.
        if !claims.adopt.is_empty()
            && self.live(key, set).await?.is_some_and(|live| !is_deleted(&live.metadata))
        {
            let adopted = |object: &Arc<K>| meta::with_owner(object.meta(), meta::controller_reference(set));
            changes.extend(claims.adopt.iter().map(|object| (object, adopted(object))));
        }
        let released = |object: &Arc<K>| meta::without_owner(object.meta(), uid(&set.metadata));
        changes.extend(claims.release.iter().map(|object| (object, released(object))));
        let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
        for (object, owners) in changes {
            let mut new = K::clone(object);
            new.meta_mut().owner_references = Some(owners);
            match patch::update(&api, object.as_ref(), &new).await {
                Ok(Some(object)) => written.wrote(key, &object),
                Ok(None) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the DaemonSet as the server has it, if it is still the same.
    async fn live(&self, key: &ObjectKey, set: &DaemonSet) -> Result<Option<DaemonSet>> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &key.namespace);
        let live = api.get_opt(&key.name).await.attempt(|| format!("get daemon set {key}"))?;
        Ok(live.filter(|live| live.metadata.uid == set.metadata.uid))
    }

    /// Carries out changes of the history, one after the other: pods are given another revision before theirs is
    /// deleted.
    pub(super) async fn mend(&self, key: &ObjectKey, set: &DaemonSet, actions: Vec<Action>) -> Result<()> {
        let api = self.revisions_in(key);
        for action in actions {
            match action {
                Action::Create(revision) => self.record(key, set, &revision).await?,
                Action::Update { old, new } => {
                    if let Some(written) = patch::update(&api, old.as_ref(), new.as_ref()).await? {
                        self.written.revisions.wrote(key, &written);
                    }
                }
                Action::Delete(revision) => self.delete_revision(key, &revision).await?,
                Action::Relabel { pod, hash } => {
                    let mut new = Pod::clone(&pod);
                    new.metadata.labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash);
                    if let Some(written) = patch::update(&self.pods_in(key), pod.as_ref(), &new).await? {
                        self.written.pods.wrote(key, &written);
                    }
                }
            }
        }
        Ok(())
    }

    /// Creates the revision of the current template. If its name is that of another one, counts the collision, so that
    /// the next attempt has another name.
    async fn record(&self, key: &ObjectKey, set: &DaemonSet, revision: &ControllerRevision) -> Result<()> {
        let (api, name) = (self.revisions_in(key), name(&revision.metadata));
        let created = api.create(&PostParams::default(), revision).await;
        match created.attempt(|| format!("create controller revision {name}")) {
            Ok(created) => {
                self.written.revisions.wrote(key, &created);
                return Ok(());
            }
            Err(error) if error.is_namespace_terminating() => return Ok(()),
            Err(error) if error.is_already_exists() => {}
            Err(error) => return Err(error),
        }
        let existing = api.get_opt(name).await.attempt(|| format!("get controller revision {name}"))?;
        if existing.is_none_or(|existing| is_awaited(&existing, key, revision)) {
            return Ok(());
        }
        let collisions = |set: &DaemonSet| set.status.as_ref().and_then(|status| status.collision_count);
        let Some(live) = self.live(key, set).await?.filter(|live| collisions(live) == collisions(set)) else {
            // The arrival of the newer DaemonSet triggers a reconciliation.
            return Ok(());
        };
        let patch = json!({
            "metadata": {"uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version},
            "status": {"collisionCount": collisions(&live).unwrap_or(0).saturating_add(1)},
        });
        let sets: Api<DaemonSet> = Api::namespaced(self.client.clone(), &key.namespace);
        let counted = sets.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        counted.attempt(|| format!("count a collision of daemon set {key}")).map(drop)
    }

    /// Deletes revisions that are no longer needed.
    pub(super) async fn truncate(&self, key: &ObjectKey, surplus: &[Arc<ControllerRevision>]) -> Result<()> {
        Error::collect(join_all(surplus.iter().map(|revision| self.delete_revision(key, revision))).await)
    }

    async fn delete_revision(&self, key: &ObjectKey, revision: &ControllerRevision) -> Result<()> {
        let name = name(&revision.metadata);
        let deleted = self.revisions_in(key).delete(name, &only(revision.metadata.uid.as_ref())).await;
        let deleted = deleted.attempt(|| format!("delete controller revision {name}")).map(drop);
        if deleted.as_ref().is_err_and(Error::is_not_found) { Ok(()) } else { deleted }
    }

    fn pods_in(&self, key: &ObjectKey) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    fn revisions_in(&self, key: &ObjectKey) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }
}

/// Returns `true` if an existing revision with the name of a `wanted` one is as good: it only has to arrive in the
/// cache, to be adopted, or, if it is that of a former DaemonSet of the same name, to be deleted.
fn is_awaited(existing: &ControllerRevision, key: &ObjectKey, wanted: &ControllerRevision) -> bool {
    let ours = controller_of(&existing.metadata)
        .is_none_or(|owner| owner.kind == "DaemonSet" && owner.name == key.name);
    ours && wanted.data.as_ref().is_some_and(|data| holds(existing, &data.0))
}

/// Returns options that delete an object only if it has this UID.
fn only(uid: Option<&String>) -> DeleteParams {
    let same = Preconditions { uid: uid.cloned(), resource_version: None };
    DeleteParams { preconditions: Some(same), ..DeleteParams::default() }
}

/// Returns the message of the API.
fn cause(error: &Error) -> String {
    match error {
        Error::Api { cause, .. } => message(cause),
        other => other.to_string(),
    }
}
