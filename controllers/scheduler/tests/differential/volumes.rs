//! Volumes: claims in all states, persistent volumes, classes, limits, capacities, in-line disks.

use serde_json::{Value, json};

use crate::world::{HOSTNAME, World, ZONE, metadata};

const DRIVER: &str = "csi.example.com";
const CAPACITY_DRIVER: &str = "cap.example.com";

/// Adds the classes, drivers and limits of the nodes.
pub fn add_cluster(world: &mut World) {
    if world.weights.volumes == 0.0 {
        return;
    }
    add_classes(world);
    for driver in [DRIVER, CAPACITY_DRIVER] {
        let spec = json!({"storageCapacity": driver == CAPACITY_DRIVER, "attachRequired": true, "podInfoOnMount": false});
        world.add("csiDrivers", json!({"metadata": {"name": driver}, "spec": spec}));
    }
    for index in 0..world.nodes.len() {
        add_csi_node(world, index);
    }
    add_capacities(world);
}

fn add_classes(world: &mut World) {
    let zones = world.zones();
    let allowed = zones[world.dice.index(zones.len())].clone();
    let classes = [
        ("late", DRIVER, "WaitForFirstConsumer"),
        ("late-zone", DRIVER, "WaitForFirstConsumer"),
        ("late-cap", CAPACITY_DRIVER, "WaitForFirstConsumer"),
        ("local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
        ("now", DRIVER, "Immediate"),
    ];
    for (name, provisioner, mode) in classes {
        if world.dice.chance(0.02) {
            continue;
        }
        let mut class = json!({
            "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, "reclaimPolicy": "Delete",
        });
        if name == "late-zone" {
            class["allowedTopologies"] =
                json!([{"matchLabelExpressions": [{"key": ZONE, "values": [allowed]}]}]);
        }
        world.add("storageClasses", class);
    }
}

fn add_csi_node(world: &mut World, index: usize) {
    if world.dice.chance(0.1) {
        return;
    }
    let name = world.nodes[index].name.clone();
    let mut drivers = Vec::new();
    for driver in [DRIVER, CAPACITY_DRIVER] {
        if world.dice.chance(0.1) {
            continue;
        }
        let mut entry = json!({"name": driver, "nodeID": name, "topologyKeys": [ZONE]});
        if world.dice.chance(0.6) {
            entry["allocatable"] = json!({"count": world.dice.number(0..=4)});
        }
        drivers.push(entry);
    }
    world.add(
        "csiNodes",
        json!({"metadata": {"name": name, "uid": format!("csinode-{name}")}, "spec": {"drivers": drivers}}),
    );
}

fn add_capacities(world: &mut World) {
    for (index, zone) in world.zones().into_iter().enumerate() {
        let mut capacity = json!({
            "metadata": metadata("kube-system", &format!("cap{index}"), json!({})),
            "storageClassName": "late-cap",
            "nodeTopology": {"matchLabels": {ZONE: zone}},
        });
        if world.dice.chance(0.9) {
            capacity["capacity"] = json!(format!("{}Gi", world.dice.number(1..=40)));
        }
        if world.dice.chance(0.3) {
            capacity["maximumVolumeSize"] = json!(format!("{}Gi", world.dice.number(1..=20)));
        }
        if world.dice.chance(0.85) {
            world.add("csiStorageCapacities", capacity);
        }
    }
}

/// Adds volumes to a pod, and the objects that they need.
pub fn add_to_pod(world: &mut World, pod: &mut Value, to_schedule: bool) {
    let count = world.dice.few(1..=4);
    let mut volumes = Vec::new();
    for index in 0..count {
        let name = format!("v{index}");
        let mut volume = if world.dice.chance(0.2) {
            inline_disk(world)
        } else {
            claim_volume(world, pod, &name, to_schedule)
        };
        volume["name"] = json!(name);
        volumes.push(volume);
    }
    pod["spec"]["volumes"] = Value::Array(volumes);
}

fn inline_disk(world: &mut World) -> Value {
    let dice = &mut world.dice;
    let disk = format!("disk{}", dice.number(0..=3));
    let read_only = dice.chance(0.4);
    match dice.number(0..=5) {
        0 => json!({"gcePersistentDisk": {"pdName": disk, "readOnly": read_only}}),
        1 => json!({"awsElasticBlockStore": {"volumeID": disk, "readOnly": read_only}}),
        2 => json!({"iscsi": {
            "targetPortal": "10.0.0.9:3260", "iqn": format!("iqn.2026-01.example:{disk}"), "lun": 0, "iscsiInterface": "default", "readOnly": read_only,
        }}),
        3 => {
            let monitors =
                if dice.chance(0.5) { json!(["m1", "m2"]) } else { json!([dice.pick(&["m2", "m3"])]) };
            json!({"rbd": {
                "monitors": monitors, "image": disk, "pool": dice.pick(&["rbd", "other"]), "user": "admin",
                "keyring": "/etc/ceph/keyring", "fsType": "ext4", "readOnly": read_only,
            }})
        }
        4 => json!({"emptyDir": {}}),
        _ => json!({"configMap": {"name": "c", "defaultMode": 420}}),
    }
}

fn claim_volume(world: &mut World, pod: &mut Value, volume: &str, to_schedule: bool) -> Value {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    if !to_schedule {
        return claim_of_placed(world, pod, &namespace);
    }
    if world.dice.chance(0.25)
        && let Some(name) = existing_claim(world, &namespace)
    {
        return json!({"persistentVolumeClaim": {"claimName": name}});
    }
    let number = world.next();
    let ephemeral = world.dice.chance(0.08);
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let name = if ephemeral { format!("{pod_name}-{volume}") } else { format!("claim{number}") };
    let kind = world.dice.number(0..=19);
    let claim = match kind {
        0..=5 => bound_claim(world, &namespace, &name, None),
        6..=11 => late_claim(world, &namespace, &name),
        12..=14 => local_claim(world, &namespace, &name),
        15 => plain_claim(world, &namespace, &name, "now"),
        16 if world.dice.chance(0.5) => plain_claim(world, &namespace, &name, ""),
        17 if world.dice.chance(0.5) => broken_claim(world, &namespace, &name),
        _ => late_claim(world, &namespace, &name),
    };
    let missing = world.dice.chance(0.02);
    if ephemeral {
        return ephemeral_volume(world, pod, claim, missing);
    }
    if !missing {
        world.add("persistentVolumeClaims", claim);
    }
    json!({"persistentVolumeClaim": {"claimName": name}})
}

fn ephemeral_volume(world: &mut World, pod: &Value, mut claim: Value, missing: bool) -> Value {
    let spec = claim["spec"].clone();
    if world.dice.chance(0.9) {
        claim["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"], "controller": true,
        }]);
    }
    if !missing {
        world.add("persistentVolumeClaims", claim);
    }
    let template = json!({"accessModes": spec["accessModes"], "resources": spec["resources"], "volumeMode": "Filesystem", "storageClassName": spec["storageClassName"]});
    json!({"ephemeral": {"volumeClaimTemplate": {"spec": template}}})
}

