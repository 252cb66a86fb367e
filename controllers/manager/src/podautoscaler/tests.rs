//! Pods by what is known of them, requests, stabilization, and what is remembered.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, from_value, json};

use super::behavior::Behavior;
use super::groups::{Groups, group, requests};
use super::history::{History, unknown_until};
use super::judgement::{Demand, Event, Judgement, Next, Rescale, Settings};
use super::metric::amount;
use super::replicas::{Sample, Samples};
use super::tables::{STARTUP, ago, autoscaler, now, warning};
use super::{Memory, may_be_done, offset};
use crate::limits;
use crate::testing::{meta, slim};

#[test]
fn pods_are_sorted_by_what_their_samples_tell() {
    // Phase, age, readiness and its age, age and window of the sample: what follows for the CPU, and for other
    // resources.
    for (phase, started, ready, sample, expected) in [
        ("Succeeded", Some(0), None, Some((0, 60)), "unready ready"),
        ("Running", None, Some(("True", 30)), Some((0, 30)), "unready ready"),
        ("Running", Some(60), Some(("True", 30)), Some((0, 30)), "ready ready"),
        ("Running", Some(60), Some(("True", 30)), Some((0, 60)), "unready ready"),
        ("Running", Some(60), Some(("False", 30)), Some((0, 30)), "unready ready"),
        ("Running", Some(600), Some(("False", 594)), Some((0, 60)), "unready ready"),
        ("Running", Some(180), Some(("True", 180)), Some((600, 60)), "ready ready"),
        ("Running", Some(600), Some(("False", 540)), Some((0, 60)), "ready ready"),
        ("Running", Some(600), Some(("False", 590)), Some((0, 60)), "ready ready"),
        ("Running", Some(180), None, None, "missing missing"),
        ("Pending", None, None, None, "unready unready"),
        ("Pending", None, None, Some((0, 60)), "unready unready"),
        ("Failed", None, None, Some((0, 60)), "ignored ignored"),
        ("Deleted", None, None, Some((0, 60)), "ignored ignored"),
    ] {
        let conditions = ready.map(|(status, age)| {
            json!([{"type": "Ready", "status": status, "lastTransitionTime": Time(ago(age))}])
        });
        let status =
            json!({"phase": phase, "startTime": started.map(|age| Time(ago(age))), "conditions": conditions});
        let mut pod =
            v1::Pod { metadata: meta("p"), status: from_value(status).unwrap(), ..v1::Pod::default() };
        pod.metadata.deletion_timestamp = (phase == "Deleted").then(|| Time(ago(0)));
        let samples: Samples = sample
            .map(|(age, window)| {
                let sample = Sample { value: 1, at: ago(age), window: SignedDuration::from_secs(window) };
                ("p".to_owned(), sample)
            })
            .into_iter()
            .collect();
        let pods = slim([pod]);
        let found = ["cpu", "memory"].map(|resource| {
            let Groups { ready, unready, missing, ignored } =
                group(&pods, &samples, Some(resource), STARTUP, now());
            let counts = [ready, unready.len(), missing.len(), ignored.len()];
            assert_eq!(counts.iter().sum::<usize>(), 1);
            let names = ["ready", "unready", "missing", "ignored"];
            names[counts.iter().position(|count| *count == 1).unwrap()]
        });
        assert_eq!(found.join(" "), expected, "{phase} {started:?} {ready:?} {sample:?}");
    }
}

