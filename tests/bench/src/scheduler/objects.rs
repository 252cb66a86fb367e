//! Nodes and pods after the templates of Kubernetes' scheduler_perf, and the objects that pods refer to.

use serde_json::{Value, json};

/// Label of the zone of a node.
const ZONE: &str = "topology.kubernetes.io/zone";
/// Label of a node with its own name.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The node that the pods of [`daemon`] name.
const PINNED: &str = "scheduler-perf-node";
/// Driver of the volumes, and how many of them a node can attach.
const DRIVER: &str = "ebs.csi.aws.com";
const ATTACHABLE: u32 = 39;
/// Driver and class of the devices, and their number on each node.
const DEVICE_DRIVER: &str = "test-driver.cdi.k8s.io";
const DEVICE_CLASS: &str = "test-class";
const DEVICES: usize = 10;
/// The namespaces whose pods the terms of affinity are about.
const NAMESPACES: [&str; 2] = ["sched-0", "sched-1"];
/// Name and labels of the owner of [`owned`] pods.
const OWNER: &str = "scheduler-perf";
const OWNER_UID: &str = "3f1d7a52-8d5e-4b0e-9a60-0f2b6f6f1c11";
/// The class of pods with priority 10, which the API server asks for.
pub const HIGH: &str = "high";

/// Returns node `i`.
pub fn node(i: usize) -> Value {
    named_node(&format!("node-{i:05}"), 110)
}

fn named_node(name: &str, pods: u32) -> Value {
    let room = json!({"pods": pods.to_string(), "cpu": "4", "memory": "32Gi"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {HOSTNAME: name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn zoned(i: usize, zone: &str) -> Value {
    let mut node = node(i);
    node["metadata"]["labels"][ZONE] = zone.into();
    node
}

/// Returns node `i`; all are in one zone.
pub fn node_in_zone(i: usize) -> Value {
    zoned(i, "zone1")
}

/// Returns node `i` in one of three zones.
pub fn node_in_three_zones(i: usize) -> Value {
    zoned(i, &format!("moon-{}", i % 3 + 1))
}

/// Returns node `i`; the first one has room for all pods that name it.
pub fn node_or_pinned(i: usize) -> Value {
    if i == 0 { named_node(PINNED, 90_000) } else { node(i) }
}

/// Returns a pod that asks for processor time, with such a limit, and for 500 MiB.
fn pod(cpu: &str) -> Value {
    let resources = json!({"cpu": cpu, "memory": "500Mi"});
    let container = json!({"name": "pause", "image": "registry.k8s.io/pause:3.10.2",
        "ports": [{"containerPort": 80}], "resources": {"limits": resources, "requests": resources}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {},
        "spec": {"automountServiceAccountToken": false, "containers": [container]}})
}

fn coloured(color: &str) -> Value {
    let mut pod = plain();
    pod["metadata"]["labels"] = json!({"color": color});
    pod
}

/// Returns a pod that asks for a little, and for nothing else.
pub fn plain() -> Value {
    pod("100m")
}

/// Returns a pod of a ReplicaSet.
pub fn owned() -> Value {
    let mut pod = plain();
    pod["metadata"] = json!({"labels": {"app": OWNER}, "ownerReferences": [{"apiVersion": "apps/v1",
        "kind": "ReplicaSet", "name": OWNER, "uid": OWNER_UID, "controller": true, "blockOwnerDeletion": true}]});
    pod
}

/// Returns the ReplicaSet of [`owned`] pods, and a Service for them.
pub fn owners(namespace: &str) -> [(String, Value); 2] {
    let labels = json!({"app": OWNER});
    let metadata = json!({"name": OWNER, "namespace": namespace});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"selector": labels, "ports": [{"protocol": "TCP", "port": 80, "targetPort": 8000}]}});
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata,
        "spec": {"replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": plain()["spec"]}}});
    [
        (format!("/api/v1/namespaces/{namespace}/services"), service),
        (format!("/apis/apps/v1/namespaces/{namespace}/replicasets"), set),
    ]
}

