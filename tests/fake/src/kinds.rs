//! The kinds that the server knows, and what discovery tells of them.

use serde_json::{Value, json};

/// Group and version, plural, kind, and whether it is namespaced.
pub const KINDS: &[(&str, &str, &str, bool)] = &[
    ("v1", "pods", "Pod", true),
    ("v1", "services", "Service", true),
    ("v1", "endpoints", "Endpoints", true),
    ("v1", "configmaps", "ConfigMap", true),
    ("v1", "secrets", "Secret", true),
    ("v1", "serviceaccounts", "ServiceAccount", true),
    ("v1", "replicationcontrollers", "ReplicationController", true),
    ("v1", "resourcequotas", "ResourceQuota", true),
    ("v1", "namespaces", "Namespace", false),
    ("v1", "nodes", "Node", false),
    ("v1", "persistentvolumeclaims", "PersistentVolumeClaim", true),
    ("v1", "persistentvolumes", "PersistentVolume", false),
    ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", false),
    ("apps/v1", "daemonsets", "DaemonSet", true),
    ("apps/v1", "deployments", "Deployment", true),
    ("apps/v1", "replicasets", "ReplicaSet", true),
    ("apps/v1", "statefulsets", "StatefulSet", true),
    ("apps/v1", "controllerrevisions", "ControllerRevision", true),
    ("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", true),
    ("batch/v1", "cronjobs", "CronJob", true),
    ("batch/v1", "jobs", "Job", true),
    ("authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview", false),
    ("certificates.k8s.io/v1", "certificatesigningrequests", "CertificateSigningRequest", false),
    ("coordination.k8s.io/v1", "leases", "Lease", true),
    ("discovery.k8s.io/v1", "endpointslices", "EndpointSlice", true),
    ("example.com/v1", "gamesets", "GameSet", true),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", true),
    ("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", false),
    ("resource.k8s.io/v1", "resourceclaims", "ResourceClaim", true),
    ("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate", true),
    ("resource.k8s.io/v1", "resourceslices", "ResourceSlice", false),
    ("resource.k8s.io/v1beta2", "devicetaintrules", "DeviceTaintRule", false),
    ("resource.k8s.io/v1alpha3", "resourcepoolstatusrequests", "ResourcePoolStatusRequest", false),
    ("storage.k8s.io/v1", "csidrivers", "CSIDriver", false),
    ("storage.k8s.io/v1", "storageclasses", "StorageClass", false),
    ("storage.k8s.io/v1", "volumeattachments", "VolumeAttachment", false),
    ("storage.k8s.io/v1", "volumeattributesclasses", "VolumeAttributesClass", false),
];

/// Kinds that only the scheduler uses; discovery does not tell of them.
pub const UNLISTED: &[(&str, &str, &str, bool)] = &[
    ("storage.k8s.io/v1", "csinodes", "CSINode", false),
    ("storage.k8s.io/v1", "csistoragecapacities", "CSIStorageCapacity", true),
    ("resource.k8s.io/v1", "deviceclasses", "DeviceClass", false),
    ("scheduling.k8s.io/v1alpha2", "podgroups", "PodGroup", true),
    ("events.k8s.io/v1", "events", "Event", true),
];

/// Returns the answer of discovery at a path.
pub fn discovery(path: &str) -> Option<Value> {
    let resources = |group_version: &str| {
        let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let list: Vec<Value> = KINDS
            .iter()
            .filter(|(of, ..)| *of == group_version)
            .map(|(_, plural, kind, namespaced)| {
                json!({"name": plural, "kind": kind, "namespaced": namespaced, "singularName": "", "verbs": verbs})
            })
            .chain((group_version == "example.com/v1").then(|| {
                json!({"name": "gamesets/scale", "kind": "Scale", "group": "autoscaling", "version": "v1",
                    "namespaced": true, "singularName": "", "verbs": ["get"]})
            }))
            .collect();
        json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list})
    };
    match path {
        "api" => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        "apis" => {
            let mut groups: Vec<&str> =
                KINDS.iter().filter_map(|(of, ..)| of.split_once('/').map(|(g, _)| g)).collect();
            groups.dedup();
            let groups: Vec<Value> = groups
                .iter()
                .map(|group| {
                    let of =
                        |group_version: &&str| group_version.split_once('/').map(|(g, _)| g) == Some(*group);
                    let mut all: Vec<&str> = KINDS.iter().map(|(of, ..)| *of).filter(of).collect();
                    all.dedup();
                    let version =
                        |of: &&str| json!({"groupVersion": of, "version": of.split_once('/').unwrap().1});
                    let versions: Vec<Value> = all.iter().map(version).collect();
                    json!({"name": group, "versions": versions, "preferredVersion": versions[0]})
                })
                .collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        "api/v1" => Some(resources("v1")),
        _ => {
            let group_version = path.strip_prefix("apis/")?;
            (group_version.split('/').count() == 2).then(|| resources(group_version))
        }
    }
}
