//! Devices that have to be prepared before a pod can be bound.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The state of a claim's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// A driver is at work.
    Waiting,
    /// A driver has given up, for this reason in the words of Kubernetes.
    Failed(String),
}

fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    devices.into_iter().flat_map(|devices| devices.results.iter().flatten())
}

fn conditions(result: &DeviceRequestAllocationResult) -> &[String] {
    result.binding_conditions.as_deref().unwrap_or_default()
}

fn status_of<'a>(
    claim: &'a ResourceClaim,
    result: &DeviceRequestAllocationResult,
) -> Option<&'a AllocatedDeviceStatus> {
    let mut devices = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
    devices.find(|device| {
        device.device == result.device && device.driver == result.driver && device.pool == result.pool
    })
}

fn found<'a>(status: &'a AllocatedDeviceStatus, kind: &str) -> Option<&'a Condition> {
    let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    found.filter(|condition| condition.status == "True")
}

/// Returns `true` if a device of a claim has to be prepared.
pub fn has_conditions(claim: &ResourceClaim) -> bool {
    results(claim).any(|result| !conditions(result).is_empty())
}

/// Returns the state of the devices of an allocated claim. They are judged up to the first that is not ready.
pub fn readiness(claim: &ResourceClaim) -> Readiness {
    for result in results(claim).filter(|result| !conditions(result).is_empty()) {
        let Some(status) = status_of(claim, result) else { return Readiness::Waiting };
        let mut failures = result.binding_failure_conditions.iter().flatten();
        if let Some(failed) = failures.find_map(|kind| found(status, kind)) {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let (reason, message) = (&failed.reason, &failed.message);
            return Readiness::Failed(format!(
                "device binding failed: claim={name}, reason={reason}, message={message:?}"
            ));
        }
        if conditions(result).iter().any(|kind| found(status, kind).is_none()) {
            return Readiness::Waiting;
        }
    }
    Readiness::Ready
}

/// Returns `true` if the devices of a claim had longer than `timeout` to become ready.
pub fn has_timed_out(claim: &ResourceClaim, timeout: Duration, now: Timestamp) -> bool {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let Some(start) = allocation.and_then(|allocation| allocation.allocation_timestamp.as_ref()) else {
        return false;
    };
    let timeout = SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX);
    let is_over = start.0.checked_add(timeout).is_ok_and(|end| end < now);
    is_over && results(claim).any(|result| result.binding_conditions.is_some())
}
