//! ResourceClaims as pods refer to them.

use apiserver_client::{IndexBy, ObjectKey};
use k8s_openapi::api::core::v1::PodResourceClaim;
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceRequestAllocationResult, ResourceClaim, ResourceClaimConsumerReference,
};

use crate::meta::{is_controlled_by, is_deleted, name, namespace, uid};
use crate::pods::Pod;

/// The ResourceClaim behind an entry of `spec.resourceClaims`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reference<'a> {
    /// The claim with this name, which a user makes.
    Given(&'a str),
    /// The claim with this name, which was generated for the pod.
    Generated(&'a str),
    /// A claim that has not been generated yet.
    Missing,
    /// No claim, which was decided before.
    Unneeded,
    /// Neither a claim nor a template, but something that this program does not know.
    Unsupported,
}

impl<'a> Reference<'a> {
    /// Reads the reference from an entry and the status of its pod.
    pub fn of(pod: &'a Pod, entry: &'a PodResourceClaim) -> Self {
        if let Some(name) = &entry.resource_claim_name {
            return Self::Given(name);
        }
        if entry.resource_claim_template_name.is_none() {
            return Self::Unsupported;
        }
        let statuses = pod.resource_claim_statuses().unwrap_or_default();
        match statuses.iter().find(|status| status.name == entry.name) {
            None => Self::Missing,
            Some(status) => match status.resource_claim_name.as_deref() {
                None => Self::Unneeded,
                Some("") => Self::Missing,
                Some(name) => Self::Generated(name),
            },
        }
    }

    /// Returns the name of the claim, if it has one.
    pub fn name(self) -> Option<&'a str> {
        match self {
            Self::Given(name) | Self::Generated(name) => Some(name),
            Self::Missing | Self::Unneeded | Self::Unsupported => None,
        }
    }
}

/// Returns the entries of `spec.resourceClaims`.
pub(crate) fn entries(pod: &Pod) -> &[PodResourceClaim] {
    pod.spec().resource_claims.as_deref().unwrap_or_default()
}

/// Returns the name of the claim that the scheduler made for the extended resources of the pod.
pub(crate) fn extended(pod: &Pod) -> Option<&str> {
    pod.extended_resource_claim()
}

/// Returns `true` if no container of the pod runs or will ever run.
pub(crate) fn is_done(pod: &Pod) -> bool {
    pod.is_finished() || is_deleted(&pod.metadata) && pod.node_name().is_empty()
}

/// Returns `true` if a claim was generated for the pod.
pub(crate) fn is_for_pod(claim: &ResourceClaim, pod: &Pod) -> bool {
    namespace(&claim.metadata) == namespace(&pod.metadata) && is_controlled_by(&claim.metadata, &pod.metadata)
}

/// Returns the users for which a claim is reserved.
pub(crate) fn consumers(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default()
}

/// Returns `true` if a claim is reserved for a pod.
pub(crate) fn is_pod(consumer: &ResourceClaimConsumerReference) -> bool {
    consumer.api_group.as_deref().unwrap_or_default().is_empty() && consumer.resource == "pods"
}

/// Returns `true` if a claim is reserved for this pod.
pub(crate) fn is_reserved_for(claim: &ResourceClaim, pod: &Pod) -> bool {
    consumers(claim).iter().any(|consumer| consumer.uid == uid(&pod.metadata))
}

/// Returns what was allocated for a claim.
pub(crate) fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// Returns the devices that were allocated for a claim.
pub(crate) fn allocated(claim: &ResourceClaim) -> &[DeviceRequestAllocationResult] {
    let devices = allocation(claim).and_then(|allocation| allocation.devices.as_ref());
    devices.and_then(|devices| devices.results.as_deref()).unwrap_or_default()
}

/// Returns the reference by which a claim is reserved for the pod.
pub(crate) fn consumer(pod: &Pod) -> ResourceClaimConsumerReference {
    ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: name(&pod.metadata).to_owned(),
        uid: uid(&pod.metadata).to_owned(),
    }
}

/// Index of pods by the ResourceClaims that they refer to.
pub(crate) struct ByResourceClaim;

impl IndexBy<Pod> for ByResourceClaim {
    type Value = ObjectKey;

    fn values(pod: &Pod) -> Vec<ObjectKey> {
        let names = entries(pod).iter().filter_map(|entry| Reference::of(pod, entry).name());
        names.map(|name| ObjectKey::new(namespace(&pod.metadata), name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use k8s_openapi::api::core::v1;
    use serde_json::json;

    #[test]
    fn reference_follows_spec_and_status() {
        let mut pod = testing::pod("p");
        pod.spec.as_mut().unwrap().resource_claims = serde_json::from_value(json!([
            {"name": "given", "resourceClaimName": "shared"},
            {"name": "made", "resourceClaimTemplateName": "t"},
            {"name": "missing", "resourceClaimTemplateName": "t"},
            {"name": "empty", "resourceClaimTemplateName": "t"},
            {"name": "unneeded", "resourceClaimTemplateName": "t"},
            {"name": "unknown"},
        ]))
        .unwrap();
        pod.status.get_or_insert_default().resource_claim_statuses = serde_json::from_value(json!([
            {"name": "made", "resourceClaimName": "p-made-x"},
            {"name": "empty", "resourceClaimName": ""},
            {"name": "unneeded"},
        ]))
        .unwrap();
        let pod = Pod::from(pod);
        let references: Vec<_> = entries(&pod).iter().map(|entry| Reference::of(&pod, entry)).collect();
        let expected = [
            Reference::Given("shared"),
            Reference::Generated("p-made-x"),
            Reference::Missing,
            Reference::Missing,
            Reference::Unneeded,
            Reference::Unsupported,
        ];
        assert_eq!(references, expected);
        let keys = ["shared", "p-made-x"].map(|name| ObjectKey::new("ns", name));
        assert_eq!(ByResourceClaim::values(&pod), keys);
    }

    #[test]
    fn pod_is_done_when_it_has_ended_or_was_deleted_without_a_node() {
        let is_done = |pod: &v1::Pod| super::is_done(&pod.clone().into());
        let mut pod = testing::pod("p");
        assert!(!is_done(&pod));
        pod.metadata.deletion_timestamp = testing::time(1);
        assert!(is_done(&pod));
        let mut pod = testing::running("p", "n", "10.0.0.1");
        pod.metadata.deletion_timestamp = testing::time(1);
        assert!(!is_done(&pod), "its node stops it");
        pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        assert!(is_done(&pod));
    }
}
