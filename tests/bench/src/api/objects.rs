//! Objects that are written and read: ConfigMaps of 1 KiB, and realistic pods.

use apiserver_schema::ordered::json_text;
use bytes::Bytes;
use serde_json::{Value, json};

/// Length of the text in a ConfigMap, such that the whole object, as a client sends it, has 1 KiB.
const PAYLOAD: usize = 890;
/// Number of nodes that pods are distributed over.
pub const NODES: usize = 5_000;
/// Minimum size of a [`stored_pod`] in bytes.
pub const LEAST_POD: usize = 3_000;
/// One in this many pods has the label that selected lists ask for.
pub const SELECTED: usize = 100;
/// Query of the selected lists.
pub const SELECTOR: &str = "labelSelector=tier%3Dselected";

/// The kind of object that a case uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A ConfigMap of 1 KiB.
    ConfigMap,
    Pod,
}

impl Object {
    /// Returns the parameter in the case's name; empty for the ConfigMap.
    pub fn parameter(self) -> &'static str {
        match self {
            Self::ConfigMap => "",
            Self::Pod => "/object=pod",
        }
    }

    /// Returns the path of the collection in the namespace `default`.
    pub fn path(self) -> &'static str {
        match self {
            Self::ConfigMap => "/api/v1/namespaces/default/configmaps",
            Self::Pod => "/api/v1/namespaces/default/pods",
        }
    }

    /// Returns the object with this name; `turn` makes it differ from earlier ones.
    pub fn body(self, name: &str, turn: u64) -> Bytes {
        let object = match self {
            Self::ConfigMap => config_map(name, turn),
            Self::Pod => pod(name, turn),
        };
        Bytes::from(object.to_string())
    }

    /// Returns the body of an update by a client that has read the object and changes it, regardless of the
    /// current version.
    pub fn changed(self, stored: &Value, name: &str, turn: u64) -> Bytes {
        let mut object = stored.clone();
        object["metadata"]["name"] = name.into();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
            metadata.remove("uid");
        }
        match self {
            Self::ConfigMap => object["data"]["turn"] = turn.to_string().into(),
            Self::Pod => object["metadata"]["annotations"]["bench/turn"] = turn.to_string().into(),
        }
        Bytes::from(object.to_string())
    }

    /// Returns a merge patch that changes it.
    pub fn patch(self, turn: u64) -> Bytes {
        let patch = match self {
            Self::ConfigMap => json!({"data": {"turn": turn.to_string()}}),
            Self::Pod => json!({"metadata": {"annotations": {"bench/turn": turn.to_string()}}}),
        };
        Bytes::from(patch.to_string())
    }

    /// Returns a configuration to apply.
    pub fn configuration(self, name: &str, turn: u64) -> Bytes {
        let config = match self {
            Self::ConfigMap => config_map(name, turn),
            Self::Pod => json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name,
                "annotations": {"bench/turn": turn.to_string()}}}),
        };
        Bytes::from(config.to_string())
    }
}

fn config_map(name: &str, turn: u64) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
        "data": {"turn": turn.to_string(), "payload": "x".repeat(PAYLOAD)}})
}

/// Returns a pod of a Deployment before it is scheduled, as a controller creates it.
fn pod(name: &str, turn: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default",
            "labels": {"app": "web", "pod-template-hash": "6b7f9d9c5d"},
            "annotations": {"bench/turn": turn.to_string(), "prometheus.io/scrape": "true"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6b7f9d9c5d",
                "uid": "3f1d7a52-8d5e-4b0e-9a60-0f2b6f6f1c11", "controller": true, "blockOwnerDeletion": true}]},
        "spec": {
            "serviceAccountName": "default", "automountServiceAccountToken": false,
            "containers": [{
                "name": "web", "image": "registry.example.com/shop/web:1.42.0",
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "env": [{"name": "MODE", "value": "production"},
                    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 5},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}]}],
            "volumes": [{"name": "config", "configMap": {"name": "web"}}],
        },
    })
}

