//! `VolumeRestrictions`: disks that only one node or pod can have at a time.

use std::collections::BTreeSet;

use apiserver_client::ObjectKey;
use apiserver_meta::volumes;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Volume};

use crate::cluster::storage::{Storage, not_found};
use crate::cluster::{Cluster, Node, NodeSet};
use crate::framework::{
    Actions, Change, Event, Hint, NodeFilter, Plugin, PreFilter, Refusal, Resource, Versions,
};
use crate::pod::PodInfo;

#[cfg(test)]
mod tests;

/// The plugin `VolumeRestrictions`.
pub struct VolumeRestrictions;

/// Disks and claims that a pod must not share.
struct Exclusive<'a> {
    storage: &'a Storage,
    disks: Vec<&'a Volume>,
    /// A claim of the pod that only one pod can use is used by another.
    is_claimed: bool,
}

impl NodeFilter for Exclusive<'_> {
    fn passes(&self, node: &Node) -> bool {
        !self.is_claimed && !self.is_disk_taken(node)
    }

    fn refusal(&self, node: &Node) -> Refusal {
        Refusal::unschedulable(if self.is_disk_taken(node) {
            "node(s) had no available disk"
        } else {
            "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
             another pod"
        })
    }

    fn restrict(&self, cluster: &Cluster, nodes: &mut NodeSet) {
        if self.is_claimed {
            nodes.clear();
        } else {
            nodes.retain(|id| self.passes(cluster.node(id)));
        }
    }
}

impl Exclusive<'_> {
    fn is_disk_taken(&self, node: &Node) -> bool {
        !self.disks.is_empty()
            && self.storage.pods_on(node.id).iter().any(|other| {
                self.disks.iter().any(|disk| other.volumes.iter().any(|volume| conflicts(disk, volume)))
            })
    }
}

/// Returns `true` if a volume is a disk that pods may not be able to share.
fn is_disk(volume: &Volume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.rbd.is_some()
        || volume.iscsi.is_some()
}

/// Returns `true` if two volumes are the same disk, and cannot be used by two pods of a node.
fn conflicts(a: &Volume, b: &Volume) -> bool {
    let is_written = |a: Option<bool>, b: Option<bool>| a != Some(true) || b != Some(true);
    if let (Some(a), Some(b)) = (&a.gce_persistent_disk, &b.gce_persistent_disk)
        && a.pd_name == b.pd_name
        && is_written(a.read_only, b.read_only)
    {
        return true;
    }
    if let (Some(a), Some(b)) = (&a.aws_elastic_block_store, &b.aws_elastic_block_store)
        && a.volume_id == b.volume_id
    {
        return true;
    }
    if let (Some(a), Some(b)) = (&a.iscsi, &b.iscsi)
        && a.iqn == b.iqn
        && is_written(a.read_only, b.read_only)
    {
        return true;
    }
    if let (Some(a), Some(b)) = (&a.rbd, &b.rbd)
        && a.pool.as_deref().unwrap_or_default() == b.pool.as_deref().unwrap_or_default()
        && a.image == b.image
        && a.monitors.iter().any(|monitor| b.monitors.contains(monitor))
        && is_written(a.read_only, b.read_only)
    {
        return true;
    }
    false
}

/// Returns the names of the claims that a pod names.
fn claims(pod: &PodInfo) -> impl Iterator<Item = &str> {
    let sources = pod.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    sources.map(|source| source.claim_name.as_str())
}

fn is_for_one_pod(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    modes.iter().any(|mode| mode == "ReadWriteOncePod")
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, cluster: &'a Cluster) -> PreFilter<'a> {
        if pod.volumes.is_empty() {
            return PreFilter::Skip;
        }
        let storage = &cluster.storage;
        let mut exclusive = BTreeSet::new();
        for name in claims(pod) {
            let key = ObjectKey::new(pod.namespace(), name);
            let Some(claim) = storage.claim(&key) else {
                return PreFilter::Refuse(Refusal::unresolvable(not_found("persistentvolumeclaim", name)));
            };
            if is_for_one_pod(claim) {
                exclusive.insert(key);
            }
        }
        let disks: Vec<&Volume> = pod.volumes.iter().filter(|volume| is_disk(volume)).collect();
        // Claims that pods only name in a trial are not seen, as kube-scheduler skips the plugin before the trial.
        let in_use = exclusive.iter().filter(|key| storage.was_used(key)).count();
        if disks.is_empty() && in_use == 0 {
            return PreFilter::Skip;
        }
        // kube-scheduler counts a claim in use once, however many pods use it, and then counts down with each pod that it
        // removes and up with each that it adds.
        let tried: isize = exclusive.iter().map(|key| storage.tried(key)).sum();
        let is_claimed = in_use.cast_signed() + tried > 0;
        PreFilter::Filter { only: None, filter: Box::new(Exclusive { storage, disks, is_claimed }) }
    }

    fn events(&self) -> Vec<Event> {
        vec![
            Event::new(Resource::AssignedPod, Actions::DELETE),
            Event::new(Resource::UnscheduledPod, Actions::DELETE),
            Event::new(Resource::Node, Actions::ADD),
            Event::new(Resource::PersistentVolumeClaim, Actions::ADD),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        let helps = match change {
            Change::Pod(Versions { old: Some(gone), .. }) => releases(gone, pod),
            Change::PersistentVolumeClaim(Versions { new: Some(claim), .. }) => {
                let (namespace, name) = volumes::names(claim.as_ref());
                namespace == pod.namespace() && claims(pod).any(|wanted| wanted == name)
            }
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}

/// Returns `true` if a pod that is gone had something that another waits for.
fn releases(gone: &PodInfo, pod: &PodInfo) -> bool {
    if gone.namespace() != pod.namespace() {
        return false;
    }
    let disks = pod.volumes.iter().filter(|volume| is_disk(volume));
    let mut conflicting =
        disks.flat_map(|disk| gone.volumes.iter().map(move |volume| conflicts(disk, volume)));
    let wanted: BTreeSet<&str> = claims(pod).collect();
    conflicting.any(|conflicts| conflicts) || claims(gone).any(|name| wanted.contains(name))
}
