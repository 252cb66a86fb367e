//! Makes cases from a seed.

use serde_json::{Map, Value, json};

use crate::config::config;
use crate::nodes::add_nodes;
use crate::pods::{add_namespaces, add_placed, pod_to_schedule};
use crate::selectors::selector;
use crate::weights::Weights;
use crate::world::{NAMESPACES, World, metadata};
use crate::{devices, volumes};

/// Returns the case of a family and a seed.
pub fn case(seed: u64, family: &str, weights: Weights) -> Value {
    let mut world = World::new(seed, weights);
    world.tight = world.dice.chance(world.weights.preemption);
    if world.tight {
        world.weights.load = 100;
        world.weights.taints *= 0.5;
    }
    add_nodes(&mut world);
    add_namespaces(&mut world);
    volumes::add_cluster(&mut world);
    devices::add_cluster(&mut world);
    add_placed(&mut world);
    add_budgets(&mut world);
    let pod = pod_to_schedule(&mut world);
    let nodes = world.nodes.len();
    let config = world.dice.chance(world.weights.config).then(|| config(&mut world.dice, nodes));
    let mut case = world.finish(pod, config);
    case["id"] = json!(format!("{family}-{seed}"));
    case
}

/// Returns the labels of a pod of a namespace.
fn labels_of_one(world: &mut World, namespace: &str) -> Map<String, Value> {
    let in_namespace =
        |pod: &&Value| pod["metadata"]["namespace"] == namespace && pod["metadata"]["labels"].is_object();
    let pods: Vec<Value> = world.list("pods").iter().filter(in_namespace).cloned().collect();
    if pods.is_empty() {
        return Map::new();
    }
    let pod = &pods[world.dice.index(pods.len())];
    pod["metadata"]["labels"].as_object().cloned().unwrap_or_default()
}

fn add_budgets(world: &mut World) {
    if !world.tight || world.dice.chance(0.3) {
        return;
    }
    for index in 0..world.dice.few(1..=4) {
        let namespace = if world.dice.chance(0.7) { NAMESPACES[0] } else { world.dice.pick(&NAMESPACES) };
        let own = labels_of_one(world, namespace);
        let mut spec = json!({"minAvailable": 1});
        if world.dice.chance(0.95) {
            spec["selector"] = selector(&mut world.dice, &own);
        }
        let mut status = json!({"disruptionsAllowed": world.dice.few(0..=2), "currentHealthy": 3, "desiredHealthy": 1, "expectedPods": 3});
        if world.dice.chance(0.3) {
            let in_namespace = |pod: &&Value| pod["metadata"]["namespace"] == namespace;
            let names = world
                .list("pods")
                .iter()
                .filter(in_namespace)
                .take(8)
                .filter_map(|pod| pod["metadata"]["name"].as_str());
            let disrupted: Map<String, Value> =
                names.map(|name| (name.to_owned(), json!("2026-02-01T00:00:00Z"))).collect();
            status["disruptedPods"] = Value::Object(disrupted);
        }
        let budget = json!({"metadata": metadata(namespace, &format!("b{index}"), json!({})), "spec": spec, "status": status});
        world.add("podDisruptionBudgets", budget);
    }
}
