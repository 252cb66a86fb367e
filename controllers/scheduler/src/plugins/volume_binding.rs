//! `VolumeBinding`: the claims of a pod are bound to volumes that its node can use, or get such volumes.

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::{Labels, ObjectKey};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};

use super::node_volume_limits::uses;
use crate::cluster::storage::{
    Claims, Conflict, MIGRATED_PLUGINS, Storage, Uncertain, VolumePlan, volume_limit,
};
use crate::cluster::{Cluster, Node, NodeId, NodeSet};
use crate::framework::{
    Actions, Change, Code, Event, Hint, NodeFilter, Plugin, PreBind, PreFilter, Refusal, Resource, Versions,
};
use crate::limits;
use crate::pod::PodInfo;

#[cfg(test)]
mod tests;

/// The plugin `VolumeBinding`. It scores nothing: the gate StorageCapacityScoring is off.
pub struct VolumeBinding {
    /// Longest wait for the claims of a pod to be bound (`bindTimeoutSeconds`).
    pub bind_timeout: Duration,
}

impl Default for VolumeBinding {
    fn default() -> Self {
        Self { bind_timeout: limits::VOLUMES_BOUND }
    }
}

/// The claims of a pod.
struct Bindable<'a> {
    storage: &'a Storage,
    claims: Claims<'a>,
}

impl NodeFilter for Bindable<'_> {
    fn passes(&self, node: &Node) -> bool {
        matches!(self.claims.on(node, self.storage), Ok(Ok(_)))
    }

    fn refusal(&self, node: &Node) -> Refusal {
        match self.claims.on(node, self.storage) {
            Ok(Ok(_)) => Refusal::unresolvable(Conflict::NoVolume.reason()),
            Ok(Err(conflicts)) => refusal(&conflicts),
            Err(problem) => Refusal::new(Code::Error, problem),
        }
    }

    fn restrict(&self, cluster: &Cluster, nodes: &mut NodeSet) {
        if !self.claims.allow_all() {
            nodes.retain(|id| self.passes(cluster.node(id)));
        }
    }
}

fn refusal(conflicts: &[Conflict]) -> Refusal {
    let reasons = conflicts.iter().map(|conflict| conflict.reason().to_owned()).collect();
    Refusal { code: Code::Unresolvable, plugin: "", reasons }
}

fn uncertain(why: Uncertain) -> Refusal {
    match why {
        Uncertain::Waits(reason) => Refusal::unresolvable(reason),
        Uncertain::Fails(problem) => Refusal::new(Code::Error, problem),
    }
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, cluster: &'a Cluster) -> PreFilter<'a> {
        if pod.volumes.is_empty() {
            return PreFilter::Skip;
        }
        let storage = &cluster.storage;
        match Claims::of(pod, storage) {
            Ok(Some(claims)) => {
                PreFilter::Filter { only: None, filter: Box::new(Bindable { storage, claims }) }
            }
            Ok(None) => PreFilter::Skip,
            Err(why) => PreFilter::Refuse(uncertain(why)),
        }
    }

    fn reserve(
        &self,
        pod: &PodInfo,
        node: NodeId,
        cluster: &mut Cluster,
    ) -> Result<Option<PreBind>, Refusal> {
        if pod.volumes.is_empty() {
            return Ok(None);
        }
        let node = cluster.node(node);
        let Some(claims) = Claims::of(pod, &cluster.storage).map_err(uncertain)? else { return Ok(None) };
        if claims.are_bound() {
            return Ok(None);
        }
        let problem = |problem: String| Refusal::new(Code::Error, problem);
        let choice = claims.on(node, &cluster.storage).map_err(problem)?;
        let choice = choice.map_err(|conflicts| refusal(&conflicts))?;
        drop(claims);
        let node = Arc::clone(&node.name);
        let reserved = cluster.storage.reserve(pod, &node, choice).map_err(problem)?;
        let plan = VolumePlan {
            pod: pod.key(),
            uid: pod.uid.clone(),
            node,
            take: reserved.take,
            make: reserved.make,
            timeout: self.bind_timeout,
        };
        Ok(Some(PreBind::Volumes(Box::new(plan))))
    }

    fn unreserve(&self, pod: &PodInfo, cluster: &mut Cluster) {
        if !pod.volumes.is_empty() {
            cluster.storage.unreserve(pod);
        }
    }

    fn events(&self) -> Vec<Event> {
        let (add, update) = (Actions::ADD, Actions::UPDATE);
        vec![
            Event::new(Resource::StorageClass, add | update),
            Event::new(Resource::PersistentVolumeClaim, add | update),
            Event::new(Resource::PersistentVolume, add | update),
            Event::new(Resource::Node, add | Actions::NODE_LABEL),
            Event::new(Resource::CsiNode, add | update),
            Event::new(Resource::CsiDriver, update),
            Event::new(Resource::CsiStorageCapacity, add | update),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        let helps = match change {
            Change::CsiNode(Versions { old: Some(old), new: Some(new) }) => {
                let migrated = |annotations: Option<&Labels>| {
                    annotations.and_then(|all| all.get(MIGRATED_PLUGINS)).cloned().unwrap_or_default()
                };
                migrated(old.metadata.annotations.as_ref()) != migrated(new.metadata.annotations.as_ref())
            }
            Change::PersistentVolumeClaim(Versions { new: Some(claim), .. }) => {
                uses(pod, &ObjectKey::of(claim.as_ref()))
            }
            Change::StorageClass(Versions { old: Some(old), new: Some(new) }) => allows_others(old, new),
            Change::CsiStorageCapacity(Versions { old: Some(old), new: Some(new) }) => has_grown(old, new),
            Change::CsiDriver(Versions { old: Some(old), new: Some(new) }) => stops_telling(pod, old, new),
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}

/// Returns `true` if a class allows volumes elsewhere than before.
fn allows_others(old: &StorageClass, new: &StorageClass) -> bool {
    old.allowed_topologies.as_deref().unwrap_or_default()
        != new.allowed_topologies.as_deref().unwrap_or_default()
}

/// Returns `true` if a driver has room for larger volumes than before.
fn has_grown(old: &CSIStorageCapacity, new: &CSIStorageCapacity) -> bool {
    volume_limit(new).is_some_and(|new| volume_limit(old).is_none_or(|old| new > old))
}

/// Returns `true` if a driver of the pod no longer tells what it has room for.
fn stops_telling(pod: &PodInfo, old: &CSIDriver, new: &CSIDriver) -> bool {
    let of_driver = |driver: &str| new.metadata.name.as_deref() == Some(driver);
    let mut inline = pod.volumes.iter().filter_map(|volume| volume.csi.as_ref());
    let tells = |driver: &CSIDriver| driver.spec.storage_capacity == Some(true);
    inline.any(|volume| of_driver(&volume.driver)) && tells(old) && !tells(new)
}
