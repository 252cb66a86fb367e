//! Versions in which earlier Kubernetes stored objects and that are no longer served or stored, and that
//! differ from the present one only in name, in JSON and in the numbers of their protobuf fields
//! (`generated.proto` in k8s.io/api). Such an object is read under its present version, and written so when
//! it is next changed.

use apiserver_kinds::conversion::Conversion;
use serde_json::Value;

/// Groups: former version, current version, kinds.
const SAME: &[(&str, &str, &[&str])] = &[
    (
        "admissionregistration.k8s.io/v1beta1",
        "admissionregistration.k8s.io/v1",
        &[
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ],
    ),
    ("apps/v1beta1", "apps/v1", &["ControllerRevision", "Deployment", "StatefulSet"]),
    (
        "apps/v1beta2",
        "apps/v1",
        &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"],
    ),
    ("autoscaling/v2beta2", "autoscaling/v2", &["HorizontalPodAutoscaler"]),
    ("batch/v1beta1", "batch/v1", &["CronJob"]),
    ("certificates.k8s.io/v1beta1", "certificates.k8s.io/v1", &["CertificateSigningRequest"]),
    ("coordination.k8s.io/v1beta1", "coordination.k8s.io/v1", &["Lease"]),
    ("events.k8s.io/v1beta1", "events.k8s.io/v1", &["Event"]),
    ("extensions/v1beta1", "apps/v1", &["DaemonSet", "Deployment", "ReplicaSet"]),
    ("extensions/v1beta1", "networking.k8s.io/v1", &["NetworkPolicy"]),
    ("flowcontrol.apiserver.k8s.io/v1beta1", "flowcontrol.apiserver.k8s.io/v1", &["FlowSchema"]),
    ("flowcontrol.apiserver.k8s.io/v1beta2", "flowcontrol.apiserver.k8s.io/v1", &["FlowSchema"]),
    (
        "flowcontrol.apiserver.k8s.io/v1beta3",
        "flowcontrol.apiserver.k8s.io/v1",
        &["FlowSchema", "PriorityLevelConfiguration"],
    ),
    ("networking.k8s.io/v1beta1", "networking.k8s.io/v1", &["IPAddress", "IngressClass", "ServiceCIDR"]),
    ("node.k8s.io/v1beta1", "node.k8s.io/v1", &["RuntimeClass"]),
    ("policy/v1beta1", "policy/v1", &["PodDisruptionBudget"]),
    (
        "rbac.authorization.k8s.io/v1beta1",
        "rbac.authorization.k8s.io/v1",
        &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"],
    ),
    ("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1", &["PriorityClass"]),
    (
        "storage.k8s.io/v1beta1",
        "storage.k8s.io/v1",
        &[
            "CSIDriver",
            "CSINode",
            "CSIStorageCapacity",
            "StorageClass",
            "VolumeAttachment",
            "VolumeAttributesClass",
        ],
    ),
];

/// Returns the present apiVersion of a kind of an old version, if nothing else about it has changed.
pub fn today(api_version: &str, kind: &str) -> Option<&'static str> {
    // Most objects have a present version.
    if !api_version.contains("beta") {
        return None;
    }
    SAME.iter().find(|(old, _, kinds)| *old == api_version && kinds.contains(&kind)).map(|(_, new, _)| *new)
}

/// Returns `true` if [`upgrade`] may change objects of this apiVersion.
pub fn is_older(api_version: &str) -> bool {
    Conversion::concerns(api_version)
}

/// Converts an object that another server stored in a version of its own choice to the one stored here.
pub fn upgrade(object: &mut Value) {
    if let Some(conversion) = Conversion::of_object(object) {
        conversion.to_stored(object);
    }
}

#[cfg(test)]
mod tests {
    use apiserver_schema::protobuf;

    use super::*;

    #[test]
    fn every_kind_has_a_version_of_today_that_can_be_read() {
        for (old, new, kinds) in SAME {
            for kind in *kinds {
                assert_eq!(today(old, kind), Some(*new));
                assert!(protobuf::of_kind(new, kind).is_some(), "{new} {kind}");
            }
        }
        assert_eq!(today("v1", "Pod"), None);
        assert_eq!(today("networking.k8s.io/v1beta1", "Ingress"), None);
    }
}
