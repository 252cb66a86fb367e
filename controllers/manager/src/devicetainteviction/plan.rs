//! Decides when a pod has to leave because of the taints of its devices: pure.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{
    DeviceRequestAllocationResult, DeviceTaint, DeviceToleration, ResourceClaim,
};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;

use crate::device_claims::{Reference, allocated, entries, is_for_pod, is_reserved_for};
use crate::device_slices::{PoolId, PoolSlice, current};
use crate::meta::{name, namespace, uid};
use crate::pods::Pod;

/// The effect that evicts pods.
pub(super) const NO_EXECUTE: &str = "NoExecute";

fn is_evicting(taint: &DeviceTaint) -> bool {
    taint.effect == NO_EXECUTE
}

/// Returns `true` if a taint of a device in the slice evicts pods.
pub(super) fn evicts(slice: &PoolSlice) -> bool {
    slice.devices.iter().flat_map(|device| &device.taints).any(is_evicting)
}

/// Name and UID of a DeviceTaintRule.
pub(super) type RuleId = (String, String);

pub(super) fn rule_id(rule: &DeviceTaintRule) -> RuleId {
    (name(&rule.metadata).to_owned(), uid(&rule.metadata).to_owned())
}

/// The time at which a pod has to leave, with the rules that are among the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Eviction {
    pub at: Timestamp,
    pub rules: BTreeSet<RuleId>,
}

impl Eviction {
    /// Returns the earlier time, with the reasons of both.
    fn and(self, other: Self) -> Self {
        let rules = self.rules.into_iter().chain(other.rules).collect();
        Self { at: self.at.min(other.at), rules }
    }
}

/// Claims, devices and rules, as the caches show them.
pub(super) struct View<'a> {
    pub claim: &'a dyn Fn(&ObjectKey) -> Option<Arc<ResourceClaim>>,
    pub pool: &'a dyn Fn(&PoolId) -> Vec<Arc<PoolSlice>>,
    /// Rules that evict pods.
    pub rules: &'a [Arc<DeviceTaintRule>],
}

impl View<'_> {
    /// Returns when the pod has to leave; `None` if it may stay. A pod that has not started yet, or has ended, stays.
    pub fn pod_eviction(&self, pod: &Pod) -> Option<Eviction> {
        if pod.node_name().is_empty() || pod.is_finished() {
            return None;
        }
        let claims = entries(pod).iter().filter_map(|entry| {
            let reference = Reference::of(pod, entry);
            let claim = (self.claim)(&ObjectKey::new(namespace(&pod.metadata), reference.name()?))?;
            let is_own = !matches!(reference, Reference::Generated(_)) || is_for_pod(&claim, pod);
            (is_own && is_reserved_for(&claim, pod)).then_some(claim)
        });
        claims.filter_map(|claim| self.claim_eviction(&claim, pod.node_name())).reduce(Eviction::and)
    }

    /// Returns when the users of a claim on a node have to leave.
    fn claim_eviction(&self, claim: &ResourceClaim, node: &str) -> Option<Eviction> {
        let (mut earliest, mut rules) = (None::<Timestamp>, BTreeSet::new());
        for device in allocated(claim) {
            for (taint, rule) in self.taints(device, node) {
                let Some(tolerated) = tolerated(device.tolerations.as_deref().unwrap_or_default(), &taint)
                else {
                    continue;
                };
                rules.extend(rule);
                let since = taint.time_added.map(|time| time.0);
                if let Some(at) = since.and_then(|since| since.checked_add(tolerated).ok()) {
                    earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
                }
            }
        }
        earliest.map(|at| Eviction { at, rules })
    }

    /// Returns the taints of a device that evict pods from a node, with the rules that they are from. Slices of other
    /// nodes do not count: their drivers may name any pool, also in a newer generation.
    fn taints(
        &self,
        device: &DeviceRequestAllocationResult,
        node: &str,
    ) -> Vec<(DeviceTaint, Option<RuleId>)> {
        let mut pool = (self.pool)(&PoolId { driver: device.driver.clone(), pool: device.pool.clone() });
        pool.retain(|slice| slice.node.as_deref().is_none_or(|own| own.is_empty() || own == node));
        let mut devices = current(&pool).flat_map(|slice| &slice.devices);
        let published = devices.find(|one| one.name == device.device);
        let own = published.into_iter().flat_map(|one| &one.taints).filter(|taint| is_evicting(taint));
        let own = own.map(|taint| (taint.clone(), None));
        let rules =
            self.rules.iter().filter(|rule| matches(rule, &device.driver, &device.pool, &device.device));
        own.chain(rules.map(|rule| (taint_of(rule), Some(rule_id(rule))))).collect()
    }
}

/// Returns `true` if a rule taints a device. One without a selector taints none.
pub(super) fn matches(rule: &DeviceTaintRule, driver: &str, pool: &str, device: &str) -> bool {
    let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
    let selector = rule.spec.device_selector.as_ref();
    selector.is_some_and(|one| is(&one.driver, driver) && is(&one.pool, pool) && is(&one.device, device))
}

fn taint_of(rule: &DeviceTaintRule) -> DeviceTaint {
    let taint = &rule.spec.taint;
    DeviceTaint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
        time_added: taint.time_added.clone(),
    }
}

/// Returns for how long a taint is tolerated: the shortest time of all tolerations, zero without one. `None` stands for
/// always.
fn tolerated(tolerations: &[DeviceToleration], taint: &DeviceTaint) -> Option<Duration> {
    let mut shortest = None::<Duration>;
    for toleration in tolerations.iter().filter(|one| tolerates(one, taint)) {
        let seconds = toleration.toleration_seconds?.max(0).unsigned_abs();
        let time = Duration::from_secs(seconds);
        shortest = Some(shortest.map_or(time, |shortest| shortest.min(time)));
    }
    Some(shortest.unwrap_or_default())
}

/// Returns `true` if a toleration is for the eviction by this taint. One without an effect is not: it is for scheduling.
fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    if toleration.effect.as_deref() != Some(NO_EXECUTE) || !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        "Exists" => true,
        _ => false,
    }
}
