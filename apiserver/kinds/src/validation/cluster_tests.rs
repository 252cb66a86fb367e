//! Tables for storage, quotas and the objects of the cluster.

use serde_json::{Value, json};

use super::depth_tests::{edited, stored};
use super::tests::{NONE, errors, update_errors, with};

#[test]
fn persistent_volumes() {
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "csi": {"driver": "d", "volumeHandle": "h"}}});
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        assert_eq!(errors("", "persistentvolumes", &edited(&volume, edits)), wanted, "{edits:?}");
    };
    check(&[], &[]);
    check(
        &[
            ("/spec/accessModes", json!(["ReadWriteOncePod", "ReadWriteOnce", "Never"])),
            ("/spec/capacity", json!({"cpu": "1"})),
        ],
        &[
            "spec.accessModes: Unsupported value: \"Never\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
            "spec.capacity: Unsupported value: {\"cpu\":\"1\"}: supported values: \"storage\"",
        ],
    );
    let local = with(
        volume.clone(),
        "/spec",
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "0"}, "local": {"path": "/a/.."}}),
    );
    assert_eq!(
        errors("", "persistentvolumes", &local),
        [
            "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
            "spec.local.path: Invalid value: \"/a/..\": must not contain '..'",
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
        ]
    );
    let old = stored("", "persistentvolumes", volume);
    let update = |edits: &[(&str, Value)]| update_errors("", "persistentvolumes", &edited(&old, edits), &old);
    assert_eq!(
        update(&[("/spec/csi/controllerExpandSecretRef", json!({"name": "a", "namespace": "b"}))]),
        NONE
    );
    assert_eq!(
        update(&[("/spec/csi/volumeHandle", json!("x")), ("/spec/volumeMode", json!("Block"))]),
        [
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation (changed: csi.volumeHandle)",
            "volumeMode: Invalid value: \"Block\": field is immutable",
        ]
    );
}

#[test]
fn claims() {
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}});
    assert_eq!(
        errors(
            "",
            "persistentvolumeclaims",
            &edited(
                &claim,
                &[
                    ("/spec/dataSource", json!({"kind": "Pod", "name": "p"})),
                    ("/spec/dataSourceRef", json!({"kind": "PersistentVolumeClaim", "name": "q"}))
                ]
            )
        ),
        [
            "spec.dataSource: Invalid value: \"Pod\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            "spec: Invalid value: {}: must match dataSourceRef",
        ]
    );
    let old = stored("", "persistentvolumeclaims", claim);
    let bound = edited(
        &old,
        &[
            ("/spec/volumeName", json!("v")),
            ("/status", json!({"phase": "Bound", "capacity": {"storage": "1Gi"}})),
        ],
    );
    let size = |old: &Value, size: &str| {
        update_errors(
            "",
            "persistentvolumeclaims",
            &with(old.clone(), "/spec/resources/requests/storage", json!(size)),
            old,
        )
    };
    assert_eq!(size(&bound, "3Gi"), NONE);
    assert_eq!(size(&bound, "1500Mi"), NONE, "what was not reached may be taken back");
    assert_eq!(
        size(&bound, "1Gi"),
        ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"]
    );
    assert_eq!(size(&old, "3Gi").len(), 1, "only bound claims grow");
}

#[test]
fn objects_of_drivers() {
    assert_eq!(
        errors(
            "storage.k8s.io",
            "csinodes",
            &json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": ""}, {"name": "d", "nodeID": "x"}]}})
        ),
        ["spec.drivers[0].nodeID: Required value", "spec.drivers[1].name: Duplicate value: \"d\""]
    );
    assert_eq!(
        errors(
            "storage.k8s.io",
            "volumeattachments",
            &json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n", "source": {}}})
        ),
        [
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"
        ]
    );
}

