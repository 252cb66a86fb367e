//! Covers the 33 cases of kube-scheduler's `events_test.go`, but for the two with dynamic resource allocation turned off.

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, from_value, json};

use super::*;

fn pod(fields: Value) -> PodInfo {
    PodInfo::parse(from_value::<Pod>(fields).unwrap())
}

fn node(fields: Value) -> NodeFacts {
    NodeFacts::parse(from_value::<Node>(fields).unwrap())
}

fn node_actions(old: Value, new: Value) -> Vec<Actions> {
    let events = node_changes(&node(old), &node(new));
    assert!(events.iter().all(|event| event.resource == Resource::Node));
    events.into_iter().map(|event| event.actions).collect()
}

/// Returns what the update of a pod without a node is.
fn pod_actions(old: Value, new: Value) -> Vec<Actions> {
    let events = pod_changes(&pod(old), &pod(new));
    assert!(events.iter().all(|event| event.resource == Resource::UnscheduledPod));
    events.into_iter().map(|event| event.actions).collect()
}

fn status(name: &str, value: Value) -> Value {
    json!({"status": {name: value}})
}

#[test]
fn allocatable_resources_of_a_node() {
    let allocatable = |resources: Value| status("allocatable", resources);
    let memory = || allocatable(json!({"memory": "1Ki"}));
    assert_eq!(node_actions(memory(), memory()), []);
    assert_eq!(node_actions(memory(), allocatable(json!({"memory": "1024"}))), [], "the same amount");
    for more in [
        json!({"memory": "1Ki", "ephemeral-storage": "1Ki"}),
        json!({"memory": "1Ki", "pods": "10"}),
        json!({"memory": "2Ki"}),
        json!({"memory": "1Ki", "example.com/foo": "1"}),
    ] {
        assert_eq!(node_actions(memory(), allocatable(more)), [Actions::NODE_ALLOCATABLE]);
    }
}

#[test]
fn labels_taints_and_annotations_of_a_node() {
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    assert_eq!(node_actions(labels(json!({"foo": "bar"})), labels(json!({"foo": "bar"}))), []);
    assert_eq!(node_actions(labels(json!({})), json!({})), []);
    for changed in [json!({"foo": "fuz"}), json!({"foo": "bar", "test": "value"}), json!({})] {
        assert_eq!(node_actions(labels(json!({"foo": "bar"})), labels(changed)), [Actions::NODE_LABEL]);
    }
    let taint =
        |value: &str| json!({"spec": {"taints": [{"key": "k", "value": value, "effect": "NoSchedule"}]}});
    assert_eq!(node_actions(taint("a"), taint("a")), []);
    assert_eq!(node_actions(taint("a"), taint("b")), [Actions::NODE_TAINT]);
    let annotations = |value: &str| json!({"metadata": {"annotations": {"foo": value}}});
    assert_eq!(node_actions(annotations("a"), annotations("a")), []);
    assert_eq!(node_actions(annotations("a"), annotations("b")), [Actions::NODE_ANNOTATION]);
    assert_eq!(node_actions(json!({"metadata": {"annotations": {}}}), json!({})), []);
}

#[test]
fn only_the_opening_of_a_cordoned_node_is_an_event() {
    let cordoned = |is_cordoned: bool| json!({"spec": {"unschedulable": is_cordoned}});
    assert_eq!(node_actions(cordoned(false), cordoned(false)), []);
    assert_eq!(node_actions(cordoned(true), cordoned(false)), [Actions::NODE_TAINT]);
    assert_eq!(node_actions(cordoned(false), cordoned(true)), []);
}

#[test]
fn the_status_of_a_condition_counts_and_not_its_heartbeat() {
    let condition = |kind: &str, state: &str, heartbeat: i64| {
        let time = format!("2026-01-01T00:00:{heartbeat:02}Z");
        status("conditions", json!([{"type": kind, "status": state, "lastHeartbeatTime": time}]))
    };
    let pressure = || condition("DiskPressure", "True", 1);
    let ready = |state: &str| condition("Ready", state, 1);
    for (old, new, is_event) in [
        (pressure(), pressure(), false),
        (pressure(), condition("DiskPressure", "True", 2), false),
        (status("conditions", json!([])), ready("True"), true),
        (ready("True"), json!({}), true),
        (pressure(), status("conditions", json!([])), true),
        (ready("False"), ready("True"), true),
        (ready("Unknown"), pressure(), true),
    ] {
        let expected: &[Actions] = if is_event { &[Actions::NODE_CONDITION] } else { &[] };
        assert_eq!(node_actions(old.clone(), new.clone()), expected, "{old} to {new}");
    }
}

#[test]
fn declared_features_of_a_node() {
    let features = |names: &[&str]| status("declaredFeatures", json!(names));
    for (old, new, is_event) in [
        (features(&["a", "b"]), features(&["a", "b"]), false),
        (features(&["a"]), features(&["a", "b"]), true),
        (features(&["a", "b"]), features(&["a"]), true),
        (features(&["a"]), features(&["c"]), true),
        (json!({}), features(&["a"]), true),
        (features(&[]), features(&["a"]), true),
        (features(&["a"]), json!({}), true),
        (json!({}), json!({}), false),
    ] {
        let expected: &[Actions] = if is_event { &[Actions::NODE_DECLARED_FEATURE] } else { &[] };
        assert_eq!(node_actions(old.clone(), new.clone()), expected, "{old} to {new}");
    }
}

