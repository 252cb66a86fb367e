//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

mod filter;
mod hint;
mod score;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, from_value, json};

use super::{InterPodAffinity, InterPodAffinityArgs};
use crate::cluster::{Cluster, NodeFacts, NodeId};
use crate::framework::{Change, Code, Feasible, Hint, Plugin, PreFilter, Versions};
use crate::pod::PodInfo;

fn pod(name: &str, namespace: &str, app: &str, affinity: Value) -> Arc<PodInfo> {
    let pod = json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "labels": {"app": app}},
        "spec": {"affinity": affinity, "containers": []}});
    Arc::new(PodInfo::parse(from_value::<Pod>(pod).unwrap()))
}

fn term(app: &str, more: Value) -> Value {
    let mut term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}});
    term.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    term
}

fn required(kind: &str, terms: &[Value]) -> Value {
    json!({kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

fn preferred(kind: &str, weight: i32, term: Value) -> Value {
    json!({kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, "podAffinityTerm": term}]}})
}

/// Returns three nodes: a and b in zone 1, x in zone 2, y in none.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    for (name, zone) in [("a", Some("1")), ("b", Some("1")), ("x", Some("2")), ("y", None)] {
        let labels = zone.map_or(json!({}), |zone| json!({"zone": zone}));
        let node = json!({"metadata": {"name": name, "labels": labels}});
        cluster.set_node(Arc::new(NodeFacts::parse(from_value(node).unwrap())));
    }
    cluster
}

/// Returns the names of the nodes that pass, and the refusal of the first that does not.
fn filter(cluster: &mut Cluster, pod: &PodInfo) -> Option<(String, Option<(String, Code)>)> {
    let plugin = InterPodAffinity::default();
    plugin.register(pod, cluster);
    let PreFilter::Filter { filter, .. } = plugin.pre_filter(pod, cluster) else { return None };
    let passing = cluster.nodes().filter(|node| filter.passes(node)).map(|node| node.name.to_string());
    let passing: String = passing.collect();
    let mut set = cluster.known().clone();
    filter.restrict(cluster, &mut set);
    assert_eq!(set.len(), passing.len(), "sets are restricted to what passes one by one");
    let other = cluster.nodes().find(|node| !filter.passes(node)).map(|node| filter.refusal(node));
    Some((passing, other.map(|refusal| (refusal.message(), refusal.code))))
}

#[test]
fn affinity_asks_for_a_domain_with_a_pod_that_all_terms_select() {
    let mut cluster = cluster();
    cluster.place(&pod("1", "ns", "db", Value::Null), &"x".into());
    let near = |terms: &[Value]| pod("p", "ns", "web", required("podAffinity", terms));
    let words = ("node(s) didn't match pod affinity rules".to_owned(), Code::Unresolvable);
    assert_eq!(filter(&mut cluster, &near(&[term("db", json!({}))])), Some(("x".to_owned(), Some(words))));
    let two = near(&[term("db", json!({})), term("web", json!({}))]);
    assert_eq!(filter(&mut cluster, &two).unwrap().0, "", "no pod is both");
    let elsewhere = near(&[term("db", json!({"namespaces": ["other"]}))]);
    assert_eq!(filter(&mut cluster, &elsewhere).unwrap().0, "");
}

#[test]
fn first_pod_of_a_group_runs_where_the_keys_are() {
    let mut cluster = cluster();
    let first = pod("p", "ns", "web", required("podAffinity", &[term("web", json!({}))]));
    assert_eq!(filter(&mut cluster, &first).unwrap().0, "abx", "y has no zone");
    cluster.place(&pod("1", "ns", "web", Value::Null), &"a".into());
    assert_eq!(filter(&mut cluster, &first).unwrap().0, "ab");
}

#[test]
fn anti_affinity_holds_for_the_pod_and_for_the_pods_that_are_there() {
    let away = required("podAntiAffinity", &[term("web", json!({}))]);
    let (mut theirs, mut own) = (cluster(), cluster());
    own.place(&pod("1", "ns", "web", Value::Null), &"a".into());
    let words = "node(s) didn't match pod anti-affinity rules".to_owned();
    let expected = Some(("xy".to_owned(), Some((words, Code::Unschedulable))));
    assert_eq!(filter(&mut own, &pod("p", "ns", "db", away.clone())), expected);
    let (holder, web) = (pod("2", "ns", "db", away), pod("p", "ns", "web", Value::Null));
    assert_eq!(filter(&mut theirs, &web), None, "nothing concerns the pod");
    theirs.place(&holder, &"a".into());
    let words = "node(s) didn't satisfy existing pods anti-affinity rules".to_owned();
    let expected = Some(("xy".to_owned(), Some((words, Code::Unschedulable))));
    assert_eq!(filter(&mut theirs, &web), expected);
    assert_eq!(filter(&mut theirs, &pod("p", "other", "web", Value::Null)), None);
    theirs.remove_pod(&holder);
    assert_eq!(filter(&mut theirs, &web), None);
}

