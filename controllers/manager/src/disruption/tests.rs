//! Budgets and pods in, judgements out; and the controller with the in-memory API.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use serde_json::{Value, json};

use super::plan::{
    ALLOWED, Expected, Input, Judgement, expected, failed, judge, needs_scale, overdue, unmanaged,
};
use crate::meta::{name, uid};
use crate::testing::{at, meta, pod, running, slim, time};

/// The time of all judgements.
const NOW: i64 = 1000;

fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
    serde_json::from_value(json!({"metadata": meta("b"), "spec": spec, "status": status})).unwrap()
}

fn ready(name: &str) -> v1::Pod {
    running(name, "n", "10.0.0.1")
}

fn deleted(name: &str) -> v1::Pod {
    let mut pod = ready(name);
    pod.metadata.deletion_timestamp = time(NOW);
    pod
}

fn judged(budget: &PodDisruptionBudget, pods: Vec<v1::Pod>, expected: (i32, i32)) -> Judgement {
    judged_by(budget, pods, expected, (true, NOW))
}

/// Judges with a cache that shows all evictions or may not, at this second. Overdue pods are there.
fn judged_by(
    budget: &PodDisruptionBudget,
    pods: Vec<v1::Pod>,
    (expected, healthy): (i32, i32),
    (shows_evictions, second): (bool, i64),
) -> Judgement {
    let pods = slim(pods);
    let (expected, now) = (Expected { pods: expected, healthy }, at(second));
    let overdue = overdue(budget, &pods, now);
    let not_deleted = &overdue.iter().map(|pod| uid(&pod.metadata).to_owned()).collect();
    judge(&Input { budget, pods: &pods, expected, shows_evictions, not_deleted, now })
}

/// Allowed, healthy, desired, expected.
fn numbers(status: &PodDisruptionBudgetStatus) -> (i32, i32, i32, i32) {
    let number = |field: Option<i32>| field.unwrap_or_default();
    (
        number(status.disruptions_allowed),
        number(status.current_healthy),
        number(status.desired_healthy),
        number(status.expected_pods),
    )
}

#[test]
fn numbers_follow_from_amounts_and_scales() {
    let (unreadable, none) = (None, Some((0, 0)));
    for (spec, pods, scale, wanted, scaled) in [
        // Numbers of pods to stay need no controllers.
        (json!({"minAvailable": 3}), 0, 99, Some((0, 3)), false),
        (json!({"minAvailable": 3}), 4, 99, Some((4, 3)), false),
        // All others are about the pods that the controllers want.
        (json!({"maxUnavailable": 2}), 1, 7, Some((7, 5)), true),
        (json!({"maxUnavailable": 2}), 1, 5, Some((5, 3)), true),
        (json!({"maxUnavailable": 0}), 1, 5, Some((5, 5)), true),
        (json!({"maxUnavailable": 9}), 1, 5, Some((5, 0)), true),
        (json!({"maxUnavailable": "30%"}), 1, 7, Some((7, 4)), true),
        (json!({"maxUnavailable": "30%"}), 1, 3, Some((3, 2)), true),
        (json!({"maxUnavailable": "100%"}), 1, 3, Some((3, 0)), true),
        (json!({"minAvailable": "28%"}), 1, 0, none, true),
        (json!({"minAvailable": "20%"}), 1, 10, Some((10, 2)), true),
        (json!({"minAvailable": "34%"}), 1, 3, Some((3, 2)), true),
        (json!({"minAvailable": "28%"}), 1, 11, Some((11, 4)), true),
        (json!({"minAvailable": "28%"}), 1, 22, Some((22, 7)), true),
        (json!({"minAvailable": "100%"}), 1, i32::MAX, Some((i32::MAX, i32::MAX)), true),
        // Validation refuses both at once, and amounts of other forms.
        (json!({"minAvailable": 1, "maxUnavailable": 1}), 1, 5, Some((5, 4)), true),
        (json!({}), 3, 9, none, false),
        (json!({"minAvailable": "3"}), 1, 9, unreadable, true),
        (json!({"maxUnavailable": "x%"}), 1, 9, unreadable, true),
    ] {
        let of = budget(spec.clone(), Value::Null).spec.unwrap();
        let found = expected(&of, pods, scale).ok().map(|found| (found.pods, found.healthy));
        assert_eq!((found, needs_scale(&of)), (wanted, scaled), "{spec}");
    }
}

