//! NodeRestriction: what a kubelet's user may create beyond what its roles can tell apart, since
//! the name of an object to be created is not known when the request is authorized.

use apiserver_api::error::ApiError;
use apiserver_api::meta;
use serde_json::Value;

use super::{Admission, Operation};
use crate::auth::node_name;

/// Marks the API's picture of a pod that the node took from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// A node creates its own Node, CSINode and lease, and mirror pods of its own; such a pod names no
/// ServiceAccount, Secret or ConfigMap, so that nothing is gained by it.
pub(super) fn validate(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    let Some(node) = node_name(&admission.context.identity) else { return Ok(()) };
    if admission.operation != Operation::Create {
        return Ok(());
    }
    let (group, plural) = (admission.resource.group.as_str(), admission.resource.plural.as_str());
    let name = meta::name(object);
    let refused = |why: &str| Err(ApiError::forbidden(group, plural, name, why));
    match (group, plural) {
        ("", "nodes") | ("storage.k8s.io", "csinodes") if name != node => {
            refused(&format!("node \"{node}\" is not allowed to create the object of another node"))
        }
        ("coordination.k8s.io", "leases") if name != node || meta::namespace(object) != LEASE_NAMESPACE => {
            refused(&format!("node \"{node}\" is not allowed to create this lease"))
        }
        ("", "pods") => mirror_pod(object, node).or_else(|why| refused(&why)),
        _ => Ok(()),
    }
}

fn mirror_pod(pod: &Value, node: &str) -> Result<(), String> {
    let annotations = &pod["metadata"]["annotations"];
    if annotations.get(MIRROR).is_none() {
        return Err(format!("node \"{node}\" can only create mirror pods"));
    }
    let spec = &pod["spec"];
    if spec["nodeName"] != node {
        return Err(format!("node \"{node}\" can only create pods with spec.nodeName set to itself"));
    }
    if spec["serviceAccountName"].as_str().is_some_and(|name| !name.is_empty()) {
        return Err(format!("node \"{node}\" can not create pods that reference a service account"));
    }
    let volumes = spec["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let secret = ["secret", "configMap", "projected", "persistentVolumeClaim"];
    if volumes.iter().any(|volume| secret.iter().any(|kind| volume.get(kind).is_some())) {
        return Err(format!("node \"{node}\" can not create pods that reference API objects in volumes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::mirror_pod;

    #[test]
    fn a_node_makes_no_pod_but_a_mirror_without_references() {
        let mirror = |spec: serde_json::Value| json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": spec});
        assert!(mirror_pod(&mirror(json!({"nodeName": "n"})), "n").is_ok());
        assert!(mirror_pod(&json!({"metadata": {}, "spec": {"nodeName": "n"}}), "n").is_err());
        assert!(mirror_pod(&mirror(json!({"nodeName": "m"})), "n").is_err());
        assert!(mirror_pod(&mirror(json!({"nodeName": "n", "serviceAccountName": "admin"})), "n").is_err());
        assert!(mirror_pod(&mirror(json!({"nodeName": "n", "volumes": [{"secret": {}}]})), "n").is_err());
    }
}
