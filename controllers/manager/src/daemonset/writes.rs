//! The requests to the API that carry out a plan.

use apiserver_client::events::reference;
use apiserver_client::{Object, ObjectKey};
use controllers_runtime::{Attempt, Error, Result, parallel};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::DeleteParams;
use std::sync::Arc;

use super::DaemonSets;
use super::plan::Plan;
use super::revisions::Action;
use super::template::{HASH_LABEL, new_pod};
use super::view::View;
use crate::limits::DAEMON_BURST;
use crate::meta::name;
use crate::patch;
use crate::pods::{Pod, Writes};

impl DaemonSets {
    /// Creates and deletes the pods of a plan, at most [`DAEMON_BURST`] of each: the next reconciliation goes on.
    pub(super) async fn execute(&self, key: &ObjectKey, view: &View<'_>, plan: &Plan) -> Result<()> {
        let nodes = plan.create.get(..DAEMON_BURST).unwrap_or(&plan.create);
        let pods = plan.delete.get(..DAEMON_BURST).unwrap_or(&plan.delete);
        let created = self.create(key, view, nodes).await;
        let deleted = self.delete(key, view.set, pods).await;
        Error::collect(vec![created, deleted])
    }

    /// Creates pods, first one and then more and more at a time, so that an invalid template is refused once rather than
    /// on each node.
    async fn create(&self, key: &ObjectKey, view: &View<'_>, nodes: &[String]) -> Result<()> {
        let writes = Writes::new(&self.client, &key.namespace);
        let done = parallel::slow_start(nodes, |node| {
            let (writes, pod) = (writes.clone(), new_pod(view.set, view.current, node));
            let (key, node) = (key.clone(), node.clone());
            async move {
                let created = writes.create(&pod).await;
                created.attempt(|| format!("create a pod of daemon set {key} for node {node}"))
            }
        });
        let mut results = Vec::new();
        for created in done.await.results {
            match created {
                Ok(pod) => {
                    self.written.pods.wrote(key, &pod);
                    let message = format!("Created pod: {}", name(&pod.metadata));
                    self.recorder.normal(reference(view.set), "SuccessfulCreate", message);
                }
                Err(error) if error.is_namespace_terminating() => {}
                Err(error) => {
                    let message = format!("Error creating: {}", error.api_message());
                    self.recorder.warning(reference(view.set), "FailedCreate", message);
                    results.push(Err(error));
                }
            }
        }
        Error::collect(results)
    }

    async fn delete(&self, key: &ObjectKey, set: &DaemonSet, pods: &[Arc<Pod>]) -> Result<()> {
        let writes = Writes::new(&self.client, &key.namespace);
        let deleted = parallel::all(pods, |pod| {
            let (writes, pod) = (writes.clone(), Arc::clone(pod));
            async move { writes.delete(&pod, DeleteParams::default()).await }
        });
        let results = pods.iter().zip(deleted.await).map(|(pod, deleted)| {
            let name = name(&pod.metadata);
            match deleted.attempt(|| format!("delete pod {name}")) {
                Ok(()) => {
                    self.written.removals.deleted(key, pod);
                    self.recorder.normal(reference(set), "SuccessfulDelete", format!("Deleted pod: {name}"));
                    Ok(())
                }
                Err(error) if error.is_not_found() => Ok(()),
                Err(error) => {
                    let message = format!("Error deleting: {}", error.api_message());
                    self.recorder.warning(reference(set), "FailedDelete", message);
                    Err(error)
                }
            }
        });
        Error::collect(results.collect())
    }

    /// Carries out changes of the history, one after the other: pods are given another revision before theirs is
    /// deleted.
    pub(super) async fn mend(&self, key: &ObjectKey, set: &DaemonSet, actions: Vec<Action>) -> Result<()> {
        for action in actions {
            match action {
                Action::Create(number) => self.record(key, set, number).await?,
                Action::Update { old, new } => drop(self.history.update(key, &old, *new).await?),
                Action::Delete(revision) => self.history.delete(key, &[revision]).await?,
                Action::Relabel { pod, hash } => {
                    let old = pod.to_api();
                    let mut new = old.clone();
                    new.metadata.labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash);
                    if let Some(written) = patch::update(&self.pods_in(key), &old, &new).await? {
                        self.written.pods.wrote(key, &written);
                    }
                }
            }
        }
        Ok(())
    }

    /// Creates the revision of the current template, and counts the names that others had taken.
    async fn record(&self, key: &ObjectKey, set: &DaemonSet, number: i64) -> Result<()> {
        let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
        let before = set.status.as_ref().and_then(|status| status.collision_count);
        let mut collisions = before.unwrap_or(0);
        match self.history.create(key, set, &template, number, &mut collisions).await {
            Err(error) if error.is_namespace_terminating() => return Ok(()),
            created => drop(created?),
        }
        if collisions == before.unwrap_or(0) {
            return Ok(());
        }
        let mut new = set.clone();
        new.status.get_or_insert_default().collision_count = Some(collisions);
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        patch::update_status(&api, set, &new).await.map(drop)
    }

    fn pods_in(&self, key: &ObjectKey) -> Api<v1::Pod> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }
}
