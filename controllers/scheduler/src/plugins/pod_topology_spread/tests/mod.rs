//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

mod counts;
mod filter;
mod hint;
mod score;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, from_value, json};

use super::{PodTopologySpread, PodTopologySpreadArgs};
use crate::cluster::terms::Owner;
use crate::cluster::{Cluster, NodeFacts, NodeId};
use crate::framework::{Change, Code, Feasible, Hint, Plugin, PreFilter, Versions};
use crate::plugins::sketch;
use crate::pod::PodInfo;
use crate::selector::Selector;

/// Returns the lines of pods from words such as `a:foo*2`, `other/a:foo,bar=x` and, of a pod that terminates, `a:foo!`.
fn lines(words: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        let (word, times) = word.split_once('*').unwrap_or((word, "1"));
        let (place, labels) = word.split_once(':').expect("a pod has labels");
        let (labels, dying) = labels.strip_suffix('!').map_or((labels, ""), |labels| (labels, "; dying"));
        let mut line = place.to_owned();
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            line += &format!(" {label}{}", if label.contains('=') { "" } else { "=" });
        }
        line += dying;
        lines.extend(std::iter::repeat_n(line, times.parse().expect("it is a number")));
    }
    lines
}

/// Returns a cluster of nodes and of the pods of some words.
fn sketched(nodes: &[&str], words: &str) -> Cluster {
    let lines = lines(words);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    sketch::cluster(nodes, &lines)
}

fn pod(name: &str, spec: Value) -> Arc<PodInfo> {
    let mut spec = spec;
    spec["containers"] = json!([]);
    let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "a"}}, "spec": spec});
    Arc::new(PodInfo::parse(from_value::<Pod>(pod).unwrap()))
}

/// Returns four nodes in two zones: a and b in 1, x and y in 2, with so many matching pods.
fn cluster(pods: [usize; 4]) -> Cluster {
    let mut cluster = Cluster::default();
    for (place, name) in ["a", "b", "x", "y"].into_iter().enumerate() {
        let zone = if place < 2 { "1" } else { "2" };
        let labels =
            json!({"zone": zone, "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone});
        set_node(&mut cluster, name, labels);
        for number in 0..pods[place] {
            cluster.place(&pod(&format!("{name}{number}"), json!({})), &name.into());
        }
    }
    cluster
}

fn set_node(cluster: &mut Cluster, name: &str, labels: Value) {
    let node = json!({"metadata": {"name": name, "labels": labels}});
    cluster.set_node(Arc::new(NodeFacts::parse(from_value(node).unwrap())));
}

fn hard(key: &str, more: Value) -> Value {
    let mut constraint = json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}}});
    constraint.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    constraint
}

fn with(constraints: &[Value]) -> Value {
    json!({"topologySpreadConstraints": constraints})
}

/// Returns the names of the nodes that pass, and the reasons and codes of the others.
fn filter(cluster: &mut Cluster, pod: &PodInfo) -> (String, Vec<(String, Code)>) {
    let plugin = PodTopologySpread::default();
    plugin.register(pod, cluster);
    let PreFilter::Filter { filter, .. } = plugin.pre_filter(pod, cluster) else { panic!("it filters") };
    let passing = cluster.nodes().filter(|node| filter.passes(node)).map(|node| node.name.to_string());
    let others = cluster.nodes().filter(|node| !filter.passes(node));
    let others = others.map(|node| filter.refusal(node)).map(|refusal| (refusal.message(), refusal.code));
    let mut set = cluster.known().clone();
    filter.restrict(cluster, &mut set);
    let passing: Vec<String> = passing.collect();
    assert_eq!(set.len(), passing.len(), "sets are restricted to what passes one by one");
    (passing.join(""), others.collect())
}

fn passing(pods: [usize; 4], constraints: &[Value]) -> String {
    filter(&mut cluster(pods), &pod("p", with(constraints))).0
}

