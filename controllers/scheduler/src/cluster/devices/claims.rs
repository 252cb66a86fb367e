//! The claims that pods refer to.

use std::sync::Arc;

use apiserver_client::ObjectKey;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use super::Devices;
use crate::pod::PodInfo;

/// Returns the devices of a claim; `None` if it has none yet.
pub fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// Returns `true` if a claim is reserved for a pod.
pub fn is_reserved_for(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    let mut consumers = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    consumers.any(|consumer| pod.uid == *consumer.uid)
}

/// Returns `true` if nobody but the pod, if anybody, uses a claim.
pub fn is_free_for(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    let consumers = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref());
    match consumers.unwrap_or_default() {
        [] => true,
        [only] => pod.uid == *only.uid,
        _ => false,
    }
}

impl Devices {
    /// Returns the claims of a pod, in the order in which it names them.
    ///
    /// # Errors
    ///
    /// Returns why the pod cannot be scheduled, in the words of Kubernetes.
    pub fn claims_of(&self, pod: &PodInfo) -> Result<Vec<&Arc<ResourceClaim>>, String> {
        let mut claims = Vec::new();
        for entry in pod.spec.source.resource_claims.iter().flatten() {
            let (name, is_generated) = match (&entry.resource_claim_name, &entry.resource_claim_template_name)
            {
                (Some(name), _) => (name, false),
                (None, Some(_)) => {
                    let statuses = pod.claims.iter().flat_map(|statuses| &statuses.claims);
                    let Some(status) = statuses.into_iter().find(|status| status.name == entry.name) else {
                        return Err(format!("pod \"{}\": ResourceClaim not created yet", pod.key()));
                    };
                    // No claim was needed.
                    let Some(name) = &status.resource_claim_name else { continue };
                    (name, true)
                }
                (None, None) => {
                    return Err(format!(
                        "pod \"{}\", spec.resourceClaim {:?}: none of the supported fields are set",
                        pod.key(),
                        entry.name
                    ));
                }
            };
            let key = ObjectKey::new(pod.namespace(), name);
            let Some(claim) = self.claims.get(&key) else {
                return Err(format!("could not find ResourceClaim \"{key}\""));
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("resourceclaim {name:?} is being deleted"));
            }
            if is_generated && !is_controlled_by(claim, pod) {
                return Err(format!(
                    "ResourceClaim {key} was not created for Pod {} (Pod is not owner)",
                    pod.key()
                ));
            }
            claims.push(claim);
        }
        Ok(claims)
    }
}

fn is_controlled_by(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true)).is_some_and(|owner| pod.uid == *owner.uid)
}
