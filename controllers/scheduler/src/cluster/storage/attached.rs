//! Volumes that are attached to nodes, as the limits of CSI drivers count them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use apiserver_client::ObjectKey;
use apiserver_meta::volumes;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Volume};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};

use super::migration::{self, BuiltIn};
use super::{Storage, is_for_pod, not_found};
use crate::cluster::NodeId;
use crate::pod::PodInfo;

/// Identifies a volume of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Handle {
    Volume(String),
    /// The volume that will be made for a claim.
    Claim(ObjectKey),
}

/// Volumes by CSI driver.
pub type Volumes = BTreeMap<String, BTreeSet<Handle>>;

/// The volumes of a pod cannot be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// A claim does not exist yet.
    NoClaim(String),
    Other(String),
}

/// The volumes of a node that limits count.
#[derive(Debug, Default)]
pub struct NodeVolumes {
    /// The node has a CSINode.
    pub has_csi: bool,
    /// Most volumes of each driver that the node can have; drivers without a limit are not here.
    pub limits: BTreeMap<String, i64>,
    /// Volumes of the node's pods, or why they cannot be told; not filled without limits.
    pub in_use: Volumes,
    pub problem: Option<String>,
    /// Number of further volumes that are attached, by driver.
    pub only_attached: BTreeMap<String, usize>,
}

/// Room of a node that has to be looked at: nobody has computed it since it changed, or the node's volumes cannot be told.
const UNKNOWN: i64 = i64::MIN;

/// Number of volumes for which each node has room in any case.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// By index of the node; nodes beyond its end are [`UNKNOWN`].
    least: Vec<i64>,
    /// Nodes that have changed, and whose room was not computed since.
    stale: Vec<NodeId>,
}

impl Rooms {
    /// Forgets the room of a node.
    fn forget(&mut self, id: NodeId) {
        if id.index() >= self.least.len() {
            self.least.resize(id.index() + 1, UNKNOWN);
            self.stale.push(id);
        } else if std::mem::replace(&mut self.least[id.index()], UNKNOWN) != UNKNOWN {
            self.stale.push(id);
        }
    }
}

impl NodeVolumes {
    /// Returns a number of volumes for which the node has room, whatever their drivers are.
    fn least_room(&self) -> i64 {
        if self.problem.is_some() {
            // Greater than that of a node that nobody has looked at.
            return UNKNOWN + 1;
        }
        let room = |(driver, limit): (&String, &i64)| {
            let in_use = self.in_use.get(driver).map_or(0, BTreeSet::len);
            let attached = in_use + self.only_attached.get(driver).copied().unwrap_or_default();
            limit - i64::try_from(attached).unwrap_or(i64::MAX)
        };
        self.limits.iter().map(room).min().unwrap_or(i64::MAX)
    }

    /// Returns `true` if the node can have these volumes besides what it has.
    pub fn has_room(&self, new: &Volumes) -> bool {
        let none = BTreeSet::new();
        new.iter().all(|(driver, handles)| {
            let Some(limit) = self.limits.get(driver) else { return true };
            let in_use = self.in_use.get(driver).unwrap_or(&none);
            let more = handles.iter().filter(|handle| !in_use.contains(handle)).count();
            let attached = in_use.len() + self.only_attached.get(driver).copied().unwrap_or_default();
            more == 0 || i64::try_from(attached + more).unwrap_or(i64::MAX) <= *limit
        })
    }
}

/// Everything that is known of a node's volumes.
#[derive(Debug, Default)]
pub(super) struct OnNode {
    /// The node's name.
    pub name: Arc<str>,
    /// Pods with volumes.
    pub pods: Vec<Arc<PodInfo>>,
    /// Computed when it is asked for, and anew after a change.
    volumes: OnceLock<NodeVolumes>,
}

impl OnNode {
    pub fn named(name: &Arc<str>) -> Self {
        Self { name: Arc::clone(name), ..Self::default() }
    }
}