/// Returns the specification of a container's pod before it is scheduled, for the templates of workloads.
pub fn pod_spec() -> Value {
    pod("", 0)["spec"].take()
}

/// Returns pod number `i` as stored: scheduled, running, with managed fields.
pub fn stored_pod(i: usize) -> (String, Bytes) {
    let name = format!("web-6b7f9d9c5d-{i:06}");
    let object = running_pod(&name, i);
    // The keys are in the order in which the server writes them; otherwise it would hold a second encoding.
    (format!("/registry/pods/default/{name}"), Bytes::from(json_text(&object)))
}

/// Returns pod number `i` in the state in which a kubelet runs it.
pub fn running_pod(name: &str, i: usize) -> Value {
    let mut object = pod(name, 0);
    let tier = if i.is_multiple_of(SELECTED) { "selected" } else { "other" };
    let metadata = &mut object["metadata"];
    metadata["uid"] = format!("{i:08x}-8d5e-4b0e-9a60-0f2b6f6f1c11").into();
    metadata["creationTimestamp"] = "2026-01-02T03:04:05Z".into();
    metadata["labels"]["tier"] = tier.into();
    metadata["managedFields"] = managers();
    let spec = &mut object["spec"];
    spec["nodeName"] = node(i % NODES).into();
    spec["restartPolicy"] = "Always".into();
    spec["dnsPolicy"] = "ClusterFirst".into();
    spec["schedulerName"] = "default-scheduler".into();
    spec["serviceAccount"] = "default".into();
    spec["terminationGracePeriodSeconds"] = 30.into();
    spec["securityContext"] = json!({});
    spec["tolerations"] = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]);
    object["status"] = running_status(i);
    object
}

/// Returns the status of a pod that runs and is ready.
pub fn running_status(i: usize) -> Value {
    let ip = format!("10.{}.{}.{}", 64 + i / 65_536 % 128, i / 256 % 256, i % 256);
    let since = "2026-01-02T03:04:07Z";
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": since});
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .map(condition);
    json!({
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "192.0.2.7", "startTime": since,
        "qosClass": "Burstable",
        "conditions": conditions,
        "containerStatuses": [{"name": "web", "ready": true, "started": true, "restartCount": 0,
            "image": "registry.example.com/shop/web:1.42.0",
            "imageID": "registry.example.com/shop/web@sha256:9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab",
            "containerID": "containerd://5a1f0d4a6f7d1e2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3",
            "state": {"running": {"startedAt": since}}}],
    })
}

/// Returns the name of a node.
pub fn node(i: usize) -> String {
    format!("node-{i:04}")
}

/// Returns the managed fields of a pod, owned by a controller and a kubelet.
fn managers() -> Value {
    json!([
        {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
         "time": "2026-01-02T03:04:05Z", "fieldsV1": {
            "f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}, "f:tier": {}},
                "f:ownerReferences": {".": {}, "k:{\"uid\":\"3f1d7a52-8d5e-4b0e-9a60-0f2b6f6f1c11\"}": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {".": {}, "f:image": {}, "f:name": {}, "f:env": {},
                "f:ports": {}, "f:readinessProbe": {}, "f:resources": {}, "f:volumeMounts": {}}},
                "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:volumes": {}}}},
        {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
         "time": "2026-01-02T03:04:07Z", "subresource": "status", "fieldsV1": {
            "f:status": {"f:conditions": {}, "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {},
                "f:podIP": {}, "f:podIPs": {}, "f:startTime": {}}}},
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_map_has_a_kibibyte_and_a_pod_its_size() {
        let size = Object::ConfigMap.body("cm-000001", 12).len();
        assert!((1000..=1024).contains(&size), "{size}");
        let (key, pod) = stored_pod(149_999);
        assert_eq!(key, "/registry/pods/default/web-6b7f9d9c5d-149999");
        assert!((LEAST_POD..5_000).contains(&pod.len()), "{}", pod.len());
    }
}