#[test]
fn disruptions_are_allowed_while_more_pods_are_healthy_than_must_be() {
    let of = budget(json!({"minAvailable": 3}), Value::Null);
    let names = ["a", "b", "c", "d", "e"];
    for (healthy, allowed) in [(0, 0), (1, 0), (3, 0), (4, 1), (5, 2)] {
        let count = i32::try_from(healthy).unwrap();
        let pods = names.iter().take(healthy).map(|name| ready(name)).collect();
        let status = judged(&of, pods, (count, 3)).status;
        assert_eq!(numbers(&status), (allowed, count, 3, count));
        assert_eq!(status.observed_generation, Some(1));
        let condition = &status.conditions.as_ref().unwrap()[0];
        let wanted = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), wanted);
        assert_eq!(condition.observed_generation, Some(1));
    }
    // Pods that are pending, not ready or being deleted are not healthy, but expected.
    let pods = vec![ready("a"), pod("b"), deleted("c")];
    assert_eq!(numbers(&judged(&of, pods, (3, 0)).status), (1, 1, 0, 3));
    // A budget that expects no pods allows nothing: their controllers are not known yet.
    assert_eq!(numbers(&judged(&of, vec![ready("a")], (0, 0)).status), (0, 1, 0, 0));
}

#[test]
fn evicted_pods_do_not_count_until_their_deletion_shows_or_two_minutes_have_passed() {
    let disrupted = json!({
        "going": time(NOW),            // Its deletion shows.
        "late": time(NOW - 180),       // Nobody deleted it.
        "waiting": time(NOW - 60),
        "fresh": time(NOW),
        "gone": time(NOW),
    });
    let of = budget(
        json!({"minAvailable": 1}),
        json!({"disruptedPods": disrupted, "disruptionsAllowed": 0,
        "currentHealthy": 0, "desiredHealthy": 1, "expectedPods": 4}),
    );
    let pods = vec![deleted("going"), ready("late"), ready("waiting"), ready("fresh"), ready("other")];
    let judgement = judged(&of, pods, (5, 1));
    assert_eq!(numbers(&judgement.status), (1, 2, 1, 5), "late and other are healthy");
    let left: Vec<String> = judgement.status.disrupted_pods.unwrap().into_keys().collect();
    assert_eq!(left, ["fresh", "waiting"]);
    assert_eq!(judgement.recheck, Some(Duration::from_secs(60)));

    // A cache that is older than the evictions may show a former pod of a name, or not show a new one.
    let pods = vec![deleted("going"), ready("other")];
    let judgement = judged_by(&of, pods, (2, 1), (false, NOW));
    let left: Vec<String> = judgement.status.disrupted_pods.unwrap().into_keys().collect();
    assert_eq!(left, ["fresh", "going", "gone", "late", "waiting"]);
    assert_eq!(
        (judgement.status.current_healthy, judgement.recheck),
        (Some(1), Some(Duration::from_secs(60)))
    );

    let judgement = judged_by(&of, vec![ready("other")], (2, 1), (false, NOW + 120 + 3600));
    assert_eq!(judgement.status.disrupted_pods, None, "the cache will not show them any more");

    // One that is overdue may have been deleted after all, and the cache does not show it.
    let pods = slim([ready("late"), ready("other")]);
    let late = overdue(&of, &pods, at(NOW));
    assert_eq!(late.iter().map(|pod| name(&pod.metadata)).collect::<Vec<_>>(), ["late"]);
    let expected = Expected { pods: 2, healthy: 1 };
    let unknown = &BTreeSet::new();
    let input = Input {
        budget: &of,
        pods: &pods,
        expected,
        shows_evictions: true,
        not_deleted: unknown,
        now: at(NOW),
    };
    let judgement = judge(&input);
    assert_eq!((judgement.status.current_healthy, judgement.recheck), (Some(1), None));
    assert!(judgement.status.disrupted_pods.unwrap().contains_key("late"));

    let at_the_end = budget(
        json!({}),
        json!({"disruptedPods": {"p": time(NOW - 120)},
        "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 1}),
    );
    let judgement = judged(&at_the_end, vec![ready("p")], (1, 0));
    assert_eq!(judgement.status.disrupted_pods, None);
    assert_eq!((judgement.status.current_healthy, judgement.recheck), (Some(1), None));
}

#[test]
fn a_judgement_of_what_was_judged_changes_nothing() {
    let mut of = budget(
        json!({"minAvailable": 1}),
        json!({"disruptedPods": {"a": time(NOW - 5)},
        "disruptionsAllowed": 9, "currentHealthy": 9, "desiredHealthy": 9, "expectedPods": 9,
        "conditions": [{"type": "Other", "status": "True", "reason": "Test", "message": "kept",
            "lastTransitionTime": time(0)}]}),
    );
    let pods = || vec![ready("a"), ready("b"), ready("c")];
    let first = judged(&of, pods(), (3, 1)).status;
    let conditions = first.conditions.as_ref().unwrap();
    assert_eq!((conditions.len(), conditions[0].message.as_str()), (2, "kept"));
    of.status = Some(first.clone());
    let again = judged_by(&of, pods(), (3, 1), (false, NOW + 50)).status;
    assert_eq!(again, first, "since when the condition is True stays");
    let none = judged(&of, vec![ready("a")], (3, 1)).status;
    let condition = &none.conditions.unwrap()[1];
    assert_eq!((condition.status.as_str(), condition.type_.as_str()), ("False", ALLOWED));
}

#[test]
fn a_budget_that_cannot_be_judged_allows_nothing_and_says_why() {
    let mut of = budget(
        json!({"minAvailable": "5%"}),
        json!({"observedGeneration": 1,
        "disruptedPods": {"a": time(NOW - 5)}, "disruptionsAllowed": 2, "currentHealthy": 4,
        "desiredHealthy": 2, "expectedPods": 4}),
    );
    of.metadata.generation = Some(2);
    let status = failed(&of, "found no controllers".to_owned(), at(NOW));
    assert_eq!(numbers(&status), (0, 4, 2, 4));
    assert_eq!(status.observed_generation, Some(1), "its present form was not judged");
    assert_eq!(status.disrupted_pods, of.status.as_ref().unwrap().disrupted_pods);
    let condition = &status.conditions.as_ref().unwrap()[0];
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "SyncFailed"));
    assert_eq!(
        (condition.message.as_str(), condition.observed_generation),
        ("found no controllers", Some(1))
    );
    assert_eq!(numbers(&failed(&budget(json!({}), Value::Null), String::new(), at(NOW))), (0, 0, 0, 0));
    // The next judgement takes the message back.
    of.status = Some(status);
    let condition = &judged(&of, vec![ready("b")], (1, 0)).status.conditions.unwrap()[0];
    assert_eq!((condition.message.as_str(), condition.reason.as_str()), ("", "SufficientPods"));
}

#[test]
fn pods_without_a_controller_are_reported_in_the_words_of_kubernetes() {
    let selector = json!({"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [
        {"key": "c", "operator": "In", "values": ["x", "y"]}, {"key": "d", "operator": "Exists"}]});
    let text = unmanaged(Some(&serde_json::from_value(selector).unwrap()));
    let wanted = "(selector: &LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},\
        MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:c,Operator:In,Values:[x y],},\
        LabelSelectorRequirement{Key:d,Operator:Exists,Values:[],},},}) were found to be unmanaged. As a result, ";
    assert!(text.contains(wanted), "{text}");
    assert!(unmanaged(None).contains("(selector: nil)"));
}
