//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cluster::NodeFacts;
use crate::testing;

/// Returns a node with images `gcr.io/SIZE:latest` of these sizes in MiB.
fn node(name: &str, sizes: &[i64]) -> Arc<NodeFacts> {
    let image = |size: &i64| json!({"names": [format!("gcr.io/{size}:latest"), format!("gcr.io/{size}:v1")], "sizeBytes": size * MIB});
    let images: Vec<Value> = sizes.iter().map(image).collect();
    testing::node(name, json!({"status": {"images": images}}))
}

fn containers(sizes: &[i64]) -> Value {
    sizes.iter().map(|size| json!({"name": format!("c{size}"), "image": format!("gcr.io/{size}")})).collect()
}

fn scores(spec: Value, nodes: &[&[i64]]) -> Vec<i64> {
    let nodes: Vec<_> = nodes.iter().enumerate().map(|(i, sizes)| node(&format!("n{i}"), sizes)).collect();
    testing::scores(&ImageLocality, &testing::pod_of("p", spec), &testing::cluster(&nodes, &[])).unwrap()
}

#[test]
fn nodes_score_by_the_size_of_their_images_and_how_many_have_them() {
    let of = |images: &[i64], nodes: &[&[i64]]| scores(json!({"containers": containers(images)}), nodes);
    let (a, b): (&[i64], &[i64]) = (&[40, 300, 2000], &[250, 10]);
    assert_eq!(of(&[40, 250], &[a, b]), [0, 5]);
    assert_eq!(of(&[40, 300], &[a, b]), [7, 0]);
    assert_eq!(of(&[10, 4000], &[&[4000, 30], b]), [100, 0], "more than the most counts as the most");
    assert_eq!(of(&[10, 4000], &[&[4000, 30], b, &[]]), [66, 0, 0]);
    assert_eq!(of(&[300, 600, 900], &[&[600, 40, 900], &[300, 600, 900], &[]]), [32, 36, 0]);
    assert_eq!(of(&[30, 40], &[&[20, 30, 40], &[4000, 30]]), [1, 0]);
    assert_eq!(of(&[5], &[a, b]), [0, 0], "no node has it");
}

#[test]
fn images_of_init_containers_and_volumes_count() {
    let volume = json!({"containers": containers(&[30]), "volumes": [{"name": "v", "image": {"reference": "gcr.io/300"}}]});
    assert_eq!(scores(volume, &[&[300, 600, 900], &[4000, 30]]), [12, 0]);
    let init = json!({"containers": containers(&[30]), "initContainers": containers(&[300])});
    assert_eq!(scores(init, &[&[40, 300, 2000], &[20, 30, 40]]), [6, 0]);
}

#[test]
fn names_without_a_tag_mean_the_latest() {
    let name = |image: &str| {
        let pod = testing::pod_of("p", json!({"containers": [{"name": "c", "image": image}]}));
        pod.images().next().unwrap().into_owned()
    };
    assert_eq!(name("root"), "root:latest");
    assert_eq!(name("gcr.io:5000/root"), "gcr.io:5000/root:latest");
    assert_eq!(name("root:tag"), "root:tag");
    assert_eq!(name("root@sha256:4813494d137e"), "root@sha256:4813494d137e");
}

#[test]
fn scores_follow_images_that_come_and_go() {
    let pod = testing::pod_of("p", json!({"containers": containers(&[500])}));
    let mut cluster = testing::cluster(&[node("n0", &[500]), node("n1", &[])], &[]);
    let scores = |cluster: &Cluster| testing::scores(&ImageLocality, &pod, cluster).unwrap();
    assert_eq!(scores(&cluster), [23, 0]);
    cluster.set_node(node("n1", &[500]));
    assert_eq!(scores(&cluster), [48, 48]);
    cluster.remove_node("n0");
    assert_eq!(scores(&cluster), [48]);
}
