//! Scores by devices that serve a resource.

use apiserver_client::ObjectKey;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{from_value, json};

use super::super::*;
use crate::framework::{Feasible, Meter, Views, score};
use crate::plugins::profile;
use crate::testing::{self, requesting, serve_devices, sized};

const GPU: &str = "example.com/gpu";
const OF_CLASS: &str = "deviceclass.resource.kubernetes.io/c";

fn plugin(strategy: Strategy) -> NodeResourcesFit {
    let resources = [GPU, OF_CLASS].map(|name| ResourceWeight { name: name.to_owned(), weight: 1 });
    NodeResourcesFit::new(FitArgs { strategy, resources: resources.into(), ..FitArgs::default() })
}

/// Returns three nodes, of which two have devices and the last has the resource itself.
fn nodes() -> Cluster {
    let mut cluster = testing::cluster(
        &[sized("a", json!({})), sized("b", json!({})), sized("own", json!({GPU: "4"}))],
        &[],
    );
    serve_devices(&mut cluster, GPU, &[("a", 3), ("b", 2), ("own", 1)]);
    cluster
}

/// Gives a claim a device of a node, or takes it.
fn set_claim(cluster: &mut Cluster, node: &str, has: bool) {
    let results = json!([{"request": "r", "driver": "d", "pool": node, "device": "d0"}]);
    let allocation = has.then(|| json!({"devices": {"results": results}}));
    let claim = json!({"metadata": {"name": "x", "namespace": "default", "uid": "x"}, "spec": {},
        "status": {"allocation": allocation}});
    let claim: ResourceClaim = from_value(claim).unwrap();
    cluster.devices.set_claim(&ObjectKey::of(&claim), Some(claim.into()));
}

#[test]
fn devices_count_where_nodes_do_not_have_the_resource_themselves() {
    let (one, implied) = (requesting("p", &[json!({GPU: "1"})]), requesting("q", &[json!({OF_CLASS: "1"})]));
    let mut cluster = nodes();
    let of = |strategy, pod: &PodInfo, cluster: &Cluster| {
        testing::scores(&plugin(strategy), pod, cluster).unwrap()
    };
    assert_eq!(of(Strategy::LeastAllocated, &one, &cluster), [66, 50, 75]);
    assert_eq!(of(Strategy::MostAllocated, &one, &cluster), [33, 50, 25]);
    assert_eq!(of(Strategy::LeastAllocated, &implied, &cluster), [66, 50, 0], "the node has it not itself");
    set_claim(&mut cluster, "a", true);
    assert_eq!(of(Strategy::LeastAllocated, &one, &cluster), [33, 50, 75], "one of three is in use");
    cluster.devices.set_slice("a", None);
    assert_eq!(of(Strategy::LeastAllocated, &one, &cluster), [0, 50, 75]);
}

#[test]
fn scores_are_cached_only_for_pods_without_such_a_resource() {
    let (mut cluster, mut views) = (nodes(), Views::default());
    let profile = profile("p", vec![(Box::new(plugin(Strategy::LeastAllocated)), 1)]);
    let all: Feasible = cluster.nodes().map(|node| node.id).collect();
    let mut scores = |cluster: &Cluster, pod: &PodInfo| {
        score(&profile, pod, cluster, &mut views, &all, &mut Meter::default())
    };
    let pod = requesting("p", &[json!({GPU: "1"})]);
    assert_eq!(scores(&cluster, &pod), [66, 50, 75]);
    // No node has changed.
    set_claim(&mut cluster, "b", true);
    assert_eq!(scores(&cluster, &pod), [66, 0, 75]);
    set_claim(&mut cluster, "b", false);
    assert_eq!(scores(&cluster, &pod), [66, 50, 75]);
    // A class that comes later replaces what was cached.
    cluster.device_classes.remove("c");
    assert_eq!(scores(&cluster, &pod), [0, 0, 75]);
    serve_devices(&mut cluster, GPU, &[]);
    assert_eq!(scores(&cluster, &pod), [66, 50, 75]);
    let plain = requesting("q", &[json!({"cpu": "1"})]);
    assert!(plugin(Strategy::LeastAllocated).node_score(&plain.spec, &cluster).is_some());
}
