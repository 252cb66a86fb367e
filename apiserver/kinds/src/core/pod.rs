//! Pods.

pub(crate) mod apparmor;
pub(crate) mod columns;
pub(crate) mod container;
pub(crate) mod container_warnings;
pub(crate) mod environment;
pub(crate) mod file_overlaps;
pub(crate) mod handlers;
pub(crate) mod image;
pub(crate) mod mounts;
pub(crate) mod requests;
pub(crate) mod requirements;
pub(crate) mod retained_status;
pub(crate) mod scheduling;
pub(crate) mod security;
pub(crate) mod status;
#[cfg(test)]
mod tests;
pub mod update;
#[cfg(test)]
mod update_tests;
pub(crate) mod validation;
#[cfg(test)]
mod validation_tests;
pub(crate) mod volume;
pub(crate) mod volume_source;
pub(crate) mod warnings;
pub(crate) mod windows;

use apiserver_meta::resources::{self, Compute};
use apiserver_schema::meta;
use serde_json::{Map, Value, json};

use crate::kind::Kind;
use crate::shared::defaults::{
    Object, each_object, fill, fill_zero, is_empty, object, object_or_insert, singular_and_list, with_spec,
};
use crate::shared::gates::{self, Gate};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "pods",
    short_names: &["po"],
    category: Some("all"),
    selectable: &[
        "spec.nodeName",
        "spec.host",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ],
    generation: true,
    graceful_delete: true,
    default,
    prepare_create,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec", GATES)),
    drop_disabled_status: Some(|new, old| gates::drop_at(new, Some(old), "/status", STATUS_GATES)),
    validate: validation::validate,
    validate_update: update::validate_update,
    validate_status: Some(status::validate),
    early_warnings: Some(apparmor::warnings),
    warnings: Some(warnings::warnings),
    columns: columns::COLUMNS,
    row_conditions: Some(columns::row_conditions),
    retain_status: Some(retained_status::retain),
    ..Kind::DEFAULT
};

/// Defaults of a Pod.
pub(crate) fn default(pod: &mut Value) {
    addresses(pod);
    if let Value::Object(pod) = pod {
        drop_old_annotations(pod);
    }
    with_spec(pod, |spec| {
        // These three hold for pods and not for templates.
        fill(spec, "enableServiceLinks", true);
        for list in ["initContainers", "containers"] {
            each_object(spec, list, requests_from_limits);
        }
        requests_of_pod(spec);
        let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
        default_spec(spec);
        if host_network {
            for list in ["initContainers", "containers"] {
                each_object(spec, list, |container| each_object(container, "ports", host_port));
            }
        }
    });
}

/// The annotations that held init containers and their statuses before Kubernetes 1.6; they have fields now.
const OLD_ANNOTATIONS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
];

/// Removes the old annotations from a pod or a template, because an old kubelet would prefer them to the
/// fields.
pub(crate) fn drop_old_annotations(holder: &mut Object) {
    let Some(metadata) = object(holder, "metadata") else { return };
    let Some(annotations) = object(metadata, "annotations") else { return };
    let before = annotations.len();
    annotations.retain(|key, _| !OLD_ANNOTATIONS.contains(&key.as_str()));
    if annotations.len() < before && annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// Two fields for the pod's addresses; readers use either.
fn addresses(pod: &mut Value) {
    if let Some(Value::Object(status)) = pod.get_mut("status") {
        singular_and_list(status, "podIP", "podIPs", Some("ip"));
    }
}

/// Status of a new Pod: nothing has happened yet.
pub(crate) fn prepare_create(pod: &mut Value) {
    match_label_keys(pod);
    apparmor::annotations_to_fields(pod);
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(pod)});
    let gated =
        meta::at(pod, "/spec/schedulingGates").and_then(Value::as_array).is_some_and(|g| !g.is_empty());
    if gated {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastTransitionTime": meta::creation_timestamp(pod),
        }]);
    }
    if let Value::Object(map) = pod {
        map.insert("status".into(), status);
    }
}

/// `matchLabelKeys` of affinity and of spreading mean the labels that the pod has now, so they become
/// expressions (KEP-3633, KEP-3243).
fn match_label_keys(pod: &mut Value) {
    let labels = meta::labels(pod).cloned().unwrap_or_default();
    with_spec(pod, |spec| each_object(spec, "topologySpreadConstraints", |c| label_keys(c, &labels)));
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(Value::Object(affinity)) = pod.pointer_mut(&format!("/spec/affinity/{kind}")) else {
            continue;
        };
        each_object(affinity, "requiredDuringSchedulingIgnoredDuringExecution", |term| {
            label_keys(term, &labels)
        });
        each_object(affinity, "preferredDuringSchedulingIgnoredDuringExecution", |weighted| {
            if let Some(term) = object(weighted, "podAffinityTerm") {
                label_keys(term, &labels);
            }
        });
    }
}

