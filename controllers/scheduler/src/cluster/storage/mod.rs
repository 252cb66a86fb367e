//! Claims, volumes, classes and CSI facts, with what was reserved and is not written yet.
//!
//! Nothing here costs anything for pods without volumes. Changes are handed in object by object. What limits count of a
//! node's volumes is computed when a pod with volumes asks for it, and anew only after a change that concerns the node.

mod assumed;
mod attached;
mod by_label;
mod migration;
mod needs;
mod plan;
mod pool;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::volumes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use self::assumed::AssumeCache;
use self::attached::{Attachments, OnNode, Rooms};
pub use self::attached::{Handle, NodeVolumes, Unknown, Volumes};
pub use self::migration::{BETA_REGION, BETA_ZONE, BuiltIn, REGION, ZONE, csi_affinity, inline_handle};
pub use self::needs::{Claims, Conflict, Reserved, Uncertain, volume_limit};
pub use self::plan::VolumePlan;
use self::pool::Pool;
pub use self::pool::{Candidates, allows};
use super::NodeId;
use crate::pod::PodInfo;

/// Annotation of a CSINode: the built-in drivers whose volumes the node has CSI drivers for, separated by commas.
pub const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// Claims, volumes, classes and CSI facts, with what was reserved and is not written yet.
#[derive(Debug, Default)]
pub struct Storage {
    claims: AssumeCache<ObjectKey, PersistentVolumeClaim>,
    volumes: AssumeCache<String, PersistentVolume>,
    pool: Pool,
    /// Claims by the volume that they name.
    claims_of: BTreeMap<String, BTreeSet<ObjectKey>>,
    classes: BTreeMap<String, Arc<StorageClass>>,
    drivers: BTreeMap<String, Arc<CSIDriver>>,
    csi_nodes: BTreeMap<String, Arc<CSINode>>,
    capacities: BTreeMap<ObjectKey, Arc<CSIStorageCapacity>>,
    /// Keys of `capacities` by class.
    capacities_of: BTreeMap<String, BTreeSet<ObjectKey>>,
    attachments: Attachments,
    /// The users of each claim.
    users: BTreeMap<ObjectKey, Users>,
    /// Change of the number of placed pods' volumes that name each claim, as long as a trial lasts.
    tried: Option<BTreeMap<ObjectKey, isize>>,
    /// By index of the node.
    nodes: Vec<OnNode>,
    rooms: Rooms,
    ids: BTreeMap<Arc<str>, NodeId>,
}

/// Volumes of placed pods that refer to a claim.
#[derive(Debug, Default)]
struct Users {
    /// Number of those that name the claim; others have it made.
    naming: usize,
    /// The node of each.
    nodes: Vec<NodeId>,
}

/// Returns Kubernetes' text for an object that does not exist.
pub fn not_found(resource: &str, name: &str) -> String {
    format!("{resource} {name:?} not found")
}

/// Checks that the claim of an ephemeral volume is one of the pod; the error is in the words of Kubernetes.
///
/// # Errors
///
/// Returns that it was made for somebody else.
pub fn is_for_pod(claim: &PersistentVolumeClaim, pod: &PodInfo) -> Result<(), String> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    if controller.is_some_and(|owner| pod.uid == *owner.uid) {
        return Ok(());
    }
    let (claim, pod) = (ObjectKey::of(claim), pod.key());
    Err(format!("PVC {claim} was not created for pod {pod} (pod is not owner)"))
}

impl Storage {
    /// Replaces a claim, or removes it; returns what there was before.
    pub fn set_claim(
        &mut self,
        key: &ObjectKey,
        new: Option<Arc<PersistentVolumeClaim>>,
    ) -> Option<Arc<PersistentVolumeClaim>> {
        let old = self.claims.set(key, new.clone());
        let (was, is) = (old.as_deref().map(volumes::volume_name), new.as_deref().map(volumes::volume_name));
        if was != is {
            if let Some(volume) = was.filter(|volume| !volume.is_empty())
                && let Some(claims) = self.claims_of.get_mut(volume)
            {
                claims.remove(key);
                if claims.is_empty() {
                    self.claims_of.remove(volume);
                }
            }
            if let Some(volume) = is.filter(|volume| !volume.is_empty()) {
                self.claims_of.entry(volume.to_owned()).or_default().insert(key.clone());
            }
        }
        let class = |claim: &Option<Arc<PersistentVolumeClaim>>| {
            claim.as_deref().map(|claim| volumes::claim_class(claim).to_owned())
        };
        if was != is || class(&old) != class(&new) {
            self.claim_changed(key);
        }
        old
    }

