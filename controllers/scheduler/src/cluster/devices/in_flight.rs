//! Allocations that were decided on and that are not in the status of their claims yet.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use k8s_openapi::api::resource::v1::AllocationResult;

use crate::cluster::groups::group_of;
use crate::pod::PodInfo;

/// The allocations in flight, by the uid of the claim.
#[derive(Debug, Default)]
pub struct InFlight {
    claims: BTreeMap<String, One>,
    by_pod: BTreeMap<Uid, BTreeSet<String>>,
    /// The turn of a PodGroup under way.
    turn: Option<Turn>,
}

/// An allocation that was decided on.
#[derive(Debug)]
struct One {
    allocation: AllocationResult,
    /// The pods that use it; `true` for those that are writing it: only who writes it knows how that ends.
    pods: BTreeMap<Uid, bool>,
}

/// The turn of a PodGroup, whose pods share what is decided in it.
#[derive(Debug)]
struct Turn {
    group: ObjectKey,
    claims: BTreeSet<String>,
}

impl Turn {
    fn is_of(&self, pod: &PodInfo) -> bool {
        group_of(pod).is_some_and(|group| group == self.group)
    }
}

impl InFlight {
    /// Begins the turn of a PodGroup.
    pub fn begin_turn(&mut self, group: ObjectKey) {
        self.turn = Some(Turn { group, claims: BTreeSet::new() });
    }

    pub fn end_turn(&mut self) {
        self.turn = None;
    }

    pub fn contains(&self, claim: &str) -> bool {
        self.claims.contains_key(claim)
    }

    /// Returns the allocation of a claim that another pod of the same group has been given in the same turn.
    pub fn shared(&self, pod: &PodInfo, claim: &str) -> Option<&AllocationResult> {
        let turn = self.turn.as_ref().filter(|turn| turn.is_of(pod) && turn.claims.contains(claim));
        turn.and_then(|_| Some(&self.claims.get(claim)?.allocation))
    }

    /// Returns `true` if other pods may be given the allocations of a pod.
    pub fn shares(&self, pod: &PodInfo) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.is_of(pod))
    }

    /// Adds a pod to those that share the allocation of a claim; returns `false` if it does not share it.
    pub fn join(&mut self, pod: &PodInfo, claim: &str) -> bool {
        if self.shared(pod, claim).is_none() {
            return false;
        }
        let Some(one) = self.claims.get_mut(claim) else { return false };
        one.pods.entry(pod.uid.clone()).or_default();
        self.by_pod.entry(pod.uid.clone()).or_default().insert(claim.to_owned());
        true
    }

    /// Adds an allocation for a pod; none of the claim must be in flight.
    pub fn add(&mut self, pod: &PodInfo, claim: &str, allocation: AllocationResult) {
        let pods = BTreeMap::from([(pod.uid.clone(), false)]);
        self.claims.insert(claim.to_owned(), One { allocation, pods });
        self.by_pod.entry(pod.uid.clone()).or_default().insert(claim.to_owned());
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.is_of(pod)) {
            turn.claims.insert(claim.to_owned());
        }
    }

    /// Notes that the allocations of a pod are being written.
    pub fn are_written(&mut self, pod: &Uid) {
        for claim in self.by_pod.get(pod).into_iter().flatten() {
            if let Some(one) = self.claims.get_mut(claim) {
                one.pods.insert(pod.clone(), true);
            }
        }
    }

    /// Takes a pod from its allocations, from those that it writes only if that has ended; returns those that no pod uses.
    pub fn leave(&mut self, pod: &Uid, has_written: bool) -> Vec<AllocationResult> {
        let claims = self.by_pod.get(pod).cloned().unwrap_or_default();
        let mut ended = Vec::new();
        for claim in claims {
            let Some(one) = self.claims.get_mut(&claim) else { continue };
            if has_written || one.pods.get(pod) == Some(&false) {
                one.pods.remove(pod);
                let is_last = one.pods.is_empty();
                self.forget(pod, &claim);
                if is_last {
                    ended.extend(self.land(&claim));
                }
            }
        }
        ended
    }

    /// Removes the allocation of a claim, whichever pods use it.
    pub fn land(&mut self, claim: &str) -> Option<AllocationResult> {
        let one = self.claims.remove(claim)?;
        for pod in one.pods.keys() {
            self.forget(pod, claim);
        }
        Some(one.allocation)
    }

    fn forget(&mut self, pod: &Uid, claim: &str) {
        if let Some(claims) = self.by_pod.get_mut(pod) {
            claims.remove(claim);
            if claims.is_empty() {
                self.by_pod.remove(pod);
            }
        }
    }
}
