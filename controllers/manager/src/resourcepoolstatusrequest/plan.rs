//! Counts the devices of pools: pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::resource::v1alpha3::{
    PoolStatus, ResourcePoolStatusRequest, ResourcePoolStatusRequestStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::device_slices::{PoolId, PoolSlice, current};
use crate::limits::{
    POOL_COMPLETION, POOL_ERROR, POOL_REQUEST_ANSWERED, POOL_REQUEST_PENDING, POOL_REQUEST_POOLS,
};

/// Returns the statuses of the pools of these slices, ordered by name. `allocated` is the number of devices of a pool
/// that claims have.
pub(super) fn pools(slices: Vec<Arc<PoolSlice>>, allocated: impl Fn(&PoolId) -> usize) -> Vec<PoolStatus> {
    let mut by_pool = BTreeMap::<PoolId, Vec<Arc<PoolSlice>>>::new();
    for slice in slices {
        by_pool.entry(slice.id.clone()).or_default().push(slice);
    }
    by_pool.iter().map(|(id, slices)| pool(id, slices, allocated(id))).collect()
}

fn pool(id: &PoolId, slices: &[Arc<PoolSlice>], allocated: usize) -> PoolStatus {
    let slices: Vec<&PoolSlice> = current(slices).collect();
    let first = slices.first();
    let generation = first.map_or(0, |slice| slice.generation);
    let node = first.and_then(|slice| slice.node.clone()).filter(|node| !node.is_empty());
    let status = PoolStatus {
        driver: id.driver.clone(),
        pool_name: id.pool.clone(),
        generation,
        node_name: node.filter(|node| slices.iter().all(|slice| slice.node.as_ref() == Some(node))),
        ..PoolStatus::default()
    };
    let expected = first.map_or(0, |slice| slice.slice_count);
    if i64::from(number(slices.len())) < expected {
        let mut error = format!(
            "pool {}/{} is incomplete: observed {}/{expected} slices at generation {generation}",
            id.driver,
            id.pool,
            slices.len()
        );
        error.truncate(error.floor_char_boundary(POOL_ERROR));
        return PoolStatus { validation_error: Some(error), ..status };
    }
    let total = slices.iter().map(|slice| slice.devices.len()).sum::<usize>();
    PoolStatus {
        resource_slice_count: Some(number(slices.len())),
        total_devices: Some(number(total)),
        allocated_devices: Some(number(allocated)),
        available_devices: Some(number(total.saturating_sub(allocated))),
        // Kubernetes does not judge devices by their taints either.
        unavailable_devices: Some(0),
        ..status
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Returns the time until which an answer has to wait for slices; `None` if it need not.
pub(super) fn wait(
    request: &ResourcePoolStatusRequest,
    pools: &[PoolStatus],
    now: Timestamp,
) -> Option<Timestamp> {
    let is_complete = pools.iter().all(|pool| pool.validation_error.is_none());
    created(request)?.checked_add(POOL_COMPLETION).ok().filter(|until| !is_complete && *until > now)
}

/// Returns the answer with these pools.
pub(super) fn answer(
    request: &ResourcePoolStatusRequest,
    mut pools: Vec<PoolStatus>,
    now: Timestamp,
) -> ResourcePoolStatusRequestStatus {
    let pool_count = number(pools.len());
    let limit = request.spec.limit.unwrap_or(POOL_REQUEST_POOLS);
    pools.truncate(usize::try_from(limit).unwrap_or(0));
    let incomplete = pools.iter().filter(|pool| pool.validation_error.is_some()).count();
    let mut message = format!("Calculated status for {} pools", pools.len());
    if incomplete > 0 {
        message = format!("{message} ({incomplete} incomplete)");
    }
    let condition = Condition {
        type_: "Complete".to_owned(),
        status: "True".to_owned(),
        reason: "CalculationComplete".to_owned(),
        message,
        last_transition_time: Time(now),
        observed_generation: None,
    };
    ResourcePoolStatusRequestStatus {
        pool_count,
        pools: (!pools.is_empty()).then_some(pools),
        conditions: Some(vec![condition]),
    }
}

/// Returns the time at which a request is deleted.
pub(super) fn expiry(request: &ResourcePoolStatusRequest) -> Option<Timestamp> {
    let after = |since: Timestamp, time: SignedDuration| since.checked_add(time).ok();
    let Some(status) = &request.status else { return after(created(request)?, POOL_REQUEST_PENDING) };
    let is_last = |condition: &&Condition| matches!(condition.type_.as_str(), "Complete" | "Failed");
    let answered = status.conditions.iter().flatten().find(is_last).map(|one| one.last_transition_time.0);
    after(answered.or_else(|| created(request))?, POOL_REQUEST_ANSWERED)
}

fn created(request: &ResourcePoolStatusRequest) -> Option<Timestamp> {
    request.metadata.creation_timestamp.as_ref().map(|time| time.0)
}
