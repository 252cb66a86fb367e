//! Volumes that claims can have: the free ones by class, and those that are reserved for a claim.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::{Labels, ObjectKey};
use apiserver_meta::quantity::Quantity;
use apiserver_meta::{label_selector, node_selector, volumes};
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};

use super::Storage;
use super::by_label::{ByLabel, of_node_selector};

/// Names of volumes that can become those of claims.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Volumes without a claim that are available, by class.
    free: BTreeMap<String, BTreeSet<String>>,
    /// Volumes that refer to a claim, by the claim.
    reserved: BTreeMap<ObjectKey, BTreeSet<String>>,
}

impl Pool {
    /// Replaces a volume.
    pub fn replace(&mut self, name: &str, old: Option<&PersistentVolume>, new: Option<&PersistentVolume>) {
        if let Some(old) = old {
            match claim_of(old) {
                Some(claim) => remove(&mut self.reserved, &claim, name),
                None => remove(&mut self.free, volumes::volume_class(old), name),
            }
        }
        if let Some(new) = new {
            match claim_of(new) {
                Some(claim) => drop(self.reserved.entry(claim).or_default().insert(name.to_owned())),
                None if is_free(new) => {
                    let class = self.free.entry(volumes::volume_class(new).to_owned()).or_default();
                    class.insert(name.to_owned());
                }
                None => {}
            }
        }
    }
}

fn remove<K, Q: Ord + ?Sized>(sets: &mut BTreeMap<K, BTreeSet<String>>, key: &Q, name: &str)
where
    K: Ord + Borrow<Q>,
{
    if let Some(set) = sets.get_mut(key) {
        set.remove(name);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

fn claim_of(volume: &PersistentVolume) -> Option<ObjectKey> {
    let reference = volumes::claim_ref(volume)?;
    Some(ObjectKey::new(
        reference.namespace.as_deref().unwrap_or_default(),
        reference.name.as_deref().unwrap_or_default(),
    ))
}

fn is_free(volume: &PersistentVolume) -> bool {
    volume.metadata.deletion_timestamp.is_none() && volumes::volume_phase(volume) == "Available"
}

/// Returns what a volume requires of nodes. It knows nothing of their names.
pub(super) fn affinity(volume: &PersistentVolume) -> Option<&NodeSelector> {
    volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()
}

/// Returns `true` if a node with these labels is one of those that a volume requires.
pub fn allows(required: Option<&NodeSelector>, labels: &Labels) -> bool {
    required.is_none_or(|required| node_selector::matches(required, "", labels))
}

/// The volumes that a claim can have, whatever the node.
#[derive(Debug)]
pub struct Candidates<'a> {
    /// Volumes that are reserved for the claim; no other comes into question as long as there is one.
    reserved: Vec<&'a Arc<PersistentVolume>>,
    /// Free ones, the smallest first.
    free: Vec<&'a Arc<PersistentVolume>>,
    by_label: ByLabel<'a>,
}

impl<'a> Candidates<'a> {
    /// Returns the volume that the claim gets on a node with these labels, without those that are `taken`.
    pub fn best(
        &self,
        labels: &Labels,
        taken: &[&'a Arc<PersistentVolume>],
    ) -> Option<&'a Arc<PersistentVolume>> {
        let is_taken = |volume: &Arc<PersistentVolume>| taken.iter().any(|other| Arc::ptr_eq(other, volume));
        if let Some(reserved) = self.reserved.iter().find(|volume| !is_taken(volume)) {
            return allows(affinity(reserved), labels).then_some(*reserved);
        }
        let fits = |index: usize| {
            let volume = self.free[index];
            !is_taken(volume) && allows(affinity(volume), labels)
        };
        self.by_label.first(labels, fits).map(|index| self.free[index])
    }
}

impl Storage {
    /// Returns the volumes that a claim without a volume can have.
    pub fn candidates(&self, claim: &PersistentVolumeClaim) -> Candidates<'_> {
        let class = volumes::claim_class(claim);
        let volume = |name: &String| self.volumes.get(name.as_str());
        let key = ObjectKey::of(claim);
        let reserved = self.pool.reserved.get(&key).into_iter().flatten().filter_map(volume);
        let reserved = reserved.filter(|volume| {
            volume.metadata.deletion_timestamp.is_none()
                && volumes::is_bound_to(volume, claim)
                && volumes::volume_class(volume) == class
                && volumes::is_alike(volume, claim)
        });
        let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let none = Labels::new();
        let free = self.pool.free.get(class).into_iter().flatten().filter_map(volume);
        let mut free: Vec<_> = free
            .filter(|volume| {
                let labels = volume.metadata.labels.as_ref().unwrap_or(&none);
                volumes::is_alike(volume, claim)
                    && volumes::has_access_modes(volume, claim)
                    && selector.is_none_or(|selector| label_selector::matches(selector, labels))
            })
            .collect();
        // The sort is stable: of equally large ones, the first by name is taken.
        free.sort_by_cached_key(|volume| volumes::capacity(volume).unwrap_or(Quantity::from_value(0)));
        let needs: Vec<_> = free.iter().map(|volume| of_node_selector(affinity(volume))).collect();
        Candidates { reserved: reserved.collect(), by_label: ByLabel::new(&needs), free }
    }
}