    /// Replaces a volume, or removes it; returns what there was before.
    pub fn set_volume(
        &mut self,
        name: &str,
        new: Option<Arc<PersistentVolume>>,
    ) -> Option<Arc<PersistentVolume>> {
        let name = name.to_owned();
        let before = self.volumes.get(&name).cloned();
        let old = self.volumes.set(&name, new.clone());
        self.pool.replace(&name, before.as_deref(), self.volumes.get(&name).map(Arc::as_ref));
        let handle = |volume: &Option<Arc<PersistentVolume>>| {
            let volume = volume.as_deref()?;
            migration::handle(volume, true).map(|(driver, handle)| (driver.to_owned(), handle))
        };
        if old.is_none() != new.is_none() || handle(&old) != handle(&new) {
            let claims: Vec<ObjectKey> = self.claims_of.get(&name).into_iter().flatten().cloned().collect();
            claims.iter().for_each(|claim| self.claim_changed(claim));
            let nodes: Vec<String> = self.attachments.nodes_of(&name).map(str::to_owned).collect();
            nodes.iter().for_each(|node| self.node_changed(node));
        }
        old
    }

    /// Replaces a class, or removes it; returns what there was before.
    pub fn set_class(&mut self, name: &str, new: Option<Arc<StorageClass>>) -> Option<Arc<StorageClass>> {
        let old = replace(&mut self.classes, name.to_owned(), new.clone());
        if old.as_ref().map(|class| &class.provisioner) != new.as_ref().map(|class| &class.provisioner) {
            (0..self.nodes.len()).map(NodeId::new).for_each(|id| self.forget(id));
        }
        old
    }

    /// Replaces the CSINode of a node, or removes it; returns what there was before.
    pub fn set_csi_node(&mut self, node: &str, new: Option<Arc<CSINode>>) -> Option<Arc<CSINode>> {
        let old = replace(&mut self.csi_nodes, node.to_owned(), new);
        self.node_changed(node);
        old
    }

    /// Replaces a CSIDriver, or removes it; returns what there was before.
    pub fn set_driver(&mut self, name: &str, new: Option<Arc<CSIDriver>>) -> Option<Arc<CSIDriver>> {
        replace(&mut self.drivers, name.to_owned(), new)
    }

