//! Writes the choices for the claims of a pod, and waits until these are bound.

use std::sync::Arc;

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::volumes::{self, SELECTED_NODE};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::limits;
use crate::storage::{Plan, is_bound};

/// The claims of a pod could not be bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("cannot write {what}")]
    Write {
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the claim {0} is gone, or no longer waits for a volume on the node")]
    Changed(ObjectKey),
    #[error("timed out waiting for the claims to be bound")]
    Timeout,
}

/// The cluster's claims, and a signal that tells of each change of one.
#[derive(Clone)]
pub(crate) struct Claims {
    cache: Cache<PersistentVolumeClaim>,
    changed: watch::Receiver<()>,
}

impl Claims {
    pub fn new(cache: Cache<PersistentVolumeClaim>) -> Self {
        let (sender, changed) = watch::channel(());
        cache.on_change(move |_| {
            sender.send_replace(());
        });
        Self { cache, changed }
    }

    /// Writes what is planned for the node. Each write names the version that the choice was based on, so that no volume
    /// is taken twice and no claim gets two nodes. Returns once all claims are bound.
    pub async fn bind(&self, client: &Client, plan: &Plan, node: &str) -> Result<(), VolumeError> {
        for (claim, volume) in &plan.take {
            take(client, claim, volume).await?;
        }
        for claim in &plan.make {
            select(client, claim, node).await?;
        }
        let bound = tokio::time::timeout(limits::VOLUMES_BOUND, self.bound(plan, node));
        bound.await.unwrap_or(Err(VolumeError::Timeout))
    }

    async fn bound(&self, plan: &Plan, node: &str) -> Result<(), VolumeError> {
        let mut changed = self.changed.clone();
        loop {
            changed.borrow_and_update();
            let mut waits = false;
            for claim in plan.claims() {
                waits |= !self.is_bound(claim, plan, node)?;
            }
            if !waits {
                return Ok(());
            }
            if changed.changed().await.is_err() {
                return Err(VolumeError::Timeout);
            }
        }
    }

    /// Returns whether a claim is bound by now; fails if it never will be.
    fn is_bound(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        plan: &Plan,
        node: &str,
    ) -> Result<bool, VolumeError> {
        let key = ObjectKey::of(claim.as_ref());
        let now = self.cache.get(&key).filter(|now| now.metadata.uid == claim.metadata.uid);
        let Some(now) = now.filter(|now| now.metadata.deletion_timestamp.is_none()) else {
            return Err(VolumeError::Changed(key));
        };
        if is_bound(&now) {
            return Ok(true);
        }
        let is_made = plan.make.iter().any(|made| made.metadata.uid == claim.metadata.uid);
        // The cache may not show the own annotation yet, but then it shows the version that it was written on.
        let is_newer = now.metadata.resource_version != claim.metadata.resource_version;
        if is_made && is_newer && volumes::selected_node(&now) != Some(node) {
            return Err(VolumeError::Changed(key));
        }
        Ok(false)
    }
}

/// Reserves a volume for a claim, as the binder does.
async fn take(
    client: &Client,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<(), VolumeError> {
    let Some(new) = volumes::bound_to(volume, claim) else { return Ok(()) };
    let reference = volumes::claim_ref(&new).map_or(Value::Null, |reference| json!(reference));
    let patch = json!({
        "metadata": {"resourceVersion": volume.metadata.resource_version, "annotations": new.metadata.annotations},
        "spec": {"claimRef": reference},
    });
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let written = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.map(drop).map_err(|source| {
        let what = format!("the claim of PersistentVolume {name}");
        VolumeError::Write { what, source: Box::new(source) }
    })
}

/// Tells for which node the volume of a claim is to be made.
async fn select(client: &Client, claim: &PersistentVolumeClaim, node: &str) -> Result<(), VolumeError> {
    if volumes::selected_node(claim) == Some(node) {
        return Ok(());
    }
    let key = ObjectKey::of(claim);
    let patch = json!({"metadata": {
        "resourceVersion": claim.metadata.resource_version, "annotations": {SELECTED_NODE: node}}});
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &key.namespace);
    let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.map(drop).map_err(|source| {
        let what = format!("the node of PersistentVolumeClaim {key}");
        VolumeError::Write { what, source: Box::new(source) }
    })
}