fn spread(when_unsatisfiable: &str) -> Value {
    let mut pod = coloured("blue");
    pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 5, "topologyKey": ZONE,
        "whenUnsatisfiable": when_unsatisfiable, "labelSelector": {"matchLabels": {"color": "blue"}}}]);
    pod
}

/// Returns a pod that must be spread over the zones.
pub fn spread_required() -> Value {
    spread("DoNotSchedule")
}

/// Returns a pod that should be spread over the zones.
pub fn spread_preferred() -> Value {
    spread("ScheduleAnyway")
}

/// Returns a term about pods of this color in [`NAMESPACES`].
fn term(color: &str, topology: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"color": color}}, "topologyKey": topology, "namespaces": NAMESPACES})
}

/// Returns a term about pods of this color in the namespaces of a team, each on a node of its own.
fn team_term(color: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"color": color}}, "topologyKey": HOSTNAME,
        "namespaceSelector": {"matchLabels": {"team": "devops"}}})
}

fn with_terms(color: &str, sort: &str, required: bool, term: &Value) -> Value {
    let mut pod = coloured(color);
    let terms = if required {
        json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
    } else {
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]})
    };
    pod["spec"]["affinity"][sort] = terms;
    pod
}

/// Returns a pod that must be in the zone of others of its color.
pub fn affinity() -> Value {
    with_terms("blue", "podAffinity", true, &term("blue", ZONE))
}

/// Returns a pod that must be on a node without others of its color.
pub fn anti_affinity() -> Value {
    with_terms("green", "podAntiAffinity", true, &term("green", HOSTNAME))
}

/// Returns a pod that should be on a node with others of its color.
pub fn preferred_affinity() -> Value {
    with_terms("red", "podAffinity", false, &term("red", HOSTNAME))
}

/// Returns a pod that should be on a node without others of its color.
pub fn preferred_anti_affinity() -> Value {
    with_terms("yellow", "podAntiAffinity", false, &term("yellow", HOSTNAME))
}

/// Returns a pod that must be on a node without others of its color of any namespace of the team.
pub fn team_anti_affinity() -> Value {
    with_terms("green", "podAntiAffinity", true, &team_term("green"))
}

/// Returns a pod that should be on a node without others of its color of any namespace of the team.
pub fn team_preferred_anti_affinity() -> Value {
    with_terms("green", "podAntiAffinity", false, &team_term("green"))
}

fn with_node_term(mut pod: Value, term: &Value) -> Value {
    pod["spec"]["affinity"]["nodeAffinity"] =
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
    pod
}

/// Returns a pod that must be in one of two zones.
pub fn node_affinity() -> Value {
    let zones = json!({"key": ZONE, "operator": "In", "values": ["zone1", "zone2"]});
    with_node_term(plain(), &json!({"matchExpressions": [zones]}))
}

/// Returns a pod as the controller of DaemonSets makes it for a node.
pub fn daemon() -> Value {
    let mut pod = plain();
    if let Some(container) = pod["spec"]["containers"][0].as_object_mut() {
        container.retain(|field, _| field == "name" || field == "image");
    }
    let name = json!({"key": "metadata.name", "operator": "In", "values": [PINNED]});
    with_node_term(pod, &json!({"matchFields": [name]}))
}

/// Returns a pod that others may preempt: four fill a node.
pub fn low_priority() -> Value {
    let mut pod = pod("900m");
    pod["spec"]["terminationGracePeriodSeconds"] = 0.into();
    pod
}

fn of_priority(mut pod: Value) -> Value {
    pod["spec"]["priority"] = 10.into();
    pod["spec"]["priorityClassName"] = HIGH.into();
    pod
}

/// Returns a pod that preempts others.
pub fn high_priority() -> Value {
    of_priority(pod("3"))
}