fn label_keys(term: &mut Object, labels: &Object) {
    let mut added = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        added.extend(
            keys.filter_map(|key| {
                Some(json!({"key": key, "operator": operator, "values": [labels.get(key)?]}))
            }),
        );
    }
    if let Some(selector) = object(term, "labelSelector")
        && !added.is_empty()
    {
        fill(selector, "matchExpressions", json!([]));
        if let Some(Value::Array(list)) = selector.get_mut("matchExpressions") {
            list.extend(added);
        }
    }
}

/// Returns `status.qosClass`.
pub(crate) fn qos_class(pod: &Value) -> &'static str {
    let lists = ["/spec/containers", "/spec/initContainers"];
    let containers = lists.iter().filter_map(|p| meta::at(pod, p)?.as_array()).flatten();
    let whole = pod.get("spec").filter(|spec| has_pod_resources(spec)).map(|spec| &spec["resources"]);
    let containers = containers.map(|container| Compute::of_json(&container["resources"]));
    resources::qos_class(whole.map(Compute::of_json), containers).as_str()
}

/// Returns `true` if a pod's spec has pod-level requests or limits of resources that can be set at the pod
/// level.
fn has_pod_resources(spec: &Value) -> bool {
    let lists = ["requests", "limits"].into_iter().filter_map(|list| spec["resources"][list].as_object());
    lists.flatten().any(|(name, _)| resources::is_pod_level(name))
}

/// Defaults of a `PodSpec`.
pub(crate) fn default_spec(spec: &mut Object) {
    fill(spec, "restartPolicy", "Always");
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "schedulerName", "default-scheduler");
    fill(spec, "securityContext", Map::new());
    // Two names for one field; readers use either.
    let account = ["serviceAccountName", "serviceAccount"].iter().find(|key| !is_empty(spec, key));
    if let Some(account) = account.and_then(|key| spec.get(*key)).cloned() {
        fill(spec, "serviceAccountName", account.clone());
        spec.insert("serviceAccount".into(), account);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        each_object(spec, list, container::default);
    }
    each_object(spec, "volumes", volume::default);
}

fn requests_from_limits(container: &mut Object) {
    let Some(resources) = object(container, "resources") else { return };
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    if let Some(requests) = object_or_insert(resources, "requests") {
        for (name, amount) in limits {
            requests.entry(name).or_insert(amount);
        }
        if requests.is_empty() {
            resources.remove("requests");
        }
    }
}

/// Sets the pod-level requests of a pod with pod-level limits: the sum of its containers' requests, or else
/// the limit (KEP-2837).
fn requests_of_pod(spec: &mut Object) {
    let limits = spec.get("resources").and_then(|r| r.get("limits")).and_then(Value::as_object);
    let Some(limits) = limits.filter(|l| !l.is_empty()).cloned() else { return };
    let before = Value::Object(spec.clone());
    let asked = requests::container_requests(&before);
    let Some(requests) = object(spec, "resources").and_then(|r| object_or_insert(r, "requests")) else {
        return;
    };
    for (name, amount) in asked.iter().filter(|(name, _)| !name.starts_with("hugepages-")) {
        requests.entry(*name).or_insert_with(|| amount.to_string().into());
    }
    for (name, amount) in limits {
        requests.entry(name).or_insert(amount);
    }
}

fn host_port(port: &mut Object) {
    if let Some(number) = port.get("containerPort").and_then(Value::as_i64) {
        fill_zero(port, "hostPort", number);
    }
}

/// Gates of the spec of a pod or a template.
pub(crate) static GATES: &[Gate] = &[
    // ClusterTrustBundleProjection
    gates::gate(&["volumes.[].projected.sources.[].clusterTrustBundle"]),
    // PodCertificateRequest
    gates::gate(&["volumes.[].projected.sources.[].podCertificate"]),
    // GenericWorkload
    gates::gate(&["schedulingGroup"]),
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
static STATUS_GATES: &[Gate] = &[
    // ImageVolumeWithDigest
    gates::gate(&[
        "containerStatuses.[].volumeMounts.[].volumeStatus",
        "initContainerStatuses.[].volumeMounts.[].volumeStatus",
        "ephemeralContainerStatuses.[].volumeMounts.[].volumeStatus",
    ]),
    // DRANodeAllocatableResources
    gates::gate(&["nodeAllocatableResourceClaimStatuses"]),
];