#[test]
fn nodes_pass_that_leave_no_domain_too_far_above_the_least() {
    let host = |more| hard("kubernetes.io/hostname", more);
    assert_eq!(passing([0, 0, 0, 0], &[hard("zone", json!({}))]), "abxy", "no pods");
    assert_eq!(passing([2, 1, 0, 3], &[hard("zone", json!({}))]), "abxy", "3 and 3");
    assert_eq!(passing([2, 1, 0, 4], &[hard("zone", json!({}))]), "ab", "3 and 4");
    assert_eq!(passing([2, 1, 0, 3], &[host(json!({}))]), "x");
    assert_eq!(passing([2, 1, 0, 3], &[host(json!({"maxSkew": 2}))]), "bx");
    let other = json!({"labelSelector": {"matchLabels": {"app": "b"}}});
    assert_eq!(passing([2, 1, 0, 3], &[host(other)]), "abxy", "the pods are of others");
    let null = json!({"labelSelector": null});
    assert_eq!(passing([2, 1, 0, 3], &[host(null)]), "abxy", "an absent selector matches nothing");
    assert_eq!(passing([2, 1, 0, 3], &[hard("zone", json!({})), host(json!({}))]), "x");
    assert_eq!(passing([2, 1, 0, 4], &[hard("zone", json!({})), host(json!({}))]), "", "zone 1, or node x");
}

#[test]
fn too_few_domains_make_the_minimum_zero() {
    let zone = |domains: i32| hard("zone", json!({"maxSkew": 2, "minDomains": domains}));
    assert_eq!(passing([2, 0, 1, 0], &[zone(3)]), "xy");
    assert_eq!(passing([2, 0, 1, 0], &[zone(2)]), "abxy");
}

#[test]
fn nodes_without_the_label_are_refused_for_good_and_not_counted() {
    let mut cluster = cluster([0, 1, 1, 1]);
    set_node(&mut cluster, "a", json!({"kubernetes.io/hostname": "a"}));
    let pod = pod("p", with(&[hard("kubernetes.io/hostname", json!({})), hard("zone", json!({}))]));
    let (passing, refusals) = filter(&mut cluster, &pod);
    assert_eq!(passing, "b", "a is not counted, so that each node has one pod, and zone 2 two");
    let words = "node(s) didn't match pod topology spread constraints";
    assert_eq!(refusals[0], (format!("{words} (missing required label)"), Code::Unresolvable));
    assert_eq!(refusals[1], (words.to_owned(), Code::Unschedulable));
}

#[test]
fn policies_decide_which_nodes_are_counted() {
    let spec = |policy: &str| {
        let mut spec = with(&[hard("kubernetes.io/hostname", json!({"nodeAffinityPolicy": policy}))]);
        spec["nodeSelector"] = json!({"zone": "2"});
        spec
    };
    let honored = filter(&mut cluster([0, 3, 2, 1]), &pod("p", spec("Honor"))).0;
    assert_eq!(honored, "aby", "what is not counted has no pods");
    assert_eq!(filter(&mut cluster([0, 3, 2, 1]), &pod("p", spec("Ignore"))).0, "a");
}

