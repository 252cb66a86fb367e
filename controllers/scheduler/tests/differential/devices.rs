//! Devices: classes, slices, claims and what is allocated.

use serde_json::{Value, json};

use crate::dice::Dice;
use crate::world::{World, ZONE, metadata};

const DRIVERS: [&str; 2] = ["gpu.example.com", "nic.example.com"];
/// A name of an extended resource that devices back.
pub const BACKED: &str = "example.com/dra";

/// Adds the classes and the slices of the nodes.
pub fn add_cluster(world: &mut World) {
    if world.weights.devices == 0.0 {
        return;
    }
    add_classes(world);
    for index in 0..world.nodes.len() {
        if world.dice.chance(0.93) {
            add_node_pool(world, index);
        }
    }
    if world.dice.chance(0.3) {
        add_shared_pool(world);
    }
}

fn add_classes(world: &mut World) {
    let classes = [
        ("gpu", "device.driver == 'gpu.example.com'"),
        ("nic", "device.driver == 'nic.example.com'"),
        (
            "large",
            "device.driver == 'gpu.example.com' && device.capacity['gpu.example.com'].memory.compareTo(quantity('16Gi')) >= 0",
        ),
        ("any", ""),
    ];
    for (name, expression) in classes {
        if world.dice.chance(0.02) {
            continue;
        }
        let mut spec = json!({});
        if !expression.is_empty() {
            spec["selectors"] = json!([{"cel": {"expression": expression}}]);
        }
        if name == "gpu" && world.dice.chance(world.weights.beta_devices * 2.0) {
            spec["extendedResourceName"] = json!(BACKED);
        }
        world.add("deviceClasses", json!({"metadata": {"name": name}, "spec": spec}));
    }
}

fn add_node_pool(world: &mut World, index: usize) {
    let node = world.nodes[index].name.clone();
    let driver = world.dice.pick(&DRIVERS);
    let beta = world.weights.beta_devices;
    let place = json!({"nodeName": node});
    if driver == DRIVERS[0] && world.dice.chance(0.2) {
        add_partitions(world, &node, &place);
        return;
    }
    let count = world.dice.number(2..=7);
    let mut devices: Vec<Value> =
        (0..count).map(|number| device(&mut world.dice, driver, number, beta)).collect();
    let slices = if world.dice.chance(0.15) { 2 } else { 1 };
    let generation = world.dice.number(1..=2);
    if slices == 2 {
        let rest = devices.split_off(devices.len() / 2);
        if world.dice.chance(0.7) {
            add_slice(world, driver, &node, (generation, slices), &place, rest);
        }
    }
    add_slice(world, driver, &node, (generation, slices), &place, devices);
    if world.dice.chance(0.08) {
        let old = vec![device(&mut world.dice, driver, 0, 0.0)];
        add_slice(world, driver, &node, (generation - 1, 1), &place, old);
    }
}

fn add_slice(
    world: &mut World,
    driver: &str,
    pool: &str,
    version: (i64, i64),
    place: &Value,
    devices: Vec<Value>,
) {
    if devices.is_empty() && version.1 == 1 {
        return;
    }
    let mut spec = place.clone();
    spec["driver"] = json!(driver);
    spec["pool"] = json!({"name": pool, "generation": version.0, "resourceSliceCount": version.1});
    if !devices.is_empty() {
        spec["devices"] = Value::Array(devices);
    }
    let name = format!("slice{}", world.next());
    world.add("resourceSlices", json!({"metadata": {"name": name}, "spec": spec}));
}

fn device(dice: &mut Dice, driver: &str, number: i64, beta: f64) -> Value {
    let mut device = json!({"name": format!("d{number}")});
    if driver == DRIVERS[0] {
        device["attributes"] = json!({
            "model": {"string": dice.pick(&["a100", "h100"])},
            "index": {"int": number},
            "healthy": {"bool": dice.chance(0.85)},
            "driverVersion": {"version": dice.pick(&["1.2.3", "2.0.0"])},
            "example.com/numa": {"int": dice.number(0..=1)},
        });
        device["capacity"] = json!({"memory": {"value": dice.pick(&["8Gi", "16Gi", "40Gi"])}});
    } else {
        device["attributes"] = json!({"speed": {"int": dice.pick(&["10", "100"]).parse::<i64>().unwrap_or(0)}, "example.com/numa": {"int": dice.number(0..=1)}});
    }
    if dice.chance(beta * 0.4) {
        let effect = dice.pick(&["NoSchedule", "NoExecute", "None"]);
        device["taints"] =
            json!([{"key": "broken", "value": "yes", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}]);
    }
    if dice.chance(beta) && driver == DRIVERS[1] {
        device["allowMultipleAllocations"] = json!(true);
        let policy = if dice.chance(0.5) {
            json!({"default": "10", "validRange": {"min": "5", "max": "60", "step": "5"}})
        } else {
            json!({"default": "10", "validValues": ["10", "20", "40"]})
        };
        device["capacity"] = json!({"bandwidth": {"value": "100", "requestPolicy": policy}});
    }
    device
}