#[test]
fn terms_select_namespaces_by_name_and_label() {
    let away = |more: Value| pod("2", "ns", "db", required("podAntiAffinity", &[term("web", more)]));
    let judge = |more: Value| {
        let mut cluster = cluster();
        cluster.set_namespace("other", Some([("team".to_owned(), "t".to_owned())].into()));
        cluster.place(&away(more), &"x".into());
        filter(&mut cluster, &pod("p", "other", "web", Value::Null)).map(|(passing, _)| passing)
    };
    assert_eq!(judge(json!({})), None);
    assert_eq!(judge(json!({"namespaces": ["other"]})).as_deref(), Some("aby"));
    assert_eq!(judge(json!({"namespaceSelector": {}})).as_deref(), Some("aby"));
    assert_eq!(judge(json!({"namespaceSelector": {"matchLabels": {"team": "t"}}})).as_deref(), Some("aby"));
    assert_eq!(judge(json!({"namespaceSelector": {"matchLabels": {"team": "u"}}})), None);
}

#[test]
fn terms_that_come_in_a_trial_are_not_seen_by_pods_that_no_term_concerned() {
    let mut cluster = cluster();
    let (plugin, web) = (InterPodAffinity::default(), pod("p", "ns", "web", Value::Null));
    plugin.register(&web, &mut cluster);
    let holder = pod("2", "ns", "db", required("podAntiAffinity", &[term("web", json!({}))]));
    let mut trial = cluster.trial();
    trial.add(&holder, NodeId::new(0));
    assert!(matches!(plugin.pre_filter(&web, &trial), PreFilter::Skip));
    drop(trial);
    cluster.place(&holder, &"a".into());
    assert!(matches!(plugin.pre_filter(&web, &cluster), PreFilter::Filter { .. }));
}

#[test]
fn nodes_that_change_their_domain_take_the_terms_of_their_pods_along() {
    let mut cluster = cluster();
    cluster.place(&pod("2", "ns", "db", required("podAntiAffinity", &[term("web", json!({}))])), &"x".into());
    let web = pod("p", "ns", "web", Value::Null);
    assert_eq!(filter(&mut cluster, &web).unwrap().0, "aby");
    let moved = json!({"metadata": {"name": "x", "labels": {"zone": "1"}}});
    cluster.set_node(Arc::new(NodeFacts::parse(from_value(moved).unwrap())));
    assert_eq!(filter(&mut cluster, &web).unwrap().0, "y");
    cluster.remove_node("x");
    assert_eq!(filter(&mut cluster, &web), None);
}

#[test]
fn scores_add_the_weights_of_both_sides() {
    let score = |cluster: &mut Cluster, pod: &PodInfo, args| {
        let plugin = InterPodAffinity::new(args);
        plugin.register(pod, cluster);
        let nodes: Feasible = cluster.known().iter().collect();
        Some(plugin.score(pod, cluster, &nodes)?.to_vec(nodes.list().len()))
    };
    let args = InterPodAffinityArgs::default();
    let mut cluster = cluster();
    cluster.place(&pod("1", "ns", "db", Value::Null), &"a".into());
    let own = pod("p", "ns", "web", preferred("podAffinity", 5, term("db", json!({}))));
    assert_eq!(score(&mut cluster, &own, args), Some(vec![100, 100, 0, 0]));
    let own = pod("p", "ns", "web", preferred("podAntiAffinity", 5, term("db", json!({}))));
    assert_eq!(score(&mut cluster, &own, args), Some(vec![0, 0, 100, 100]));
    let plain = pod("p", "ns", "web", Value::Null);
    assert_eq!(score(&mut cluster, &plain, args), None);
    cluster.place(&pod("2", "ns", "db", preferred("podAffinity", 3, term("web", json!({})))), &"x".into());
    cluster.place(&pod("3", "ns", "db", required("podAffinity", &[term("web", json!({}))])), &"a".into());
    assert_eq!(score(&mut cluster, &plain, args), Some(vec![33, 33, 100, 0]), "1, 1, 3 and 0");
    let heavy = InterPodAffinityArgs { hard_pod_affinity_weight: 6, ..args };
    assert_eq!(score(&mut cluster, &plain, heavy), Some(vec![100, 100, 50, 0]));
    let ignores = InterPodAffinityArgs { ignore_preferred_terms_of_existing_pods: true, ..args };
    assert_eq!(score(&mut cluster, &plain, ignores), None);
}

#[test]
fn changes_that_cannot_help_do_not_wake_pods() {
    let (plugin, cluster) = (InterPodAffinity::default(), cluster());
    let near = pod("p", "ns", "web", required("podAffinity", &[term("db", json!({}))]));
    let bound = |app: &str| {
        let mut pod = Arc::into_inner(pod("o", "ns", app, Value::Null)).unwrap();
        pod.node = Some("a".into());
        Arc::new(pod)
    };
    let hint = |change: Change<'_>| plugin.hint(&near, &change, &cluster);
    let (db, web) = (bound("db"), bound("web"));
    assert_eq!(hint(Change::Pod(Versions { old: None, new: Some(&db) })), Hint::Queue);
    assert_eq!(hint(Change::Pod(Versions { old: None, new: Some(&web) })), Hint::Skip);
    assert_eq!(hint(Change::Pod(Versions { old: Some(&db), new: None })), Hint::Skip);
    assert_eq!(hint(Change::Pod(Versions { old: Some(&web), new: Some(&db) })), Hint::Queue);
    let (a, y) = (&cluster.node(NodeId::new(0)).facts, &cluster.node(NodeId::new(3)).facts);
    assert_eq!(hint(Change::Node(Versions { old: None, new: Some(a) })), Hint::Queue);
    assert_eq!(hint(Change::Node(Versions { old: None, new: Some(y) })), Hint::Skip);
    assert_eq!(hint(Change::Node(Versions { old: Some(a), new: Some(y) })), Hint::Skip);
}
