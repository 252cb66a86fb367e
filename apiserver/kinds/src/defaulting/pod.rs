//! Pods, and the pod templates of workloads.

use apiserver_meta::resources::{self, Compute};
use serde_json::{Map, Value, json};

use super::{
    Object, apparmor, each, fill, fill_absent, fill_zero, is_empty, made, object, singular_and_list, storage,
    with_spec,
};
use crate::image;
use crate::requests::container_requests;
use apiserver_schema::meta;

/// Defaults of a Pod.
pub fn default(pod: &mut Value) {
    addresses(pod);
    if let Value::Object(pod) = pod {
        drop_old_annotations(pod);
    }
    with_spec(pod, |spec| {
        // These three hold for pods and not for templates.
        fill(spec, "enableServiceLinks", true);
        for list in ["initContainers", "containers"] {
            each(spec, list, requests_from_limits);
        }
        requests_of_pod(spec);
        let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
        self::spec(spec);
        if host_network {
            for list in ["initContainers", "containers"] {
                each(spec, list, |container| each(container, "ports", host_port));
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
fn drop_old_annotations(holder: &mut Object) {
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

/// Defaults of a pod template under `template`.
pub fn template(parent: &mut Object) {
    let Some(template) = object(parent, "template") else { return };
    drop_old_annotations(template);
    if let Some(spec) = made(template, "spec") {
        self::spec(spec);
    }
}

/// Defaults of a `PodTemplate`, the kind.
pub fn pod_template(value: &mut Value) {
    if let Value::Object(map) = value {
        template(map);
    }
}

/// Status of a new Pod: nothing has happened yet.
pub fn prepare_create(pod: &mut Value) {
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
    with_spec(pod, |spec| each(spec, "topologySpreadConstraints", |c| label_keys(c, &labels)));
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(Value::Object(affinity)) = pod.pointer_mut(&format!("/spec/affinity/{kind}")) else {
            continue;
        };
        each(affinity, "requiredDuringSchedulingIgnoredDuringExecution", |term| label_keys(term, &labels));
        each(affinity, "preferredDuringSchedulingIgnoredDuringExecution", |weighted| {
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
pub fn qos_class(pod: &Value) -> &'static str {
    let lists = ["/spec/containers", "/spec/initContainers"];
    let containers = lists.iter().filter_map(|p| meta::at(pod, p)?.as_array()).flatten();
    let whole = pod.get("spec").filter(|spec| has_pod_resources(spec)).map(|spec| &spec["resources"]);
    let containers = containers.map(|container| Compute::of_json(&container["resources"]));
    resources::qos_class(whole.map(Compute::of_json), containers).as_str()
}

/// Returns true if a pod's spec has pod-level requests or limits of resources that can be set at the pod
/// level.
fn has_pod_resources(spec: &Value) -> bool {
    let lists = ["requests", "limits"].into_iter().filter_map(|list| spec["resources"][list].as_object());
    lists.flatten().any(|(name, _)| resources::is_pod_level(name))
}

/// Defaults of a `PodSpec`.
pub fn spec(spec: &mut Object) {
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
        each(spec, list, container);
    }
    each(spec, "volumes", volume);
}

fn container(container: &mut Object) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = pull_policy(image);
    fill(container, "imagePullPolicy", policy);
    fill(container, "terminationMessagePath", "/dev/termination-log");
    fill(container, "terminationMessagePolicy", "File");
    fill(container, "resources", Map::new());
    each(container, "ports", |port| fill(port, "protocol", "TCP"));
    each(container, "env", |env| {
        if let Some(from) = object(env, "valueFrom") {
            field_reference(from);
        }
    });
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = object(container, name) {
            self::probe(probe);
        }
    }
    if let Some(lifecycle) = object(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = object(lifecycle, hook) {
                http_get(hook);
            }
        }
    }
}

/// Returns `Always` for the tag `latest` and for no tag, and `IfNotPresent` for other tags, for digests, and
/// for texts that are not an image reference.
fn pull_policy(image: &str) -> &'static str {
    if image::tag(image) == Some(image::LATEST) { "Always" } else { "IfNotPresent" }
}

fn probe(probe: &mut Object) {
    fill_zero(probe, "timeoutSeconds", 1);
    fill_zero(probe, "periodSeconds", 10);
    fill_zero(probe, "successThreshold", 1);
    fill_zero(probe, "failureThreshold", 3);
    http_get(probe);
    if let Some(grpc) = object(probe, "grpc")
        && !grpc.contains_key("service")
    {
        grpc.insert("service".into(), "".into());
    }
}

fn http_get(handler: &mut Object) {
    if let Some(get) = object(handler, "httpGet") {
        fill(get, "path", "/");
        fill(get, "scheme", "HTTP");
    }
}

fn field_reference(parent: &mut Object) {
    if let Some(reference) = object(parent, "fieldRef") {
        fill(reference, "apiVersion", "v1");
    }
}

fn requests_from_limits(container: &mut Object) {
    let Some(resources) = object(container, "resources") else { return };
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    if let Some(requests) = made(resources, "requests") {
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
    let asked = container_requests(&Value::Object(spec.clone()));
    let Some(requests) = object(spec, "resources").and_then(|r| made(r, "requests")) else { return };
    for (name, amount) in asked.iter().filter(|(name, _)| !name.starts_with("hugepages-")) {
        requests.entry(name.clone()).or_insert_with(|| amount.to_string().into());
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

/// The mode 0644, in decimal as JSON has it.
const MODE: i64 = 0o644;

fn volume(volume: &mut Object) {
    // A volume has a name and one source; without a source it is an empty directory.
    if volume.keys().all(|key| key == "name") {
        volume.insert("emptyDir".into(), Value::Object(Map::new()));
    }
    for source in ["secret", "configMap"] {
        if let Some(source) = object(volume, source) {
            fill(source, "defaultMode", MODE);
        }
    }
    if let Some(downward) = object(volume, "downwardAPI") {
        fill(downward, "defaultMode", MODE);
        each(downward, "items", field_reference);
    }
    if let Some(projected) = object(volume, "projected") {
        fill(projected, "defaultMode", MODE);
        each(projected, "sources", |source| {
            if let Some(token) = object(source, "serviceAccountToken") {
                fill(token, "expirationSeconds", 3600);
            }
            if let Some(downward) = object(source, "downwardAPI") {
                each(downward, "items", field_reference);
            }
        });
    }
    storage::source(volume);
    if let Some(source) = object(volume, "image") {
        let policy = pull_policy(source.get("reference").and_then(Value::as_str).unwrap_or_default());
        fill(source, "pullPolicy", policy);
    }
    let claim = object(volume, "ephemeral").and_then(|e| object(e, "volumeClaimTemplate"));
    if let Some(spec) = claim.and_then(|c| object(c, "spec")) {
        fill_absent(spec, "volumeMode", "Filesystem");
    }
}