#[test]
fn quotas_and_limits() {
    let quota = |spec: Value| errors("", "resourcequotas", &json!({"metadata": {"name": "q"}, "spec": spec}));
    assert_eq!(
        quota(json!({"hard": {"pods": "3", "requests.nvidia.com/gpu": "1", "count/jobs.batch": "2"}})),
        NONE
    );
    assert_eq!(
        quota(
            json!({"hard": {"pods": "1500m", "storage": "1", "apples": "1"}, "scopes": ["BestEffort", "NotBestEffort", "Odd"]})
        ),
        [
            "spec.hard[apples]: Invalid value: \"apples\": must be a standard resource type or fully qualified",
            "spec.hard[apples]: Invalid value: \"apples\": must be a standard resource for quota",
            "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
            "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quota",
            "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\",\"Odd\"]: unsupported scope",
            "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\",\"Odd\"]: conflicting scopes",
        ]
    );
    assert_eq!(
        quota(json!({"hard": {"services": "1"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "Terminating", "operator": "In"}]}})),
        [
            "spec.scopeSelector.matchExpressions: Invalid value: {\"matchExpressions\":[{\"operator\":\"In\",\"scopeName\":\"Terminating\"}]}: unsupported scope applied to resource",
            "spec.scopeSelector.matchExpressions.operator: Invalid value: \"In\": must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        ]
    );
    let limits = |limits: Value| {
        errors("", "limitranges", &json!({"metadata": {"name": "l"}, "spec": {"limits": limits}}))
    };
    assert_eq!(
        limits(
            json!([{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}, "default": {"cpu": "3"}, "defaultRequest": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "500m"}}])
        ),
        [
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"4\": default request value 4 is greater than max value 1",
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"4\": default request value 4 is greater than default limit value 3",
            "spec.limits[0].default[cpu]: Invalid value: \"1\": default value 3 is greater than max value 1",
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1",
        ]
    );
    assert_eq!(
        limits(
            json!([{"type": "Pod", "default": {"cpu": "1"}}, {"type": "PersistentVolumeClaim"}, {"type": "Pod"}, {"type": "Thing"}])
        ),
        [
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            "spec.limits[1].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
            "spec.limits[2].type: Duplicate value: \"Pod\"",
            "spec.limits[3].type: Invalid value: \"Thing\": must be a standard limit type or fully qualified",
        ]
    );
}

#[test]
fn the_cluster_in_depth() {
    assert_eq!(
        errors(
            "",
            "nodes",
            &json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": ["10.1.0.0/24", "10.2.0.0/24"]}, "status": {"capacity": {"pods": "1500m"}}})
        ),
        [
            "status.capacity.pods: Invalid value: \"1500m\": must be an integer",
            "status.allocatable.pods: Invalid value: \"1500m\": must be an integer",
            "spec.podCIDRs: Invalid value: [\"10.1.0.0/24\",\"10.2.0.0/24\"]: may specify no more than one CIDR for each IP family",
        ]
    );
    assert_eq!(
        errors(
            "",
            "namespaces",
            &json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["mine", "a/b"]}})
        ),
        [
            "spec.finalizers: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified"
        ]
    );
    assert_eq!(
        errors(
            "",
            "events",
            &json!({"metadata": {"name": "E_1", "namespace": "default"}, "eventTime": "2024-01-01T00:00:00.000000Z", "reason": "r".repeat(129)})
        ),
        [
            "reportingComponent: Required value",
            "reportingComponent: Invalid value: \"\": name part must be non-empty",
            "reportingComponent: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            "reportingInstance: Required value",
            "action: Required value",
            "reason: Invalid value: \"\": can have at most 128 characters",
        ]
    );
    assert_eq!(
        errors(
            "policy",
            "poddisruptionbudgets",
            &json!({"metadata": {"name": "b"}, "spec": {"maxUnavailable": "150%", "unhealthyPodEvictionPolicy": "Maybe"}})
        ),
        [
            "spec.maxUnavailable: Invalid value: \"150%\": must not be greater than 100%",
            "spec.unhealthyPodEvictionPolicy: Unsupported value: \"Maybe\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
        ]
    );
    assert_eq!(
        errors(
            "",
            "secrets",
            &json!({"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "W10="}})
        ),
        [
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": json: cannot unmarshal into Go value of type map[string]interface {}"
        ]
    );
    let owned = json!({"metadata": {"name": "c", "finalizers": ["orphan", "foregroundDeletion", "bare"], "ownerReferences": [
        {"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1"}]}});
    let found = errors("", "configmaps", &owned);
    assert!(found[0].ends_with("/v1, Kind=Event is disallowed from being an owner"), "{found:?}");
    assert!(found[1].ends_with("finalizer orphan and foregroundDeletion cannot be both set"), "{found:?}");
    assert_eq!(
        found[2],
        "metadata.finalizers[2]: Invalid value: \"bare\": name is neither a standard finalizer name nor is it fully qualified"
    );
}