#[test]
fn terminating_pods_do_not_count_but_their_removal_does_as_in_kube_scheduler() {
    let mut cluster = cluster([1, 1, 1, 0]);
    let gone = json!({"metadata": {"name": "g", "namespace": "ns", "uid": "g", "labels": {"app": "a"},
        "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"containers": []}});
    let gone = Arc::new(PodInfo::parse(from_value(gone).unwrap()));
    cluster.place(&gone, &"y".into());
    let added = ["new", "newer"].map(|name| pod(name, json!({})));
    let pod = pod("p", with(&[hard("kubernetes.io/hostname", json!({}))]));
    assert_eq!(filter(&mut cluster, &pod).0, "y");
    let plugin = PodTopologySpread::default();
    let all = |cluster: &Cluster| {
        let PreFilter::Filter { filter, .. } = plugin.pre_filter(&pod, cluster) else { panic!("it filters") };
        cluster
            .nodes()
            .filter(|node| filter.passes(node))
            .map(|node| node.name.to_string())
            .collect::<String>()
    };
    let first = cluster.node(NodeId::new(3)).pods[0].clone();
    let mut trial = cluster.trial();
    trial.remove(&first);
    let y = trial.named("y").unwrap().id;
    trial.add(&added[0], y);
    trial.add(&added[1], y);
    assert_eq!(all(&trial), "abxy", "-1 and 2 make 1 on each");
    drop(trial);
    assert_eq!(all(&cluster), "y", "the trial is undone");
}

fn scores(plugin: &PodTopologySpread, cluster: &mut Cluster, pod: &PodInfo) -> Option<Vec<i64>> {
    plugin.register(pod, cluster);
    let nodes: Feasible = cluster.known().iter().collect();
    Some(plugin.score(pod, cluster, &nodes)?.to_vec(nodes.list().len()))
}

#[test]
fn scores_prefer_domains_with_few_pods() {
    let soft = |key| hard(key, json!({"whenUnsatisfiable": "ScheduleAnyway"}));
    let plugin = PodTopologySpread::default();
    let score = |pods, key| scores(&plugin, &mut cluster(pods), &pod("p", with(&[soft(key)])));
    assert_eq!(score([0, 0, 0, 0], "kubernetes.io/hostname"), Some(vec![100; 4]), "no pods");
    // Counts times ln(6), rounded: 4, 2, 0 and 5.
    assert_eq!(score([2, 1, 0, 3], "kubernetes.io/hostname"), Some(vec![20, 60, 100, 0]));
    // 3 and 1, times ln(4): 4 and 1.
    assert_eq!(score([2, 1, 0, 1], "zone"), Some(vec![25, 25, 100, 100]));
    assert_eq!(score([2, 1, 0, 1], "rack"), Some(vec![0; 4]), "nodes without the label");
    assert_eq!(scores(&plugin, &mut cluster([0; 4]), &pod("p", json!({}))), None, "no constraints");
}

#[test]
fn pods_without_constraints_spread_by_their_services_and_controllers() {
    let plugin = PodTopologySpread::default();
    let (mut cluster, plain) = (cluster([3, 0, 0, 0]), pod("p", json!({})));
    assert_eq!(scores(&plugin, &mut cluster, &plain), None);
    cluster.set_service("ns", "s", Some([("app".to_owned(), "a".to_owned())].into()));
    let by_service = scores(&plugin, &mut cluster, &plain).unwrap();
    assert!(by_service[0] < by_service[1] && by_service[1] < by_service[2], "{by_service:?}");
    let list = PodTopologySpread::new(&PodTopologySpreadArgs::List(Vec::new()));
    assert_eq!(scores(&list, &mut cluster, &plain), None, "nothing is configured");
    cluster.set_service("ns", "s", None);
    let owned = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p", "labels": {"app": "a"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]},
        "spec": {"containers": []}});
    let owned = PodInfo::parse(from_value(owned).unwrap());
    assert_eq!(scores(&plugin, &mut cluster, &owned), None, "the ReplicaSet is not known");
    let selector = Selector::of_labels(&[("app".to_owned(), "a".to_owned())].into());
    cluster.set_controller(Owner::ReplicaSet, "ns", "r", Some(selector));
    assert_eq!(scores(&plugin, &mut cluster, &owned), Some(by_service));
}

#[test]
fn changes_that_cannot_help_do_not_wake_pods() {
    let plugin = PodTopologySpread::default();
    let (cluster, waiting) = (cluster([0; 4]), pod("p", with(&[hard("zone", json!({}))])));
    let hint = |change: Change<'_>| plugin.hint(&waiting, &change, &cluster);
    let (bound, unbound) = (pod("o", json!({"nodeName": "a"})), pod("o", json!({})));
    assert_eq!(hint(Change::Pod(Versions { old: None, new: Some(&bound) })), Hint::Queue);
    assert_eq!(hint(Change::Pod(Versions { old: Some(&bound), new: None })), Hint::Queue);
    assert_eq!(hint(Change::Pod(Versions { old: None, new: Some(&unbound) })), Hint::Skip);
    assert_eq!(hint(Change::Pod(Versions { old: Some(&bound), new: Some(&bound) })), Hint::Skip);
    let (a, x) = (&cluster.node(NodeId::new(0)).facts, &cluster.node(NodeId::new(2)).facts);
    let bare = Arc::new(NodeFacts::default());
    assert_eq!(hint(Change::Node(Versions { old: None, new: Some(a) })), Hint::Queue);
    assert_eq!(hint(Change::Node(Versions { old: None, new: Some(&bare) })), Hint::Skip);
    assert_eq!(hint(Change::Node(Versions { old: Some(a), new: Some(x) })), Hint::Queue);
    assert_eq!(hint(Change::Node(Versions { old: Some(a), new: Some(a) })), Hint::Skip);
}