/// Returns a pod that no node has room for.
pub fn too_large() -> Value {
    of_priority(pod("9"))
}

/// Lets a pod use a claim.
pub fn use_claim(pod: &mut Value, claim: &str) {
    pod["spec"]["volumes"] = json!([{"name": "vol", "persistentVolumeClaim": {"claimName": claim}}]);
}

/// Returns what a node can attach.
pub fn csi_node(name: &str) -> (String, Value) {
    let driver = json!({"name": DRIVER, "nodeID": name, "allocatable": {"count": ATTACHABLE}});
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
        "spec": {"drivers": [driver]}});
    ("/apis/storage.k8s.io/v1/csinodes".to_owned(), object)
}

/// Returns a volume and the claim that is bound to it.
pub fn volume(namespace: &str, claim: &str) -> [(String, Value); 2] {
    let name = format!("pv-{claim}");
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadOnlyMany"], "capacity": {"storage": "1Gi"},
            "csi": {"driver": DRIVER, "volumeHandle": name}, "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim}}});
    let bound = json!({"pv.kubernetes.io/bind-completed": "true"});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace, "annotations": bound},
        "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}}}});
    [
        ("/api/v1/persistentvolumes".to_owned(), volume),
        (format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"), claim),
    ]
}

/// Lets a pod use a claim of devices.
pub fn use_device(pod: &mut Value, claim: &str) {
    pod["spec"]["resourceClaims"] = json!([{"name": "resource", "resourceClaimName": claim}]);
    pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "resource"}]);
}

/// Returns the class of all devices of the driver.
pub fn device_class() -> (String, Value) {
    let selector = json!({"cel": {"expression": format!("device.driver == {DEVICE_DRIVER:?}")}});
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": DEVICE_CLASS}, "spec": {"selectors": [selector]}});
    ("/apis/resource.k8s.io/v1/deviceclasses".to_owned(), class)
}

/// Returns the devices of a node.
pub fn slice(node: &str) -> (String, Value) {
    let devices: Vec<Value> = (0..DEVICES).map(|i| json!({"name": format!("instance-{i}")})).collect();
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("devices-{node}")},
        "spec": {"driver": DEVICE_DRIVER, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
    ("/apis/resource.k8s.io/v1/resourceslices".to_owned(), slice)
}

/// Returns a claim of one device.
pub fn device_claim(namespace: &str, name: &str) -> (String, Value) {
    let request = json!({"name": "req-0", "exactly": {"deviceClassName": DEVICE_CLASS,
        "allocationMode": "ExactCount", "count": 1}});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"devices": {"requests": [request]}}});
    (format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"), claim)
}

/// Returns a claim of one device that has it, for a pod, on a node.
pub fn allocated_claim(namespace: &str, name: &str, node: &str) -> (String, Value) {
    let (path, mut claim) = device_claim(namespace, name);
    claim["metadata"]["finalizers"] = json!(["resource.kubernetes.io/delete-protection"]);
    let device = json!({"request": "req-0", "driver": DEVICE_DRIVER, "pool": node, "device": "instance-0"});
    claim["status"] = json!({"allocation": {"devices": {"results": [device]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": name}]});
    (format!("{path}/{name}"), claim)
}

/// Returns a namespace of the team, and the account of its pods.
pub fn namespace(name: &str) -> [(String, Value); 2] {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"team": "devops"}}});
    [("/api/v1/namespaces".to_owned(), namespace), account(name)]
}

/// Returns the account of the pods of a namespace, which a controller makes elsewhere.
pub fn account(namespace: &str) -> (String, Value) {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    (format!("/api/v1/namespaces/{namespace}/serviceaccounts"), account)
}

/// Returns the class of priority 10.
pub fn priority_class() -> (String, Value) {
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH},
        "value": 10});
    ("/apis/scheduling.k8s.io/v1/priorityclasses".to_owned(), class)
}

/// Returns the binding of a pod to a node.
pub fn binding(pod: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
}