#[test]
fn requests_are_those_of_the_pod_of_all_containers_or_of_one() {
    let container = |name: &str, cpu: Option<&str>| {
        let requests = cpu.map(|cpu| json!({"cpu": cpu}));
        json!({"name": name, "resources": {"requests": requests}})
    };
    let (one, two, bare) =
        (container("one", Some("100m")), container("two", Some("50m")), container("bare", None));
    let mut sidecar = container("sidecar", Some("50m"));
    sidecar["restartPolicy"] = json!("Always");
    let init = container("init", Some("20m"));
    let both = json!({"containers": [one, two]});
    let whole = |requests: Value, containers: Value| json!({"resources": {"requests": requests}, "containers": containers});
    for (spec, container, expected) in [
        (both.clone(), None, "150"),
        (both.clone(), Some("one"), "100"),
        (both, Some("three"), "container three not found in Pod p"),
        (json!({"containers": [bare, two]}), None, "missing request for cpu in container bare of Pod p"),
        (json!({"containers": [bare, two]}), Some("two"), "50"),
        (whole(json!({"cpu": "800m"}), json!([one, two])), None, "800"),
        (whole(json!({"cpu": "800m"}), json!([bare, two])), None, "800"),
        (whole(json!({"cpu": "800m"}), json!([one, two])), Some("one"), "100"),
        (whole(json!({"memory": "1Gi"}), json!([one, two])), None, "150"),
        (whole(json!({"memory": "1Gi"}), json!([bare])), None, "missing pod-level request for cpu in Pod p"),
        (json!({"containers": [one], "initContainers": [init, sidecar]}), None, "150"),
        (json!({"containers": [one], "initContainers": [init, sidecar]}), Some("sidecar"), "50"),
        (
            json!({"containers": [one], "initContainers": [init, sidecar]}),
            Some("init"),
            "container init not found in Pod p",
        ),
    ] {
        let pod = v1::Pod { metadata: meta("p"), spec: from_value(spec.clone()).unwrap(), status: None };
        let found = requests(&slim([pod]), "cpu", container);
        let found = found.map_or_else(|error| error.to_string(), |requests| requests["p"].to_string());
        assert_eq!(found, expected, "{spec} {container:?}");
    }
    assert_eq!(requests(&[], "cpu", None), Ok(std::collections::BTreeMap::new()));
}

/// Returns entries from numbers and their ages in seconds.
fn entries(list: &[(i32, i64)]) -> Vec<(Timestamp, i32)> {
    list.iter().map(|(number, age)| (ago(*age), *number)).collect()
}

#[test]
fn without_rules_the_highest_recommendation_of_the_window_counts() {
    for (past, recommended, expected) in [
        (&[][..], 5, 5),
        (&[(4, 120), (5, 60)], 3, 5),
        (&[(1, 120), (2, 60)], 3, 3),
        (&[(10, 600), (9, 540)], 3, 3),
        (&[(10, 600), (4, 60), (5, 120), (9, 540)], 3, 5),
        (&[(7, 300)], 3, 7),
        (&[(7, 301)], 3, 3),
    ] {
        let mut history = History::of(entries(past), Vec::new());
        let stabilized = history.stabilize(recommended, limits::HPA_DOWNSCALE_WINDOW, now());
        assert_eq!(stabilized.replicas, expected, "{past:?}");
        // The new one counts from now on.
        let later = now() + SignedDuration::from_secs(299);
        assert_eq!(
            history.stabilize(0, limits::HPA_DOWNSCALE_WINDOW, later).replicas,
            recommended,
            "{past:?}"
        );
    }
}

#[test]
fn with_rules_recommendations_of_both_windows_count() {
    for (past, present, recommended, [up, down], expected) in [
        (&[][..], 100, 5, [0, 0], 5),
        (&[(4, 120), (5, 60)], 100, 3, [0, 180], 5),
        (&[(4, 120), (5, 60)], 1, 7, [300, 0], 4),
        (&[(1, 120), (2, 60)], 100, 3, [300, 0], 3),
        (&[(4, 120), (5, 60)], 1, 3, [0, 300], 3),
        (&[(10, 600), (9, 540)], 100, 3, [0, 0], 3),
        (&[(10, 600), (9, 540)], 1, 100, [0, 0], 100),
        (&[(10, 600), (4, 60), (5, 120), (9, 540)], 100, 3, [0, 180], 5),
        (&[(10, 6000), (6, 60), (5, 120), (9, 180)], 1, 100, [300, 0], 5),
        (&[(2, 6000), (3, 180)], 2, 1, [300, 300], 2),
        (&[(2, 6000), (1, 180)], 2, 3, [300, 300], 2),
        (&[(7, 300)], 9, 3, [0, 300], 3),
        (&[(7, 299)], 9, 3, [0, 300], 7),
    ] {
        let rules = json!({"scaleUp": {"stabilizationWindowSeconds": up},
            "scaleDown": {"stabilizationWindowSeconds": down}});
        let behavior = Behavior::read(&from_value(rules).unwrap(), SignedDuration::ZERO);
        let mut history = History::of(entries(past), Vec::new());
        let stabilized = history.stabilize_both(&behavior, present, recommended, now());
        assert_eq!(stabilized.replicas, expected, "{past:?} {present} {recommended}");
        let reason = if recommended >= present { "ScaleUpStabilized" } else { "ScaleDownStabilized" };
        assert_eq!(stabilized.reason, reason);
    }
}

