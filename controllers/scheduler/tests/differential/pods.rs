//! The pods of a case: those that are placed, those that are nominated, and the one to schedule.

use serde_json::{Map, Value, json};

use crate::constraints::{add_node_affinity, add_pod_affinity, add_spread, add_tolerations};
use crate::containers::{Size, add_containers, add_resize};
use crate::selectors::{LABELS, labels};
use crate::world::{NAMESPACES, World, metadata};
use crate::{devices, volumes};

/// Adds the namespaces, and services and controllers that select pods.
pub fn add_namespaces(world: &mut World) {
    for name in NAMESPACES {
        if world.dice.chance(0.03) {
            continue;
        }
        let mut labels = json!({"kubernetes.io/metadata.name": name});
        if world.dice.chance(0.7) {
            labels["team"] = json!(world.dice.pick(&["x", "y"]));
        }
        world.add("namespaces", json!({"metadata": {"name": name, "labels": labels}}));
    }
    if !world.dice.chance(world.weights.owners) {
        return;
    }
    for index in 0..world.dice.few(1..=4) {
        let namespace = world.dice.pick(&NAMESPACES);
        let (key, values) = LABELS[world.dice.index(LABELS.len())];
        let labels = json!({key: world.dice.pick(values)});
        let name = format!("o{index}");
        let spec = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}});
        match world.dice.number(0..=3) {
            0 | 1 => {
                let service = json!({"metadata": metadata(namespace, &name, json!({})), "spec": {"selector": labels, "ports": [{"port": 80}]}});
                world.add("services", service);
            }
            2 => world
                .add("replicaSets", json!({"metadata": metadata(namespace, &name, json!({})), "spec": spec})),
            _ => {
                world.add(
                    "statefulSets",
                    json!({"metadata": metadata(namespace, &name, json!({})), "spec": spec}),
                );
            }
        }
        if world.dice.chance(0.2) {
            let controller =
                json!({"metadata": metadata(namespace, &name, json!({})), "spec": {"selector": labels}});
            world.add("replicationControllers", controller);
        }
    }
}

/// Adds the pods that are placed, and some that are nominated.
pub fn add_placed(world: &mut World) {
    let per_node = world.weights.pods;
    for index in 0..world.nodes.len() {
        let count = if world.tight { world.dice.number(3..=9) } else { world.dice.number(0..=per_node) };
        for _ in 0..count {
            add_one_placed(world, index);
        }
    }
    if world.dice.chance(0.03) {
        let pod = pod_on(world, "gone", Size { cpu: 100, memory: 100 });
        world.add("pods", pod);
    }
    if world.dice.chance(world.weights.nominated) {
        for _ in 0..world.dice.number(1..=6) {
            add_nominated(world);
        }
    }
}

fn add_one_placed(world: &mut World, index: usize) {
    let node = &world.nodes[index];
    if node.pods <= 0 || node.cpu < 100 || node.memory < 100 {
        return;
    }
    let (most_cpu, most_memory, name) = (node.cpu, node.memory, node.name.clone());
    let part = if world.tight { 2 } else { world.weights.pods.max(1) };
    let size = Size {
        cpu: (world.dice.number(50..=(most_cpu * 3 / 2 / part).max(60)) / 10 * 10).min(most_cpu),
        memory: world.dice.number(32..=(most_memory * 3 / 2 / part).max(40)).min(most_memory),
    };
    world.nodes[index].cpu -= size.cpu;
    world.nodes[index].memory -= size.memory;
    world.nodes[index].pods -= 1;
    let pod = pod_on(world, &name, size);
    world.add("pods", pod);
}

fn pod_on(world: &mut World, node: &str, size: Size) -> Value {
    let mut pod = bare_pod(world, size, "p", 0.35);
    pod["spec"]["nodeName"] = json!(node);
    let phase = if world.dice.chance(0.03) { world.dice.pick(&["Succeeded", "Failed"]) } else { "Running" };
    pod["status"]["phase"] = json!(phase);
    pod["status"]["startTime"] = json!(world.time());
    if world.dice.chance(world.weights.shapes * 0.3) {
        add_resize(&mut world.dice, &mut pod);
    }
    if world.dice.chance(world.weights.terminating) {
        pod["metadata"]["deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        if world.dice.chance(0.5) {
            let reason =
                world.dice.pick(&["PreemptionByScheduler", "PreemptionByScheduler", "EvictionByEvictionAPI"]);
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason});
            match pod["status"]["conditions"].as_array_mut() {
                Some(conditions) => conditions.push(condition),
                None => pod["status"]["conditions"] = json!([condition]),
            }
        }
    }
    pod
}

fn add_nominated(world: &mut World) {
    let index = world.node();
    let name = world.nodes[index].name.clone();
    let size = Size { cpu: world.dice.number(1..=40) * 100, memory: world.dice.number(50..=5000) };
    let mut pod = bare_pod(world, size, "nom", 0.6);
    if world.dice.chance(0.7) {
        pod["spec"]["priority"] = json!(world.dice.number(5..=13) * 10);
    }
    pod["status"]["phase"] = json!("Pending");
    pod["status"]["nominatedNodeName"] = json!(name);
    world.add("pods", pod);
}

