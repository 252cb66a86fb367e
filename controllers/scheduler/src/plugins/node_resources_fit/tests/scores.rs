//! The scores of nodes, by strategy.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::strategy::{ShapePoint, at};
use super::super::*;
use crate::cluster::NodeFacts;
use crate::testing::{self, placed, requesting, sized};

const GPU: &str = "abc.com/xyz";
const FOO: &str = "intel.com/foo";
const BAR: &str = "intel.com/bar";

fn weights(list: &[(&str, i64)]) -> Vec<ResourceWeight> {
    list.iter().map(|(name, weight)| ResourceWeight { name: (*name).to_owned(), weight: *weight }).collect()
}

fn shape(points: &[(i64, i64)]) -> Vec<ShapePoint> {
    points
        .iter()
        .map(|(utilization, score)| ShapePoint { utilization: *utilization, score: *score })
        .collect()
}

fn of(cpu: i64, memory: i64) -> Value {
    json!({"cpu": cpu.to_string(), "memory": memory.to_string()})
}

/// Returns two nodes with so much CPU and memory.
fn nodes(a: (i64, i64), b: (i64, i64)) -> [Arc<NodeFacts>; 2] {
    [sized("a", of(a.0, a.1)), sized("b", of(b.0, b.1))]
}

fn scores(
    strategy: Strategy,
    resources: Vec<ResourceWeight>,
    nodes: &[Arc<NodeFacts>],
    pods: &[Arc<PodInfo>],
    pod: &PodInfo,
) -> Vec<i64> {
    let plugin = NodeResourcesFit::new(FitArgs { strategy, resources, ..FitArgs::default() });
    testing::scores(&plugin, pod, &testing::cluster(nodes, pods)).unwrap()
}

/// Returns the scores by LeastAllocated and by MostAllocated.
fn least_and_most(nodes: &[Arc<NodeFacts>], pods: &[Arc<PodInfo>], pod: &PodInfo) -> [Vec<i64>; 2] {
    [Strategy::LeastAllocated, Strategy::MostAllocated]
        .map(|strategy| scores(strategy, default_resources(), nodes, pods, pod))
}

fn two_containers() -> Arc<PodInfo> {
    requesting("p", &[of(1000, 2000), of(2000, 3000)])
}

#[test]
fn least_and_most_allocated_are_means_of_what_is_free_or_used() {
    let (nothing, two) = (requesting("p", &[]), two_containers());
    let empty = |count: usize| -> Vec<Arc<PodInfo>> {
        (0..count).map(|i| placed(&format!("e{i}"), if i % 2 == 0 { "a" } else { "b" }, &[])).collect()
    };
    let equal = nodes((4000, 10000), (4000, 10000));
    assert_eq!(least_and_most(&equal, &[], &nothing), [[100, 100], [0, 0]]);
    assert_eq!(least_and_most(&equal, &empty(4), &nothing), [[100, 100], [0, 0]]);
    let differing = nodes((4000, 10000), (6000, 10000));
    assert_eq!(least_and_most(&differing, &[], &two), [[37, 50], [62, 50]]);
    let large = nodes((10000, 20000), (10000, 20000));
    let four = [
        placed("1", "a", &[of(3000, 0)]),
        placed("2", "a", &[of(3000, 0)]),
        placed("3", "b", &[of(3000, 0)]),
        placed("4", "b", &[of(3000, 5000)]),
    ];
    assert_eq!(least_and_most(&large, &four, &nothing), [[70, 57], [30, 42]]);
    let one_each = [placed("1", "a", &[of(3000, 0)]), placed("2", "b", &[of(3000, 5000)])];
    assert_eq!(least_and_most(&large, &one_each, &two), [[57, 45], [42, 55]]);
    let more_memory = nodes((10000, 20000), (10000, 50000));
    assert_eq!(least_and_most(&more_memory, &one_each, &two), [[57, 60], [42, 40]]);
    let too_much = requesting("p", &[of(3000, 0)]);
    assert_eq!(least_and_most(&equal, &one_each, &too_much), [[50, 25], [50, 75]], "too much counts as all");
    let none = [testing::node("a", json!({})), testing::node("b", json!({}))];
    assert_eq!(least_and_most(&none, &one_each, &nothing), [[0, 0], [0, 0]]);
    let full = requesting("p", &[of(2000, 4000), of(3000, 5000)]);
    assert_eq!(least_and_most(&nodes((5000, 10000), (10000, 9000)), &[], &full), [[5, 25], [95, 75]]);
}

#[test]
fn containers_without_requests_count_with_assumed_ones() {
    let small = || json!({"cpu": "250m", "memory": "1000Mi"});
    let nodes = [sized("a", small()), sized("b", small())];
    let pods = [placed("1", "a", &[json!({})]), placed("2", "a", &[json!({})])];
    assert_eq!(least_and_most(&nodes, &pods, &requesting("p", &[json!({})]))[1], [80, 30]);
}

