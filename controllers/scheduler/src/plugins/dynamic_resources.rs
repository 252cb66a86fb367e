//! Nodes with the devices that a pod claims.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::framework::{Actions, Event, NodeScore, Normalize, Plugin, PostFilter, Resource};
use crate::pod::{PodInfo, PodSpec};

/// What can be configured of [`DynamicResources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicResourcesArgs {
    /// How long to look for devices on one node; no limit if it is 0.
    pub filter_timeout: Duration,
    /// How long to wait until the devices of a pod are ready for binding.
    pub binding_timeout: Duration,
}

impl Default for DynamicResourcesArgs {
    fn default() -> Self {
        Self { filter_timeout: Duration::from_secs(10), binding_timeout: Duration::from_secs(600) }
    }
}

/// Passes nodes on which the claims of a pod can be allocated.
#[derive(Debug, Default)]
pub struct DynamicResources(pub DynamicResourcesArgs);

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    fn node_score<'a>(&'a self, spec: &'a PodSpec, _cluster: &'a Cluster) -> Option<NodeScore<'a>> {
        let claims = spec.source.resource_claims.as_ref();
        claims
            .is_none_or(Vec::is_empty)
            .then(|| NodeScore { raw: Box::new(|_| 0), normalize: Normalize::Greatest })
    }

    fn post_filter(&self, pod: &PodInfo, _cluster: &Cluster) -> Option<PostFilter> {
        let claims = pod.spec.source.resource_claims.as_ref();
        claims
            .is_none_or(Vec::is_empty)
            .then_some(PostFilter { message: "no new claims to deallocate", plan: None })
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
}