/// Adds a pool of partitions that share counters.
fn add_partitions(world: &mut World, node: &str, place: &Value) {
    let mut counters = place.clone();
    counters["driver"] = json!(DRIVERS[0]);
    counters["pool"] = json!({"name": node, "generation": 1, "resourceSliceCount": 2});
    let cards = world.dice.number(1..=2);
    counters["sharedCounters"] = (0..cards)
        .map(|card| json!({"name": format!("card{card}"), "counters": {"memory": {"value": "40Gi"}, "slices": {"value": "4"}}}))
        .collect();
    let name = format!("slice{}", world.next());
    world.add("resourceSlices", json!({"metadata": {"name": name}, "spec": counters}));
    let mut devices = Vec::new();
    for card in 0..cards {
        for (index, (memory, slices)) in
            [("40Gi", "4"), ("20Gi", "2"), ("20Gi", "2"), ("10Gi", "1")].iter().enumerate()
        {
            if world.dice.chance(0.2) {
                continue;
            }
            let number = card * 4 + i64::try_from(index).unwrap_or(0);
            let mut device = device(&mut world.dice, DRIVERS[0], number, 0.0);
            device["capacity"]["memory"]["value"] = json!(memory);
            device["consumesCounters"] = json!([{"counterSet": format!("card{card}"), "counters": {"memory": {"value": memory}, "slices": {"value": slices}}}]);
            devices.push(device);
        }
    }
    add_slice(world, DRIVERS[0], node, (1, 2), place, devices);
}

/// Adds a pool that nodes reach over the network: all, those of a zone, or each device its own.
fn add_shared_pool(world: &mut World) {
    let beta = world.weights.beta_devices;
    let zones = world.zones();
    let zone = zones[world.dice.index(zones.len())].clone();
    let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]});
    let mut devices: Vec<Value> = (0..world.dice.number(1..=4))
        .map(|number| device(&mut world.dice, DRIVERS[1], number, beta))
        .collect();
    let place = match world.dice.number(0..=2) {
        0 => json!({"allNodes": true}),
        1 => json!({"nodeSelector": selector}),
        _ => {
            for device in &mut devices {
                let index = world.dice.index(world.nodes.len());
                match world.dice.number(0..=2) {
                    0 => device["nodeName"] = json!(world.nodes[index].name),
                    1 => device["nodeSelector"] = selector.clone(),
                    _ => device["allNodes"] = json!(true),
                }
            }
            json!({"perDeviceNodeSelection": true})
        }
    };
    add_slice(world, DRIVERS[1], "shared", (1, 1), &place, devices);
}

/// Adds claims to a pod.
pub fn add_to_pod(world: &mut World, pod: &mut Value, to_schedule: bool) {
    if to_schedule && world.dice.chance(world.weights.beta_devices * 0.5) {
        let name = world.dice.pick(&[BACKED, "deviceclass.resource.kubernetes.io/gpu"]);
        let quantity = json!(world.dice.number(1..=2).to_string());
        if pod["spec"]["resources"].is_null() {
            pod["spec"]["containers"][0]["resources"]["requests"][name] = quantity.clone();
            pod["spec"]["containers"][0]["resources"]["limits"][name] = quantity;
        }
        if world.dice.chance(0.6) {
            return;
        }
    }
    let mut references = Vec::new();
    let mut statuses = Vec::new();
    for index in 0..world.dice.few(1..=2) {
        let name = format!("r{index}");
        let claim_name = format!("dc{}", world.next());
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let mut claim = claim(world, &namespace, &claim_name);
        if !to_schedule || world.dice.chance(0.12) {
            allocate(world, &mut claim, pod, to_schedule);
        }
        if world.dice.chance(0.25) {
            claim["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"], "controller": true,
            }]);
            references.push(json!({"name": name, "resourceClaimTemplateName": "template"}));
            if world.dice.chance(0.95) {
                statuses.push(json!({"name": name, "resourceClaimName": claim_name}));
            }
        } else {
            references.push(json!({"name": name, "resourceClaimName": claim_name}));
        }
        if world.dice.chance(0.98) {
            world.add("resourceClaims", claim);
        }
    }
    pod["spec"]["resourceClaims"] = Value::Array(references);
    if !statuses.is_empty() {
        pod["status"]["resourceClaimStatuses"] = Value::Array(statuses);
    }
}

