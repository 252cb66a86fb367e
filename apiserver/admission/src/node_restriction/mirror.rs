//! Mirror pods: the only ones that a node may create. They show the pods that it runs from files, and refer
//! to nothing in the API, because the node would gain the right to read it.

use apiserver_schema::meta;
use serde::Deserialize;
use serde_json::Value;

use apiserver_auth::nodes::references::Pod;
use apiserver_meta::pods::MIRROR;

/// Volumes that refer to nothing in the API.
const LOCAL: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];
/// Volumes that refer to other objects, and to which.
const REFERRING: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];
/// Sources of a projected volume that refer to other objects, and to which.
const PROJECTED: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// Checks that a node may create this pod, regardless of its owner; the error is the reason why not.
pub(super) fn check(pod: &Value, node: &str) -> Result<(), String> {
    if meta::annotation(pod, MIRROR).is_none() {
        return Err(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if meta::text(pod, "/spec/nodeName") != node {
        return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    match referenced(pod) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(format!("node {node:?} can not create pods that reference {what}")),
        Err(why) => Err(format!("error checking mirror pod for API references: {why}")),
    }
}

/// Checks that the pod is owned by the node with this uid and by nobody else; the error is the reason why
/// not.
pub(super) fn check_owner(pod: &Value, node: &str, uid: &str) -> Result<(), String> {
    let owner = match meta::list(pod, "/metadata/ownerReferences") {
        [owner] => owner,
        [] => {
            return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
        }
        _ => {
            return Err(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner["controller"] != true {
        return Err(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner["blockOwnerDeletion"] == true {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let named = owner["uid"].as_str().unwrap_or_default();
    if named != uid {
        return Err(format!("node {node} UID mismatch: expected {named} got {uid}"));
    }
    Ok(())
}

/// Returns the first API object that the pod refers to, by its resource; volumes of unknown types are an
/// error.
fn referenced(pod: &Value) -> Result<Option<&'static str>, String> {
    if !meta::text(pod, "/spec/serviceAccountName").is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    let read = Pod::deserialize(pod).map_err(|error| error.to_string())?;
    if read.secrets().any(|name| !name.is_empty()) {
        return Ok(Some("secrets"));
    }
    if read.config_maps().any(|name| !name.is_empty()) {
        return Ok(Some("configmaps"));
    }
    if !meta::list(pod, "/spec/resourceClaims").is_empty() {
        return Ok(Some("resourceclaims"));
    }
    for volume in meta::list(pod, "/spec/volumes") {
        if let found @ Some(_) = of_volume(volume)? {
            return Ok(found);
        }
    }
    Ok(None)
}

fn of_volume(volume: &Value) -> Result<Option<&'static str>, String> {
    let has = |field: &str| volume.get(field).is_some_and(|source| !source.is_null());
    let name = volume["name"].as_str().unwrap_or_default();
    if let Some((_, what)) = REFERRING.iter().find(|(field, _)| has(field)) {
        return Ok(Some(what));
    }
    if has("projected") {
        for source in meta::list(volume, "/projected/sources") {
            let has = |field: &str| source.get(field).is_some_and(|source| !source.is_null());
            if let Some((_, what)) = PROJECTED.iter().find(|(field, _)| has(field)) {
                return Ok(Some(what));
            }
            if !has("downwardAPI") {
                return Err(format!("unknown source for projected volume {name:?}"));
            }
        }
        return Ok(None);
    }
    if LOCAL.into_iter().any(has) {
        Ok(None)
    } else {
        Err(format!("unknown volume type for volume  {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mirror(spec: Value) -> Value {
        let mut pod = json!({"metadata": {"annotations": {MIRROR: "x"}}, "spec": spec});
        pod["spec"]["nodeName"] = "n".into();
        pod
    }

    fn refusal(pod: &Value) -> String {
        check(pod, "n").err().unwrap_or_default()
    }

    #[test]
    fn a_node_creates_no_pod_but_a_mirror_on_itself() {
        assert_eq!(refusal(&mirror(json!({}))), "");
        let plain = json!({"metadata": {}, "spec": {"nodeName": "n"}});
        assert_eq!(
            refusal(&plain),
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n\" can only create mirror pods"
        );
        let mut elsewhere = mirror(json!({}));
        for node in [json!("m"), json!(""), json!(null)] {
            elsewhere["spec"]["nodeName"] = node;
            let why = "node \"n\" can only create pods with spec.nodeName set to itself";
            assert_eq!(refusal(&elsewhere), why);
        }
    }

    #[test]
    fn a_mirror_pod_refers_to_nothing_in_the_api() {
        let volume = |field: &str, source: Value| json!({"volumes": [{"name": "v", field: source}]});
        let projected = |field: &str| volume("projected", json!({"sources": [{field: {}}]}));
        let env = |field: &str| {
            let variable = json!({"name": "A", "valueFrom": {field: {"name": "x", "key": "k"}}});
            json!([{"name": "c", "env": [variable]}])
        };
        let table = [
            (json!({"serviceAccountName": "admin"}), "serviceaccounts"),
            (json!({"containers": env("secretKeyRef")}), "secrets"),
            (json!({"initContainers": env("secretKeyRef")}), "secrets"),
            (json!({"ephemeralContainers": env("secretKeyRef")}), "secrets"),
            (json!({"imagePullSecrets": [{"name": "x"}]}), "secrets"),
            (json!({"containers": env("configMapKeyRef")}), "configmaps"),
            (json!({"resourceClaims": [{"name": "c"}]}), "resourceclaims"),
            (volume("configMap", json!({})), "configmaps (via configmap volumes)"),
            (volume("secret", json!({})), "secrets (via secret volumes)"),
            (volume("csi", json!({"driver": "d"})), "csidrivers (via CSI volumes)"),
            (volume("glusterfs", json!({"endpoints": "e"})), "endpoints (via glusterFS volumes)"),
            (volume("persistentVolumeClaim", json!({"claimName": "c"})), "persistentvolumeclaims"),
            (volume("ephemeral", json!({})), "persistentvolumeclaims (via ephemeral volumes)"),
            (volume("azureFile", json!({})), "secrets (via azureFile volumes)"),
            (volume("iscsi", json!({"secretRef": {"name": "x"}})), "secrets"),
            (projected("configMap"), "configmaps (via projected volumes)"),
            (projected("secret"), "secrets (via projected volumes)"),
            (projected("serviceAccountToken"), "serviceaccounts (via projected volumes)"),
            (projected("clusterTrustBundle"), "clustertrustbundles"),
            (projected("podCertificate"), "podcertificates"),
        ];
        for (spec, what) in table {
            let why = format!("node \"n\" can not create pods that reference {what}");
            assert_eq!(refusal(&mirror(spec.clone())), why, "{spec}");
        }
        for (spec, why) in [
            (projected("new"), "unknown source for projected volume \"v\""),
            (volume("new", json!({})), "unknown volume type for volume  \"v\""),
        ] {
            let why = format!("error checking mirror pod for API references: {why}");
            assert_eq!(refusal(&mirror(spec)), why);
        }
        for field in LOCAL {
            assert_eq!(refusal(&mirror(volume(field, json!({})))), "", "{field}");
        }
        assert_eq!(refusal(&mirror(projected("downwardAPI"))), "");
        let two = json!({"volumes": [{"name": "v", "emptyDir": {}, "secret": {}}]});
        assert!(refusal(&mirror(two)).contains("secrets"), "whatever else the volume claims to be");
    }

    #[test]
    fn a_mirror_pod_belongs_to_its_node_alone() {
        let good = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true});
        let with = |field: &str, value: Value| {
            let mut owner = good.clone();
            owner[field] = value;
            json!([owner])
        };
        let set = "can only create pods with an owner reference set to itself";
        let table = [
            (json!([good]), ""),
            (with("blockOwnerDeletion", json!(false)), ""),
            (json!(null), set),
            (json!([]), set),
            (json!([good, good]), "can only create pods with a single owner reference set to itself"),
            (with("apiVersion", json!("apps/v1")), set),
            (with("kind", json!("Pod")), set),
            (with("name", json!("m")), set),
            (
                with("controller", json!(false)),
                "can only create pods with a controller owner reference set to itself",
            ),
            (
                with("blockOwnerDeletion", json!(true)),
                "must not set blockOwnerDeletion on an owner reference",
            ),
            (with("uid", json!("other")), "UID mismatch: expected other got u"),
        ];
        for (owners, why) in table {
            let pod = json!({"metadata": {"ownerReferences": owners}});
            let found = check_owner(&pod, "n", "u").err().unwrap_or_default();
            assert!(found.ends_with(why) && found.is_empty() == why.is_empty(), "{owners}: {found}");
        }
    }
}
