//! The words of conditions and events.

use std::collections::BTreeSet;

use apiserver_client::ObjectKey;
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, MetricSpec};
use serde_json::{Value, from_value, json};

use super::history::History;
use super::judgement::{Event, Judgement, Next, Settings};
use super::metric::{Failure, Measured, Query, propose, query};
use super::selector::Selector;
use super::tables::{ago, autoscaler, now, spec, warning, workload};

fn failure(metric: &MetricSpec, answer: Result<Measured, String>) -> Failure {
    query(metric).and_then(|_| propose(metric, answer, "ns", &workload(&[]))).unwrap_err()
}

#[test]
fn failures_have_the_words_of_kubernetes() {
    let error = || Err("unable to fetch metrics from some metrics API: no".to_owned());
    let text = "unable to fetch metrics from some metrics API: no";
    for (metric, reason, message, whole) in [
        (
            "cpu:30%",
            "FailedGetResourceMetric",
            format!("failed to get cpu utilization: unable to get metrics for resource cpu: {text}"),
            "failed to get cpu resource metric value: failed to get cpu utilization: ",
        ),
        (
            "memory:1Gi",
            "FailedGetResourceMetric",
            format!("failed to get memory usage: unable to get metrics for resource memory: {text}"),
            "failed to get memory resource metric value: failed to get memory usage: ",
        ),
        (
            "main:30%",
            "FailedGetContainerResourceMetric",
            format!("failed to get cpu utilization: unable to get metrics for resource cpu: {text}"),
            "failed to get main container metric value: failed to get cpu utilization: ",
        ),
        (
            "pods:15",
            "FailedGetPodsMetric",
            format!("unable to get metric qps: {text}"),
            "failed to get pods metric value: unable to get metric qps: ",
        ),
        (
            "object:15",
            "FailedGetObjectMetric",
            format!("unable to get metric qps: Deployment on ns some/{text}"),
            "failed to get object metric value: unable to get metric qps: ",
        ),
        (
            "object/pod:15",
            "FailedGetObjectMetric",
            format!("unable to get metric qps: Deployment on ns some/{text}"),
            "failed to get object metric value: failed to get qps object metric: unable to get metric qps: ",
        ),
        (
            "external:15",
            "FailedGetExternalMetric",
            format!("unable to get external metric ns/qps/nil: {text}"),
            "failed to get qps external metric value: failed to get external metric qps: unable",
        ),
        (
            "external/pod:15",
            "FailedGetExternalMetric",
            format!("unable to get external metric ns/qps/nil: {text}"),
            "failed to get qps external metric value: failed to get qps external metric: unable",
        ),
        (
            "Cheese",
            "InvalidMetricSourceType",
            "unknown metric source type \"Cheese\"".to_owned(),
            "unknown metric source type \"Cheese\"",
        ),
    ] {
        let failure = failure(&spec(metric), error());
        assert_eq!((failure.reason, &failure.message), (reason, &message), "{metric}");
        assert!(failure.whole.starts_with(whole) && failure.whole.ends_with(&message), "{failure:?}");
    }
    let values = || Ok(Measured::Values(vec![90_000]));
    let unready =
        "unable to calculate ready pods: no pods returned by selector while calculating replica count";
    assert_eq!(failure(&spec("object:15"), values()).message, unready);
    assert_eq!(failure(&spec("external:15"), values()).message, unready);
}

#[test]
fn metrics_without_a_target_are_not_asked_for() {
    let without = |metric: &str, source: &str| {
        let mut spec = serde_json::to_value(spec(metric)).unwrap();
        spec[source]["target"] = json!({"type": "Value"});
        from_value::<MetricSpec>(spec).unwrap()
    };
    let resource = "invalid resource metric source: neither an average utilization target nor an average value (usage) \
                    target was set";
    for (spec, message) in [
        (without("cpu:30%", "resource"), resource),
        (without("main:30%", "containerResource"), resource),
        (
            without("object:15", "object"),
            "invalid object metric source: neither a value target nor an average value target was set",
        ),
        (
            without("external:15", "external"),
            "invalid external metric source: neither a value target nor an average value target was set",
        ),
    ] {
        assert_eq!(query(&spec), Ok(None));
        assert_eq!(failure(&spec, Err(String::new())).message, message);
    }
}

