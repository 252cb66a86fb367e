//! `NodeVolumeLimits`: no more volumes of a CSI driver on a node than the node's CSINode allows.

use std::collections::BTreeSet;

use apiserver_client::ObjectKey;
use apiserver_meta::volumes;
use k8s_openapi::api::core::v1::Volume;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, VolumeAttachment};

use crate::cluster::storage::{BuiltIn, Storage, Unknown, Volumes, inline_handle};
use crate::cluster::{Cluster, Node, NodeSet};
use crate::framework::{
    Actions, Change, Code, Event, Hint, NodeFilter, Plugin, PreFilter, Refusal, Resource, Versions,
};
use crate::pod::PodInfo;

#[cfg(test)]
mod tests;

/// The plugin `NodeVolumeLimits`.
pub struct NodeVolumeLimits;

/// The volumes of a pod.
struct Limited<'a> {
    storage: &'a Storage,
    /// On nodes with a CSINode.
    with_csi: Result<Volumes, Unknown>,
    /// Other nodes have no limits, but a claim may be missing.
    without_csi: Result<Volumes, Unknown>,
}

impl Limited<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let has = self.storage.on(node.id);
        let new = if has.has_csi { &self.with_csi } else { &self.without_csi };
        let new = new.as_ref().map_err(|unknown| match unknown {
            Unknown::NoClaim(problem) => Refusal::unresolvable(problem),
            Unknown::Other(problem) => Refusal::new(Code::Error, problem),
        })?;
        if new.is_empty() || has.limits.is_empty() {
            return Ok(());
        }
        if let Some(problem) = &has.problem {
            return Err(Refusal::new(Code::Error, problem));
        }
        if has.has_room(new) {
            Ok(())
        } else {
            Err(Refusal::unschedulable("node(s) exceed max volume count"))
        }
    }
}

impl NodeFilter for Limited<'_> {
    fn passes(&self, node: &Node) -> bool {
        self.check(node).is_ok()
    }

    fn refusal(&self, node: &Node) -> Refusal {
        self.check(node).err().unwrap_or_else(|| Refusal::unschedulable("node(s) exceed max volume count"))
    }

    fn restrict(&self, cluster: &Cluster, nodes: &mut NodeSet) {
        let count = match (&self.with_csi, &self.without_csi) {
            (Ok(volumes), Ok(_)) => i64::try_from(volumes.values().map(BTreeSet::len).sum::<usize>()).ok(),
            _ => None,
        };
        let has_room = |id| count.is_some_and(|count| self.storage.has_room_for(id, count));
        nodes.retain(|id| has_room(id) || self.passes(cluster.node(id)));
    }
}

/// Returns `true` if limits can count a volume.
fn is_counted(volume: &Volume) -> bool {
    volume.persistent_volume_claim.is_some()
        || volume.ephemeral.is_some()
        || BuiltIn::of_inline(volume).is_some()
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }

    fn register(&self, pod: &PodInfo, cluster: &mut Cluster) {
        if pod.volumes.iter().any(is_counted) {
            cluster.storage.register_rooms();
        }
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, cluster: &'a Cluster) -> PreFilter<'a> {
        if !pod.volumes.iter().any(is_counted) {
            return PreFilter::Skip;
        }
        let storage = &cluster.storage;
        let (with_csi, without_csi) = (storage.volumes_of(pod, true), storage.volumes_of(pod, false));
        PreFilter::Filter { only: None, filter: Box::new(Limited { storage, with_csi, without_csi }) }
    }

    fn events(&self) -> Vec<Event> {
        vec![
            Event::new(Resource::CsiNode, Actions::ADD | Actions::UPDATE),
            Event::new(Resource::AssignedPod, Actions::DELETE),
            Event::new(Resource::UnscheduledPod, Actions::DELETE),
            Event::new(Resource::PersistentVolumeClaim, Actions::ADD),
            Event::new(Resource::VolumeAttachment, Actions::DELETE),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        let helps = match change {
            Change::CsiNode(Versions { old: Some(old), new: Some(new) }) => is_raised(old, new),
            Change::Pod(Versions { old: Some(gone), .. }) => {
                (gone.node.is_some() || gone.nominated.is_some()) && gone.volumes.iter().any(is_counted)
            }
            Change::PersistentVolumeClaim(Versions { new: Some(claim), .. }) => {
                uses(pod, &ObjectKey::of(claim.as_ref()))
            }
            Change::VolumeAttachment(Versions { old: Some(gone), .. }) => waits_for(pod, gone),
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}

/// Returns `true` if a volume of the pod has this claim.
pub(super) fn uses(pod: &PodInfo, claim: &ObjectKey) -> bool {
    claim.namespace == pod.namespace()
        && pod
            .volumes
            .iter()
            .any(|volume| volumes::claim_of(pod.name(), volume).as_ref() == Some(&claim.name))
}

/// Returns `true` if the limit of a driver is higher than before.
fn is_raised(old: &CSINode, new: &CSINode) -> bool {
    let limit = |driver: &CSINodeDriver| {
        driver.allocatable.as_ref().and_then(|allocatable| allocatable.count).unwrap_or_default()
    };
    new.spec.drivers.iter().any(|driver| {
        let before = old.spec.drivers.iter().rfind(|other| other.name == driver.name);
        limit(driver) > before.map(limit).unwrap_or_default()
    })
}

/// Returns `true` if a pod may have room where a volume was detached.
fn waits_for(pod: &PodInfo, detached: &VolumeAttachment) -> bool {
    pod.volumes.iter().any(|volume| {
        volume.persistent_volume_claim.is_some()
            || BuiltIn::of_inline(volume).is_some_and(|driver| {
                inline_handle(volume).is_err() || detached.spec.attacher == driver.driver()
            })
    })
}
