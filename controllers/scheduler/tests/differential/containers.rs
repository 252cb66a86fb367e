//! Containers, resources, ports and the shape of pods.

use serde_json::{Map, Value, json};

use crate::dice::Dice;
use crate::nodes::{IMAGES, cpu_text};
use crate::weights::Weights;

/// The processor time and memory that a pod asks for: thousandths and MiB.
#[derive(Clone, Copy, Default)]
pub struct Size {
    /// Processor time in thousandths.
    pub cpu: i64,
    /// Memory in MiB.
    pub memory: i64,
}

/// Adds containers that ask for about `size` in all, and what else belongs to the shape of a pod.
pub fn add_containers(dice: &mut Dice, weights: &Weights, size: Size, spec: &mut Value) {
    let count = dice.few(1..=3);
    let containers: Vec<Value> = (0..count)
        .map(|index| {
            let part = Size { cpu: size.cpu / count, memory: size.memory / count };
            container(dice, weights, &format!("c{index}"), part)
        })
        .collect();
    spec["containers"] = Value::Array(containers);
    if dice.chance(weights.shapes) {
        let inits = (0..dice.few(1..=3)).map(|index| init_container(dice, weights, index, size)).collect();
        spec["initContainers"] = inits;
    }
    if dice.chance(weights.shapes * 0.3) {
        spec["overhead"] = json!({"cpu": "150m", "memory": "64Mi"});
        spec["runtimeClassName"] = json!("sandboxed");
    }
    if dice.chance(weights.shapes * 0.4) {
        level_resources(dice, size, spec);
    }
    if dice.chance(weights.ports) {
        add_ports(dice, spec);
    }
}

fn container(dice: &mut Dice, weights: &Weights, name: &str, size: Size) -> Value {
    let mut container = json!({"name": name, "image": dice.pick(&IMAGES)});
    let mut requests = Map::new();
    let mut limits = Map::new();
    if dice.chance(0.85) {
        requests.insert("cpu".to_owned(), json!(cpu_text(size.cpu, dice.chance(0.5))));
        if dice.chance(0.3) {
            limits.insert("cpu".to_owned(), json!(cpu_text(size.cpu + 500, false)));
        }
    }
    if dice.chance(0.85) {
        let memory = match dice.number(0..=9) {
            0 | 1 => format!("{}", size.memory << 20),
            2 | 3 => format!("{}M", size.memory),
            4 => format!("{}e6", size.memory),
            5 => format!("{}.5Mi", size.memory),
            6 if size.memory >= 1024 => format!("{}Gi", size.memory / 1024),
            _ => format!("{}Mi", size.memory),
        };
        requests.insert("memory".to_owned(), json!(memory));
    }
    if dice.chance(weights.scalars * 0.25) {
        requests.insert("ephemeral-storage".to_owned(), json!(format!("{}Gi", dice.number(1..=6))));
    }
    for (name, most) in [("example.com/gpu", 2), ("example.com/nic", 3)] {
        if dice.chance(weights.scalars * 0.15) {
            let quantity = json!(dice.number(0..=most).to_string());
            requests.insert(name.to_owned(), quantity.clone());
            limits.insert(name.to_owned(), quantity);
        }
    }
    if dice.chance(weights.scalars * 0.15) && requests.contains_key("cpu") {
        let quantity = json!(format!("{}Mi", 2 * dice.number(1..=16)));
        requests.insert("hugepages-2Mi".to_owned(), quantity.clone());
        limits.insert("hugepages-2Mi".to_owned(), quantity);
    }
    if dice.chance(0.05) {
        requests.insert("cpu".to_owned(), json!("0"));
    }
    set_resources(&mut container, requests, limits);
    if dice.chance(weights.shapes * 0.08) {
        container["restartPolicy"] = json!("Never");
        container["restartPolicyRules"] =
            json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    }
    container
}

fn set_resources(container: &mut Value, requests: Map<String, Value>, limits: Map<String, Value>) {
    if !requests.is_empty() {
        container["resources"]["requests"] = Value::Object(requests);
    }
    if !limits.is_empty() {
        container["resources"]["limits"] = Value::Object(limits);
    }
}

