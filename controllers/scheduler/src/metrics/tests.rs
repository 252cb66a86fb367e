use std::collections::BTreeSet;

use controllers_runtime::metrics::Value;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{from_value, json};

use super::*;
use crate::config::default_profile;
use crate::framework::{Actions, Code, Resource};

/// Name, type, stability, labels, and bounds of buckets of the metrics of kube-scheduler 1.36.
const DOCUMENTED: &str = include_str!("documented.txt");

fn working() -> Metrics {
    let metrics = Metrics::default();
    metrics.begin(&[default_profile()], Cache::default());
    metrics
}

/// Returns the value of a metric with these labels; of a histogram, the number of its observations.
fn read(metrics: &Metrics, name: &str, labels: &[&str]) -> Option<f64> {
    let series = metrics.series().into_iter().find(|series| series.measure.name == name)?;
    let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
    series.values.get(&labels).map(|value| match value {
        Value::Number(number) => *number,
        Value::Histogram { counts, .. } => counts.iter().sum::<u64>() as f64,
    })
}

#[test]
fn names_types_labels_and_bounds_are_those_of_kube_scheduler() {
    let mut names = BTreeSet::new();
    for measure in ALL {
        assert!(names.insert(measure.name), "{} is there twice", measure.name);
        assert_eq!(measure.differs_from(DOCUMENTED), None);
    }
}

#[test]
fn each_metric_is_shown_once_and_with_all_of_its_labels() {
    let metrics = working();
    let event = Event::new(Resource::Node, Actions::ADD);
    metrics.applied(event, Duration::ZERO);
    metrics.preempted(true, Duration::ZERO);
    metrics.publish(State {
        times: Some(QueueTimes::new(Instant::now, OF_THE_QUEUE)),
        events: vec![(event, 2)],
        ..State::default()
    });
    let mut names = BTreeSet::new();
    for series in metrics.series() {
        assert!(names.insert(series.measure.name), "{} is there twice", series.measure.name);
        for labels in series.values.keys() {
            assert_eq!(labels.len(), series.measure.labels.len(), "{}", series.measure.name);
        }
    }
    let of_pods = [REQUESTS.name, LIMITS.name];
    let expected = ALL.iter().map(|measure| measure.name).filter(|name| !of_pods.contains(name));
    assert_eq!(names, expected.collect());
}