    /// Replaces a CSIStorageCapacity, or removes it; returns what there was before.
    pub fn set_capacity(
        &mut self,
        key: &ObjectKey,
        new: Option<Arc<CSIStorageCapacity>>,
    ) -> Option<Arc<CSIStorageCapacity>> {
        let old = replace(&mut self.capacities, key.clone(), new.clone());
        if let Some(class) = old.as_ref().map(|old| &old.storage_class_name)
            && let Some(keys) = self.capacities_of.get_mut(class)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.capacities_of.remove(class);
            }
        }
        if let Some(new) = new {
            self.capacities_of.entry(new.storage_class_name.clone()).or_default().insert(key.clone());
        }
        old
    }

    /// Replaces a VolumeAttachment, or removes it; returns what there was before.
    pub fn set_attachment(
        &mut self,
        name: &str,
        new: Option<Arc<VolumeAttachment>>,
    ) -> Option<Arc<VolumeAttachment>> {
        if let (Some(old), Some(new)) = (self.attachments.get(name), &new)
            && old.spec == new.spec
        {
            return self.attachments.set(name, Some(Arc::clone(new)));
        }
        let node = new.as_ref().map(|new| new.spec.node_name.clone());
        let old = self.attachments.set(name, new);
        let nodes = old.as_ref().map(|old| old.spec.node_name.clone()).into_iter().chain(node);
        nodes.for_each(|node| self.node_changed(&node));
        old
    }

    /// Returns a claim as the API server has it.
    pub fn claim(&self, key: &ObjectKey) -> Option<&Arc<PersistentVolumeClaim>> {
        self.claims.stored(key)
    }

    /// Returns a volume as the API server has it.
    pub fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        self.volumes.stored(name)
    }

    pub fn class(&self, name: &str) -> Option<&Arc<StorageClass>> {
        self.classes.get(name)
    }

    /// Returns `true` if a node has CSI drivers for the volumes of a built-in one.
    pub fn is_migrated_on(&self, node: &str, driver: BuiltIn) -> bool {
        self.csi_nodes.get(node).is_some_and(|csi| migrates(csi, driver))
    }

    /// Returns the number of placed pods' volumes that name the claim.
    fn naming(&self, claim: &ObjectKey) -> usize {
        self.users.get(claim).map_or(0, |users| users.naming)
    }

    /// Returns `true` if a placed pod names the claim.
    #[cfg(test)]
    pub fn is_used(&self, claim: &ObjectKey) -> bool {
        self.naming(claim) > 0
    }

    /// Returns `true` if a placed pod named the claim before the trial, or does so if there is none.
    pub fn was_used(&self, claim: &ObjectKey) -> bool {
        self.naming(claim).cast_signed() > self.tried(claim)
    }

    /// Returns by how many a trial has changed the number of placed pods' volumes that name the claim; 0 if there is none.
    pub fn tried(&self, claim: &ObjectKey) -> isize {
        self.tried.as_ref().and_then(|tried| tried.get(claim)).copied().unwrap_or_default()
    }

    pub(super) fn begin_trial(&mut self) {
        self.tried = Some(BTreeMap::new());
    }

    pub(super) fn end_trial(&mut self) {
        self.tried = None;
    }

    /// Counts what a trial changes.
    fn try_claim(&mut self, claim: &ObjectKey, change: isize) {
        if let Some(tried) = &mut self.tried {
            *tried.entry(claim.clone()).or_default() += change;
        }
    }

    /// Returns the pods with volumes on a node.
    pub fn pods_on(&self, node: NodeId) -> &[Arc<PodInfo>] {
        self.nodes.get(node.index()).map_or(&[], |on_node| &on_node.pods)
    }

    /// Hears of a pod that counts on a node from now on.
    pub(super) fn placed(&mut self, pod: &Arc<PodInfo>, node: NodeId) {
        if pod.volumes.is_empty() {
            return;
        }
        for volume in pod.volumes.iter() {
            let Some(name) = volumes::claim_of(pod.name(), volume) else { continue };
            let key = ObjectKey::new(pod.namespace(), &name);
            if volume.persistent_volume_claim.is_some() {
                self.try_claim(&key, 1);
            }
            let users = self.users.entry(key).or_default();
            users.naming += usize::from(volume.persistent_volume_claim.is_some());
            users.nodes.push(node);
        }
        self.slot(node).pods.push(Arc::clone(pod));
        self.forget(node);
    }

    /// Hears of a pod that no longer counts on a node.
    pub(super) fn removed(&mut self, pod: &PodInfo, node: NodeId) {
        if pod.volumes.is_empty() {
            return;
        }
        for volume in pod.volumes.iter() {
            let Some(name) = volumes::claim_of(pod.name(), volume) else { continue };
            let key = ObjectKey::new(pod.namespace(), &name);
            if volume.persistent_volume_claim.is_some() {
                self.try_claim(&key, -1);
            }
            let Some(users) = self.users.get_mut(&key) else { continue };
            users.naming -= usize::from(volume.persistent_volume_claim.is_some());
            if let Some(place) = users.nodes.iter().position(|other| *other == node) {
                users.nodes.swap_remove(place);
            }
            if users.nodes.is_empty() {
                self.users.remove(&key);
            }
        }
        self.slot(node).pods.retain(|other| other.uid != pod.uid);
        self.forget(node);
    }

    /// Hears of the id that a node has from now on.
    pub(super) fn enter(&mut self, name: &Arc<str>, id: NodeId) {
        self.ids.insert(Arc::clone(name), id);
        *self.slot(id) = OnNode::named(name);
        self.forget(id);
    }

    /// Hears of a node that is gone with all its pods.
    pub(super) fn leave(&mut self, name: &str, id: NodeId) {
        self.ids.remove(name);
        *self.slot(id) = OnNode::default();
        self.forget(id);
    }

    fn slot(&mut self, id: NodeId) -> &mut OnNode {
        if id.index() >= self.nodes.len() {
            self.nodes.resize_with(id.index() + 1, OnNode::default);
        }
        &mut self.nodes[id.index()]
    }

    /// Forgets what was counted on nodes with pods that use a claim.
    fn claim_changed(&mut self, key: &ObjectKey) {
        let nodes = self.users.get(key).map(|users| users.nodes.clone()).unwrap_or_default();
        nodes.into_iter().for_each(|node| self.forget(node));
    }

    /// Forgets what was counted on a node.
    fn node_changed(&mut self, name: &str) {
        if let Some(id) = self.ids.get(name).copied() {
            self.forget(id);
        }
    }
}

/// Returns `true` if a node with this CSINode has CSI drivers for the volumes of a built-in one.
pub fn migrates(csi: &CSINode, driver: BuiltIn) -> bool {
    let migrated = csi.metadata.annotations.as_ref().and_then(|all| all.get(MIGRATED_PLUGINS));
    migrated.is_some_and(|migrated| migrated.split(',').any(|plugin| plugin == driver.plugin()))
}

fn replace<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, new: Option<V>) -> Option<V> {
    match new {
        Some(new) => map.insert(key, new),
        None => map.remove(&key),
    }
}
