//! Measures attempts of pods that spread or have inter-pod affinity: `cargo run --release --example terms`.
#![expect(clippy::print_stdout, reason = "it prints what it has measured")]

use std::sync::Arc;

use controllers_scheduler::cluster::{Cluster, NodeFacts};
use controllers_scheduler::framework::{NominatedFirst, Views, best, find_feasible, score};
use controllers_scheduler::plugins::default_profile;
use controllers_scheduler::pod::PodInfo;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, from_value, json};

const NODES: usize = 5000;
const PODS: usize = 10_000;
const ATTEMPTS: usize = 2000;

fn main() {
    let selector = json!({"matchLabels": {"app": "a"}});
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]});
    let term = |key: &str| json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key, "labelSelector": selector}]});
    measure("plain", json!({}), false);
    measure("spread by default", json!({}), true);
    measure("spread by zone", spread, false);
    let apart = json!({"affinity": {"podAntiAffinity": term("kubernetes.io/hostname")}});
    measure("anti-affinity by hostname", apart, false);
    let near = json!({"affinity": {"podAffinity": term("topology.kubernetes.io/zone")}});
    measure("affinity by zone", near, false);
}

fn pod(number: usize, app: &str, spec: &Value) -> Arc<PodInfo> {
    let mut pod = json!({"metadata": {"name": format!("p{number}"), "namespace": "n", "uid": format!("u{number}"),
        "labels": {"app": app}}, "spec": spec});
    pod["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
    Arc::new(PodInfo::parse(from_value::<Pod>(pod).expect("the pod is valid")))
}

/// Prints the time of an attempt, placement included, in a cluster with pods of two templates.
fn measure(name: &str, spec: Value, has_service: bool) {
    let mut cluster = Cluster::default();
    for number in 0..NODES {
        let labels = json!({"kubernetes.io/hostname": format!("n{number}"),
            "topology.kubernetes.io/zone": format!("z{}", number % 10)});
        let node = json!({"metadata": {"name": format!("n{number}"), "labels": labels},
            "status": {"allocatable": {"pods": "110", "cpu": "64", "memory": "256Gi"}}});
        let node = from_value::<Node>(node).expect("the node is valid");
        cluster.set_node(Arc::new(NodeFacts::parse(node)));
    }
    if has_service {
        cluster.set_service("n", "a", Some([("app".to_owned(), "a".to_owned())].into()));
    }
    for number in 0..PODS {
        let app = if number % 5 == 0 { "a" } else { "b" };
        let spec = if number % 5 == 0 { spec.clone() } else { json!({}) };
        cluster.place(&pod(number, app, &spec), &format!("n{}", number % NODES).into());
    }
    let (profile, mut views) = (default_profile(), Views::default());
    let pods: Vec<_> = (PODS..PODS + ATTEMPTS).map(|number| pod(number, "a", &spec)).collect();
    let start = tokio::time::Instant::now();
    for (number, pod) in pods.iter().enumerate() {
        let found = find_feasible(&profile, pod, &mut cluster, &mut views, 0, NominatedFirst::No);
        let feasible = found.expect("there is room for each pod").nodes;
        let totals = score(&profile, pod, &cluster, &mut views, &feasible, |_, _| {});
        let node = best(&feasible, &totals, number as u64).expect("there is a feasible node");
        let name = cluster.node(node).name.clone();
        cluster.place(pod, &name);
    }
    println!("{name}: {:.1} µs an attempt", start.elapsed().as_secs_f64() * 1e6 / ATTEMPTS as f64);
}
