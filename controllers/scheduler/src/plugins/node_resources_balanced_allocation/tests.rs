//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::pod::PodInfo;
use crate::testing::{self, placed, requesting, sized};

const GPU: &str = "nvidia.com/gpu";

fn of(cpu: i64, memory: i64) -> Value {
    json!({"cpu": format!("{cpu}m"), "memory": memory.to_string()})
}

fn with_gpus(mut list: Value, gpus: i64) -> Value {
    list[GPU] = json!(gpus.to_string());
    list
}

fn scores_by(
    plugin: &NodeResourcesBalancedAllocation,
    nodes: [Value; 2],
    pods: &[Arc<PodInfo>],
    pod: &PodInfo,
) -> Option<Vec<i64>> {
    let [a, b] = nodes;
    testing::scores(plugin, pod, &testing::cluster(&[sized("a", a), sized("b", b)], pods))
}

fn scores(nodes: [Value; 2], pods: &[Arc<PodInfo>], pod: &PodInfo) -> Option<Vec<i64>> {
    scores_by(&NodeResourcesBalancedAllocation::default(), nodes, pods, pod)
}

#[test]
fn nodes_score_by_how_the_pod_changes_their_balance() {
    let pod = requesting("p", &[of(1000, 2000), of(2000, 3000)]);
    let cpu = |node: &str| placed("cpu", node, &[json!({"cpu": "1"}), json!({"cpu": "2"})]);
    let both = |node: &str| placed("both", node, &[of(1000, 2000), of(2000, 3000)]);
    assert_eq!(scores([of(4000, 10000), of(6000, 10000)], &[], &pod), Some(vec![68, 75]));
    let pods = [cpu("a"), both("b")];
    assert_eq!(scores([of(10000, 20000), of(10000, 20000)], &pods, &pod), Some(vec![73, 74]));
    assert_eq!(scores([of(10000, 20000), of(10000, 50000)], &pods, &pod), Some(vec![73, 70]));
    let memory = requesting("p", &[json!({"memory": "2000"}), json!({"memory": "3000"})]);
    assert_eq!(scores([of(3000, 5000), of(3000, 5000)], &[cpu("a")], &memory), Some(vec![100, 50]));
    let more_cpu = requesting("p", &[json!({"cpu": "1"}), json!({"cpu": "2"})]);
    assert_eq!(scores([of(6000, 10000), of(6000, 10000)], &pods, &more_cpu), Some(vec![62, 62]));
}

#[test]
fn pods_that_request_nothing_are_not_scored() {
    let nodes = || [of(4000, 10000), of(4000, 10000)];
    assert_eq!(scores(nodes(), &[], &requesting("p", &[])), None);
    assert_eq!(scores(nodes(), &[], &requesting("p", &[json!({"cpu": "0", GPU: "1"})])), None);
}

#[test]
fn scalar_resources_count_if_the_pod_requests_them() {
    let resources = ["cpu", "memory", GPU].map(|name| ResourceWeight { name: name.to_owned(), weight: 1 });
    let plugin = NodeResourcesBalancedAllocation::new(BalancedAllocationArgs { resources: resources.into() });
    let gpu = requesting("p", &[with_gpus(of(0, 0), 1)]);
    let pods = [
        placed("1", "a", &[of(1000, 2000), with_gpus(of(2000, 3000), 3)]),
        placed("2", "b", &[of(1000, 2000), of(2000, 3000)]),
    ];
    let size = || with_gpus(of(3500, 40000), 8);
    assert_eq!(scores_by(&plugin, [size(), size()], &pods, &gpu), Some(vec![75, 76]));
    let pod = requesting("p", &[of(1000, 2000), of(2000, 3000)]);
    assert_eq!(scores_by(&plugin, [size(), of(3500, 40000)], &[], &pod), Some(vec![56, 56]));
    assert_eq!(
        scores_by(&plugin, [with_gpus(json!({}), 8), json!({})], &[], &gpu),
        Some(vec![75, 75]),
        "one resource is balanced"
    );
}

#[test]
fn requests_of_the_pod_as_a_whole_count() {
    let spec = json!({"containers": [], "resources": {"requests": of(3000, 5000)}});
    let pod = testing::pod_of("p", spec);
    assert_eq!(scores([of(4000, 10000), of(6000, 10000)], &[], &pod), Some(vec![68, 75]));
}

#[test]
fn devices_count_on_nodes_that_do_not_have_the_resource_themselves() {
    let resources = ["cpu", "memory", GPU].map(|name| ResourceWeight { name: name.to_owned(), weight: 1 });
    let plugin = NodeResourcesBalancedAllocation::new(BalancedAllocationArgs { resources: resources.into() });
    let nodes = [sized("a", of(3500, 40000)), sized("b", of(3500, 40000))];
    let pods = [
        placed("1", "a", &[json!({"cpu": "1"}), json!({"cpu": "2"})]),
        placed("2", "b", &[of(1000, 2000), of(2000, 3000)]),
    ];
    let mut cluster = testing::cluster(&nodes, &pods);
    let pod = requesting("p", &[json!({GPU: "1"})]);
    assert!(plugin.node_score(&pod.spec, &cluster).is_some(), "no class serves it: scores are cached");
    testing::serve_devices(&mut cluster, GPU, &[("a", 8)]);
    assert!(plugin.node_score(&pod.spec, &cluster).is_none());
    assert_eq!(testing::scores(&plugin, &pod, &cluster), Some(vec![76, 75]));
    let nothing = requesting("q", &[json!({"ephemeral-storage": "1"})]);
    assert_eq!(testing::scores(&plugin, &nothing, &cluster), None);
}
