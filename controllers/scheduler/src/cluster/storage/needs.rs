//! The claims of a pod: which nodes they allow, and what is reserved for the pod on the node that it gets.

use std::sync::Arc;

use apiserver_client::{Labels, ObjectKey};
use apiserver_meta::quantity::Quantity;
use apiserver_meta::volumes::{self, NO_PROVISIONER, SELECTED_NODE};
use apiserver_meta::{label_selector, quantity};
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};

use super::by_label::{ByLabel, of_label_selector};
use super::migration::{BuiltIn, csi_affinity};
use super::pool::{affinity, allows};
use super::{Candidates, Storage, is_for_pod, not_found};
use crate::cluster::Node;
use crate::pod::PodInfo;

/// Reasons of claims against a node, in the order in which Kubernetes lists the reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conflict {
    /// A volume that a claim is bound to cannot be used on the node.
    Elsewhere,
    /// There is no volume for a claim, and none can be made.
    NoVolume,
    /// The driver has no room for a volume that the node can reach.
    NoSpace,
    /// A claim is bound to a volume that does not exist.
    Lost,
}

impl Conflict {
    /// Returns the reason in the words of Kubernetes.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Elsewhere => "node(s) didn't match PersistentVolume's node affinity",
            Self::NoVolume => "node(s) didn't find available persistent volumes to bind",
            Self::NoSpace => "node(s) did not have enough free storage",
            Self::Lost => "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
        }
    }
}

/// The claims of a pod allow no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uncertain {
    /// A claim has to change first.
    Waits(String),
    /// Something is not as it should be.
    Fails(String),
}

/// The claims of a pod, each prepared for looking at many nodes.
#[derive(Debug)]
pub struct Claims<'a> {
    bound: Vec<Bound<'a>>,
    /// Claims that get a volume with the pod's node, in the pod's order.
    delayed: Vec<Delayed<'a>>,
    /// Indices into `delayed` of those for which no node was selected, the smallest first.
    unselected: Vec<usize>,
}

/// A claim that has a volume.
#[derive(Debug)]
struct Bound<'a> {
    /// `None` if there is no such volume.
    volume: Option<&'a Arc<PersistentVolume>>,
    /// The volume is one of a built-in driver, and what the CSI driver would require of nodes.
    migrated: Option<(BuiltIn, Result<Option<NodeSelector>, String>)>,
}

/// A claim that gets a volume with the pod's node.
#[derive(Debug)]
struct Delayed<'a> {
    claim: &'a Arc<PersistentVolumeClaim>,
    /// The node for which a volume is being made already.
    selected: Option<&'a str>,
    candidates: Option<Candidates<'a>>,
    making: Making<'a>,
}

/// The places where a volume can be made for a claim.
#[derive(Debug)]
enum Making<'a> {
    Fails(String),
    Nowhere,
    Where { class: &'a StorageClass, room: Option<Room<'a>> },
}

/// Places of a driver with enough capacity for a claim.
#[derive(Debug)]
struct Room<'a> {
    capacities: Vec<&'a CSIStorageCapacity>,
    by_label: ByLabel<'a>,
}

/// The volumes that a pod's claims get on a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reserved {
    /// Claims with the volume that each gets.
    pub take: Vec<(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)>,
    /// Claims for which a volume is to be made on the node.
    pub make: Vec<Arc<PersistentVolumeClaim>>,
}