#[test]
fn resources_have_weights() {
    let twice = || weights(&[("memory", 2), ("cpu", 1)]);
    let nodes = nodes((4000, 10000), (6000, 10000));
    assert_eq!(scores(Strategy::LeastAllocated, twice(), &nodes, &[], &two_containers()), [41, 50]);
    assert_eq!(scores(Strategy::MostAllocated, twice(), &nodes, &[], &two_containers()), [58, 50]);
}

#[test]
fn extended_resources_count_if_the_pod_requests_and_the_node_has_them() {
    let with = |gpus: &[i64]| -> Vec<Arc<NodeFacts>> {
        let node = |(i, gpus): (usize, &i64)| {
            let mut list = of(6000, 10000);
            if *gpus > 0 {
                list[GPU] = json!(gpus.to_string());
            }
            sized(["a", "b"][i], list)
        };
        gpus.iter().enumerate().map(node).collect()
    };
    let all = || weights(&[("cpu", 1), ("memory", 1), (GPU, 1)]);
    let both = |gpus: &[i64],
                pod: &PodInfo,
                resources: fn(&[(&str, i64)]) -> Vec<ResourceWeight>,
                list: &[(&str, i64)]| {
        [Strategy::LeastAllocated, Strategy::MostAllocated]
            .map(|strategy| scores(strategy, resources(list), &with(gpus), &[], pod))
    };
    let list = [("cpu", 1), ("memory", 1), (GPU, 1)];
    assert_eq!(all(), weights(&list));
    assert_eq!(both(&[0, 4], &two_containers(), weights, &list), [[50, 50], [50, 50]]);
    let mut wants = of(3000, 5000);
    wants[GPU] = json!("2");
    assert_eq!(both(&[4, 10], &requesting("p", &[wants]), weights, &list), [[50, 60], [50, 40]]);
    let list = [(GPU, 2), ("cpu", 1), ("memory", 1)];
    assert_eq!(both(&[0, 4], &requesting("p", &[of(3000, 4000)]), weights, &list), [[55, 55], [45, 45]]);
}

