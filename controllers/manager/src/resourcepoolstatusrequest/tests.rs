//! Tests of the plan.

use std::sync::Arc;

use apiserver_client::Projection;
use k8s_openapi::api::resource::v1alpha3::{PoolStatus, ResourcePoolStatusRequest};
use serde_json::{Value, from_value, json, to_value};

use super::plan::{answer, expiry, pools, wait};
use crate::device_slices::PoolSlice;
use crate::testing::{at, time};

/// Returns a slice with `devices` devices of a pool that has `count` slices.
fn slice(pool: &str, node: Option<&str>, devices: usize, generation: i64, count: i64) -> Arc<PoolSlice> {
    let devices: Vec<Value> = (0..devices).map(|number| json!({"name": format!("d{number}")})).collect();
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": node, "devices": devices,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}}});
    Arc::new(PoolSlice::project(from_value(slice).unwrap()))
}

fn counted(slices: Vec<Arc<PoolSlice>>, allocated: usize) -> Value {
    to_value(pools(slices, |_| allocated)).unwrap()
}

fn whole(pool: &str, node: &str, slices: i32, total: i32, allocated: i32) -> Value {
    json!({"driver": "d", "poolName": pool, "nodeName": node, "generation": 1, "resourceSliceCount": slices,
        "totalDevices": total, "allocatedDevices": allocated, "availableDevices": (total - allocated).max(0),
        "unavailableDevices": 0})
}

#[test]
fn devices_of_complete_pools_are_counted_by_pool() {
    let slices =
        vec![slice("b", Some("n"), 2, 1, 1), slice("a", Some("m"), 4, 1, 2), slice("a", Some("m"), 3, 1, 2)];
    assert_eq!(counted(slices, 3), json!([whole("a", "m", 2, 7, 3), whole("b", "n", 1, 2, 3)]));
    assert_eq!(counted(vec![], 3), json!([]));
    let newer = vec![slice("a", Some("n"), 9, 0, 1), slice("a", Some("n"), 2, 1, 1)];
    assert_eq!(counted(newer, 0), json!([whole("a", "n", 1, 2, 0)]), "older slices do not count");
}

#[test]
fn incomplete_pools_have_an_error_and_no_counts() {
    let error = "pool d/a is incomplete: observed 1/3 slices at generation 7";
    let expected =
        json!({"driver": "d", "poolName": "a", "nodeName": "n", "generation": 7, "validationError": error});
    assert_eq!(counted(vec![slice("a", Some("n"), 4, 7, 3)], 1), json!([expected]));
    let long = pools(vec![slice(&"é".repeat(250), None, 1, 1, 2)], |_| 0);
    let error = long[0].validation_error.as_ref().unwrap();
    assert_eq!(error.len(), 255, "no letter is cut: {error}");
}

#[test]
fn node_is_told_if_all_slices_are_on_it() {
    for (nodes, expected) in [
        ([Some("n"), Some("n")], Some("n")),
        ([Some("n"), Some("m")], None),
        ([Some("n"), None], None),
        ([None, Some("n")], None),
        ([None, None], None),
    ] {
        let found = pools(nodes.map(|node| slice("a", node, 1, 1, 2)).to_vec(), |_| 0);
        assert_eq!(found[0].node_name.as_deref(), expected, "{nodes:?}");
    }
}

fn request(limit: Value, status: Value) -> ResourcePoolStatusRequest {
    from_value(json!({"metadata": {"name": "r", "creationTimestamp": time(0)}, "spec": {"driver": "d", "limit": limit},
        "status": status}))
    .unwrap()
}

#[test]
fn answer_is_limited_and_tells_how_many_pools_there_are() {
    let found: Vec<PoolStatus> =
        pools(vec![slice("a", None, 1, 1, 1), slice("b", None, 1, 1, 2), slice("c", None, 1, 1, 2)], |_| 0);
    for (limit, shown, message) in [
        (json!(null), 3, "Calculated status for 3 pools (2 incomplete)"),
        (json!(2), 2, "Calculated status for 2 pools (1 incomplete)"),
        (json!(1), 1, "Calculated status for 1 pools"),
    ] {
        let status = answer(&request(limit, json!(null)), found.clone(), at(5));
        assert_eq!((status.pool_count, status.pools.map_or(0, |pools| pools.len())), (3, shown));
        let condition = json!([{"type": "Complete", "status": "True", "reason": "CalculationComplete",
            "message": message, "lastTransitionTime": time(5)}]);
        assert_eq!(to_value(status.conditions).unwrap(), condition);
    }
    let none = answer(&request(json!(null), json!(null)), vec![], at(5));
    assert_eq!((none.pool_count, none.pools), (0, None));
    let many: Vec<_> = (0..150).map(|number| slice(&format!("p{number}"), None, 1, 1, 1)).collect();
    let status = answer(&request(json!(null), json!(null)), pools(many, |_| 0), at(5));
    assert_eq!((status.pool_count, status.pools.map_or(0, |pools| pools.len())), (150, 100));
}

#[test]
fn answer_waits_for_a_driver_that_publishes_a_pool() {
    let new = request(json!(null), json!(null));
    let incomplete = pools(vec![slice("a", None, 1, 1, 2)], |_| 0);
    let complete = pools(vec![slice("a", None, 1, 1, 1)], |_| 0);
    assert_eq!(wait(&new, &incomplete, at(0)), Some(at(2)));
    assert_eq!(wait(&new, &incomplete, at(2)), None, "it is told as it is");
    assert_eq!(wait(&new, &complete, at(0)), None);
}

#[test]
fn requests_are_deleted_an_hour_after_the_answer_or_a_day_after_the_question() {
    let condition = |kind: &str| {
        json!({"poolCount": 0, "conditions": [{"type": kind, "status": "True", "reason": "R",
        "message": "", "lastTransitionTime": time(100)}]})
    };
    for (status, expected) in [
        (json!(null), 24 * 3600),
        (condition("Complete"), 3700),
        (condition("Failed"), 3700),
        (condition("Other"), 3600),
        (json!({"poolCount": 0}), 3600),
    ] {
        assert_eq!(expiry(&request(json!(null), status.clone())), Some(at(expected)), "{status}");
    }
}
