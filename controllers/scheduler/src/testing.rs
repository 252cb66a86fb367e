//! Builders of nodes, pods and clusters from short JSON, and what one plugin says of them.

use std::sync::Arc;

use k8s_openapi::api::core::v1;
use serde_json::{Value, from_value, json};

use crate::cluster::{Cluster, Node, NodeFacts};
use crate::framework::{Attempt, Change, Feasible, Hint, Plugin, Profile, Refusal, Versions};
use crate::plugins::profile;
use crate::pod::PodInfo;

/// Lays fields over an object; `null` removes a field, lists are replaced.
pub fn merge(object: &mut Value, fields: Value) {
    match (object, fields) {
        (Value::Object(object), Value::Object(fields)) => {
            for (name, value) in fields {
                if value.is_null() {
                    object.remove(&name);
                } else {
                    merge(object.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (object, fields) => *object = fields,
    }
}

/// Returns a node that can run 110 pods, with these fields over it, such as `{"spec": {"unschedulable": true}}`.
pub fn node(name: &str, fields: Value) -> Arc<NodeFacts> {
    let mut object = json!({"metadata": {"name": name}, "status": {"allocatable": {"pods": "110"}}});
    merge(&mut object, fields);
    Arc::new(NodeFacts::parse(from_value(object).expect("the JSON is a Node")))
}

/// Returns a node with these labels.
pub fn labeled(name: &str, labels: Value) -> Arc<NodeFacts> {
    node(name, json!({"metadata": {"labels": labels}}))
}

/// Returns a node with these allocatable resources, and room for 110 pods.
pub fn sized(name: &str, allocatable: Value) -> Arc<NodeFacts> {
    node(name, json!({"status": {"allocatable": allocatable}}))
}

/// Returns a pod in the namespace `default` with one container and its name as UID, with these fields over it, such as
/// `{"spec": {"nodeName": "a"}}`.
pub fn pod(name: &str, fields: Value) -> Arc<PodInfo> {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "main"}]},
    });
    merge(&mut object, fields);
    Arc::new(PodInfo::parse(from_value::<v1::Pod>(object).expect("the JSON is a Pod")))
}

/// Returns a pod with these fields of its specification.
pub fn pod_of(name: &str, spec: Value) -> Arc<PodInfo> {
    pod(name, json!({"spec": spec}))
}

/// Returns a pod with a container for each of these requests, such as `{"cpu": "1"}`.
pub fn requesting(name: &str, requests: &[Value]) -> Arc<PodInfo> {
    pod_of(name, json!({"containers": containers(requests)}))
}

/// Returns a pod on a node, with a container for each of these requests.
pub fn placed(name: &str, node: &str, requests: &[Value]) -> Arc<PodInfo> {
    pod_of(name, json!({"nodeName": node, "containers": containers(requests)}))
}

/// Returns containers with these requests.
pub fn containers(requests: &[Value]) -> Value {
    let container = |(index, requests): (usize, &Value)| json!({"name": format!("c{index}"), "resources": {"requests": requests}});
    requests.iter().enumerate().map(container).collect()
}

/// Returns a cluster of these nodes, whose ids are their indices, with each pod on the node that it names.
pub fn cluster(nodes: &[Arc<NodeFacts>], pods: &[Arc<PodInfo>]) -> Cluster {
    let mut cluster = Cluster::default();
    nodes.iter().for_each(|node| cluster.set_node(Arc::clone(node)));
    for pod in pods {
        let node = pod.node.as_ref().expect("a pod of a cluster names its node");
        cluster.place(pod, node);
    }
    cluster
}

/// Returns a profile with one plugin.
pub fn profile_with(plugin: impl Plugin + 'static) -> Profile {
    profile("default-scheduler", vec![(Box::new(plugin), 1)])
}

/// Returns why a plugin refuses the pod, or else the node of this name.
pub fn refusal(
    plugin: impl Plugin + 'static,
    pod: &PodInfo,
    cluster: &Cluster,
    node: &str,
) -> Option<Refusal> {
    let profile = profile_with(plugin);
    let node = named(cluster, node);
    match Attempt::prepare(&profile, pod, cluster) {
        Ok(attempt) => attempt.check(node).err(),
        Err(refusal) => Some(refusal),
    }
}

/// Returns a plugin's normalized scores of all nodes of a cluster, in the order of their ids, feasible or not; `None` if it
/// does not score the pod.
pub fn scores(plugin: &impl Plugin, pod: &PodInfo, cluster: &Cluster) -> Option<Vec<i64>> {
    if let Some(score) = plugin.node_score(&pod.spec, cluster) {
        let mut scores: Vec<i64> = cluster.nodes().map(|node| (score.raw)(node)).collect();
        score.normalize.apply(&mut scores);
        return Some(scores);
    }
    let nodes: Feasible = cluster.known().iter().collect();
    Some(plugin.score(pod, cluster, &nodes)?.to_vec(nodes.list().len()))
}

/// Returns a plugin's answer to a change from one version of a node to another.
pub fn node_hint(
    plugin: &impl Plugin,
    pod: &PodInfo,
    old: Option<&Arc<NodeFacts>>,
    new: Option<&Arc<NodeFacts>>,
) -> Hint {
    plugin.hint(pod, &Change::Node(Versions { old, new }), &Cluster::default())
}

/// Returns a plugin's answer to a change from one version of a pod to another.
pub fn pod_hint(
    plugin: &impl Plugin,
    pod: &PodInfo,
    old: Option<&Arc<PodInfo>>,
    new: Option<&Arc<PodInfo>>,
) -> Hint {
    plugin.hint(pod, &Change::Pod(Versions { old, new }), &Cluster::default())
}

/// Returns the node of this name.
pub fn named<'a>(cluster: &'a Cluster, name: &str) -> &'a Node {
    cluster.named(name).expect("the cluster has the node")
}

/// Has a class of devices, `c`, serve a resource, with so many devices on these nodes.
pub fn serve_devices(cluster: &mut Cluster, resource: &str, nodes: &[(&str, usize)]) {
    let class = json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": resource}});
    cluster.device_classes.set(Arc::new(from_value(class).expect("the JSON is a DeviceClass")));
    for (node, count) in nodes {
        let devices: Vec<Value> = (0..*count).map(|index| json!({"name": format!("d{index}")})).collect();
        let slice = json!({"metadata": {"name": node}, "spec": {"driver": "d", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
        cluster
            .devices
            .set_slice(node, Some(Arc::new(from_value(slice).expect("the JSON is a ResourceSlice"))));
    }
}