fn init_container(dice: &mut Dice, weights: &Weights, index: i64, size: Size) -> Value {
    let part =
        Size { cpu: size.cpu * dice.number(1..=14) / 10, memory: size.memory * dice.number(1..=12) / 10 };
    let mut container = container(dice, weights, &format!("i{index}"), part);
    if dice.chance(0.4) {
        container["restartPolicy"] = json!("Always");
        if let Some(fields) = container.as_object_mut() {
            fields.remove("restartPolicyRules");
        }
        if dice.chance(weights.ports * 0.5) {
            container["ports"] =
                json!([{"containerPort": 9000, "hostPort": 9000 + dice.number(0..=2), "protocol": "TCP"}]);
        }
    }
    container
}

/// Sets resources of the whole pod; the containers then ask for little.
fn level_resources(dice: &mut Dice, size: Size, spec: &mut Value) {
    for list in ["containers", "initContainers"] {
        let Some(containers) = spec[list].as_array_mut() else { continue };
        for container in containers {
            let Some(container) = container.as_object_mut() else { continue };
            container.remove("resources");
            if dice.chance(0.5) {
                container
                    .insert("resources".to_owned(), json!({"requests": {"cpu": "20m", "memory": "16Mi"}}));
            }
        }
    }
    let requests =
        json!({"cpu": cpu_text(size.cpu + 300, false), "memory": format!("{}Mi", size.memory + 200)});
    spec["resources"] = json!({"requests": requests});
    if dice.chance(0.3) {
        spec["resources"]["limits"] = json!({"cpu": cpu_text(size.cpu + 1000, false)});
    }
}

fn add_ports(dice: &mut Dice, spec: &mut Value) {
    let count = dice.few(1..=3);
    let mut ports: Vec<Value> = Vec::new();
    for index in 0..count {
        let mut port = json!({
            "containerPort": 8000 + index,
            "hostPort": 8000 + dice.number(0..=3),
            "protocol": dice.pick(&["TCP", "TCP", "TCP", "UDP", "SCTP"]),
        });
        if dice.chance(0.5) {
            port["hostIP"] = json!(dice.pick(&["0.0.0.0", "10.0.0.1", "10.0.0.2", "127.0.0.1"]));
        }
        let key = |port: &Value| (port["hostPort"].clone(), port["protocol"].clone(), port["hostIP"].clone());
        if ports.iter().all(|other| key(other) != key(&port)) {
            ports.push(port);
        }
    }
    spec["containers"][0]["ports"] = Value::Array(ports);
}

/// Adds statuses of a resize to a placed pod: the kubelet has not yet, or no longer, what the spec asks for.
pub fn add_resize(dice: &mut Dice, pod: &mut Value) {
    if !pod["spec"]["resources"].is_null() {
        return;
    }
    let mut statuses = Vec::new();
    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
        let Some(requests) = container["resources"]["requests"].as_object() else { continue };
        let mut status = json!({
            "name": container["name"], "image": container["image"], "imageID": "", "ready": true, "restartCount": 0,
        });
        let changed = |dice: &mut Dice| {
            let mut resources = requests.clone();
            if resources.contains_key("cpu") {
                resources.insert("cpu".to_owned(), json!(cpu_text(dice.number(1..=30) * 100, false)));
            }
            Value::Object(resources)
        };
        status["allocatedResources"] =
            if dice.chance(0.5) { Value::Object(requests.clone()) } else { changed(dice) };
        status["resources"] = json!({"requests": changed(dice)});
        statuses.push(status);
    }
    if !statuses.is_empty() {
        pod["status"]["containerStatuses"] = Value::Array(statuses);
    }
    if dice.chance(0.4) {
        let (kind, reason) = if dice.chance(0.5) {
            ("PodResizePending", dice.pick(&["Infeasible", "Deferred"]))
        } else {
            ("PodResizeInProgress", "")
        };
        let mut condition = json!({"type": kind, "status": "True"});
        if !reason.is_empty() {
            condition["reason"] = json!(reason);
        }
        pod["status"]["conditions"] = json!([condition]);
    }
}