fn existing_claim(world: &mut World, namespace: &str) -> Option<Value> {
    let claims: Vec<Value> = world
        .list("persistentVolumeClaims")
        .iter()
        .filter(|claim| claim["metadata"]["namespace"] == namespace)
        .map(|claim| claim["metadata"]["name"].clone())
        .filter(|name| name.as_str().is_some_and(|name| name.starts_with("claim")))
        .collect();
    if claims.is_empty() { None } else { Some(claims[world.dice.index(claims.len())].clone()) }
}

/// Returns a volume of a pod that runs: a claim that is bound, new or shared.
fn claim_of_placed(world: &mut World, pod: &mut Value, namespace: &str) -> Value {
    if world.dice.chance(0.15)
        && let Some(name) = existing_claim(world, namespace)
    {
        return json!({"persistentVolumeClaim": {"claimName": name}});
    }
    let name = format!("claim{}", world.next());
    let node = pod["spec"]["nodeName"].as_str().map(str::to_owned);
    if world.dice.chance(0.95) {
        let claim = bound_claim(world, namespace, &name, node.as_deref());
        world.add("persistentVolumeClaims", claim);
    }
    json!({"persistentVolumeClaim": {"claimName": name}})
}

fn plain_claim(world: &mut World, namespace: &str, name: &str, class: &str) -> Value {
    let mode = world.dice.pick(&["ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]);
    json!({
        "metadata": metadata(namespace, name, json!({})),
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": format!("{}Gi", world.next() % 20 + 1)}},
            "storageClassName": class,
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Pending"},
    })
}

/// Returns a claim that is bound to a volume.
fn bound_claim(world: &mut World, namespace: &str, name: &str, node: Option<&str>) -> Value {
    let class = world.dice.pick(&["late", "late-zone", "local", "now", "late-cap"]);
    let mut claim = plain_claim(world, namespace, name, class);
    let volume = format!("pv{}", world.next());
    claim["spec"]["volumeName"] = json!(volume);
    claim["status"]["phase"] = json!("Bound");
    if world.dice.chance(0.96) {
        claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    }
    let mut pv = volume_for(world, &volume, &claim, class, node);
    pv["spec"]["claimRef"] =
        json!({"kind": "PersistentVolumeClaim", "namespace": namespace, "name": name, "uid": ""});
    pv["status"]["phase"] = json!("Bound");
    if world.dice.chance(0.97) {
        world.add("persistentVolumes", pv);
    }
    if world.dice.chance(0.4) {
        let attached = node.map_or_else(|| world.nodes[0].name.clone(), str::to_owned);
        let attachment = json!({
            "metadata": {"name": format!("va-{volume}")},
            "spec": {"attacher": DRIVER, "nodeName": attached, "source": {"persistentVolumeName": volume}},
            "status": {"attached": true},
        });
        world.add("volumeAttachments", attachment);
    }
    claim
}

fn volume_for(world: &mut World, name: &str, claim: &Value, class: &str, node: Option<&str>) -> Value {
    let mut pv = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": claim["spec"]["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": class,
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Available"},
    });
    if class == "local" {
        let host = node.map_or_else(
            || world.dice.index(world.nodes.len()).to_string(),
            |node| node.trim_start_matches('n').to_owned(),
        );
        pv["spec"]["local"] = json!({"path": "/mnt"});
        pv["spec"]["nodeAffinity"] = affinity(HOSTNAME, &[format!("n{host}")]);
        return pv;
    }
    let driver = if class == "late-cap" { CAPACITY_DRIVER } else { DRIVER };
    pv["spec"]["csi"] = json!({"driver": driver, "volumeHandle": format!("handle-{name}")});
    if node.is_some() {
        return pv;
    }
    let zones = world.zones();
    let zone = zones[world.dice.index(zones.len())].clone();
    let other = zones[world.dice.index(zones.len())].clone();
    match world.dice.number(0..=4) {
        0 | 1 => pv["spec"]["nodeAffinity"] = affinity(ZONE, &[zone, other]),
        2 | 3 => {
            let key = world.dice.pick(&[ZONE, ZONE, "failure-domain.beta.kubernetes.io/zone"]);
            let value =
                if zone != other && world.dice.chance(0.5) { format!("{zone}__{other}") } else { zone };
            pv["metadata"]["labels"] = json!({key: value});
        }
        _ => {}
    }
    pv
}

