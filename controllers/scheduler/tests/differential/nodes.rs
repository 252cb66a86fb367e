//! The nodes of a case.

use serde_json::{Map, Value, json};

use crate::world::{HOSTNAME, Node, REGION, World, ZONE, ZONES};

/// The keys of taints.
pub const TAINTS: [&str; 3] = ["dedicated", "maintenance", "node.kubernetes.io/disk-pressure"];
/// The values of taints.
pub const TAINT_VALUES: [&str; 3] = ["", "a", "b"];
/// The images that nodes have and containers name.
pub const IMAGES: [&str; 6] = [
    "web",
    "registry.example:5000/web",
    "db:1",
    "gcr.io/tool:v2",
    "job@sha256:0123456789012345678901234567890123456789012345678901234567890123",
    "big",
];

/// Adds the nodes.
pub fn add_nodes(world: &mut World) {
    let most = world.weights.nodes;
    let count = world.dice.few(3..=most.max(3));
    let zones = world.dice.number(1..=4);
    for index in 0..count {
        add_node(world, index, zones);
    }
}

fn add_node(world: &mut World, index: i64, zones: i64) {
    let name = format!("n{index}");
    let labels = labels(world, &name, zones);
    let zone = labels.get(ZONE).and_then(Value::as_str).map(str::to_owned);
    let (cpu, memory) = if world.tight {
        (world.dice.number(4..=7) * 1000, world.dice.number(6..=10) * 1024)
    } else {
        (world.dice.number(1..=16) * 1000, world.dice.number(2..=32) * 1024)
    };
    let pods = if world.dice.chance(0.1) { world.dice.number(1..=6) } else { 110 };
    let allocatable = allocatable(world, cpu, memory, pods);
    let mut spec = json!({});
    if world.dice.chance(world.weights.taints * 0.3) {
        spec["unschedulable"] = json!(true);
    }
    let taints = taints(world, spec["unschedulable"] == json!(true));
    if !taints.is_empty() {
        spec["taints"] = Value::Array(taints);
    }
    let mut status = json!({"allocatable": allocatable, "capacity": allocatable});
    let images = images(world);
    if !images.is_empty() {
        status["images"] = Value::Array(images);
    }
    let declared = world
        .dice
        .some(&["InPlacePodLevelResourcesVerticalScaling", "RestartAllContainersOnContainerExits"], 0.5);
    if world.dice.chance(0.3) && !declared.is_empty() {
        status["declaredFeatures"] = json!(declared);
    }
    world.add("nodes", json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}));
    let load = world.weights.load;
    world.nodes.push(Node { name, zone, cpu: cpu * load / 100, memory: memory * load / 100, pods });
}

fn labels(world: &mut World, name: &str, zones: i64) -> Map<String, Value> {
    let dice = &mut world.dice;
    let mut labels = Map::new();
    let mut set = |key: &str, value: String| labels.insert(key.to_owned(), Value::String(value));
    if dice.chance(0.97) {
        set(HOSTNAME, if dice.chance(0.02) { "shared".to_owned() } else { name.to_owned() });
    }
    if dice.chance(0.93) {
        let zone = ZONES[dice.index(usize::try_from(zones).unwrap_or(1))];
        set(ZONE, zone.to_owned());
        if dice.chance(0.9) {
            set(REGION, if zone < "z2" { "r0" } else { "r1" }.to_owned());
        }
    }
    if dice.chance(0.7) {
        set("disk", dice.pick(&["ssd", "hdd", "nvme"]).to_owned());
    }
    if dice.chance(0.6) {
        set("gen", if dice.chance(0.1) { "old".to_owned() } else { dice.number(0..=12).to_string() });
    }
    if dice.chance(0.5) {
        set("rack", format!("k{}", dice.number(0..=4)));
    }
    labels
}

fn allocatable(world: &mut World, cpu: i64, memory: i64, pods: i64) -> Value {
    let scalars = world.weights.scalars;
    let dice = &mut world.dice;
    let mut allocatable = json!({"cpu": cpu_text(cpu, dice.chance(0.3)), "memory": format!("{memory}Mi"), "pods": pods.to_string()});
    if dice.chance(scalars) {
        allocatable["ephemeral-storage"] = json!(format!("{}G", dice.number(5..=50)));
    }
    if dice.chance(scalars) {
        allocatable["example.com/gpu"] = json!(dice.number(0..=4).to_string());
    }
    if dice.chance(scalars * 0.5) {
        allocatable["example.com/nic"] = json!(dice.number(1..=8).to_string());
    }
    if dice.chance(scalars * 0.7) {
        allocatable["hugepages-2Mi"] = json!(format!("{}Mi", 2 * dice.number(0..=64)));
    }
    allocatable
}

/// Returns thousandths of a processor as a quantity, in one of its forms.
pub fn cpu_text(thousandths: i64, plain: bool) -> String {
    if plain && thousandths % 1000 == 0 {
        (thousandths / 1000).to_string()
    } else if plain && thousandths % 100 == 0 {
        format!("{}.{}", thousandths / 1000, thousandths % 1000 / 100)
    } else {
        format!("{thousandths}m")
    }
}

fn taints(world: &mut World, unschedulable: bool) -> Vec<Value> {
    let chance = world.weights.taints;
    let dice = &mut world.dice;
    let mut taints = Vec::new();
    if unschedulable && dice.chance(0.8) {
        taints.push(json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}));
    }
    if !dice.chance(chance) {
        return taints;
    }
    for key in dice.some(&TAINTS, 0.4) {
        let effect = dice.pick(&["NoSchedule", "PreferNoSchedule", "PreferNoSchedule", "NoExecute"]);
        let mut taint = json!({"key": key, "effect": effect});
        let value = dice.pick(&TAINT_VALUES);
        if !value.is_empty() {
            taint["value"] = json!(value);
        }
        taints.push(taint);
    }
    taints
}

fn images(world: &mut World) -> Vec<Value> {
    let chance = world.weights.images;
    let dice = &mut world.dice;
    let mut images = Vec::new();
    if !dice.chance(chance) {
        return images;
    }
    for image in dice.some(&IMAGES, 0.5) {
        let mut names = vec![image.to_owned()];
        if !image.contains("@") && !image[image.rfind('/').unwrap_or(0)..].contains(':') && dice.chance(0.8) {
            names = vec![format!("{image}:latest")];
        }
        let size = match image {
            "big" => dice.number(900..=4000) << 20,
            _ => dice.number(1..=700) << 20,
        };
        images.push(json!({"names": names, "sizeBytes": size + dice.number(0..=1000)}));
    }
    images
}
