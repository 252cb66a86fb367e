//! Fields that Kubernetes 1.36 has behind feature gates that are off by default. They are dropped from what
//! clients write, unless the object uses them already: so an object of a cluster that had the gate on stays
//! whole.

use serde_json::{Map, Value};

use apiserver_schema::meta;

/// The fields of one feature gate. A path is made of names with dots between them; `[]` stands for each item
/// of a list and `{}` for each value of a map.
struct Gate {
    paths: &'static [&'static str],
    /// True if an object that is empty once a field is dropped is dropped too.
    with_empty_parent: bool,
}

const fn gate(paths: &'static [&'static str]) -> Gate {
    Gate { paths, with_empty_parent: false }
}

/// Gates of the spec of a pod or a template.
static POD: &[Gate] = &[
    // ClusterTrustBundleProjection
    gate(&["volumes.[].projected.sources.[].clusterTrustBundle"]),
    // PodCertificateRequest
    gate(&["volumes.[].projected.sources.[].podCertificate"]),
    // GenericWorkload
    gate(&["schedulingGroup"]),
    // ContainerStopSignals
    Gate {
        paths: &[
            "containers.[].lifecycle.stopSignal",
            "initContainers.[].lifecycle.stopSignal",
            "ephemeralContainers.[].lifecycle.stopSignal",
        ],
        with_empty_parent: true,
    },
];

/// Gates of the status of a pod.
static POD_STATUS: &[Gate] = &[
    // ImageVolumeWithDigest
    gate(&[
        "containerStatuses.[].volumeMounts.[].volumeStatus",
        "initContainerStatuses.[].volumeMounts.[].volumeStatus",
        "ephemeralContainerStatuses.[].volumeMounts.[].volumeStatus",
    ]),
    // DRANodeAllocatableResources
    gate(&["nodeAllocatableResourceClaimStatuses"]),
];

// MaxUnavailableStatefulSet
static STATEFUL_SET: &[Gate] = &[gate(&["updateStrategy.rollingUpdate.maxUnavailable"])];

// VolumeLimitScaling
static CSI_DRIVER: &[Gate] = &[gate(&["preventPodSchedulingIfMissing"])];

// CoordinatedLeaderElection
static LEASE: &[Gate] = &[gate(&["strategy"]), gate(&["preferredHolder"])];

// DynamicKubeletConfig, which is gone
static NODE: &[Gate] = &[gate(&["configSource"])];

static RESOURCE_SLICE: &[Gate] = &[
    // DRANodeAllocatableResources
    gate(&["devices.[].nodeAllocatableResourceMappings"]),
    // DRAListTypeAttributes
    gate(&[
        "devices.[].attributes.{}.bools",
        "devices.[].attributes.{}.ints",
        "devices.[].attributes.{}.strings",
        "devices.[].attributes.{}.versions",
    ]),
];

/// Gates of a PodGroup, and of each template of a Workload.
static POD_GROUP: &[Gate] = &[
    // TopologyAwareWorkloadScheduling
    gate(&["schedulingConstraints"]),
    // DRAWorkloadResourceClaims
    gate(&["resourceClaims"]),
    // WorkloadAwarePreemption
    gate(&["disruptionMode"]),
    gate(&["priorityClassName"]),
    gate(&["priority"]),
];

/// Drops the fields from a new object of a kind. `old` is the one that it replaces.
pub fn drop_fields(group: &str, plural: &str, new: &mut Value, old: Option<&Value>) {
    let mut within = |pointer: &str, gates: &[Gate]| {
        if let Some(new) = new.pointer_mut(pointer) {
            drop_gates(gates, new, old.and_then(|old| meta::at(old, pointer)));
        }
    };
    match (group, plural) {
        ("", "pods") => within("/spec", POD),
        ("", "podtemplates") => within("/template/spec", POD),
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "daemonsets")
        | ("batch", "jobs") => within("/spec/template/spec", POD),
        ("batch", "cronjobs") => within("/spec/jobTemplate/spec/template/spec", POD),
        ("apps", "statefulsets") => {
            within("/spec", STATEFUL_SET);
            within("/spec/template/spec", POD);
        }
        ("", "persistentvolumeclaims") => claim(new, old),
        ("", "nodes") => within("/spec", NODE),
        ("coordination.k8s.io", "leases") => within("/spec", LEASE),
        ("storage.k8s.io", "csidrivers") => within("/spec", CSI_DRIVER),
        ("resource.k8s.io", "resourceslices") => within("/spec", RESOURCE_SLICE),
        ("scheduling.k8s.io", "podgroups") => within("/spec", POD_GROUP),
        ("scheduling.k8s.io", "workloads") => {
            let templates = meta::list(new, "/spec/podGroupTemplates").len();
            for index in 0..templates {
                let pointer = format!("/spec/podGroupTemplates/{index}");
                let old = old.and_then(|old| meta::at(old, &pointer));
                new.pointer_mut(&pointer).into_iter().for_each(|new| drop_gates(POD_GROUP, new, old));
            }
        }
        _ => {}
    }
}

