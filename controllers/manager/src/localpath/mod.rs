//! The provisioner of volumes that are directories of a node, behind the class `local-path` of `hawser up`.
//!
//! ```text
//! claim + selected node ─▶ PersistentVolume (local, affinity to the node); the kubelet makes the directory when it
//!                          mounts it
//! volume whose claim is gone, policy Delete ─▶ object deleted, held by a finalizer ─▶ the node removes the
//!                          directory ─▶ finalizer removed
//! ```
//!
//! The deletion of the object is the decision: it names the version that was judged, so that a change of the policy
//! that came first prevents it. No directory is removed without it.

mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use apiserver_client::{Cache, Change, ObjectKey, Recorder, events};
use apiserver_meta::volumes::{self, LOCAL_PATH, LOCAL_PATH_NODE};
use controllers_runtime::{Attempt, Error, Ledger, Outcome, Reconcile, Result, WorkQueue};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::{Node, ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::client::Body;
use kube::{Api, Client};

use self::plan::{Provision, Removal};
use crate::context::{Context, Tasks};
use crate::meta::{annotation, is_deleted, name, namespace, uid};
use crate::{limits, patch};

/// Starts the provisioner.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let claims = context.informers.cache::<PersistentVolumeClaim>();
    let volumes = context.informers.cache::<PersistentVolume>();
    let (classes, nodes) = (context.informers.cache::<StorageClass>(), context.informers.cache::<Node>());
    let (claim_queue, volume_queue) =
        (WorkQueue::new("local-path-claims"), WorkQueue::new("local-path-volumes"));
    context.feed(tasks, &claims, &claim_queue);
    context.feed(tasks, &volumes, &volume_queue);
    let again = claim_queue.clone();
    volumes.on_change(move |change| {
        // A claim that has lost its volume before it was bound gets another.
        let reference = volumes::claim_ref(change.object()).filter(|_| matches!(change, Change::Deleted(_)));
        if let Some(ObjectReference { namespace: Some(namespace), name: Some(name), .. }) = reference {
            again.add(ObjectKey::new(namespace, name));
        }
    });
    let recorder = context.recorder.named(LOCAL_PATH);
    let provisioner = Provisioner {
        client: context.client.clone(),
        recorder: recorder.clone(),
        claims: claims.clone(),
        volumes: volumes.clone(),
        classes: classes.clone(),
        nodes: nodes.clone(),
        written: Ledger::default(),
    };
    let remover = Remover {
        client: context.client.clone(),
        recorder,
        volumes: volumes.clone(),
        written: Ledger::default(),
    };
    let ready = {
        let volumes = volumes.clone();
        async move {
            claims.synced().await;
            volumes.synced().await;
            classes.synced().await;
            nodes.synced().await;
        }
    };
    context.start(tasks, claim_queue, provisioner, ready);
    let workers = limits::LOCAL_PATH_REMOVALS;
    context.start_with(tasks, volume_queue, remover, workers, async move { volumes.synced().await });
}

/// Makes volumes for claims.
struct Provisioner {
    client: Client,
    recorder: Recorder,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    nodes: Cache<Node>,
    written: Ledger<ObjectKey>,
}

impl Reconcile for Provisioner {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(claim) = self.claims.get(key).filter(|claim| plan::is_asking(claim)) else {
            self.written.forget(key);
            return Ok(Outcome::Done);
        };
        if !self.written.is_shown(key, &self.volumes) {
            return Ok(Outcome::Behind);
        }
        let class = self.classes.get(&ObjectKey::new("", volumes::claim_class(&claim)));
        let selected = volumes::selected_node(&claim).unwrap_or_default();
        let node = self.nodes.get(&ObjectKey::new("", selected));
        match plan::provision(&claim, class.as_deref(), node.as_deref()) {
            Provision::Wait => {}
            Provision::Refuse(why) => self.failed(&claim, &why),
            Provision::Reschedule(why) => {
                self.failed(&claim, &why);
                if let Some(new) = plan::without_node(&claim) {
                    let api = Api::namespaced(self.client.clone(), namespace(&claim.metadata));
                    patch::update(&api, claim.as_ref(), &new).await?;
                }
            }
            Provision::Create(volume) => self.create(key, &claim, &volume).await?,
        }
        Ok(Outcome::Done)
    }
}

