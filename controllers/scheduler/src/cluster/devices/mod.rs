//! Claims of devices, and the devices: what drivers offer, what claims have, and the search for what a pod needs.

mod binding;
mod capacity;
mod claims;
mod constraints;
mod counters;
mod extended;
mod in_flight;
mod in_use;
mod plan;
mod pools;
mod request;
mod result;
mod search;
mod selectors;
mod slices;
mod steps;
#[cfg(test)]
mod tests;
mod tolerations;
mod totals;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::{ObjectKey, version_of};
use apiserver_meta::uid::Uid;
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceSlice};

pub use self::binding::{Readiness, has_conditions, has_timed_out, readiness};
pub use self::claims::{allocation, is_free_for, is_reserved_for};
pub use self::extended::{CLAIM_ANNOTATION, Served, serve};
use self::in_flight::InFlight;
use self::in_use::InUse;
pub use self::plan::{ClaimPlan, DevicePlan};
pub use self::pools::Target;
pub use self::request::requests;
pub use self::search::{Offer, Search, Trouble, search};
use self::selectors::Selectors;
use self::slices::Slices;
use self::steps::Steps;
pub use self::totals::Totals;
pub use self::verdicts::Shape;
use self::verdicts::{Stamps, Verdicts};
use crate::pod::PodInfo;

/// Claims and devices. The devices in use are counted claim by claim, as these change.
#[derive(Debug, Default)]
pub struct Devices {
    claims: BTreeMap<ObjectKey, Arc<ResourceClaim>>,
    /// Claims that a scheduler has made for the resources of a pod, by the pod.
    made: BTreeMap<Uid, BTreeSet<ObjectKey>>,
    slices: Slices,
    in_use: InUse,
    stamps: Stamps,
    verdicts: Verdicts,
    selectors: Selectors,
    in_flight: InFlight,
    /// The time of the attempt; `None` if no wait is to be taken for too long.
    pub now: Option<Timestamp>,
    /// Steps that the searches of the attempt have taken.
    pub steps: Steps,
    /// The lists of claims, slices and classes are awaited.
    pub are_awaited: bool,
}

fn uid(claim: &ResourceClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

/// Returns the pod whose resources a claim was made for.
fn maker(claim: &ResourceClaim) -> Option<Uid> {
    let annotations = claim.metadata.annotations.as_ref()?;
    annotations.get(CLAIM_ANNOTATION).filter(|value| *value == "true")?;
    let mut owners = claim.metadata.owner_references.iter().flatten();
    Some(Uid::from(owners.find(|owner| owner.controller == Some(true))?.uid.as_str()))
}

impl Devices {
    /// Begins an attempt.
    pub fn begin(&mut self, now: Timestamp) {
        self.now = Some(now);
        self.steps.reset();
    }

    pub fn claim(&self, key: &ObjectKey) -> Option<&Arc<ResourceClaim>> {
        self.claims.get(key)
    }

    /// Returns `true` if a newer version of a claim is known.
    pub fn is_outdated(&self, claim: &ResourceClaim) -> bool {
        self.claims.get(&ObjectKey::of(claim)).is_some_and(|known| {
            uid(known) == uid(claim) && version_of(&known.metadata) > version_of(&claim.metadata)
        })
    }

    /// Adds a claim, or removes it; returns it as it was.
    pub fn set_claim(
        &mut self,
        key: &ObjectKey,
        new: Option<Arc<ResourceClaim>>,
    ) -> Option<Arc<ResourceClaim>> {
        let old = self.claims.remove(key);
        if let Some(old) = &old {
            if let Some(allocation) = allocation(old) {
                self.uncount(allocation);
            }
            if let Some(pod) = maker(old)
                && let Some(made) = self.made.get_mut(&pod)
            {
                made.remove(key);
                if made.is_empty() {
                    self.made.remove(&pod);
                }
            }
        }
        if let Some(new) = new {
            if let Some(allocation) = allocation(&new) {
                self.count(allocation);
                self.land(uid(&new));
            }
            if let Some(pod) = maker(&new) {
                self.made.entry(pod).or_default().insert(key.clone());
            }
            self.claims.insert(key.clone(), new);
        }
        old
    }

    /// Adds a slice, or removes it; returns it as it was.
    pub fn set_slice(&mut self, name: &str, new: Option<Arc<ResourceSlice>>) -> Option<Arc<ResourceSlice>> {
        self.stamps.change_all();
        self.slices.set(name, new)
    }

    /// Returns the claim that was made for the resources of a pod.
    pub fn made_for(&self, pod: &PodInfo) -> Option<&Arc<ResourceClaim>> {
        self.claims.get(self.made.get(&pod.uid)?.first()?)
    }

    /// Returns `true` if an allocation of a claim was decided on, and is not in its status yet.
    pub fn is_in_flight(&self, claim: &ResourceClaim) -> bool {
        self.in_flight.contains(uid(claim))
    }

    /// Begins the turn of a PodGroup: until its end, the pods of the group share the devices that were found for one of them.
    pub fn begin_turn(&mut self, group: ObjectKey) {
        self.in_flight.begin_turn(group);
    }

    pub fn end_turn(&mut self) {
        self.in_flight.end_turn();
    }

    /// Returns the devices of a claim that were found for another pod of the turn under way.
    pub fn shared(&self, pod: &PodInfo, claim: &ResourceClaim) -> Option<&AllocationResult> {
        self.in_flight.shared(pod, uid(claim))
    }

    /// Returns `true` if what is reserved for a pod may be shared with others of its group.
    pub fn shares(&self, pod: &PodInfo) -> bool {
        self.in_flight.shares(pod)
    }

    /// Counts devices for a claim until it is known whether its status has them. Those that a pod shares are counted once.
    pub fn reserve(&mut self, pod: &PodInfo, claim: &ResourceClaim, allocation: AllocationResult) {
        if self.in_flight.join(pod, uid(claim)) {
            return;
        }
        self.land(uid(claim));
        self.count(&allocation);
        self.in_flight.add(pod, uid(claim), allocation);
    }

    /// Ends the reservations of a pod that nobody writes.
    pub fn unreserve(&mut self, pod: &PodInfo) {
        self.end(pod, false);
    }

    /// Hears that the reservations of a pod are being written.
    pub fn are_written(&mut self, pod: &PodInfo) {
        self.in_flight.are_written(&pod.uid);
    }

    /// Ends the reservations of a pod: all that could be written was.
    pub fn settle(&mut self, pod: &PodInfo) {
        self.end(pod, true);
    }

    fn end(&mut self, pod: &PodInfo, has_written: bool) {
        for ended in self.in_flight.leave(&pod.uid, has_written) {
            self.uncount(&ended);
        }
    }

    fn land(&mut self, claim: &str) {
        if let Some(landed) = self.in_flight.land(claim) {
            self.uncount(&landed);
        }
    }

    fn count(&mut self, allocation: &AllocationResult) {
        self.in_use.add(allocation);
        self.stamps.change(allocation, &self.slices);
    }

    fn uncount(&mut self, allocation: &AllocationResult) {
        self.in_use.remove(allocation);
        self.stamps.change(allocation, &self.slices);
    }

    /// Returns what is known of searches for claims like these, with this version of the classes of devices.
    pub fn shape(&self, claims: &[&Arc<ResourceClaim>], classes: u64) -> Arc<Shape> {
        self.verdicts.shape(claims, classes)
    }

    /// Returns a number that changes with each change of the devices that a node has to do with.
    pub fn stamp(&self, node: &str) -> u64 {
        self.stamps.of(node)
    }
}