#[test]
fn scheduler_that_does_not_work_yet_has_no_metrics() {
    let metrics = Metrics::default();
    metrics.preempting(3);
    assert!(metrics.series().is_empty() && metrics.pod_resources().is_none());
    let metrics = working();
    assert_eq!(read(&metrics, "scheduler_preemption_attempts_total", &[]), Some(0.0));
    assert_eq!(read(&metrics, "scheduler_pending_pods", &["gated"]), Some(0.0));
    let labels = ["NodeName", "Filter", "default-scheduler"];
    assert_eq!(read(&metrics, "scheduler_plugin_evaluation_total", &labels), Some(0.0));
    let labels = ["NodeName", "Score", "default-scheduler"];
    assert_eq!(read(&metrics, "scheduler_plugin_evaluation_total", &labels), None);
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_bound_are_counted_by_their_attempts() {
    let (metrics, began) = (working(), Instant::now());
    for attempts in [1, 2, 2, 14, 15, 40] {
        metrics.binding();
        let placement =
            Placement { profile: 0, began, first_attempt: began, attempts, was_flushed: attempts == 40 };
        metrics.bound(placement, began + Duration::from_secs(1));
    }
    metrics.binding();
    assert_eq!(read(&metrics, "scheduler_goroutines", &["binding"]), Some(1.0));
    metrics.not_bound(
        Placement { profile: 0, began, first_attempt: began, attempts: 1, was_flushed: false },
        began,
    );
    metrics.failed(0, Verdict::Unschedulable, Duration::ZERO);
    for (result, expected) in [("scheduled", 6.0), ("error", 1.0), ("unschedulable", 1.0)] {
        let labels = [result, "default-scheduler"];
        assert_eq!(read(&metrics, "scheduler_schedule_attempts_total", &labels), Some(expected));
        assert_eq!(read(&metrics, "scheduler_scheduling_attempt_duration_seconds", &labels), Some(expected));
    }
    for (attempts, expected) in [("1", 1.0), ("2", 2.0), ("14", 1.0), ("15+", 2.0)] {
        assert_eq!(
            read(&metrics, "scheduler_pod_scheduling_sli_duration_seconds", &[attempts]),
            Some(expected)
        );
    }
    assert_eq!(read(&metrics, "scheduler_pod_scheduling_attempts", &[]), Some(6.0));
    assert_eq!(read(&metrics, "scheduler_pod_scheduled_after_flush_total", &[]), Some(1.0));
    assert_eq!(read(&metrics, "scheduler_goroutines", &["binding"]), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn attempt_shows_its_extension_points_and_the_plugins_that_were_timed() {
    let (metrics, profile) = (working(), default_profile());
    let index = profile.filter[0];
    let mut meter = Meter::new(Instant::now);
    meter.begin(true);
    meter.time((Stage::Filter, index), 1, || (), |()| Status::Refused(Code::Unresolvable));
    meter.ended(Stage::Filter, Status::Success);
    meter.decided();
    metrics.decided(0, &meter);
    let labels = ["Filter", "Success", "default-scheduler"];
    assert_eq!(read(&metrics, "scheduler_framework_extension_point_duration_seconds", &labels), Some(1.0));
    let labels = [profile.plugin(index).name(), "Filter", "UnschedulableAndUnresolvable"];
    assert_eq!(read(&metrics, "scheduler_plugin_execution_duration_seconds", &labels), Some(1.0));
    assert_eq!(read(&metrics, "scheduler_scheduling_algorithm_duration_seconds", &[]), Some(1.0));
}

#[test]
fn requests_about_pods_are_counted_only_if_their_gate_is_on() {
    let metrics = working();
    for is_on in [false, true] {
        if is_on {
            metrics.count_calls();
        }
        metrics.call_waits(Call::Binding);
        metrics.call_waits(Call::Binding);
        metrics.call_waits_no_more(Call::Binding);
        metrics.called(Call::Binding, true, Duration::ZERO);
        metrics.called(Call::StatusPatch, false, Duration::ZERO);
        let read = |name, labels: &[&str]| read(&metrics, name, labels);
        let one = is_on.then_some(1.0);
        for (call, result) in [("pod_binding", "success"), ("pod_status_patch", "error")] {
            assert_eq!(read("scheduler_async_api_call_execution_total", &[call, result]), one);
            assert_eq!(read("scheduler_async_api_call_execution_duration_seconds", &[call, result]), one);
        }
        assert_eq!(read("scheduler_pending_async_api_calls", &["pod_binding"]), one);
    }
}

/// Returns a claim with a device of a driver, which has to be prepared or not.
fn claim(driver: &str, conditions: &[&str]) -> ResourceClaim {
    let result = json!({"request": "r", "driver": driver, "pool": "p", "device": "a", "bindingConditions": conditions});
    from_value(json!({"spec": {}, "status": {"allocation": {"devices": {"results": [result]}}}})).unwrap()
}

#[test]
fn waits_for_devices_are_counted_by_their_drivers_of_which_only_so_many_are_shown() {
    let metrics = working();
    let (wait, allocations) = (
        "scheduler_dra_bindingconditions_wait_duration_seconds",
        "scheduler_dra_bindingconditions_allocations_total",
    );
    let second = Duration::from_secs(1);
    let claims = || vec![claim("slow", &["ready"]), claim("slow", &["ready"]), claim("quick", &[])];
    for (waited, status) in [
        (Waited::Success, "success"),
        (Waited::Failure, "failure"),
        (Waited::Timeout, "timeout"),
        (Waited::Error, "error"),
    ] {
        metrics.devices_bound(0, &Held::for_tests(claims(), (waited, second)));
        let of = |name, driver| read(&metrics, name, &["default-scheduler", driver, status]);
        assert_eq!((of(wait, "slow"), of(wait, "quick")), (Some(2.0), Some(1.0)), "{status}");
        assert_eq!((of(allocations, "slow"), of(allocations, "quick")), (Some(2.0), None), "{status}");
    }
    for number in 0..2 * limits::SHOWN_DRIVERS {
        let claims = vec![claim(&format!("d{number}"), &["ready"])];
        metrics.devices_bound(0, &Held::for_tests(claims, (Waited::Success, second)));
    }
    for name in [wait, allocations] {
        let series = metrics.series().into_iter().find(|series| series.measure.name == name).unwrap();
        assert!(series.values.len() <= limits::SHOWN_DRIVERS, "{name}: {}", series.values.len());
    }
}

#[test]
fn claims_that_are_made_for_pods_are_counted() {
    let metrics = working();
    for made in [None, Some(true), Some(true), Some(false)] {
        let mut held = Held::default();
        held.made = made;
        metrics.devices_bound(0, &held);
    }
    let of = |status| read(&metrics, "scheduler_resourceclaim_creates_total", &[status]);
    assert_eq!((of("success"), of("failure")), (Some(2.0), Some(1.0)));
}
