//! `DynamicResources`: the claims of a pod get devices that its node can use.

mod prepared;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;

use self::prepared::{NOT_AVAILABLE, Prepared};
use crate::cluster::devices::{ClaimPlan, DevicePlan, allocation, is_free_for};
use crate::cluster::{Cluster, NodeId};
use crate::framework::{
    Actions, Change, Cleanup, Code, Diagnosis, Event, Feasible, Finding, Hint, NodeScore, Normalize, Plugin,
    PreBind, PreFilter, Refusal, Resource, Scores,
};
use crate::limits;
use crate::pod::{PodInfo, PodSpec};

/// Arguments of [`DynamicResources`] (`DynamicResourcesArgs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicResourcesArgs {
    /// Longest search for devices; no limit if it is 0.
    pub filter_timeout: Duration,
    /// Longest wait until the devices of a pod are ready for binding.
    pub binding_timeout: Duration,
}

impl Default for DynamicResourcesArgs {
    fn default() -> Self {
        Self { filter_timeout: Duration::from_secs(10), binding_timeout: Duration::from_secs(600) }
    }
}

impl DynamicResourcesArgs {
    /// Returns the steps that the searches of one attempt may take: so many fit into the longest time.
    fn steps(self) -> u64 {
        match u64::try_from(self.filter_timeout.as_millis()).unwrap_or(u64::MAX) {
            0 => u64::MAX,
            millis => millis.saturating_mul(limits::SEARCH_STEPS),
        }
    }
}

/// Passes nodes on which the claims of a pod are available, or can be: with devices that the node can use and that nobody
/// has. A resource that a class of devices serves, and the node does not have itself, is claimed for the pod.
#[derive(Debug, Default)]
pub struct DynamicResources(pub DynamicResourcesArgs);

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    fn pre_enqueue(&self, pod: &PodInfo, cluster: &Cluster) -> Option<Refusal> {
        cluster.devices.claims_of(pod).err().map(Refusal::unresolvable)
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, cluster: &'a Cluster) -> PreFilter<'a> {
        match Prepared::of(self.0, pod, cluster) {
            Err(refusal) => PreFilter::Refuse(refusal),
            Ok(None) => PreFilter::Skip,
            Ok(Some(prepared)) => PreFilter::Filter { only: None, filter: Box::new(prepared) },
        }
    }

    fn node_score<'a>(&'a self, spec: &'a PodSpec, _cluster: &'a Cluster) -> Option<NodeScore<'a>> {
        let has_claims = spec.source.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
        (!has_claims).then(|| NodeScore { raw: Box::new(|_| 0), normalize: Normalize::Greatest })
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, feasible: &Feasible) -> Option<Scores> {
        match Prepared::of(self.0, pod, cluster) {
            Ok(Some(prepared)) if prepared.has_alternatives() => {
                let raw = feasible.list().iter().map(|id| prepared.score(cluster.node(*id)));
                let mut scores: Vec<i64> = raw.collect();
                Normalize::Greatest.apply(&mut scores);
                Some(Scores::Each(scores))
            }
            _ => Some(Scores::Same(0)),
        }
    }

    fn reserve(
        &self,
        pod: &PodInfo,
        node: NodeId,
        cluster: &mut Cluster,
    ) -> Result<Option<PreBind>, Refusal> {
        let node = cluster.node(node);
        let Some(prepared) = Prepared::of(self.0, pod, cluster)? else { return Ok(None) };
        let claims = prepared.plan(node)?;
        let node = Arc::clone(&node.name);
        drop(prepared);
        for ClaimPlan { claim, allocation, .. } in &claims {
            if let Some(allocation) = allocation {
                cluster.devices.reserve(pod, claim, allocation.clone());
            }
        }
        let timeout = self.0.binding_timeout;
        let plan = DevicePlan { pod: pod.key(), uid: pod.uid.clone(), node, claims, timeout };
        Ok((!plan.claims.is_empty()).then(|| PreBind::Devices(Box::new(plan))))
    }

    fn unreserve(&self, pod: &PodInfo, cluster: &mut Cluster) {
        cluster.devices.unreserve(pod);
    }

    fn post_filter(&self, pod: &PodInfo, cluster: &Cluster, diagnosis: &Diagnosis) -> Option<Finding> {
        let Ok(Some(prepared)) = Prepared::of(self.0, pod, cluster) else {
            return Some(Finding { message: "no new claims to deallocate", cleanup: None });
        };
        let was_unavailable = |refusal: &&Refusal| {
            refusal.plugin == self.name() && refusal.reasons.iter().any(|reason| reason == NOT_AVAILABLE)
        };
        let nodes = diagnosis.refusals.iter().filter(|(_, refusal)| was_unavailable(refusal));
        let nodes: Vec<_> = nodes.map(|(id, _)| cluster.node(id)).collect();
        let is_unavailable =
            |claim: &ResourceClaim| nodes.iter().any(|node| !prepared.is_available(claim, node));
        let mut claims = prepared.claims().iter().filter(|claim| is_free_for(claim, pod));
        if let Some(claim) = claims.find(|claim| is_unavailable(claim)) {
            let cleanup = Some(Cleanup::Deallocate(Arc::clone(claim)));
            return Some(Finding { message: "deallocation of ResourceClaim completed", cleanup });
        }
        if let Some(claim) = prepared.stale() {
            let cleanup = Some(Cleanup::Delete(Arc::clone(claim)));
            return Some(Finding { message: "deletion of ResourceClaim completed", cleanup });
        }
        Some(Finding { message: "still not schedulable", cleanup: None })
    }

    fn events(&self) -> Vec<Event> {
        vec![
            Event::new(Resource::Node, Actions::ADD | Actions::NODE_LABEL | Actions::NODE_ALLOCATABLE),
            Event::new(Resource::ResourceClaim, Actions::ADD | Actions::UPDATE),
            Event::new(Resource::UnscheduledPod, Actions::POD_GENERATED_CLAIM),
            Event::new(Resource::DeviceClass, Actions::ADD | Actions::UPDATE),
            Event::new(Resource::ResourceSlice, Actions::ADD | Actions::UPDATE),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, cluster: &Cluster) -> Hint {
        let is_ready = match change {
            Change::ResourceClaim(versions) => {
                let (Some(new), Ok(claims)) = (versions.new, cluster.devices.claims_of(pod)) else {
                    return Hint::Skip;
                };
                let was_freed = versions.old.is_some_and(|old| allocation(old).is_some());
                let is_own = claims.iter().any(|claim| claim.metadata.uid == new.metadata.uid);
                (was_freed && allocation(new).is_none())
                    || (is_own && versions.old.is_none_or(|old| old.status != new.status))
            }
            Change::Pod(versions) => {
                versions.new.is_some_and(|new| new.uid == pod.uid && cluster.devices.claims_of(new).is_ok())
            }
            _ => true,
        };
        if is_ready { Hint::Queue } else { Hint::Skip }
    }
}

/// Returns the refusal of an attempt that has failed.
fn failed(problem: impl Into<String>) -> Refusal {
    Refusal::new(Code::Error, problem)
}
