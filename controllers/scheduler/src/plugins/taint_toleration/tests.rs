//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cluster::NodeFacts;
use crate::testing;

/// Returns a node with taints, each `KEY=VALUE:EFFECT`.
fn tainted(name: &str, taints: &[&str]) -> Arc<NodeFacts> {
    let taint = |text: &&str| {
        let (rest, effect) = text.split_once(':').unwrap();
        let (key, value) = rest.split_once('=').unwrap();
        json!({"key": key, "value": value, "effect": effect})
    };
    let taints: Vec<Value> = taints.iter().map(taint).collect();
    testing::node(name, json!({"spec": {"taints": taints}}))
}

fn tolerating(tolerations: Value) -> Arc<PodInfo> {
    testing::pod_of("p", json!({"tolerations": tolerations}))
}

fn equal(key: &str, value: &str, effect: &str) -> Value {
    json!({"key": key, "operator": "Equal", "value": value, "effect": effect})
}

fn admits(tolerations: Value, taints: &[&str]) -> bool {
    let cluster = testing::cluster(&[tainted("a", taints)], &[]);
    let refusal = testing::refusal(TaintToleration, &tolerating(tolerations), &cluster, "a");
    if let Some(refusal) = &refusal {
        let expected = Refusal::unresolvable("node(s) had untolerated taint(s)").by("TaintToleration");
        assert_eq!(*refusal, expected);
    }
    refusal.is_none()
}

#[test]
fn taints_that_repel_must_be_tolerated() {
    let user1 = ["dedicated=user1:NoSchedule"];
    assert!(!admits(json!([]), &user1));
    assert!(admits(json!([equal("dedicated", "user1", "NoSchedule")]), &user1));
    assert!(!admits(json!([equal("dedicated", "user2", "NoSchedule")]), &user1));
    assert!(admits(json!([{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]), &user1));
    assert!(!admits(json!([equal("dedicated", "user1", "NoExecute")]), &user1));
    assert!(
        admits(json!([{"key": "dedicated", "operator": "Equal", "value": "user1"}]), &user1),
        "all effects"
    );
    let two = ["dedicated=user1:NoSchedule", "foo=bar:NoExecute"];
    let first = equal("dedicated", "user1", "NoSchedule");
    assert!(!admits(json!([first]), &two));
    assert!(admits(json!([first, {"key": "foo", "operator": "Exists"}]), &two));
    assert!(admits(json!([{"operator": "Exists"}]), &two));
}

#[test]
fn taints_that_only_ask_repel_nobody() {
    assert!(admits(json!([equal("other", "x", "NoSchedule")]), &["foo=bar:PreferNoSchedule"]));
    assert!(admits(json!([]), &["foo=bar:PreferNoSchedule"]));
}

#[test]
fn numbers_are_not_compared_without_their_gate() {
    let than = |operator: &str, value: &str| json!({"key": "sla", "operator": operator, "value": value, "effect": "NoSchedule"});
    for (operator, value) in [("Gt", "750"), ("Gt", "990"), ("Lt", "990"), ("Lt", "750"), ("Gt", "high")] {
        assert!(!admits(json!([than(operator, value)]), &["sla=950:NoSchedule"]), "{operator} {value}");
    }
    let mixed = json!([than("Gt", "750"), equal("sla", "950", "NoSchedule")]);
    assert!(admits(mixed.clone(), &["sla=950:NoSchedule"]));
    assert!(!admits(mixed, &["sla=950:NoSchedule", "sla=960:NoExecute"]));
}

#[test]
fn nodes_with_fewer_untolerated_requests_to_stay_away_score_higher() {
    let scores = |tolerations: Value, nodes: &[&[&str]]| {
        let nodes: Vec<_> =
            nodes.iter().enumerate().map(|(i, taints)| tainted(&format!("n{i}"), taints)).collect();
        testing::scores(&TaintToleration, &tolerating(tolerations), &testing::cluster(&nodes, &[])).unwrap()
    };
    let ask = "PreferNoSchedule";
    let foo = json!([equal("foo", "bar", ask)]);
    assert_eq!(
        scores(foo.clone(), &[&["foo=bar:PreferNoSchedule"], &["foo=blah:PreferNoSchedule"]]),
        [100, 0]
    );
    let (cpu, disk) = ("cpu-type=arm64:PreferNoSchedule", "disk-type=ssd:PreferNoSchedule");
    let nodes: [&[&str]; 3] = [&[], &[cpu], &[cpu, disk]];
    let both = json!([equal("cpu-type", "arm64", ask), equal("disk-type", "ssd", ask)]);
    assert_eq!(scores(both, &nodes), [100, 100, 100], "tolerated taints do not count");
    assert_eq!(scores(foo, &nodes), [100, 50, 0]);
    let hard = json!([equal("cpu-type", "arm64", "NoSchedule"), equal("disk-type", "ssd", "NoSchedule")]);
    let nodes: [&[&str]; 3] = [&[], &["cpu-type=arm64:NoSchedule"], &[cpu, disk]];
    assert_eq!(scores(hard, &nodes), [100, 100, 0], "other effects do not count");
    assert_eq!(scores(json!([]), &[&[], &[cpu]]), [100, 0]);
    assert_eq!(scores(json!([]), &[&[], &[]]), [100, 100]);
    let greater = json!([{"key": "sla", "operator": "Gt", "value": "950", "effect": ask}]);
    assert_eq!(scores(greater, &[&["sla=800:PreferNoSchedule"], &["sla=999:PreferNoSchedule"]]), [0, 0]);
}

#[test]
fn nodes_that_become_tolerable_wake_the_pod() {
    let pod = tolerating(json!([equal("foo", "bar", "NoSchedule")]));
    let (good, bad) = (tainted("a", &["foo=bar:NoSchedule"]), tainted("a", &["foo=other:NoSchedule"]));
    let hint = |old, new| testing::node_hint(&TaintToleration, &pod, old, Some(new));
    assert_eq!(hint(None, &bad), Hint::Skip);
    assert_eq!(hint(None, &good), Hint::Queue);
    assert_eq!(hint(Some(&good), &good), Hint::Skip);
    assert_eq!(hint(Some(&bad), &good), Hint::Queue);
    assert_eq!(hint(Some(&good), &bad), Hint::Skip);
}

#[test]
fn tolerations_of_the_pod_itself_wake_it() {
    let pod = tolerating(json!([]));
    let (same, other) = (tolerating(json!([{"operator": "Exists"}])), testing::pod("other", json!({})));
    assert_eq!(testing::pod_hint(&TaintToleration, &pod, Some(&pod), Some(&same)), Hint::Queue);
    assert_eq!(testing::pod_hint(&TaintToleration, &pod, Some(&other), Some(&other)), Hint::Skip);
}