#[test]
fn sidecars_and_existing_pods_count() {
    let request = || of(1000, 2000);
    let nodes_ = nodes((4000, 10000), (6000, 10000));
    let pods = [placed("1", "a", &[of(2000, 4000)]), placed("2", "b", &[of(1000, 2000)])];
    assert_eq!(least_and_most(&nodes_, &pods, &requesting("p", &[request()])), [[32, 63], [67, 36]]);
    let sidecar = json!({"nodeName": "a", "containers": testing::containers(&[request()]),
        "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"requests": request()}}]});
    let pods = [testing::pod_of("1", sidecar), placed("2", "b", &[request()])];
    let equal = nodes((4000, 10000), (4000, 10000));
    assert_eq!(least_and_most(&equal, &pods, &requesting("p", &[request()])), [[32, 55], [67, 45]]);
}

#[test]
fn ratio_follows_the_shape() {
    let falling = || Strategy::RequestedToCapacityRatio(shape(&[(0, 10), (100, 0)]));
    let rising = || Strategy::RequestedToCapacityRatio(shape(&[(0, 0), (100, 10)]));
    let of_default = |strategy, nodes: &[Arc<NodeFacts>], pods: &[Arc<PodInfo>], pod: &PodInfo| {
        scores(strategy, default_resources(), nodes, pods, pod)
    };
    let (nothing, two) = (requesting("p", &[]), two_containers());
    let empty = [placed("1", "a", &[]), placed("2", "a", &[])];
    let differing = nodes((4000, 10000), (6000, 10000));
    assert_eq!(of_default(falling(), &nodes((4000, 10000), (4000, 10000)), &empty, &nothing), [100, 100]);
    assert_eq!(of_default(falling(), &differing, &empty, &two), [38, 50]);
    let used = [placed("1", "a", &[of(3000, 5000)]), placed("2", "b", &[of(3000, 5000)])];
    assert_eq!(of_default(falling(), &differing, &used, &nothing), [38, 50]);
    let used = [placed("1", "a", &[of(2000, 4000)]), placed("2", "b", &[of(1000, 2000)])];
    let pod = requesting("p", &[of(3000, 5000)]);
    assert_eq!(of_default(falling(), &differing, &used, &pod), [10, 32]);
    assert_eq!(of_default(rising(), &differing, &used, &pod), [95, 68]);
}

#[test]
fn ratio_packs_extended_resources() {
    let node =
        |name: &str, foo: i64, bar: i64| sized(name, json!({FOO: foo.to_string(), BAR: bar.to_string()}));
    let nodes = [node("a", 8, 4), node("b", 4, 8)];
    let request = |foo: i64, bar: i64| json!({FOO: foo.to_string(), BAR: bar.to_string()});
    let rising = || Strategy::RequestedToCapacityRatio(shape(&[(0, 0), (100, 1)]));
    let single =
        |pods: &[Arc<PodInfo>], pod: &PodInfo| scores(rising(), weights(&[(FOO, 1)]), &nodes, pods, pod);
    let foo = |amount: i64| [json!({FOO: amount.to_string()})];
    assert_eq!(single(&[], &requesting("p", &[])), [0, 0]);
    assert_eq!(single(&[], &requesting("p", &foo(2))), [2, 5]);
    assert_eq!(single(&[placed("1", "b", &foo(2))], &requesting("p", &foo(2))), [2, 10]);
    assert_eq!(single(&[], &requesting("p", &foo(4))), [5, 10]);
    let several = |pods: &[Arc<PodInfo>], pod: &PodInfo| {
        scores(rising(), weights(&[(FOO, 3), (BAR, 5)]), &nodes, pods, pod)
    };
    assert_eq!(several(&[], &requesting("p", &[])), [0, 0]);
    assert_eq!(several(&[], &requesting("p", &[request(2, 2)])), [4, 3]);
    assert_eq!(several(&[placed("1", "b", &[request(4, 2)])], &requesting("p", &[request(2, 2)])), [4, 7]);
    assert_eq!(several(&[], &requesting("p", &[request(4, 2)])), [5, 5]);
}

#[test]
fn shapes_are_straight_between_points_and_constant_outside() {
    let check = |points: &[(i64, i64)], expected: &[(i64, i64)]| {
        let shape = shape(points);
        for (utilization, score) in expected {
            assert_eq!(at(&shape, *utilization), *score, "{points:?} at {utilization}");
        }
    };
    let expected =
        [(-10, 1), (0, 1), (9, 1), (10, 1), (15, 1), (19, 1), (20, 2), (89, 8), (90, 9), (99, 9), (110, 9)];
    check(&[(10, 1), (90, 9)], &expected);
    let expected = [(-10, 2), (0, 2), (20, 6), (30, 8), (40, 10), (70, 5), (100, 0), (110, 0)];
    check(&[(0, 2), (40, 10), (100, 0)], &expected);
    check(&[(0, 2), (40, 2), (100, 2)], &[(-10, 2), (0, 2), (20, 2), (70, 2), (110, 2)]);
}

#[test]
fn requests_of_the_pod_to_place_are_those_of_its_containers() {
    let check = |spec: Value| {
        let pod = testing::pod_of("p", spec);
        (pod.spec.fit_scored.cpu, pod.spec.fit_scored.memory)
    };
    let (cpu, memory) = (100, 200 << 20);
    let one = || json!({"cpu": "1", "memory": "1Mi"});
    let containers = |list: &[Value]| testing::containers(list);
    assert_eq!(check(json!({"containers": [], "overhead": one()})), (1000, 1 << 20));
    assert_eq!(check(json!({"containers": containers(&[json!({})])})), (cpu, memory));
    assert_eq!(check(json!({"containers": containers(&[json!({}), json!({})])})), (2 * cpu, 2 * memory));
    let mixed = || containers(&[one(), json!({})]);
    assert_eq!(check(json!({"containers": mixed()})), (1000 + cpu, (1 << 20) + memory));
    assert_eq!(check(json!({"containers": mixed(), "overhead": one()})), (2000 + cpu, (2 << 20) + memory));
    let init = json!({"containers": mixed(), "overhead": one(), "initContainers": containers(&[json!({"cpu": "3"})])});
    assert_eq!(check(init), (4000, (2 << 20) + memory));
    let tiny = |more: &[Value]| {
        let mut main = vec![json!({"cpu": "3m", "memory": "3"})];
        main.extend_from_slice(more);
        let init = containers(&[json!({}), json!({"cpu": "1m", "memory": "1"})]);
        check(json!({"containers": containers(&main), "initContainers": init}))
    };
    assert_eq!(tiny(&[]), (cpu, memory));
    assert_eq!(tiny(&[json!({})]), (3 + cpu, 3 + memory));
    let whole = json!({"containers": containers(&[json!({})]), "resources": {"requests": {"cpu": "9", "memory": "9Gi"}}});
    assert_eq!(check(whole), (cpu, memory), "requests of the pod as a whole are not read");
}

#[test]
fn requests_of_a_pod_as_a_whole_count_once_it_is_placed() {
    let scored = |whole: Value| {
        let spec = json!({"containers": testing::containers(&[json!({"cpu": "1"}), json!({})]), "resources": {"requests": whole}});
        let scored = testing::pod_of("p", spec).scored();
        (scored.cpu, scored.memory)
    };
    assert_eq!(scored(json!({"cpu": "3", "memory": "1Gi"})), (3000, 1 << 30));
    assert_eq!(scored(json!({"cpu": "3"})), (3000, 400 << 20), "no memory is requested");
    assert_eq!(scored(json!({"memory": "1Gi"})), (1000, 1 << 30), "requests are not topped up");
    assert_eq!(scored(json!({})), (1100, 400 << 20));
}