#[test]
fn selectors_of_metrics_are_asked_for_and_shown_as_kubernetes_does() {
    let with = |selector: Value| {
        let mut spec = serde_json::to_value(spec("external/pod:15")).unwrap();
        spec["external"]["metric"]["selector"] = selector;
        from_value::<MetricSpec>(spec).unwrap()
    };
    let expressions = json!({"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [
        {"key": "c", "operator": "In", "values": ["x", "y"]}, {"key": "d", "operator": "NotIn", "values": ["z"]},
        {"key": "e", "operator": "Exists"}, {"key": "f", "operator": "DoesNotExist"}]});
    let metric = with(expressions);
    let asked = Query::External {
        metric: "qps".to_owned(),
        selector: "a=1,b=2,c in (x,y),d notin (z),e,!f".to_owned(),
    };
    assert_eq!(query(&metric), Ok(Some(asked)));
    let proposal = propose(&metric, Ok(Measured::Values(vec![90_000])), "ns", &workload(&[])).unwrap();
    let shown = "external metric qps(&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},\
         MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:c,Operator:In,Values:[x y],},\
         LabelSelectorRequirement{Key:d,Operator:NotIn,Values:[z],},\
         LabelSelectorRequirement{Key:e,Operator:Exists,Values:[],},\
         LabelSelectorRequirement{Key:f,Operator:DoesNotExist,Values:[],},},})";
    assert_eq!((proposal.replicas, proposal.metric.as_str()), (6, shown));
    for (selector, message) in [
        (
            json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}),
            "\"Near\" is not a valid label selector operator",
        ),
        (
            json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
            "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
        ),
    ] {
        assert_eq!(query(&with(selector)).unwrap_err().message, message);
    }
}