#[test]
fn changes_count_for_a_period_and_in_both_directions() {
    for (past, expected) in [
        (&[][..], 0),
        (&[(7, 61)], 0),
        (&[(7, 60)], 0),
        (&[(7, 58)], 7),
        (&[(7, 61), (6, 59)], 6),
        (&[(8, 29), (6, 59), (7, 61), (9, 61)], 14),
        (&[(7, 58), (6, 59)], 13),
        (&[(7, 58), (-6, 59)], 1),
    ] {
        let minute = SignedDuration::from_secs(60);
        let mut history = History::of(Vec::new(), entries(past));
        assert_eq!(history.change_within(minute, now()), Some(expected), "{past:?}");
        history.changed(10, 15, now());
        assert_eq!(history.change_within(minute, now()), Some(expected + 5), "{past:?}");
        history.changed(15, 10, now());
        assert_eq!(history.change_within(minute, now()), Some(expected), "{past:?}");
    }
}

#[test]
fn memory_is_bounded_and_what_it_lost_is_unknown() {
    let (mut history, hour) = (History::begin(1, None, ago(3600)), SignedDuration::from_secs(3600));
    for second in 0..1000 {
        let at = ago(1000 - second);
        history.stabilize(5, hour, at);
        history.changed(1, 2, at);
    }
    let most = i64::try_from(limits::HPA_HISTORY).unwrap();
    assert_eq!(history.change_within(SignedDuration::from_secs(most), now()), Some(most - 1));
    assert_eq!(history.change_within(SignedDuration::from_secs(most + 5), now()), None);
}

#[test]
fn changes_of_an_earlier_controller_are_unknown_until_it_can_have_made_none() {
    let judged = |desired: i32, scaled: Option<i64>| {
        let time = scaled.map(|age| Time(ago(age)));
        let conditions = json!([{"type": "AbleToScale", "status": "True"}]);
        let status = json!({"desiredReplicas": desired, "lastScaleTime": time, "conditions": conditions});
        Some(from_value::<HorizontalPodAutoscalerStatus>(status).unwrap())
    };
    for (status, expected) in [
        (None, Some(0)),
        (Some(HorizontalPodAutoscalerStatus { desired_replicas: 3, ..Default::default() }), Some(0)),
        (judged(3, None), None),
        (judged(3, Some(40)), Some(39)),
        (judged(4, Some(40)), Some(0)),
        (judged(4, None), Some(0)),
    ] {
        assert_eq!(unknown_until(status.as_ref(), 3, now()), expected.map(ago), "{status:?}");
    }
    let history = History::begin(3, Some(ago(39)), now());
    assert_eq!(history.change_within(SignedDuration::from_secs(39), now()), Some(0));
    assert_eq!(history.change_within(SignedDuration::from_secs(40), now()), None);
}

#[test]
fn while_changes_are_unknown_rules_allow_none_but_bounds_are_kept() {
    let settings = Settings::default();
    let long = json!({"policies": [{"type": "Pods", "value": 9, "periodSeconds": 60}]});
    let both = json!({"policies": [{"type": "Pods", "value": 9, "periodSeconds": 60},
        {"type": "Pods", "value": 2, "periodSeconds": 10}]});
    for (rules, expected) in [(long, 3), (both, 5)] {
        let behavior = from_value(json!({"scaleUp": rules})).unwrap();
        let hpa = autoscaler((2, 20), Some(behavior), Vec::new());
        let mut judgement = Judgement::new(&hpa, &settings, now());
        assert_eq!(judgement.begin(3), Next::Measure);
        let mut history = History::begin(3, Some(ago(30)), now());
        let demand = Demand { replicas: 20, metric: "qps".to_owned() };
        let replicas = judgement.limit(&demand, &mut history).map_or(3, |rescale| rescale.replicas);
        assert_eq!(replicas, expected);
        let (status, _) = judgement.end();
        let conditions = status.conditions.unwrap();
        let reasons = conditions.iter().map(|condition| condition.reason.as_deref().unwrap());
        assert_eq!(reasons.collect::<Vec<_>>(), ["ReadyForNewScale", "ScaleUpLimit"]);
        let next = Judgement::new(&hpa, &settings, now()).begin(1);
        assert!(matches!(next, Next::Rescale(Rescale { replicas: 2, .. })));
    }
}