/// Returns the pod to schedule.
pub fn pod_to_schedule(world: &mut World) -> Value {
    let tight = world.tight;
    let size = if tight && world.dice.chance(0.3) {
        Size { cpu: 20, memory: 20 }
    } else if tight {
        Size { cpu: world.dice.number(2..=11) * 500, memory: world.dice.few(1..=12) * 500 }
    } else {
        Size { cpu: world.dice.few(1..=30) * 100, memory: world.dice.few(50..=6000) }
    };
    let mut pod = bare_pod(world, size, "pod", 1.0);
    pod["status"]["phase"] = json!("Pending");
    if tight {
        pod["spec"]["priority"] = json!(world.dice.number(3..=12) * 10);
    }
    if world.dice.chance(world.weights.nominated * 0.6) {
        let index = world.node();
        pod["status"]["nominatedNodeName"] = json!(world.nodes[index].name);
    }
    if world.dice.chance(0.02) {
        let index = world.node();
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": world.nodes[index].name});
    }
    if world.dice.chance(world.weights.owners) {
        add_selecting(world, &mut pod);
    }
    pod
}

/// Adds a service or a controller that selects a pod.
fn add_selecting(world: &mut World, pod: &mut Value) {
    let Some(labels) = pod["metadata"]["labels"].as_object().filter(|labels| !labels.is_empty()).cloned()
    else {
        return;
    };
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    let chosen = labels.iter().nth(world.dice.index(labels.len())).map(|(key, value)| json!({key: value}));
    let metadata = metadata(&namespace, "own", json!({}));
    if world.dice.chance(0.5) {
        let service = json!({"metadata": metadata, "spec": {"selector": chosen, "ports": [{"port": 80}]}});
        world.add("services", service);
        return;
    }
    let (list, kind, version) = match world.dice.number(0..=2) {
        0 => ("replicaSets", "ReplicaSet", "apps/v1"),
        1 => ("statefulSets", "StatefulSet", "apps/v1"),
        _ => ("replicationControllers", "ReplicationController", "v1"),
    };
    let selector =
        if kind == "ReplicationController" { json!(chosen) } else { json!({"matchLabels": chosen}) };
    world.add(list, json!({"metadata": metadata, "spec": {"selector": selector}}));
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": version, "kind": kind, "name": "own", "uid": "uid-own", "controller": true}]);
}

/// Returns a pod that is nowhere yet; `rate` scales the probability of its features.
fn bare_pod(world: &mut World, size: Size, prefix: &str, rate: f64) -> Value {
    let number = world.next();
    let namespace = if world.dice.chance(0.6) { NAMESPACES[0] } else { world.dice.pick(&NAMESPACES) };
    let own = labels(&mut world.dice);
    let name = if prefix == "pod" { "pod".to_owned() } else { format!("{prefix}{number}") };
    let mut pod = json!({
        "metadata": metadata(namespace, &name, Value::Object(own.clone())),
        "spec": {"schedulerName": "default-scheduler", "restartPolicy": "Always"},
        "status": {},
    });
    pod["metadata"]["uid"] = json!(format!("uid-{number}"));
    add_constraints(world, &mut pod["spec"], &own, size, rate);
    if world.dice.chance(world.weights.owners * 0.7) {
        add_owner(world, &mut pod, namespace);
    }
    if world.dice.chance(world.weights.volumes * rate) {
        volumes::add_to_pod(world, &mut pod, rate >= 1.0);
    }
    if world.dice.chance(world.weights.devices * rate) {
        devices::add_to_pod(world, &mut pod, rate >= 1.0);
    }
    pod
}

fn add_constraints(world: &mut World, spec: &mut Value, own: &Map<String, Value>, size: Size, rate: f64) {
    let nodes = world.nodes.len();
    let weights = world.weights.clone();
    let dice = &mut world.dice;
    add_containers(dice, &weights, size, spec);
    if dice.chance(weights.node_affinity * rate) {
        add_node_affinity(dice, spec, nodes);
    }
    if dice.chance(0.3f64.max(weights.taints)) {
        add_tolerations(dice, spec);
    }
    if dice.chance(weights.affinity * rate) {
        add_pod_affinity(dice, spec, own, if rate < 1.0 { 0.3 } else { 0.5 });
    }
    if dice.chance(weights.spread * rate) {
        add_spread(dice, spec, own, &weights);
    }
    if dice.chance(0.6) {
        spec["priority"] = json!(dice.number(-2..=9) * 10);
    }
    if dice.chance(0.06) {
        spec["preemptionPolicy"] = json!("Never");
    }
}

fn add_owner(world: &mut World, pod: &mut Value, namespace: &str) {
    for (list, kind, version) in [
        ("replicaSets", "ReplicaSet", "apps/v1"),
        ("statefulSets", "StatefulSet", "apps/v1"),
        ("replicationControllers", "ReplicationController", "v1"),
    ] {
        let owner = world.list(list).iter().find(|owner| owner["metadata"]["namespace"] == namespace);
        let Some(name) = owner.map(|owner| owner["metadata"]["name"].clone()) else { continue };
        if world.dice.chance(0.6) {
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": version, "kind": kind, "name": name, "uid": format!("uid-{kind}"), "controller": true}]);
            return;
        }
    }
}