/// Judges with `f`; returns the messages of the conditions and the events.
fn judged(hpa: &HorizontalPodAutoscaler, f: impl FnOnce(&mut Judgement<'_>)) -> (Vec<String>, Vec<Event>) {
    let settings = Settings::default();
    let mut judgement = Judgement::new(hpa, &settings, now());
    f(&mut judgement);
    let (status, events) = judgement.end();
    let conditions = status.conditions.unwrap_or_default().into_iter();
    (conditions.map(|condition| condition.message.unwrap()).collect(), events)
}

#[test]
fn conditions_and_events_have_the_words_of_kubernetes() {
    let hpa = autoscaler((1, 10), None, vec![spec("cpu:30%")]);
    let got = "the HPA controller was able to get the target's current scale";

    let (messages, events) = judged(&hpa, |judgement| judgement.cannot_get_scale("gone"));
    assert_eq!(messages, ["the HPA controller was unable to get the target's current scale: gone"]);
    assert_eq!(events, [warning("FailedGetScale", "gone")]);

    let (messages, events) = judged(&hpa, |judgement| {
        judgement.begin(3);
        judgement.has_no_selector();
    });
    assert_eq!(messages, [got, "the HPA target's scale is missing a selector"]);
    let required = "selector is required";
    assert_eq!(
        events,
        [warning("SelectorRequired", required), warning("FailedComputeMetricsReplicas", required)]
    );

    let (messages, events) = judged(&hpa, |judgement| {
        judgement.begin(3);
        judgement.has_invalid_selector(&Selector::parse("a b").unwrap_err());
    });
    let invalid = "couldn't convert selector into a corresponding internal selector object: unable to parse \
                   requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt";
    assert_eq!(messages, [got, invalid]);
    assert_eq!(
        events,
        [warning("InvalidSelector", invalid), warning("FailedComputeMetricsReplicas", invalid)]
    );

    let (messages, events) = judged(&hpa, |judgement| {
        judgement.begin(3);
        let keys = ["a", "b"].map(|name| ObjectKey::new("ns", name));
        judgement.is_ambiguous("app=web", &BTreeSet::from(keys));
    });
    let ambiguous = "pods by selector app=web are controlled by multiple HPAs: [ns/a ns/b]";
    assert_eq!(messages, [got, ambiguous]);
    assert_eq!(events[0], warning("AmbiguousSelector", ambiguous));

    let (messages, _) = judged(&hpa, |judgement| assert_eq!(judgement.begin(0), Next::Leave));
    assert_eq!(messages[1], "scaling is disabled since the replica count of the target is zero");

    let (messages, events) = judged(&hpa, |judgement| {
        judgement.begin(3);
        let failure =
            Failure { reason: "FailedGetPodsMetric", message: "no".to_owned(), whole: "pods: no".to_owned() };
        assert_eq!(judgement.measured(vec![Err(failure)]), None);
    });
    assert_eq!(messages[1], "the HPA was unable to compute the replica count: no");
    let all = "invalid metrics (1 invalid out of 1), first error is: pods: no";
    assert_eq!(events, [warning("FailedGetPodsMetric", "no"), warning("FailedComputeMetricsReplicas", all)]);
}

#[test]
fn a_rescale_is_reported_with_its_reason_also_if_it_fails() {
    let hpa = autoscaler((1, 10), None, vec![spec("external/pod:15")]);
    let rescale = |judgement: &mut Judgement<'_>| {
        judgement.begin(3);
        let proposal =
            propose(&spec("external/pod:15"), Ok(Measured::Values(vec![75_000])), "ns", &workload(&[]));
        let demand = judgement.measured(vec![proposal]).unwrap();
        judgement.limit(&demand, &mut History::begin(3, None, now())).unwrap()
    };
    let (messages, events) = judged(&hpa, |judgement| {
        let rescale = rescale(judgement);
        judgement.rescaled(&rescale, now());
    });
    let expected = [
        "the HPA controller was able to update the target scale to 5",
        "the HPA was able to successfully calculate a replica count from external metric qps(nil)",
        "the desired count is within the acceptable range",
    ];
    assert_eq!(messages, expected);
    let message = "New size: 5; reason: external metric qps(nil) above target".to_owned();
    assert_eq!(events, [Event { is_warning: false, reason: "SuccessfulRescale", message }]);

    let (messages, events) = judged(&hpa, |judgement| {
        let rescale = rescale(judgement);
        judgement.cannot_rescale(&rescale, "quota");
    });
    assert_eq!(messages[0], "the HPA controller was unable to update the target scale: quota");
    let message = "New size: 5; reason: external metric qps(nil) above target; error: quota";
    assert_eq!(events, [warning("FailedRescale", message)]);
}

#[test]
fn a_judgement_that_finds_nothing_new_changes_nothing() {
    let settings = Settings::default();
    let mut hpa = autoscaler((2, 6), None, vec![spec("external/pod:15")]);
    let mut history = History::begin(3, None, ago(60));
    let mut statuses = Vec::new();
    for second in [30, 15, 0] {
        let mut judgement = Judgement::new(&hpa, &settings, ago(second));
        judgement.begin(3);
        let proposal =
            propose(&spec("external/pod:15"), Ok(Measured::Values(vec![45_000])), "ns", &workload(&[]));
        let demand = judgement.measured(vec![proposal]).unwrap();
        assert_eq!(judgement.limit(&demand, &mut history), None);
        judgement.stays();
        let (status, events) = judgement.end();
        assert!(events.is_empty());
        statuses.push(status.clone());
        hpa.status = Some(status);
    }
    assert_eq!(statuses[0], statuses[1]);
    assert_eq!(statuses[1], statuses[2]);
}