/// Drops the fields from a status that is written.
pub fn drop_status_fields(group: &str, plural: &str, new: &mut Value, old: &Value) {
    match (group, plural) {
        ("", "pods") => {
            if let Some(status) = new.get_mut("status") {
                drop_gates(POD_STATUS, status, old.get("status"));
            }
        }
        // DRAWorkloadResourceClaims
        ("scheduling.k8s.io", "podgroups") if !is_used(old, "spec.resourceClaims") => {
            remove(new, "status.resourceClaimStatuses", false);
        }
        _ => {}
    }
}

/// CrossNamespaceVolumeDataSource: a claim is filled from its own namespace.
fn claim(new: &mut Value, old: Option<&Value>) {
    let foreign = is_used(new, "spec.dataSourceRef.namespace");
    if foreign && !old.is_some_and(|old| is_used(old, "spec.dataSourceRef")) {
        remove(new, "spec.dataSourceRef", false);
    }
}

fn drop_gates(gates: &[Gate], new: &mut Value, old: Option<&Value>) {
    for gate in gates {
        if !old.is_some_and(|old| gate.paths.iter().any(|path| is_used(old, path))) {
            gate.paths.iter().for_each(|path| remove(new, path, gate.with_empty_parent));
        }
    }
}

/// `true` if there is a value at the path.
fn is_used(value: &Value, path: &str) -> bool {
    let Some((name, rest)) = path.split_once('.') else { return is_said(value.get(path)) };
    match (name, value) {
        ("[]", Value::Array(items)) => items.iter().any(|item| is_used(item, rest)),
        ("{}", Value::Object(map)) => map.values().any(|value| is_used(value, rest)),
        (name, Value::Object(map)) => map.get(name).is_some_and(|value| is_used(value, rest)),
        _ => false,
    }
}

fn is_said(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    }
}

