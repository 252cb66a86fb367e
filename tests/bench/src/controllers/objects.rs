//! Workloads whose pods are those of the suite `apiserver`.

use apiserver_schema::ordered::json_text;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::api::objects::{node, pod_spec, running_pod};

/// Number of pods of each ReplicaSet among stored objects, and on each node.
const PODS_OF_SET: usize = 100;
const PODS_OF_NODE: usize = 30;

/// Returns a template of pods on the first node: nothing schedules here.
fn template(version: u64) -> Value {
    let mut spec = pod_spec();
    spec["nodeName"] = node(0).into();
    json!({"metadata": {"labels": {"app": "web"}, "annotations": {"bench/version": version.to_string()}}, "spec": spec})
}

/// Returns a pod as a controller creates it.
pub fn pod(name: &str) -> Value {
    let mut pod = template(0);
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "straight",
        "uid": "3f1d7a52-8d5e-4b0e-9a60-0f2b6f6f1c11", "controller": true, "blockOwnerDeletion": true}]);
    pod
}

pub fn node_object(i: usize) -> Value {
    json!({"metadata": {"name": node(i)}, "status": {"conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}}})
}

pub fn deployment(name: &str, replicas: usize) -> Value {
    let mut template = template(1);
    template["metadata"]["labels"]["app"] = name.into();
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas,
        "selector": {"matchLabels": {"app": name}}, "template": template}})
}

/// Returns a patch of a workload that changes its template.
pub fn new_version() -> Value {
    json!({"spec": {"template": {"metadata": {"annotations": {"bench/version": "2"}}}}})
}

pub fn daemon_set() -> Value {
    let mut template = template(1);
    if let Some(spec) = template["spec"].as_object_mut() {
        spec.remove("nodeName");
    }
    json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template,
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}}}})
}

pub fn indexed_job(indexes: usize, parallelism: usize) -> Value {
    let mut template = template(1);
    template["spec"]["restartPolicy"] = "Never".into();
    json!({"metadata": {"name": "web"}, "spec": {"completions": indexes, "parallelism": parallelism,
        "completionMode": "Indexed", "template": template}})
}

pub fn autoscaler(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"minReplicas": 1, "maxReplicas": 10,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 50}}}]}})
}

/// Returns the number of ReplicaSets of as many stored pods.
pub fn sets_of(pods: usize) -> usize {
    pods.div_ceil(PODS_OF_SET)
}

/// Returns the name of a stored pod.
pub fn stored_name(i: usize) -> String {
    format!("web-{:06}-{i:06}", i / PODS_OF_SET)
}

/// Returns pods as stored, with their ReplicaSets and nodes, by their keys.
pub fn stored(pods: usize) -> impl Iterator<Item = (String, Bytes)> {
    let text = |(key, object): (String, Value)| (key, Bytes::from(json_text(&object)));
    let nodes = (0..pods.div_ceil(PODS_OF_NODE)).map(stored_node);
    let sets = (0..sets_of(pods)).map(move |set| stored_set(set, PODS_OF_SET.min(pods - set * PODS_OF_SET)));
    nodes.chain(sets).chain((0..pods).map(stored_pod)).map(text)
}

fn hash(set: usize) -> String {
    format!("{set:010x}")
}

fn set_uid(set: usize) -> String {
    format!("{set:08x}-1111-4b0e-9a60-0f2b6f6f1c11")
}

fn stored_node(i: usize) -> (String, Value) {
    let mut object = node_object(i);
    object["apiVersion"] = "v1".into();
    object["kind"] = "Node".into();
    object["metadata"]["uid"] = format!("{i:08x}-2222-4b0e-9a60-0f2b6f6f1c11").into();
    object["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z".into();
    (format!("/registry/minions/{}", node(i)), object)
}

fn stored_set(set: usize, pods: usize) -> (String, Value) {
    let (name, labels) = (format!("web-{set:06}"), json!({"app": "web", "pod-template-hash": hash(set)}));
    let object = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": "default", "uid": set_uid(set), "generation": 1,
            "creationTimestamp": "2026-01-02T03:04:05Z", "labels": labels},
        "spec": {"replicas": pods, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec()}},
        "status": {"replicas": pods, "fullyLabeledReplicas": pods, "readyReplicas": pods, "availableReplicas": pods,
            "observedGeneration": 1},
    });
    (format!("/registry/replicasets/default/{name}"), object)
}

fn stored_pod(i: usize) -> (String, Value) {
    let (name, set) = (stored_name(i), i / PODS_OF_SET);
    let mut object = running_pod(&name, i);
    object["metadata"]["labels"]["pod-template-hash"] = hash(set).into();
    object["metadata"]["ownerReferences"][0]["name"] = format!("web-{set:06}").into();
    object["metadata"]["ownerReferences"][0]["uid"] = set_uid(set).into();
    object["spec"]["nodeName"] = node(i / PODS_OF_NODE).into();
    (format!("/registry/pods/default/{name}"), object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_pods_have_their_sets_and_nodes() {
        let stored: Vec<(String, Value)> =
            stored(250).map(|(key, text)| (key, serde_json::from_slice(&text).unwrap())).collect();
        let keys = |prefix: &str| stored.iter().filter(|(key, _)| key.starts_with(prefix)).count();
        assert_eq!(
            (keys("/registry/minions/"), keys("/registry/replicasets/"), keys("/registry/pods/")),
            (9, 3, 250)
        );
        let find = |wanted: &str| &stored.iter().find(|(key, _)| key == wanted).unwrap().1;
        let (pod, set) = (find(&format!("/registry/pods/default/{}", stored_name(249))), "web-000002");
        let set = find(&format!("/registry/replicasets/default/{set}"));
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], set["metadata"]["uid"]);
        assert_eq!((&set["spec"]["replicas"], &set["status"]["readyReplicas"]), (&json!(50), &json!(50)));
        for (label, value) in set["spec"]["selector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(&pod["metadata"]["labels"][label], value);
        }
        let node = pod["spec"]["nodeName"].as_str().unwrap();
        assert_eq!(find(&format!("/registry/minions/{node}"))["metadata"]["name"], node);
    }
}
