//! Makes cases from a seed.

use serde_json::{Value, json};

use crate::config::config;
use crate::nodes::add_nodes;
use crate::pods::{add_namespaces, add_placed, pod_to_schedule};
use crate::selectors::{labels, selector};
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

fn add_budgets(world: &mut World) {
    if !world.tight || world.dice.chance(0.3) {
        return;
    }
    for index in 0..world.dice.few(1..=4) {
        let namespace = if world.dice.chance(0.7) { NAMESPACES[0] } else { world.dice.pick(&NAMESPACES) };
        let own = labels(&mut world.dice);
        let mut spec = json!({"minAvailable": 1});
        if world.dice.chance(0.95) {
            spec["selector"] = selector(&mut world.dice, &own);
        }
        let mut status = json!({"disruptionsAllowed": world.dice.few(0..=3), "currentHealthy": 3, "desiredHealthy": 1, "expectedPods": 3});
        let victim = world
            .list("pods")
            .iter()
            .find(|pod| pod["metadata"]["namespace"] == namespace)
            .map(|pod| pod["metadata"]["name"].clone());
        if let Some(Value::String(victim)) = victim
            && world.dice.chance(0.2)
        {
            status["disruptedPods"] = json!({victim: "2026-02-01T00:00:00Z"});
        }
        let budget = json!({"metadata": metadata(namespace, &format!("b{index}"), json!({})), "spec": spec, "status": status});
        world.add("podDisruptionBudgets", budget);
    }
}