fn remove(value: &mut Value, path: &str, with_empty_parent: bool) {
    let Some((name, rest)) = path.split_once('.') else {
        value.as_object_mut().map(|map| map.remove(path));
        return;
    };
    match (name, value) {
        ("[]", Value::Array(items)) => {
            items.iter_mut().for_each(|item| remove(item, rest, with_empty_parent));
        }
        ("{}", Value::Object(map)) => {
            map.values_mut().for_each(|value| remove(value, rest, with_empty_parent));
        }
        (name, Value::Object(map)) => {
            let Some(inner) = map.get_mut(name) else { return };
            let had = inner.get(rest).is_some();
            remove(inner, rest, with_empty_parent);
            if had && with_empty_parent && inner.as_object().is_some_and(Map::is_empty) {
                map.remove(name);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the kind, the place of the fields, an object with them, and the object without them.
    fn table() -> Vec<(&'static str, &'static str, &'static str, Value, Value)> {
        let sources = json!([{"clusterTrustBundle": {"path": "a"}}, {"podCertificate": {"signerName": "a"}}]);
        let pod = json!({
            "schedulingGroup": {"podGroupName": "g"},
            "volumes": [{"name": "a", "projected": {"sources": sources}}],
            "containers": [{"name": "a", "lifecycle": {"stopSignal": "SIGUSR1"}}],
            "initContainers": [{"name": "b", "lifecycle": {"stopSignal": "SIGUSR1", "preStop": {}}}],
        });
        let plain_pod = json!({
            "volumes": [{"name": "a", "projected": {"sources": [{}, {}]}}],
            "containers": [{"name": "a"}],
            "initContainers": [{"name": "b", "lifecycle": {"preStop": {}}}],
        });
        let group = json!({"name": "g", "schedulingConstraints": {}, "resourceClaims": [{"name": "a"}],
            "disruptionMode": "Pod", "priorityClassName": "a", "priority": 1});
        let device = |attribute: Value| json!({"name": "d", "attributes": {"a": attribute, "b": {"int": 1}}});
        let mut mapped = device(json!({"ints": [1], "strings": ["a"]}));
        mapped["nodeAllocatableResourceMappings"] = json!({"cpu": {}});
        let reference = json!({"kind": "K", "name": "n", "namespace": "other"});
        vec![
            ("", "pods", "/spec", pod.clone(), plain_pod.clone()),
            ("", "podtemplates", "/template/spec", pod.clone(), plain_pod.clone()),
            ("apps", "deployments", "/spec/template/spec", pod.clone(), plain_pod.clone()),
            ("apps", "statefulsets", "/spec/template/spec", pod.clone(), plain_pod.clone()),
            ("batch", "cronjobs", "/spec/jobTemplate/spec/template/spec", pod, plain_pod),
            (
                "apps",
                "statefulsets",
                "/spec",
                json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2, "partition": 0}}}),
                json!({"updateStrategy": {"rollingUpdate": {"partition": 0}}}),
            ),
            ("", "persistentvolumeclaims", "/spec", json!({"dataSourceRef": reference}), json!({})),
            (
                "storage.k8s.io",
                "csidrivers",
                "/spec",
                json!({"preventPodSchedulingIfMissing": false}),
                json!({}),
            ),
            ("", "nodes", "/spec", json!({"configSource": {}, "podCIDR": "c"}), json!({"podCIDR": "c"})),
            (
                "coordination.k8s.io",
                "leases",
                "/spec",
                json!({"holderIdentity": "h", "strategy": "S", "preferredHolder": "p"}),
                json!({"holderIdentity": "h"}),
            ),
            (
                "resource.k8s.io",
                "resourceslices",
                "/spec",
                json!({"devices": [mapped]}),
                json!({"devices": [device(json!({}))]}),
            ),
            ("scheduling.k8s.io", "podgroups", "/spec", group.clone(), json!({"name": "g"})),
            (
                "scheduling.k8s.io",
                "workloads",
                "/spec",
                json!({"podGroupTemplates": [group]}),
                json!({"podGroupTemplates": [{"name": "g"}]}),
            ),
        ]
    }

    fn at(pointer: &str, value: Value) -> Value {
        pointer[1..].rsplit('/').fold(value, |value, name| json!({name: value}))
    }

    #[test]
    fn fields_of_gates_that_are_off_are_dropped_unless_the_object_uses_them() {
        for (group, plural, pointer, with, without) in table() {
            let mut new = at(pointer, with.clone());
            drop_fields(group, plural, &mut new, None);
            assert_eq!(new, at(pointer, without.clone()), "{plural}");
            let mut new = at(pointer, with.clone());
            drop_fields(group, plural, &mut new, Some(&at(pointer, without.clone())));
            assert_eq!(new, at(pointer, without), "{plural}");
            let mut new = at(pointer, with.clone());
            drop_fields(group, plural, &mut new, Some(&at(pointer, with.clone())));
            assert_eq!(new, at(pointer, with), "{plural}");
        }
    }

    #[test]
    fn a_claim_keeps_a_source_of_its_own_namespace() {
        let claim = json!({"spec": {"dataSourceRef": {"kind": "K", "name": "n", "namespace": ""}}});
        let mut new = claim.clone();
        drop_fields("", "persistentvolumeclaims", &mut new, None);
        assert_eq!(new, claim);
    }

    #[test]
    fn statuses_are_treated_alike() {
        let mount = json!({"name": "v", "volumeStatus": {"image": {}}});
        let status = json!({"containerStatuses": [{"volumeMounts": [mount]}],
            "nodeAllocatableResourceClaimStatuses": [{}]});
        let mut new = json!({"status": status});
        let with = new.clone();
        drop_status_fields("", "pods", &mut new, &json!({}));
        assert_eq!(new, json!({"status": {"containerStatuses": [{"volumeMounts": [{"name": "v"}]}]}}));
        let mut new = with.clone();
        drop_status_fields("", "pods", &mut new, &with);
        assert_eq!(new, with);
    }
}
