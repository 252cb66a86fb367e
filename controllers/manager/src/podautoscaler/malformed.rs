//! Autoscalers that no API server has validated.

use jiff::SignedDuration;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use proptest::prelude::*;
use serde_json::{Value, from_value, json};

use super::history::History;
use super::judgement::{Judgement, Next, Settings};
use super::metric::{Measured, Query, propose, query};
use super::replicas::{Sample, Workload};
use super::tables::{now, workload};
use crate::testing::{meta, running, slim};

/// Returns numbers that objects may have which were never validated.
fn any_number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(1), Just(-1), Just(i64::from(i32::MAX)), Just(i64::from(i32::MIN)), -50_i64..50]
}

fn any_rules() -> impl Strategy<Value = Value> {
    let policy = ("Pods|Percent|Odd", any_number(), any_number())
        .prop_map(|(kind, value, period)| json!({"type": kind, "value": value, "periodSeconds": period}));
    let select =
        prop_oneof![Just(Value::Null), Just(json!("Min")), Just(json!("Disabled")), Just(json!("Odd"))];
    let policies = prop_oneof![Just(Value::Null), prop::collection::vec(policy, 0..3).prop_map(Value::from)];
    let rules = (select, policies, any_number()).prop_map(|(select, policies, window)| {
        json!({"selectPolicy": select, "policies": policies, "stabilizationWindowSeconds": window, "tolerance": "odd"})
    });
    prop_oneof![Just(Value::Null), rules]
}

fn any_metric() -> impl Strategy<Value = Value> {
    let target =
        (any_number(), any_number(), "[0-9]{0,3}|-1|x").prop_map(|(kind, percent, amount)| match kind % 3 {
            0 => json!({"type": "Utilization", "averageUtilization": percent}),
            1 => json!({"type": "AverageValue", "averageValue": amount}),
            _ => json!({"type": "Value", "value": amount}),
        });
    let source = prop_oneof![
        Just(("Resource", "resource")),
        Just(("ContainerResource", "containerResource")),
        Just(("Pods", "pods")),
        Just(("Object", "object")),
        Just(("External", "external")),
        Just(("Resource", "external")),
    ];
    (source, target).prop_map(|((kind, field), target)| {
        json!({"type": kind, field: {"name": "cpu", "container": "c", "metric": {"name": "m"}, "target": target,
            "describedObject": {"kind": "K", "name": "n"}}})
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_malformed_autoscaler_is_judged_within_its_bounds(
        bounds in (any_number(), any_number()),
        (up, down) in (any_rules(), any_rules()),
        metrics in prop::collection::vec(any_metric(), 0..3),
        (replicas, present) in (any_number(), any_number()),
        values in prop::collection::vec(prop_oneof![Just(i64::MAX), Just(i64::MIN), any_number()], 0..3),
    ) {
        let spec = json!({"minReplicas": bounds.0, "maxReplicas": bounds.1, "metrics": metrics,
            "behavior": {"scaleUp": up, "scaleDown": down},
            "scaleTargetRef": {"kind": "K", "name": "n"}});
        let hpa = HorizontalPodAutoscaler { metadata: meta("hpa"), spec: from_value(spec).unwrap(), status: None };
        let (replicas, present) = (i32::try_from(replicas).unwrap(), i32::try_from(present).unwrap());
        let settings = Settings::default();
        let mut judgement = Judgement::new(&hpa, &settings, now());
        let pods = slim([running("p", "n", "10.0.0.1")]);
        let workload = Workload { replicas, present, tolerances: judgement.tolerances(), ..workload(&pods) };
        if judgement.begin(replicas) == Next::Measure {
            let specs = hpa.spec.metrics.as_ref().unwrap();
            let results = specs.iter().map(|spec| {
                let sample = |value| Sample { value, at: now(), window: SignedDuration::ZERO };
                let answer = match query(spec)? {
                    Some(Query::Object { .. } | Query::External { .. }) => Measured::Values(values.clone()),
                    _ => Measured::Pods(values.iter().map(|value| ("p".to_owned(), sample(*value))).collect()),
                };
                propose(spec, Ok(answer), "ns", &workload)
            });
            if let Some(demand) = judgement.measured(results.collect()) {
                let mut history = History::begin(replicas, None, now());
                if let Some(rescale) = judgement.limit(&demand, &mut history) {
                    let least = i64::from(rescale.replicas) >= bounds.0;
                    let most = i64::from(rescale.replicas) <= bounds.1;
                    prop_assert!(least && most, "{} of {bounds:?}", rescale.replicas);
                }
            }
        }
    }
}