fn affinity(key: &str, values: &[String]) -> Value {
    let mut values = values.to_vec();
    values.dedup();
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": values}]}]}})
}

/// Returns a claim that is bound when the pod has a node; volumes of its class may exist.
fn late_claim(world: &mut World, namespace: &str, name: &str) -> Value {
    let class = world.dice.pick(&["late", "late", "late-zone", "late-cap"]);
    let mut claim = plain_claim(world, namespace, name, class);
    if world.dice.chance(0.15) {
        let index = world.node();
        claim["metadata"]["annotations"] =
            json!({"volume.kubernetes.io/selected-node": world.nodes[index].name});
    }
    if world.dice.chance(0.2) {
        add_candidates(world, &claim, class);
    }
    claim
}

fn local_claim(world: &mut World, namespace: &str, name: &str) -> Value {
    let mut claim = plain_claim(world, namespace, name, "local");
    if world.dice.chance(0.2) {
        claim["spec"]["selector"] = json!({"matchLabels": {"kind": "fast"}});
    }
    add_candidates(world, &claim, "local");
    claim
}

/// Adds volumes that a claim may be bound to. Their sizes differ, since the smallest is taken.
fn add_candidates(world: &mut World, claim: &Value, class: &str) {
    for _ in 0..world.dice.number(1..=4) {
        let number = world.next();
        let mut pv = volume_for(world, &format!("pv{number}"), claim, class, None);
        pv["spec"]["capacity"]["storage"] = json!(format!("{}Mi", 3000 + number * 97));
        if world.dice.chance(0.3) {
            pv["metadata"]["labels"]["kind"] = json!("fast");
        }
        match world.dice.number(0..=11) {
            0 => pv["status"]["phase"] = json!("Released"),
            1 => pv["spec"]["accessModes"] = json!(["ReadWriteMany"]),
            2 => pv["spec"]["volumeMode"] = json!("Block"),
            3 => {
                pv["spec"]["claimRef"] =
                    json!({"kind": "PersistentVolumeClaim", "namespace": "ns0", "name": "other"})
            }
            4 | 5 => {
                let metadata = &claim["metadata"];
                let taken = world
                    .list("persistentVolumes")
                    .iter()
                    .any(|other| other["spec"]["claimRef"]["name"] == metadata["name"]);
                if !taken {
                    pv["spec"]["claimRef"] = json!({"kind": "PersistentVolumeClaim", "namespace": metadata["namespace"], "name": metadata["name"]});
                }
            }
            _ => {}
        }
        world.add("persistentVolumes", pv);
    }
}

fn broken_claim(world: &mut World, namespace: &str, name: &str) -> Value {
    let mut claim = late_claim(world, namespace, name);
    match world.dice.number(0..=2) {
        0 => {
            claim["metadata"]["deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
            claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
        }
        1 => claim["status"]["phase"] = json!("Lost"),
        _ => claim["spec"]["storageClassName"] = json!("no-such-class"),
    }
    claim
}
