//! Scenarios: nodes and a pod, and the resulting node or the reasons against all nodes.

#![allow(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]

use std::sync::Arc;

use controllers_scheduler::model::PodInfo;
use controllers_scheduler::plugins::default_profile;
use controllers_scheduler::schedule::schedule;
use controllers_scheduler::snapshot::Snapshot;
use k8s_openapi::api::core::v1::{Node, Pod};
use proptest::prelude::*;
use serde_json::{Value, json};

fn node(name: &str, more: Value) -> Node {
    let mut object = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    });
    merge(&mut object, more);
    serde_json::from_value(object).unwrap()
}

fn pod(name: &str, spec: Value) -> Arc<PodInfo> {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    merge(&mut object["spec"], spec);
    let pod: Pod = serde_json::from_value(object).unwrap();
    Arc::new(PodInfo::parse(&pod))
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn cluster(nodes: Vec<Node>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for node in nodes {
        snapshot.set_node(&node);
    }
    snapshot
}

fn requesting(cpu: &str, memory: &str) -> Value {
    json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]})
}

fn place(snapshot: &Snapshot, pod: &PodInfo) -> Result<String, String> {
    schedule(&default_profile(), snapshot, pod, 0).map_err(|error| error.to_string())
}

#[test]
fn an_empty_cluster_is_reported() {
    assert_eq!(
        place(&cluster(vec![]), &pod("a", json!({}))).unwrap_err(),
        "no nodes available to schedule pods"
    );
}

#[test]
fn every_reason_is_counted_once_a_node() {
    let nodes = vec![
        node("full", json!({"status": {"allocatable": {"cpu": "100m", "memory": "1Mi"}}})),
        node("cordoned", json!({"spec": {"unschedulable": true}})),
        node("tainted", json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}})),
        node("elsewhere", json!({"metadata": {"labels": {"disk": "hdd"}}})),
    ];
    let mut spec = requesting("1", "1Gi");
    spec["nodeSelector"] = json!({"disk": "ssd"});
    let mut labelled = nodes;
    labelled[0].metadata.labels.as_mut().unwrap().insert("disk".to_owned(), "ssd".to_owned());
    assert_eq!(
        place(&cluster(labelled), &pod("a", spec)).unwrap_err(),
        "0/4 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, \
         1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint {k: v}, \
         1 node(s) were unschedulable."
    );
}

#[test]
fn a_toleration_allows_a_tainted_node() {
    let nodes =
        vec![node("n", json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}}))];
    let tolerant = json!({"tolerations": [{"key": "k", "operator": "Exists"}]});
    assert_eq!(place(&cluster(nodes), &pod("a", tolerant)).unwrap(), "n");
}

#[test]
fn the_least_allocated_node_wins() {
    let mut snapshot = cluster(vec![node("a", json!({})), node("b", json!({}))]);
    snapshot.place(&pod("busy", requesting("3", "6Gi")), "a");
    assert_eq!(place(&snapshot, &pod("new", requesting("500m", "1Gi"))).unwrap(), "b");
}

#[test]
fn a_host_port_is_taken_once_a_node() {
    let with_port =
        json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 1, "hostPort": 80}]}]});
    let mut snapshot = cluster(vec![node("a", json!({})), node("b", json!({}))]);
    snapshot.place(&pod("first", with_port.clone()), "a");
    assert_eq!(place(&snapshot, &pod("second", with_port.clone())).unwrap(), "b");
    snapshot.place(&pod("second", with_port.clone()), "b");
    assert_eq!(
        place(&snapshot, &pod("third", with_port)).unwrap_err(),
        "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports."
    );
}

#[test]
fn preferred_affinity_outweighs_an_even_choice() {
    let snapshot =
        cluster(vec![node("a", json!({})), node("b", json!({"metadata": {"labels": {"disk": "ssd"}}}))]);
    let spec = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 10, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}
    ]}}});
    assert_eq!(place(&snapshot, &pod("p", spec)).unwrap(), "b");
}

#[test]
fn a_hard_spread_constraint_keeps_the_skew() {
    let mut snapshot = cluster(vec![node("a", json!({})), node("b", json!({}))]);
    let spread = json!({"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }]});
    let counted = |name: &str| pod(name, spread.clone());
    snapshot.place(&counted("one"), "a");
    assert_eq!(place(&snapshot, &counted("two")).unwrap(), "b");
    snapshot.remove_node("b");
    snapshot.set_node(&node("b", json!({"spec": {"unschedulable": true}})));
    assert!(place(&snapshot, &counted("two")).is_err());
}

#[test]
fn a_node_with_the_image_wins() {
    let image = json!({"status": {"images": [{"names": ["i"], "sizeBytes": 900_000_000}]}});
    let snapshot = cluster(vec![node("a", json!({})), node("b", image)]);
    assert_eq!(place(&snapshot, &pod("p", json!({}))).unwrap(), "b");
}

#[test]
fn init_containers_count_by_their_peak() {
    let spec = json!({
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
        "initContainers": [
            {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
            {"name": "i", "image": "i", "resources": {"requests": {"cpu": "3"}}},
        ],
    });
    assert_eq!(pod("p", spec).requests.cpu, 3500);
}

proptest! {
    /// Pods that are placed one after the other never overcommit a node, and if a pod is refused, no node has
    /// room for it.
    #[test]
    fn requests_never_exceed_what_a_node_has(requests in prop::collection::vec((1_i64..3000, 1_i64..4096), 1..60), random in any::<u64>()) {
        let mut snapshot = cluster(vec![node("a", json!({})), node("b", json!({})), node("c", json!({}))]);
        let profile = default_profile();
        for (i, (cpu, memory)) in requests.iter().enumerate() {
            let wanted = pod(&format!("p{i}"), requesting(&format!("{cpu}m"), &format!("{memory}Mi")));
            let room = snapshot.nodes().any(|n| {
                n.requested.cpu + cpu <= n.allocatable.cpu
                    && n.requested.memory + (memory << 20) <= n.allocatable.memory
            });
            match schedule(&profile, &snapshot, &wanted, random) {
                Ok(name) => snapshot.place(&wanted, &name),
                Err(error) => prop_assert!(!room, "{error}"),
            }
            for n in snapshot.nodes() {
                prop_assert!(n.requested.cpu <= n.allocatable.cpu && n.requested.memory <= n.allocatable.memory);
            }
        }
    }
}

/// The DaemonSet controller pins each of its pods to a node in this way, also to a cordoned one.
#[test]
fn pod_pinned_by_name_goes_to_that_node_or_nowhere() {
    let nodes = vec![
        node("a", json!({})),
        node(
            "b",
            json!({"spec": {"unschedulable": true,
            "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}}),
        ),
        node("c", json!({})),
    ];
    let snapshot = cluster(nodes);
    let pinned = |node: &str| {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        json!({
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [field]}]}}},
            "tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}],
        })
    };
    for name in ["a", "b", "c"] {
        assert_eq!(place(&snapshot, &pod("p", pinned(name))), Ok(name.to_owned()));
    }
    assert_eq!(
        place(&snapshot, &pod("p", pinned("gone"))).unwrap_err(),
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    );
}