impl<'a> Claims<'a> {
    /// Prepares the claims of a pod; `None` if it has none.
    ///
    /// # Errors
    ///
    /// Returns why no node can be had.
    pub fn of(pod: &PodInfo, storage: &'a Storage) -> Result<Option<Self>, Uncertain> {
        let mut claims = Vec::new();
        for volume in pod.volumes.iter() {
            let Some(name) = volumes::claim_of(pod.name(), volume) else { continue };
            let key = ObjectKey::new(pod.namespace(), &name);
            let is_ephemeral = volume.persistent_volume_claim.is_none();
            check(storage.claims.stored(&key), &name, is_ephemeral, pod).map_err(Uncertain::Waits)?;
            claims.extend(storage.claims.get(&key));
        }
        if claims.is_empty() {
            return Ok(None);
        }
        let mut all = Self { bound: Vec::new(), delayed: Vec::new(), unselected: Vec::new() };
        let mut waits = false;
        for claim in claims {
            if volumes::is_fully_bound(claim) {
                all.bound.push(Bound::of(claim, storage));
            } else if is_delayed(claim, storage)? && volumes::volume_name(claim).is_empty() {
                all.delayed.push(Delayed::of(claim, storage));
            } else {
                waits = true;
            }
        }
        if waits {
            return Err(Uncertain::Waits("pod has unbound immediate PersistentVolumeClaims".to_owned()));
        }
        all.unselected =
            (0..all.delayed.len()).filter(|index| all.delayed[*index].selected.is_none()).collect();
        let size =
            |index: &usize| volumes::requested(all.delayed[*index].claim).unwrap_or(Quantity::from_value(0));
        all.unselected.sort_by_key(size);
        Ok(Some(all))
    }

    /// Returns `true` if all claims have their volumes.
    pub fn are_bound(&self) -> bool {
        self.delayed.is_empty()
    }

    /// Returns `true` if the claims allow all nodes: each has a volume, and none of these requires anything of nodes.
    pub fn allow_all(&self) -> bool {
        let is_anywhere = |bound: &Bound<'_>| {
            bound.migrated.is_none() && bound.volume.is_some_and(|volume| affinity(volume).is_none())
        };
        self.delayed.is_empty() && self.bound.iter().all(is_anywhere)
    }

    /// Returns what the claims get on a node, or the reasons against the node.
    ///
    /// # Errors
    ///
    /// Returns an error if neither can be told.
    pub fn on(&self, node: &Node, storage: &Storage) -> Result<Result<Reserved, Vec<Conflict>>, String> {
        let mut conflicts = Vec::new();
        for bound in &self.bound {
            if let Err(conflict) = bound.check(node, storage)? {
                conflicts.push(conflict);
                break;
            }
        }
        match self.delayed_on(node)? {
            Ok(reserved) if conflicts.is_empty() => return Ok(Ok(reserved)),
            Ok(_) => {}
            Err(conflict) => conflicts.push(conflict),
        }
        conflicts.sort();
        Ok(Err(conflicts))
    }

    fn delayed_on(&self, node: &Node) -> Result<Result<Reserved, Conflict>, String> {
        let mut make = Vec::new();
        for delayed in &self.delayed {
            match delayed.selected {
                Some(selected) if selected != &*node.name => return Ok(Err(Conflict::NoVolume)),
                Some(_) => make.push(delayed),
                None => {}
            }
        }
        let mut take: Vec<(&Delayed<'_>, &Arc<PersistentVolume>)> = Vec::new();
        for index in &self.unselected {
            let delayed = &self.delayed[*index];
            let taken: Vec<_> = take.iter().map(|(_, volume)| *volume).collect();
            let candidates = delayed.candidates.as_ref();
            match candidates.and_then(|candidates| candidates.best(&node.labels, &taken)) {
                Some(volume) => take.push((delayed, volume)),
                None => make.push(delayed),
            }
        }
        for delayed in &make {
            if let Err(conflict) = delayed.making.check(&node.labels)? {
                return Ok(Err(conflict));
            }
        }
        let pair = |(delayed, volume): (&Delayed<'_>, &Arc<PersistentVolume>)| {
            (Arc::clone(delayed.claim), Arc::clone(volume))
        };
        Ok(Ok(Reserved {
            take: take.into_iter().map(pair).collect(),
            make: make.into_iter().map(|delayed| Arc::clone(delayed.claim)).collect(),
        }))
    }
}

