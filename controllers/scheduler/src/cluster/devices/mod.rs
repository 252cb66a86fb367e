//! Device claims.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::ObjectKey;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};

use super::NodeId;
use crate::pod::PodInfo;

/// Device claims by name.
#[derive(Debug, Default)]
pub struct Devices {
    claims: BTreeMap<ObjectKey, Arc<ResourceClaim>>,
}

impl Devices {
    /// Adds a claim, or removes it; returns it as it was.
    pub fn set_claim(
        &mut self,
        key: &ObjectKey,
        new: Option<Arc<ResourceClaim>>,
    ) -> Option<Arc<ResourceClaim>> {
        match new {
            Some(new) => self.claims.insert(key.clone(), new),
            None => self.claims.remove(key),
        }
    }

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

    /// Hears of a pod that counts on a node from now on.
    pub(super) fn placed(&mut self, _pod: &PodInfo, _node: NodeId) {}

    /// Hears of a pod that no longer counts on a node.
    pub(super) fn removed(&mut self, _pod: &PodInfo, _node: NodeId) {}
}

fn is_controlled_by(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true)).is_some_and(|owner| pod.uid == *owner.uid)
}

/// Returns `true` if a device of a claim reports that it cannot be bound.
pub fn has_failed(claim: &ResourceClaim) -> bool {
    let Some(status) = &claim.status else { return false };
    let Some(devices) = status.allocation.as_ref().and_then(|allocation| allocation.devices.as_ref()) else {
        return false;
    };
    let has_failed = |result: &DeviceRequestAllocationResult| {
        let report = status.devices.iter().flatten().find(|device| {
            device.device == result.device && device.driver == result.driver && device.pool == result.pool
        });
        let conditions = || report.iter().flat_map(|report| report.conditions.iter().flatten());
        let mut failures = result.binding_failure_conditions.iter().flatten();
        failures.any(|kind| conditions().any(|one| one.type_ == *kind && one.status == "True"))
    };
    // A claim that waits for a device is judged up to that device.
    let mut results = devices.results.iter().flatten();
    results.any(|result| {
        result.binding_conditions.as_ref().is_some_and(|all| !all.is_empty()) && has_failed(result)
    })
}
