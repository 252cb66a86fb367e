//! Devices that have to be prepared before a pod can be bound.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, from_value, json};

use super::super::binding::{Readiness, has_conditions, has_timed_out, readiness};
use super::{claim, with};

/// The conditions that a device is waited for, the ones by which it fails, and those that it has, as `ready=True`.
type Conditions<'a> = (&'a [&'a str], &'a [&'a str], &'a [&'a str]);

/// Returns a claim that was allocated at ten o'clock, with the devices `a`, `b`….
fn allocated(devices: &[Conditions<'_>]) -> ResourceClaim {
    let name = |index: usize| ["a", "b", "c"][index];
    let result = |(index, (wanted, failing, _)): (usize, &Conditions<'_>)| {
        let mut result = json!({"request": "r", "driver": "d", "pool": "n", "device": name(index)});
        if !wanted.is_empty() {
            result["bindingConditions"] = json!(wanted);
            result["bindingFailureConditions"] = json!(failing);
        }
        result
    };
    let condition = |text: &&str| {
        let (kind, status) = text.split_once('=').unwrap();
        json!({"type": kind, "status": status, "reason": "why", "message": "how", "lastTransitionTime": "2026-01-01T10:00:00Z"})
    };
    let status = |(index, (_, _, has)): (usize, &Conditions<'_>)| {
        let conditions: Vec<Value> = has.iter().map(condition).collect();
        json!({"driver": "d", "pool": "n", "device": name(index), "conditions": conditions})
    };
    let has_status = |(_, (_, _, has)): &(usize, &Conditions<'_>)| !has.is_empty();
    let results: Vec<Value> = devices.iter().enumerate().map(result).collect();
    let statuses: Vec<Value> = devices.iter().enumerate().filter(has_status).map(status).collect();
    let allocation = json!({"devices": {"results": results}, "allocationTimestamp": "2026-01-01T10:00:00Z"});
    let status = json!({"status": {"allocation": allocation, "devices": statuses}});
    from_value(with(claim("x", json!([])), status)).unwrap()
}

#[test]
fn claims_are_ready_when_all_their_devices_have_their_conditions() {
    let failed =
        || Readiness::Failed("device binding failed: claim=x, reason=why, message=\"how\"".to_owned());
    let (one, two): (&[&str], &[&str]) = (&["one"], &["one", "two"]);
    let fails: &[&str] = &["broken"];
    let rows: &[(&str, &[Conditions<'_>], Readiness)] = &[
        ("no conditions", &[(&[], &[], &[])], Readiness::Ready),
        ("one that is met", &[(one, fails, &["one=True"])], Readiness::Ready),
        ("nothing is told yet", &[(one, fails, &[])], Readiness::Waiting),
        ("one that is not met yet", &[(one, fails, &["one=False"])], Readiness::Waiting),
        ("one that is unknown", &[(one, fails, &["one=Unknown"])], Readiness::Waiting),
        ("both are met", &[(two, fails, &["one=True", "two=True"])], Readiness::Ready),
        ("one of two is met", &[(two, fails, &["one=True", "two=False"])], Readiness::Waiting),
        ("it fails", &[(one, fails, &["broken=True"])], failed()),
        ("it fails though it was ready", &[(one, fails, &["one=True", "broken=True"])], failed()),
        ("it does not fail", &[(one, fails, &["one=True", "broken=False"])], Readiness::Ready),
        (
            "all devices are ready",
            &[(one, fails, &["one=True"]), (&[], &[], &[]), (one, fails, &["one=True"])],
            Readiness::Ready,
        ),
        (
            "the second is not",
            &[(one, fails, &["one=True"]), (one, fails, &["one=False"])],
            Readiness::Waiting,
        ),
        ("the second fails", &[(one, fails, &["one=True"]), (one, fails, &["broken=True"])], failed()),
    ];
    for (why, devices, expected) in rows {
        assert_eq!(readiness(&allocated(devices)), *expected, "{why}");
    }
}

#[test]
fn devices_with_conditions_have_a_time_to_become_ready() {
    let after = |claim: &ResourceClaim, minute: u32, second: u32| {
        let now: Timestamp = format!("2026-01-01T10:{minute:02}:{second:02}Z").parse().unwrap();
        has_timed_out(claim, Duration::from_secs(600), now)
    };
    let slow = allocated(&[(&["one"], &[], &[])]);
    assert!(!after(&slow, 9, 59) && !after(&slow, 10, 0) && after(&slow, 10, 1));
    assert!(!after(&allocated(&[(&[], &[], &[])]), 59, 0), "there is nothing to wait for");
    let mut untold = slow.clone();
    untold.status.as_mut().unwrap().allocation.as_mut().unwrap().allocation_timestamp = None;
    assert!(!after(&untold, 59, 0), "nobody knows since when");
    assert!(has_conditions(&slow) && !has_conditions(&allocated(&[(&[], &[], &[])])));
}