/// Checks that a claim can be used at all; the error is in the words of Kubernetes.
fn check(
    claim: Option<&Arc<PersistentVolumeClaim>>,
    name: &str,
    is_ephemeral: bool,
    pod: &PodInfo,
) -> Result<(), String> {
    let Some(claim) = claim else {
        return Err(if is_ephemeral {
            format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}")
        } else {
            not_found("persistentvolumeclaim", name)
        });
    };
    if volumes::claim_phase(claim) == "Lost" {
        let volume = volumes::volume_name(claim);
        return Err(format!(
            "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
        ));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
    }
    if is_ephemeral { is_for_pod(claim, pod) } else { Ok(()) }
}

/// Returns `true` if a claim gets its volume only with a pod's node.
fn is_delayed(claim: &PersistentVolumeClaim, storage: &Storage) -> Result<bool, Uncertain> {
    let name = volumes::claim_class(claim);
    let Some(class) = storage.class(name) else { return Ok(false) };
    if class.volume_binding_mode.is_none() {
        return Err(Uncertain::Fails(format!("VolumeBindingMode not set for StorageClass {name:?}")));
    }
    Ok(volumes::is_delayed(class))
}

impl<'a> Bound<'a> {
    fn of(claim: &PersistentVolumeClaim, storage: &'a Storage) -> Self {
        let volume = storage.volumes.get(volumes::volume_name(claim));
        let driver = volume.and_then(|volume| BuiltIn::of(volume.spec.as_ref()?));
        let migrated = volume.zip(driver.filter(|driver| driver.is_migrated()));
        Self { volume, migrated: migrated.map(|(volume, driver)| (driver, csi_affinity(volume, driver))) }
    }

    fn check(&self, node: &Node, storage: &Storage) -> Result<Result<(), Conflict>, String> {
        let Some(volume) = self.volume else { return Ok(Err(Conflict::Lost)) };
        let required = match &self.migrated {
            Some((driver, translated)) if storage.is_migrated_on(&node.name, *driver) => {
                translated.as_ref().map_err(Clone::clone)?.as_ref()
            }
            _ => affinity(volume),
        };
        Ok(if allows(required, &node.labels) { Ok(()) } else { Err(Conflict::Elsewhere) })
    }
}

impl<'a> Delayed<'a> {
    fn of(claim: &'a Arc<PersistentVolumeClaim>, storage: &'a Storage) -> Self {
        let selected = volumes::selected_node(claim);
        let candidates = selected.is_none().then(|| storage.candidates(claim));
        Self { claim, selected, candidates, making: Making::of(claim, storage) }
    }
}

impl<'a> Making<'a> {
    fn of(claim: &'a PersistentVolumeClaim, storage: &'a Storage) -> Self {
        let name = volumes::claim_class(claim);
        let Some(class) = storage.class(name) else {
            return Self::Fails(format!("failed to find storage class {name:?}"));
        };
        if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER {
            return Self::Nowhere;
        }
        Self::Where { class, room: Room::of(claim, class, name, storage) }
    }

    fn check(&self, labels: &Labels) -> Result<Result<(), Conflict>, String> {
        let (class, room) = match self {
            Self::Fails(problem) => return Err(problem.clone()),
            Self::Nowhere => return Ok(Err(Conflict::NoVolume)),
            Self::Where { class, room } => (class, room),
        };
        Ok(if !is_allowed(class, labels) {
            Err(Conflict::NoVolume)
        } else if room.as_ref().is_some_and(|room| !room.reaches(labels)) {
            Err(Conflict::NoSpace)
        } else {
            Ok(())
        })
    }
}

/// Returns `true` if a class allows volumes on nodes with these labels.
fn is_allowed(class: &StorageClass, labels: &Labels) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let all = term.match_label_expressions.as_deref().unwrap_or_default();
            let holds = |value: &String, values: &[String]| values.contains(value);
            !all.is_empty()
                && all
                    .iter()
                    .all(|wanted| labels.get(&wanted.key).is_some_and(|value| holds(value, &wanted.values)))
        })
}