fn claim(world: &mut World, namespace: &str, name: &str) -> Value {
    let beta = world.weights.beta_devices;
    let dice = &mut world.dice;
    let count = dice.few(1..=2);
    let requests: Vec<Value> = (0..count).map(|index| request(dice, &format!("q{index}"), beta)).collect();
    let mut devices = json!({"requests": requests});
    if dice.chance(0.2) {
        devices["constraints"] = json!([{"matchAttribute": "example.com/numa"}]);
    } else if dice.chance(beta * 0.2) {
        devices["constraints"] = json!([{"distinctAttribute": "example.com/numa"}]);
    }
    let mut metadata = metadata(namespace, name, json!({}));
    metadata["uid"] = json!(format!("uid-{name}"));
    json!({"metadata": metadata, "spec": {"devices": devices}, "status": {}})
}

fn request(dice: &mut Dice, name: &str, beta: f64) -> Value {
    if dice.chance(0.3) {
        let count = dice.number(1..=3);
        let requests: Vec<Value> = (0..count)
            .map(|index| {
                let mut request = exact(dice, beta);
                request["name"] = json!(format!("s{index}"));
                request
            })
            .collect();
        return json!({"name": name, "firstAvailable": requests});
    }
    let mut exactly = exact(dice, beta);
    if dice.chance(0.06) {
        exactly["adminAccess"] = json!(true);
    }
    json!({"name": name, "exactly": exactly})
}

fn exact(dice: &mut Dice, beta: f64) -> Value {
    let class =
        if dice.chance(0.01) { "no-such-class" } else { dice.pick(&["gpu", "gpu", "nic", "large", "any"]) };
    let mut request = json!({"deviceClassName": class});
    if dice.chance(0.12) {
        request["allocationMode"] = json!("All");
    } else {
        request["allocationMode"] = json!("ExactCount");
        request["count"] = json!(dice.few(1..=3));
    }
    if dice.chance(0.45) && (class == "gpu" || class == "large") {
        let expression = dice.pick(&[
            "device.attributes['gpu.example.com'].model == 'a100'",
            "device.attributes['gpu.example.com'].healthy",
            "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('10Gi'))",
            "device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('1.5.0'))",
            "device.attributes['gpu.example.com'].index < 2 || device.attributes['example.com'].numa == 1",
            "device.attributes['gpu.example.com'].?model.orValue('none') in ['h100', 'b200']",
            "'example.com' in device.attributes && has(device.attributes['example.com'].numa)",
        ]);
        request["selectors"] = json!([{"cel": {"expression": expression}}]);
    } else if dice.chance(0.02) {
        request["selectors"] =
            json!([{"cel": {"expression": "device.attributes['gpu.example.com'].missing == 'x'"}}]);
    }
    if dice.chance(beta * 0.3) {
        request["tolerations"] = json!([{"key": "broken", "operator": "Exists"}]);
    }
    if dice.chance(beta) && class == "nic" {
        request["capacity"] = json!({"requests": {"bandwidth": dice.pick(&["10", "12", "25", "70"])}});
    }
    request
}

/// Gives a claim devices of one pool.
fn allocate(world: &mut World, claim: &mut Value, pod: &Value, to_schedule: bool) {
    let slices: Vec<Value> = world
        .list("resourceSlices")
        .iter()
        .filter(|slice| slice["spec"]["devices"].is_array())
        .cloned()
        .collect();
    if slices.is_empty() {
        return;
    }
    let slice = &slices[world.dice.index(slices.len())]["spec"];
    let devices = slice["devices"].as_array().cloned().unwrap_or_default();
    let mut results: Vec<Value> = Vec::new();
    for request in claim["spec"]["devices"]["requests"].as_array().cloned().unwrap_or_default() {
        let device = &devices[world.dice.index(devices.len())];
        let base = request["name"].as_str().unwrap_or_default();
        let name = if request["firstAvailable"].is_array() { format!("{base}/s0") } else { base.to_owned() };
        let mut result = json!({"request": name, "driver": slice["driver"], "pool": slice["pool"]["name"], "device": device["name"]});
        if request["exactly"]["adminAccess"] == json!(true) {
            result["adminAccess"] = json!(true);
        }
        if device["allowMultipleAllocations"] == json!(true) {
            result["shareID"] = json!(format!("00000000-0000-4000-8000-{:012}", world.next()));
            result["consumedCapacity"] = json!({"bandwidth": world.dice.pick(&["10", "20", "40"])});
        }
        results.push(result);
    }
    let mut allocation = json!({"devices": {"results": results}});
    if let Some(node) = slice["nodeName"].as_str() {
        let fields = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
        allocation["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchFields": fields}]});
    }
    claim["status"]["allocation"] = allocation;
    if !to_schedule || world.dice.chance(0.3) {
        claim["status"]["reservedFor"] =
            json!([{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]);
    }
}