impl Provisioner {
    async fn create(
        &self,
        key: &ObjectKey,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<()> {
        let made = name(&volume.metadata);
        if self.volumes.get(&ObjectKey::new("", made)).is_some() {
            return Ok(());
        }
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let created = api.create(&PostParams::default(), volume).await;
        match created.attempt(|| format!("create the volume {made} for claim {key}")) {
            Ok(created) => {
                self.written.wrote(key, &created);
                let message = format!("Successfully provisioned volume {made}");
                self.recorder.normal(events::reference(claim), "ProvisioningSucceeded", message);
                Ok(())
            }
            // It was made before a crash, or a moment ago.
            Err(error) if error.is_already_exists() => Ok(()),
            Err(error) => {
                self.failed(claim, &error.api_message());
                Err(error)
            }
        }
    }

    fn failed(&self, claim: &PersistentVolumeClaim, why: &str) {
        let class = volumes::claim_class(claim);
        let message = format!("failed to provision volume with StorageClass {class:?}: {why}");
        self.recorder.warning(events::reference(claim), "ProvisioningFailed", message);
    }
}

/// Removes volumes whose claims are gone.
struct Remover {
    client: Client,
    recorder: Recorder,
    volumes: Cache<PersistentVolume>,
    written: Ledger<ObjectKey>,
}

impl Reconcile for Remover {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(cached) = self.volumes.get(key) else {
            self.written.forget(key);
            return Ok(Outcome::Done);
        };
        if plan::removal(&cached) == Removal::Nothing {
            return Ok(Outcome::Done);
        }
        if !self.written.is_shown(key, &self.volumes) {
            return Ok(Outcome::Behind);
        }
        // What follows cannot be taken back, so that the server is asked for the volume as it is.
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let found = api.get_opt(&key.name).await.attempt(|| format!("get the volume {key}"))?;
        let Some(volume) = found.map(Arc::new).filter(|volume| volume.metadata.uid == cached.metadata.uid)
        else {
            return Ok(Outcome::Done);
        };
        self.take_step(key, &api, &volume).await?;
        Ok(Outcome::Done)
    }
}

impl Remover {
    async fn take_step(
        &self,
        key: &ObjectKey,
        api: &Api<PersistentVolume>,
        volume: &PersistentVolume,
    ) -> Result<()> {
        match plan::removal(volume) {
            Removal::Nothing => Ok(()),
            Removal::Finalizer(present) => self.set_finalizer(key, api, volume, present).await,
            Removal::Delete => {
                if !self.is_abandoned(volume).await? {
                    return Ok(());
                }
                let exactly = Preconditions {
                    uid: volume.metadata.uid.clone(),
                    resource_version: volume.metadata.resource_version.clone(),
                };
                let params = DeleteParams { preconditions: Some(exactly), ..DeleteParams::default() };
                api.delete(&key.name, &params).await.map(drop).attempt(|| format!("delete the volume {key}"))
            }
            Removal::Directory => {
                if !self.is_abandoned(volume).await? {
                    return Ok(());
                }
                if let Err(error) = self.remove_directory(volume).await {
                    self.recorder.warning(
                        events::reference(volume),
                        "VolumeFailedDelete",
                        error.api_message(),
                    );
                    return Err(error);
                }
                self.set_finalizer(key, api, volume, false).await
            }
        }
    }

    async fn set_finalizer(
        &self,
        key: &ObjectKey,
        api: &Api<PersistentVolume>,
        volume: &PersistentVolume,
        present: bool,
    ) -> Result<()> {
        match patch::update(api, volume, &plan::with_finalizer(volume, present)).await {
            Ok(written) => {
                written.iter().for_each(|written| self.written.wrote(key, written));
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns `true` if the claim that the volume refers to does not exist, or is bound to another volume. A claim that
    /// is not bound is not in the way of a volume that is being deleted and never was: the binder takes none such.
    async fn is_abandoned(&self, volume: &PersistentVolume) -> Result<bool> {
        let Some(reference) = volumes::claim_ref(volume) else { return Ok(true) };
        let place = reference.namespace.as_deref().unwrap_or_default();
        let claim = reference.name.as_deref().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), place);
        let found =
            api.get_opt(claim).await.attempt(|| format!("get the claim {place}/{claim} of a volume"))?;
        Ok(found.is_none_or(|found| {
            let bound = volumes::volume_name(&found);
            let is_elsewhere = !bound.is_empty() && bound != name(&volume.metadata);
            let meant = reference.uid.as_deref().unwrap_or_default();
            let is_other = !meant.is_empty() && meant != uid(&found.metadata);
            is_elsewhere || is_other || bound.is_empty() && is_deleted(&volume.metadata)
        }))
    }

    /// Has the node remove the directory. That it is not there is a success.
    async fn remove_directory(&self, volume: &PersistentVolume) -> Result<()> {
        let shown = name(&volume.metadata);
        let unusable =
            |problem: String| Error::Unusable { object: format!("PersistentVolume {shown}"), problem };
        let Some(path) = plan::door(volume) else {
            return Err(unusable(format!("the annotation {LOCAL_PATH_NODE} names no node")));
        };
        let node = annotation(&volume.metadata, LOCAL_PATH_NODE).unwrap_or_default();
        let request =
            http::Request::delete(path).body(Body::empty()).map_err(|error| unusable(error.to_string()))?;
        let asked = async {
            let response = self.client.send(request).await?;
            let status = response.status();
            if status.is_success() {
                return Ok((status, String::new()));
            }
            // The node chooses the answer, and might never end it.
            let body = Limited::new(response.into_body(), limits::LOCAL_PATH_ANSWER).collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        let Ok(answer) = tokio::time::timeout(limits::LOCAL_PATH_REMOVAL, asked).await else {
            return Err(unusable(format!("node {node} has not removed its directory in time")));
        };
        let answer = answer.attempt(|| format!("have node {node} remove the directory of volume {shown}"))?;
        match answer {
            (status, _) if status.is_success() => Ok(()),
            (status, text) => {
                Err(unusable(format!("node {node} has not removed its directory: {status} {}", text.trim())))
            }
        }
    }
}