impl<'a> Room<'a> {
    /// Returns the places with room for a claim; `None` if the driver does not tell what it has room for.
    fn of(
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        name: &str,
        storage: &'a Storage,
    ) -> Option<Self> {
        let size = volumes::requested(claim)?.value();
        let driver = storage.drivers.get(&class.provisioner)?;
        if driver.spec.storage_capacity != Some(true) {
            return None;
        }
        let of_class = storage.capacities_of.get(name).into_iter().flatten();
        let of_class = of_class.filter_map(|key| storage.capacities.get(key)).map(Arc::as_ref);
        let is_enough =
            |capacity: &&CSIStorageCapacity| volume_limit(capacity).is_some_and(|limit| limit >= size);
        let capacities: Vec<_> =
            of_class.filter(is_enough).filter(|capacity| capacity.node_topology.is_some()).collect();
        let topologies = capacities.iter().filter_map(|capacity| capacity.node_topology.as_ref());
        let needs: Vec<_> = topologies.map(of_label_selector).collect();
        Some(Self { by_label: ByLabel::new(&needs), capacities })
    }

    fn reaches(&self, labels: &Labels) -> bool {
        let is_reached = |index: usize| {
            let topology = self.capacities[index].node_topology.as_ref();
            topology.is_some_and(|topology| label_selector::matches(topology, labels))
        };
        self.by_label.first(labels, is_reached).is_some()
    }
}

/// Returns the size of the largest volume that can be made where a CSIStorageCapacity is about.
pub fn volume_limit(capacity: &CSIStorageCapacity) -> Option<i64> {
    let limit = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref())?;
    quantity::read(limit).map(Quantity::value)
}

impl Storage {
    /// Reserves for a pod what its claims get on a node, and returns it with the changes that are to be written.
    ///
    /// # Errors
    ///
    /// Returns an error, and reserves nothing, if an object has changed since the choice was made.
    pub fn reserve(&mut self, pod: &PodInfo, node: &str, choice: Reserved) -> Result<Reserved, String> {
        let mut all = Reserved::default();
        for (claim, volume) in choice.take {
            let new = volumes::bound_to(&volume, &claim).map_or_else(|| Arc::clone(&volume), Arc::new);
            let name = new.metadata.name.clone().unwrap_or_default();
            if (!Arc::ptr_eq(&new, &volume) || self.volumes.is_assumed(&name))
                && !self.assume_volume(&name, &new, pod)
            {
                self.unreserve(pod);
                return Err(format!("{name:?} is out of sync"));
            }
            all.take.push((claim, new));
        }
        for claim in choice.make {
            let key = ObjectKey::of(claim.as_ref());
            let mut new = PersistentVolumeClaim::clone(&claim);
            let annotations = new.metadata.annotations.get_or_insert_default();
            annotations.insert(SELECTED_NODE.to_owned(), node.to_owned());
            let new = Arc::new(new);
            if !self.claims.assume(&key, Arc::clone(&new), &pod.uid) {
                self.unreserve(pod);
                return Err(format!("\"{key}\" is out of sync"));
            }
            all.make.push(new);
        }
        Ok(all)
    }

    /// Drops what was reserved for a pod and for no other.
    pub fn unreserve(&mut self, pod: &PodInfo) {
        self.claims.restore(&pod.uid);
        for (name, assumed) in self.volumes.restore(&pod.uid) {
            self.pool.replace(&name, Some(&assumed), self.volumes.get(&name).map(Arc::as_ref));
        }
    }

    fn assume_volume(&mut self, name: &String, new: &Arc<PersistentVolume>, pod: &PodInfo) -> bool {
        let before = self.volumes.get(name).cloned();
        let assumed = self.volumes.assume(name, Arc::clone(new), &pod.uid);
        self.pool.replace(name, before.as_deref(), self.volumes.get(name).map(Arc::as_ref));
        assumed
    }
}
