//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cluster::NodeFacts;
use crate::testing;

fn node(features: &[&str]) -> Arc<NodeFacts> {
    testing::node("a", json!({"status": {"declaredFeatures": features}}))
}

fn in_user_namespace() -> Value {
    json!({"hostNetwork": true, "hostUsers": false})
}

fn restarting(list: &str) -> Value {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
    json!({list: [{"name": "c", "restartPolicyRules": rules}]})
}

#[test]
fn pods_need_features_for_what_they_ask() {
    let needs = |spec: Value| Required::of(&testing::pod_of("p", spec).spec).0;
    assert!(needs(json!({})).is_empty());
    assert!(needs(json!({"hostNetwork": true})).is_empty());
    assert!(needs(json!({"hostUsers": false})).is_empty());
    assert!(needs(json!({"hostNetwork": true, "hostUsers": true})).is_empty());
    assert_eq!(needs(in_user_namespace()), [USER_NAMESPACES]);
    assert_eq!(needs(restarting("containers")), [RESTART_ALL]);
    assert_eq!(needs(restarting("initContainers")), [RESTART_ALL]);
    let mut both = restarting("containers");
    testing::merge(&mut both, in_user_namespace());
    assert_eq!(needs(both), [RESTART_ALL, USER_NAMESPACES]);
    let once = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]);
    assert!(needs(json!({"containers": [{"name": "c", "restartPolicyRules": once}]})).is_empty());
}

#[test]
fn nodes_declare_all_features_that_a_pod_needs() {
    let mut both = restarting("containers");
    testing::merge(&mut both, in_user_namespace());
    let passes = |spec: &Value, features: &[&str]| {
        let cluster = testing::cluster(&[node(features)], &[]);
        let refusal =
            testing::refusal(NodeDeclaredFeatures, &testing::pod_of("p", spec.clone()), &cluster, "a");
        let reason = Refusal::unresolvable("node(s) didn't match Pod's required features");
        assert!(refusal.as_ref().is_none_or(|refusal| *refusal == reason.by("NodeDeclaredFeatures")));
        refusal.is_none()
    };
    assert!(passes(&json!({}), &[]));
    assert!(!passes(&in_user_namespace(), &[]));
    assert!(!passes(&in_user_namespace(), &["Other"]));
    assert!(passes(&in_user_namespace(), &[USER_NAMESPACES]));
    assert!(passes(&in_user_namespace(), &["Other", RESTART_ALL, USER_NAMESPACES]));
    assert!(!passes(&both, &[RESTART_ALL]));
    assert!(passes(&both, &[RESTART_ALL, USER_NAMESPACES]));
}

#[test]
fn pod_wakes_when_features_or_its_needs_change() {
    let plugin = NodeDeclaredFeatures;
    let (plain, needy) = (testing::pod_of("p", json!({})), testing::pod_of("p", in_user_namespace()));
    let (with, without) = (node(&[USER_NAMESPACES]), node(&[]));
    let of_node = |old, new| testing::node_hint(&plugin, &needy, old, Some(new));
    assert_eq!((of_node(None, &with), of_node(Some(&without), &with)), (Hint::Queue, Hint::Queue));
    assert_eq!(of_node(Some(&with), &with), Hint::Skip);
    let of_pod = |old, new| testing::pod_hint(&plugin, &needy, Some(old), Some(new));
    assert_eq!((of_pod(&plain, &needy), of_pod(&needy, &plain)), (Hint::Queue, Hint::Queue));
    assert_eq!(of_pod(&needy, &needy), Hint::Skip);
    let other = testing::pod_of("other", in_user_namespace());
    assert_eq!(of_pod(&testing::pod_of("other", json!({})), &other), Hint::Skip);
}