#[test]
fn several_changes_of_a_node_are_several_events() {
    let taint = |value: &str| json!([{"key": "k", "value": value, "effect": "NoSchedule"}]);
    let new = json!({"metadata": {"labels": {"foo": "bar"}}, "spec": {"taints": taint("")}});
    let old = json!({"spec": {"taints": taint("foo"), "unschedulable": true}});
    assert_eq!(node_actions(old, new), [Actions::NODE_LABEL, Actions::NODE_TAINT]);
}

/// Returns a pod that requests this, with the same resources allocated.
fn requesting(requests: Value) -> Value {
    json!({
        "spec": {"containers": [{"name": "app", "resources": {"requests": requests}}]},
        "status": {"containerStatuses": [{"name": "app", "allocatedResources": requests, "image": "", "imageID": "",
            "ready": true, "restartCount": 0}]}
    })
}

#[test]
fn requests_of_a_pod_that_shrink() {
    let cpu = |amount: &str| requesting(json!({"cpu": amount}));
    assert_eq!(pod_actions(cpu("101m"), cpu("100m")), [Actions::POD_SCALE_DOWN]);
    assert_eq!(pod_actions(cpu("100m"), cpu("101m")), [Actions::OTHER_UPDATE]);
    let mut labeled = cpu("100m");
    labeled["metadata"] = json!({"labels": {"foo": "bar"}});
    assert_eq!(pod_actions(cpu("101m"), labeled), [Actions::POD_LABEL, Actions::POD_SCALE_DOWN]);
    for name in ["memory", "ephemeral-storage", "example.com/foo"] {
        let (more, less) = (requesting(json!({name: "2"})), requesting(json!({name: "1"})));
        assert_eq!(pod_actions(more.clone(), less.clone()), [Actions::POD_SCALE_DOWN], "{name}");
        assert_eq!(pod_actions(less, more.clone()), [Actions::OTHER_UPDATE]);
        assert_eq!(pod_actions(more, cpu("100m")), [Actions::POD_SCALE_DOWN], "{name} is gone");
    }
}

#[test]
fn labels_gates_and_tolerations_of_a_pod() {
    let labels = |value: &str| json!({"metadata": {"labels": {"foo": value}}});
    assert_eq!(pod_actions(labels("a"), labels("b")), [Actions::POD_LABEL]);
    let annotations = |value: &str| json!({"metadata": {"annotations": {"foo": value}}});
    assert_eq!(pod_actions(annotations("a"), annotations("b")), [Actions::OTHER_UPDATE]);
    let gates = |names: &[&str]| {
        let gates: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"spec": {"containers": [], "schedulingGates": gates}})
    };
    assert_eq!(pod_actions(gates(&["foo"]), gates(&[])), [Actions::POD_GATES_ELIMINATED]);
    assert_eq!(pod_actions(gates(&["foo", "bar"]), gates(&["foo"])), [Actions::OTHER_UPDATE]);
    let tolerations = |keys: &[&str]| {
        let tolerations: Vec<Value> = keys.iter().map(|key| json!({"key": key})).collect();
        json!({"spec": {"containers": [], "tolerations": tolerations}})
    };
    assert_eq!(pod_actions(tolerations(&["a"]), tolerations(&["a", "b"])), [Actions::POD_TOLERATION]);
}

#[test]
fn claims_that_were_made_for_a_pod() {
    let claims = |names: &[&str]| {
        let claims: Vec<Value> = names
            .iter()
            .map(|name| json!({"name": name, "resourceClaimName": format!("{name}-x")}))
            .collect();
        status("resourceClaimStatuses", json!(claims))
    };
    let extended = |name: &str| {
        let mappings = json!([{"requestName": "r", "containerName": "c", "resourceName": "example.com/gpu"}]);
        status("extendedResourceClaimStatus", json!({"requestMappings": mappings, "resourceClaimName": name}))
    };
    for (old, new) in [
        (json!({}), claims(&["a"])),
        (claims(&["b", "a"]), claims(&["a", "b"])),
        (json!({}), extended("a")),
        (extended("a"), extended("b")),
    ] {
        assert_eq!(pod_actions(old, new), [Actions::POD_GENERATED_CLAIM]);
    }
    assert_eq!(pod_actions(claims(&["a"]), claims(&["a"])), [Actions::OTHER_UPDATE]);
}

#[test]
fn events_of_a_pod_with_a_node_are_told_apart() {
    let pod = |label: &str| {
        pod(json!({"metadata": {"labels": {"foo": label}}, "spec": {"containers": [], "nodeName": "n"}}))
    };
    let expected = [Event::new(Resource::AssignedPod, Actions::POD_LABEL)];
    assert_eq!(pod_changes(&pod("a"), &pod("b")), expected);
}

#[test]
fn events_have_the_names_that_kubernetes_gives_them() {
    for (resource, actions, name) in [
        (Resource::AssignedPod, Actions::DELETE, "AssignedPodDelete"),
        (Resource::UnscheduledPod, Actions::OTHER_UPDATE, "UnschedulablePodUpdate"),
        (
            Resource::UnscheduledPod,
            Actions::POD_GATES_ELIMINATED,
            "UnschedulablePodUpdatePodSchedulingGatesEliminated",
        ),
        (Resource::Node, Actions::NODE_TAINT, "NodeUpdateNodeTaint"),
        (Resource::CsiNode, Actions::UPDATE, "storage.k8s.io/CSINodeUpdate"),
        (Resource::ResourceClaim, Actions::ADD, "resource.k8s.io/ResourceClaimAdd"),
        (Resource::Any, Actions::ALL, "*All"),
    ] {
        assert_eq!(label(Event::new(resource, actions)), name);
    }
}
