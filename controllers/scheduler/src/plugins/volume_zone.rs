//! `VolumeZone`: bound volumes are in the zone and region of the node, as their labels tell.

use std::collections::BTreeSet;

use apiserver_client::{Labels, ObjectKey};
use apiserver_meta::volumes;
use k8s_openapi::api::core::v1::PersistentVolume;

use crate::cluster::storage::{BETA_REGION, BETA_ZONE, REGION, Storage, ZONE, not_found};
use crate::cluster::{Cluster, Node};
use crate::framework::{
    Actions, Change, Event, Hint, NodeFilter, Plugin, PreFilter, Refusal, Resource, Versions,
};
use crate::pod::PodInfo;

#[cfg(test)]
mod tests;

/// Separates zones in the label of a volume that is in several.
const DELIMITER: &str = "__";
const LABELS: [&str; 4] = [BETA_ZONE, BETA_REGION, ZONE, REGION];

/// The plugin `VolumeZone`.
pub struct VolumeZone;

/// A label that nodes need for a volume, with one of the values.
type Place<'a> = (&'static str, BTreeSet<&'a str>);

/// The places of a pod's volumes.
struct Places<'a>(Vec<Place<'a>>);

impl NodeFilter for Places<'_> {
    fn passes(&self, node: &Node) -> bool {
        let labels = &node.labels;
        !LABELS.iter().any(|label| labels.contains_key(*label))
            || self.0.iter().all(|(label, values)| {
                value(labels, label).is_some_and(|value| values.contains(value.as_str()))
            })
    }

    fn refusal(&self, _: &Node) -> Refusal {
        Refusal::unresolvable("node(s) had no available volume zone")
    }
}

/// Returns the value of a node's label, which it may have under its newer name.
fn value<'a>(labels: &'a Labels, label: &str) -> Option<&'a String> {
    let newer = match label {
        BETA_ZONE => ZONE,
        BETA_REGION => REGION,
        other => other,
    };
    labels.get(label).or_else(|| labels.get(newer))
}

/// Returns the places that the labels of a volume tell; labels with an empty entry tell nothing.
fn places(volume: &PersistentVolume) -> impl Iterator<Item = Place<'_>> {
    LABELS.iter().filter_map(|label| {
        let value = volume.metadata.labels.as_ref()?.get(*label)?;
        let values: BTreeSet<&str> = value.split(DELIMITER).map(str::trim).collect();
        (!values.contains("")).then_some((*label, values))
    })
}

/// Returns the places of the volumes that a pod's claims are bound to, or why the pod can be on no node.
fn places_of<'a>(pod: &PodInfo, storage: &'a Storage) -> Result<Vec<Place<'a>>, String> {
    let mut all = Vec::new();
    for source in pod.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref()) {
        let name = &source.claim_name;
        if name.is_empty() {
            return Err("PersistentVolumeClaim had no name".to_owned());
        }
        let claim = storage.claim(&ObjectKey::new(pod.namespace(), name));
        let claim = claim.ok_or_else(|| not_found("persistentvolumeclaim", name))?;
        let volume = volumes::volume_name(claim);
        if !volume.is_empty() {
            let volume = storage.volume(volume).ok_or_else(|| not_found("persistentvolume", volume))?;
            all.extend(places(volume));
            continue;
        }
        let class = volumes::claim_class(claim);
        if class.is_empty() {
            return Err("PersistentVolumeClaim had no pv name and storageClass name".to_owned());
        }
        let found = storage.class(class).ok_or_else(|| not_found("storageclass.storage.k8s.io", class))?;
        if found.volume_binding_mode.is_none() {
            return Err(format!("VolumeBindingMode not set for StorageClass {class:?}"));
        }
        if !volumes::is_delayed(found) {
            return Err("PersistentVolume had no name".to_owned());
        }
    }
    Ok(all)
}

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        "VolumeZone"
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, cluster: &'a Cluster) -> PreFilter<'a> {
        if pod.volumes.is_empty() {
            return PreFilter::Skip;
        }
        match places_of(pod, &cluster.storage) {
            Ok(places) if places.is_empty() => PreFilter::Skip,
            Ok(places) => PreFilter::Filter { only: None, filter: Box::new(Places(places)) },
            Err(reason) => PreFilter::Refuse(Refusal::unresolvable(reason)),
        }
    }

    fn events(&self) -> Vec<Event> {
        let (add, update) = (Actions::ADD, Actions::UPDATE);
        vec![
            Event::new(Resource::StorageClass, add),
            Event::new(Resource::Node, add | Actions::NODE_LABEL),
            Event::new(Resource::PersistentVolumeClaim, add | update),
            Event::new(Resource::PersistentVolume, add | update),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        let helps = match change {
            Change::StorageClass(Versions { new: Some(class), .. }) => volumes::is_delayed(class),
            Change::PersistentVolumeClaim(Versions { new: Some(claim), .. }) => {
                let (namespace, name) = volumes::names(claim.as_ref());
                let mut named =
                    pod.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
                namespace == pod.namespace() && named.any(|source| source.claim_name == name)
            }
            Change::PersistentVolume(Versions { old: Some(old), new: Some(new) }) => {
                !places(old).eq(places(new))
            }
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}