#[test]
fn without_rules_growth_doubles_at_most() {
    let settings = Settings::default();
    for (bounds, present, wanted, expected) in [
        ((3, 8), 5, 7, "7 DesiredWithinRange"),
        ((2, 8), 3, 1, "2 TooFewReplicas"),
        ((0, 10), 1, 0, "0 DesiredWithinRange"),
        ((1, 10), 20, 1000, "10 TooManyReplicas"),
        ((1, 2000), 3, 1000, "6 ScaleUpLimit"),
        ((1, 2000), 1, 1000, "4 ScaleUpLimit"),
        ((1, i32::MAX), i32::MAX - 1, i32::MAX, "2147483647 DesiredWithinRange"),
    ] {
        let hpa = autoscaler(bounds, None, Vec::new());
        let mut judgement = Judgement::new(&hpa, &settings, now());
        judgement.assume(present);
        let demand = Demand { replicas: wanted, metric: "qps".to_owned() };
        let mut history = History::of(Vec::new(), Vec::new());
        let replicas = judgement.limit(&demand, &mut history).map_or(present, |rescale| rescale.replicas);
        let reason = judgement.end().0.conditions.unwrap().pop().unwrap().reason.unwrap();
        assert_eq!(format!("{replicas} {reason}"), expected);
    }
}

#[test]
fn amounts_are_written_as_servers_of_metrics_write_them() {
    for (milli, is_binary, expected) in [
        (1000, true, "1"),
        (1_000_000, true, "1k"),
        (1_536_000, true, "1536"),
        (2_097_152_000, true, "2Mi"),
        (3_145_728_500, true, "3145729"),
        (500, true, "500m"),
        (100, false, "100m"),
        (1, false, "1m"),
        (1500, false, "1500m"),
        (20_000, false, "20"),
        (0, false, "0"),
        (i64::MAX, false, "9223372036854775807m"),
    ] {
        assert_eq!(amount(milli, is_binary).0, expected, "{milli}");
    }
}

#[test]
fn warnings_are_repeated_after_a_while_and_bounded() {
    let mut memory = Memory::default();
    let event = |message: &str| warning("FailedGetScale", message);
    assert!(memory.is_news(&event("a"), now()));
    assert!(!memory.is_news(&event("a"), now() + SignedDuration::from_secs(299)));
    assert!(memory.is_news(&event("b"), now()));
    assert!(memory.is_news(&event("a"), now() + SignedDuration::from_secs(300)));
    let many = (0..1000).filter(|number| memory.is_news(&event(&number.to_string()), now())).count();
    assert!(many <= limits::HPA_WARNINGS, "{many}");
    let rescaled = Event { is_warning: false, reason: "SuccessfulRescale", message: String::new() };
    assert!(memory.is_news(&rescaled, now()) && memory.is_news(&rescaled, now()));
}

#[test]
fn only_a_refusal_proves_that_a_write_was_not_carried_out() {
    let refused =
        |code: u16| kube::Error::Api(kube::core::Status::failure("no", "no").with_code(code).boxed());
    assert!(!may_be_done(&refused(409)) && !may_be_done(&refused(422)) && !may_be_done(&refused(403)));
    assert!(may_be_done(&refused(500)) && may_be_done(&refused(504)));
    assert!(may_be_done(&kube::Error::LinesCodecMaxLineLengthExceeded));
}

#[test]
fn first_judgements_are_spread_over_the_period() {
    let period = limits::HPA_PERIOD;
    let offsets: Vec<_> = (0..5000).map(|number| offset(&format!("uid-{number}"), period)).collect();
    assert!(offsets.iter().all(|offset| !offset.is_zero() && *offset <= period));
    for tenth in 0..10 {
        let of_tenth = |offset: &&std::time::Duration| offset.as_millis() * 10 / period.as_millis() == tenth;
        let count = offsets.iter().filter(of_tenth).count();
        assert!((300..700).contains(&count), "{count} of 5000 in tenth {tenth}");
    }
}

#[test]
fn a_number_that_others_have_set_is_noted_before_it_is_changed() {
    let settings = Settings::default();
    let mut hpa = autoscaler((1, 10), None, Vec::new());
    let noted = |hpa: &HorizontalPodAutoscaler| {
        let mut judgement = Judgement::new(hpa, &settings, now());
        judgement.begin(3);
        let noted = judgement.set_by_others().map(|status| status.desired_replicas);
        judgement.cannot_rescale(&Rescale { replicas: 5, reason: String::new() }, "no answer");
        (noted, judgement.end().0.desired_replicas)
    };
    assert_eq!(noted(&hpa), (None, 0), "that it was not judged yet says as much");
    let judged = |desired: i32| {
        let conditions = json!([{"type": "AbleToScale", "status": "True"}]);
        from_value(json!({"desiredReplicas": desired, "conditions": conditions})).unwrap()
    };
    hpa.status = judged(3);
    assert_eq!(noted(&hpa), (None, 3));
    hpa.status = judged(5);
    assert_eq!(noted(&hpa), (Some(3), 3), "a later controller sees that 5 may have been written");
}
