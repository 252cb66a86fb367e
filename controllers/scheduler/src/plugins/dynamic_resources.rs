//! Nodes with the devices that a pod claims.

use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::node_selector;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use crate::cluster::devices::has_failed;
use crate::cluster::{Cluster, Node};
use crate::framework::{
    Actions, Change, Event, Hint, NodeFilter, NodeScore, Normalize, Plugin, PreFilter, Refusal, Resource,
};
use crate::pod::{PodInfo, PodSpec};
use crate::resources::is_extended;

/// Arguments of [`DynamicResources`] (`DynamicResourcesArgs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicResourcesArgs {
    /// Longest search for devices on one node; no limit if it is 0.
    pub filter_timeout: Duration,
    /// Longest wait until the devices of a pod are ready for binding.
    pub binding_timeout: Duration,
}

impl Default for DynamicResourcesArgs {
    fn default() -> Self {
        Self { filter_timeout: Duration::from_secs(10), binding_timeout: Duration::from_secs(600) }
    }
}

/// Passes nodes on which the claims of a pod, which are allocated, are available. No node is found yet for a pod with claims
/// that are not, nor for one that requests resources which a class of devices serves there.
#[derive(Debug, Default)]
pub struct DynamicResources(pub DynamicResourcesArgs);

fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// Returns why a claim that is not allocated cannot be: a class that it names does not exist.
fn lacking_class(claim: &ResourceClaim, cluster: &Cluster) -> Option<Refusal> {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    for request in requests {
        let exact = request.exactly.iter().map(|one| (request.name.clone(), &one.device_class_name));
        let first = request.first_available.iter().flatten();
        let first = first.map(|one| (format!("{}/{}", request.name, one.name), &one.device_class_name));
        for (name, class) in exact.chain(first) {
            if cluster.device_classes.named(class).is_none() {
                return Some(Refusal::unresolvable(format!(
                    "request {name}: device class {class} does not exist"
                )));
            }
        }
    }
    None
}

/// The claims of a pod.
struct Claims<'a> {
    claims: Vec<&'a Arc<ResourceClaim>>,
    /// A claim is not allocated.
    is_open: bool,
    /// Resources that a class of devices serves on nodes that do not have them.
    served: Vec<&'a str>,
}

impl Claims<'_> {
    fn can_allocate(&self, node: &Node) -> bool {
        let has = |name: &&str| node.facts.allocatable.scalar.get(*name).is_some_and(|amount| *amount > 0);
        !self.is_open && self.served.iter().all(has)
    }
}

impl NodeFilter for Claims<'_> {
    fn passes(&self, node: &Node) -> bool {
        let is_available = |claim: &&Arc<ResourceClaim>| {
            let selector = allocation(claim).and_then(|allocation| allocation.node_selector.as_ref());
            selector.is_none_or(|selector| node_selector::matches(selector, &node.name, &node.labels))
                && !has_failed(claim)
        };
        self.can_allocate(node) && self.claims.iter().all(is_available)
    }

    fn refusal(&self, node: &Node) -> Refusal {
        Refusal::unresolvable(if self.can_allocate(node) {
            "resourceclaim not available on the node"
        } else {
            "cannot allocate all claims"
        })
    }
}

/// Returns the claims of a pod; `None` if it has none.
fn claims<'a>(pod: &'a PodInfo, cluster: &'a Cluster) -> Result<Option<Claims<'a>>, Refusal> {
    let claims = cluster.devices.claims_of(pod).map_err(Refusal::unresolvable)?;
    let scalar = pod.spec.requests.scalar.iter().filter(|(name, amount)| **amount != 0 && is_extended(name));
    let served: Vec<&str> = scalar
        .map(|(name, _)| &**name)
        .filter(|name| cluster.device_classes.serving(name).is_some())
        .collect();
    let open = || claims.iter().filter(|claim| allocation(claim).is_none());
    if let Some(refusal) = open().find_map(|claim| lacking_class(claim, cluster)) {
        return Err(refusal);
    }
    let is_open = open().next().is_some();
    Ok((!claims.is_empty() || !served.is_empty()).then_some(Claims { claims, is_open, served }))
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    fn pre_enqueue(&self, pod: &PodInfo, cluster: &Cluster) -> Option<Refusal> {
        cluster.devices.claims_of(pod).err().map(Refusal::unresolvable)
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, cluster: &'a Cluster) -> PreFilter<'a> {
        match claims(pod, cluster) {
            Err(refusal) => PreFilter::Refuse(refusal),
            Ok(None) => PreFilter::Skip,
            Ok(Some(claims)) => PreFilter::Filter { only: None, filter: Box::new(claims) },
        }
    }

    fn node_score<'a>(&'a self, _spec: &'a PodSpec, _cluster: &'a Cluster) -> Option<NodeScore<'a>> {
        Some(NodeScore { raw: Box::new(|_| 0), normalize: Normalize::Greatest })
    }

    fn post_filter(&self, pod: &PodInfo, cluster: &Cluster) -> Option<&'static str> {
        let has_claims = matches!(claims(pod, cluster), Ok(Some(_)));
        let message = if has_claims { "still not schedulable" } else { "no new claims to deallocate" };
        Some(message)
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
