//! Judges if the claims of a pod are bound by now, or never will be. Pure.

use std::sync::Arc;

use apiserver_client::{Labels, ObjectKey, version_of};
use apiserver_meta::uid::Uid;
use apiserver_meta::volumes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::cluster::storage::VolumePlan;
use crate::cluster::storage::{BuiltIn, allows, csi_affinity};

/// Claims of a pod will not be bound as planned; in the words of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    #[error("failed to get node {0:?}: node {0:?} not found")]
    NoNode(String),
    #[error("pod does not exist any more: pod {0:?} not found")]
    NoPod(String),
    #[error("failed to check binding: {resource} {key:?} not found")]
    NotBindable { resource: &'static str, key: String },
    #[error("failed to check provisioning pvc: persistentvolumeclaims {0:?} not found")]
    NotProvisionable(String),
    #[error("failed to translate pv to csi: {0}")]
    Untranslatable(String),
    #[error("pv {volume:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms")]
    Elsewhere { volume: String, node: String },
    #[error("ClaimRef got reset for pv {0:?}")]
    Released(String),
    #[error("selectedNode annotation reset for PVC {0:?}")]
    Unselected(String),
    #[error("provisioning failed for PVC {0:?}")]
    NotProvisioned(String),
    #[error("context deadline exceeded")]
    Timeout,
}

/// The cluster, as far as the progress of a plan depends on it.
pub(super) trait State {
    fn claim(&self, key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>>;
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    fn labels_of(&self, node: &str) -> Option<Labels>;
    fn is_migrated_on(&self, node: &str, driver: BuiltIn) -> bool;
    fn has_pod(&self, key: &ObjectKey, uid: &Uid) -> bool;
}

/// The versions of objects that were written for a plan, in its order.
#[derive(Debug, Default)]
pub(super) struct Versions {
    pub volumes: Vec<u64>,
    pub claims: Vec<u64>,
}

/// Returns `true` if all claims of a plan are bound, and `false` if that is to be waited for.
pub(super) fn is_done(plan: &VolumePlan, written: &Versions, state: &impl State) -> Result<bool, Stuck> {
    let labels = state.labels_of(&plan.node).ok_or_else(|| Stuck::NoNode(plan.node.to_string()))?;
    if !state.has_pod(&plan.pod, &plan.uid) {
        return Err(Stuck::NoPod(plan.pod.name.clone()));
    }
    for ((claim, volume), version) in plan.take.iter().zip(&written.volumes) {
        if !is_taken(claim, volume, *version, plan, &labels, state)? {
            return Ok(false);
        }
    }
    for (claim, version) in plan.make.iter().zip(&written.claims) {
        if !is_made(claim, *version, plan, &labels, state)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns `true` if a claim is bound to the volume that was chosen for it.
fn is_taken(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    version: u64,
    plan: &VolumePlan,
    labels: &Labels,
    state: &impl State,
) -> Result<bool, Stuck> {
    let missing = |resource, key| Stuck::NotBindable { resource, key };
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let volume = state.volume(name).ok_or_else(|| missing("persistentvolumes", name.to_owned()))?;
    let key = ObjectKey::of(claim);
    let claim = state.claim(&key).ok_or_else(|| missing("persistentvolumeclaims", key.to_string()))?;
    if version > version_of(&volume.metadata) {
        return Ok(false);
    }
    check_node(&volume, plan, labels, state)?;
    let reference = volumes::claim_ref(&volume).and_then(|reference| reference.uid.as_deref());
    if reference.is_none_or(str::is_empty) {
        return Err(Stuck::Released(name.to_owned()));
    }
    Ok(volumes::is_fully_bound(&claim))
}

/// Returns `true` if a volume was made for a claim, and the claim is bound to it.
fn is_made(
    claim: &PersistentVolumeClaim,
    version: u64,
    plan: &VolumePlan,
    labels: &Labels,
    state: &impl State,
) -> Result<bool, Stuck> {
    let key = ObjectKey::of(claim);
    let claim = state.claim(&key).ok_or_else(|| Stuck::NotProvisionable(key.to_string()))?;
    if version > version_of(&claim.metadata) {
        return Ok(false);
    }
    if claim.metadata.annotations.is_none() {
        return Err(Stuck::Unselected(key.name));
    }
    // A provisioner that fails takes the annotation back, so that the pod is placed anew.
    if volumes::selected_node(&claim) != Some(&plan.node) {
        return Err(Stuck::NotProvisioned(key.name));
    }
    let name = volumes::volume_name(&claim);
    if !name.is_empty() {
        // The volume may be on its way still.
        let Some(volume) = state.volume(name) else { return Ok(false) };
        check_node(&volume, plan, labels, state)?;
    }
    Ok(volumes::is_fully_bound(&claim))
}

/// Checks that a volume can be used on the node of a plan.
fn check_node(
    volume: &PersistentVolume,
    plan: &VolumePlan,
    labels: &Labels,
    state: &impl State,
) -> Result<(), Stuck> {
    let driver = volume.spec.as_ref().and_then(BuiltIn::of).filter(|driver| driver.is_migrated());
    let driver = driver.filter(|driver| state.is_migrated_on(&plan.node, *driver));
    let translated = driver.map(|driver| csi_affinity(volume, driver)).transpose();
    let translated = translated.map_err(Stuck::Untranslatable)?;
    let own = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let required = translated.as_ref().map_or(own, Option::as_ref);
    if allows(required, labels) {
        return Ok(());
    }
    let volume = volume.metadata.name.clone().unwrap_or_default();
    Err(Stuck::Elsewhere { volume, node: plan.node.to_string() })
}

#[cfg(test)]
mod tests;