/// VolumeAttachments by what they refer to.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    by_name: BTreeMap<String, Arc<VolumeAttachment>>,
    by_node: BTreeMap<String, BTreeSet<String>>,
    by_volume: BTreeMap<String, BTreeSet<String>>,
}

impl Attachments {
    pub fn get(&self, name: &str) -> Option<&Arc<VolumeAttachment>> {
        self.by_name.get(name)
    }

    pub fn set(&mut self, name: &str, new: Option<Arc<VolumeAttachment>>) -> Option<Arc<VolumeAttachment>> {
        let old = match &new {
            Some(new) => self.by_name.insert(name.to_owned(), Arc::clone(new)),
            None => self.by_name.remove(name),
        };
        if let Some(old) = &old {
            unlink(&mut self.by_node, &old.spec.node_name, name);
            let volume = old.spec.source.persistent_volume_name.as_deref();
            volume.into_iter().for_each(|volume| unlink(&mut self.by_volume, volume, name));
        }
        if let Some(new) = &new {
            let nodes = self.by_node.entry(new.spec.node_name.clone()).or_default();
            nodes.insert(name.to_owned());
            if let Some(volume) = &new.spec.source.persistent_volume_name {
                self.by_volume.entry(volume.clone()).or_default().insert(name.to_owned());
            }
        }
        old
    }

    fn on(&self, node: &str) -> impl Iterator<Item = &Arc<VolumeAttachment>> {
        self.by_node.get(node).into_iter().flatten().filter_map(|name| self.by_name.get(name))
    }

    /// Returns the names of the nodes that a volume is attached to.
    pub fn nodes_of(&self, volume: &str) -> impl Iterator<Item = &str> {
        let names = self.by_volume.get(volume).into_iter().flatten();
        names.filter_map(|name| self.by_name.get(name)).map(|attachment| attachment.spec.node_name.as_str())
    }
}

fn unlink(sets: &mut BTreeMap<String, BTreeSet<String>>, key: &str, name: &str) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(name);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

/// Returns the limits of a node's drivers.
fn limits(csi: &CSINode) -> BTreeMap<String, i64> {
    let drivers = csi.spec.drivers.iter();
    let limit = |driver: &k8s_openapi::api::storage::v1::CSINodeDriver| {
        let count = driver.allocatable.as_ref()?.count?;
        Some((driver.name.clone(), i64::from(count)))
    };
    drivers.filter_map(limit).collect()
}

impl Storage {
    /// Forgets what was counted on a node.
    pub(super) fn forget(&mut self, id: NodeId) {
        if let Some(on_node) = self.nodes.get_mut(id.index()) {
            on_node.volumes = OnceLock::new();
            self.rooms.forget(id);
        }
    }

    /// Computes how much room the nodes have that have changed.
    pub fn register_rooms(&mut self) {
        for id in std::mem::take(&mut self.rooms.stale) {
            self.rooms.least[id.index()] = self.on(id).least_room();
        }
    }

    /// Returns `true` if a node is known to have room for as many volumes, whatever their drivers are.
    pub fn has_room_for(&self, id: NodeId, volumes: i64) -> bool {
        self.rooms.least.get(id.index()).is_some_and(|room| *room >= volumes)
    }

    /// Returns the volumes of a node.
    pub fn on(&self, node: NodeId) -> &NodeVolumes {
        static UNKNOWN: OnceLock<NodeVolumes> = OnceLock::new();
        match self.nodes.get(node.index()) {
            Some(on_node) => on_node.volumes.get_or_init(|| self.count(on_node)),
            None => UNKNOWN.get_or_init(NodeVolumes::default),
        }
    }

