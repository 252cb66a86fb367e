//! The writes that give claims their devices.

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use k8s_openapi::api::core::v1::ContainerExtendedResourceRequest;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

/// The writes for the claims of a pod.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    pub pod: ObjectKey,
    pub uid: Uid,
    pub node: Arc<str>,
    /// In the order in which the pod names them.
    pub claims: Vec<ClaimPlan>,
    /// Longest wait until the devices are ready.
    pub timeout: Duration,
}

/// The writes for one claim.
#[derive(Clone, Debug)]
pub struct ClaimPlan {
    pub claim: Arc<ResourceClaim>,
    /// The devices that it gets; `None` if it has them.
    pub allocation: Option<AllocationResult>,
    /// Other pods of the same PodGroup may have been given the same devices, and write them too.
    pub is_shared: bool,
    /// The claim is made for resources of these containers, and does not exist yet.
    pub made_for: Option<Vec<ContainerExtendedResourceRequest>>,
}