    fn count(&self, on_node: &OnNode) -> NodeVolumes {
        let Some(csi) = self.csi_nodes.get(&*on_node.name) else { return NodeVolumes::default() };
        let mut all = NodeVolumes { has_csi: true, limits: limits(csi), ..NodeVolumes::default() };
        if all.limits.is_empty() {
            return all;
        }
        for pod in &on_node.pods {
            if let Err(Unknown::NoClaim(problem) | Unknown::Other(problem)) =
                self.add_volumes(pod, true, false, &mut all.in_use)
            {
                all.problem = Some(problem);
            }
        }
        let mut attached = Volumes::new();
        for attachment in self.attachments.on(&on_node.name) {
            let (driver, source) = (&attachment.spec.attacher, &attachment.spec.source);
            let volume = source.persistent_volume_name.as_deref().and_then(|name| self.volumes.stored(name));
            let csi = volume.and_then(|volume| volume.spec.as_ref()?.csi.as_ref());
            let Some(csi) = csi.filter(|_| !driver.is_empty()) else { continue };
            let handle = Handle::Volume(csi.volume_handle.clone());
            if !all.in_use.get(driver).is_some_and(|in_use| in_use.contains(&handle)) {
                attached.entry(driver.clone()).or_default().insert(handle);
            }
        }
        all.only_attached = attached.into_iter().map(|(driver, handles)| (driver, handles.len())).collect();
        all
    }

    /// Returns the volumes of a pod that is to be placed on a node with a CSINode, or without.
    ///
    /// # Errors
    ///
    /// Returns why they cannot be told.
    pub fn volumes_of(&self, pod: &PodInfo, has_csi: bool) -> Result<Volumes, Unknown> {
        let mut all = Volumes::new();
        self.add_volumes(pod, has_csi, true, &mut all)?;
        Ok(all)
    }

    fn add_volumes(
        &self,
        pod: &PodInfo,
        has_csi: bool,
        is_new: bool,
        all: &mut Volumes,
    ) -> Result<(), Unknown> {
        for volume in pod.volumes.iter() {
            let Some(name) = volumes::claim_of(pod.name(), volume) else {
                add_inline(volume, has_csi, all)?;
                continue;
            };
            let key = ObjectKey::new(pod.namespace(), &name);
            let Some(claim) = self.claims.stored(&key) else {
                if is_new {
                    let missing = not_found("persistentvolumeclaim", &name);
                    return Err(Unknown::NoClaim(format!("looking up PVC {key}: {missing}")));
                }
                continue;
            };
            if volume.persistent_volume_claim.is_none() {
                is_for_pod(claim, pod).map_err(Unknown::Other)?;
            }
            if let Some((driver, handle)) = self.volume_of(claim, key, has_csi) {
                all.entry(driver).or_default().insert(handle);
            }
        }
        Ok(())
    }

    /// Returns the driver and the volume of a claim.
    fn volume_of(
        &self,
        claim: &PersistentVolumeClaim,
        key: ObjectKey,
        has_csi: bool,
    ) -> Option<(String, Handle)> {
        let name = volumes::volume_name(claim);
        if let Some(volume) = self.volumes.stored(name).filter(|_| !name.is_empty()) {
            let (driver, handle) = migration::handle(volume, has_csi)?;
            let is_complete = !driver.is_empty() && !handle.is_empty();
            return is_complete.then(|| (driver.to_owned(), Handle::Volume(handle)));
        }
        let class = self.class(volumes::claim_class(claim))?;
        let driver = match BuiltIn::named(&class.provisioner) {
            Some(built_in) if has_csi && built_in.is_migrated() => built_in.driver(),
            Some(_) => return None,
            None => &class.provisioner,
        };
        (!driver.is_empty()).then(|| (driver.to_owned(), Handle::Claim(key)))
    }
}

fn add_inline(volume: &Volume, has_csi: bool, all: &mut Volumes) -> Result<(), Unknown> {
    if !has_csi {
        return Ok(());
    }
    let found = migration::inline_handle(volume).map_err(|cause| {
        Unknown::Other(format!("converting volume({}) from inline to csi: {cause}", volume.name))
    })?;
    if let Some((driver, handle)) = found {
        all.entry(driver.to_owned()).or_default().insert(Handle::Volume(handle));
    }
    Ok(())
}
