//! Tables of changes and their errors.

use serde_json::json;

use super::*;

fn said(verdict: Result<(), String>) -> String {
    verdict.err().unwrap_or_default()
}

#[test]
fn a_node_registers_without_restricted_labels_owners_and_sources() {
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "u"}]);
    let source = json!({"configMap": {"namespace": "kube-system", "name": "c"}});
    for (node, why) in [
        (json!({"metadata": {"labels": {"kubernetes.io/hostname": "n", "app": "x"}}}), ""),
        (
            json!({"metadata": {}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "configSource": null}}),
            "",
        ),
        (
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "", "node-role.kubernetes.io/b": ""}}}),
            "node \"n\" is not allowed to set the following labels: node-restriction.kubernetes.io/a, node-role.kubernetes.io/b",
        ),
        (
            json!({"metadata": {"ownerReferences": owner}}),
            "node \"n\" is not allowed to modify ownerReferences",
        ),
        (
            json!({"metadata": {}, "spec": {"podCIDR": "0.0.0.0/0"}}),
            "node \"n\" is not allowed to set podCIDR",
        ),
        (
            json!({"metadata": {}, "spec": {"podCIDRs": ["10.244.0.0/16"]}}),
            "node \"n\" is not allowed to set podCIDRs",
        ),
        (json!({"metadata": {}, "spec": {"podCIDR": "", "podCIDRs": []}}), ""),
        (
            json!({"metadata": {}, "spec": {"configSource": source}}),
            "node \"n\" is not allowed to create pods with a non-nil configSource",
        ),
    ] {
        assert_eq!(said(new_node(&node, "n")), why, "{node}");
    }
}

#[test]
fn a_node_changes_neither_its_taints_nor_its_owners_nor_restricted_labels() {
    let taint = json!([{"key": "k", "effect": "NoSchedule"}]);
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}]);
    let source = json!({"configMap": {"namespace": "kube-system", "name": "c"}});
    let node = |field: &str, value: &Value| match field {
        "labels" | "ownerReferences" => json!({"metadata": {field: value}, "spec": {}}),
        _ => json!({"metadata": {}, "spec": {field: value}}),
    };
    let restricted = json!({"node-restriction.kubernetes.io/a": "b"});
    let null = json!(null);
    for (field, old, new, why) in [
        ("taints", &taint, &taint, ""),
        ("taints", &null, &json!([]), ""),
        ("taints", &taint, &null, "node \"n\" is not allowed to modify taints"),
        ("taints", &null, &taint, "node \"n\" is not allowed to modify taints"),
        ("ownerReferences", &owner, &owner, ""),
        ("ownerReferences", &null, &owner, "node \"n\" is not allowed to modify ownerReferences"),
        ("ownerReferences", &owner, &json!([]), "node \"n\" is not allowed to modify ownerReferences"),
        ("labels", &restricted, &restricted, ""),
        ("labels", &null, &json!({"app": "b"}), ""),
        ("labels", &null, &restricted, "is not allowed to modify labels: node-restriction.kubernetes.io/a"),
        ("labels", &restricted, &null, "is not allowed to modify labels: node-restriction.kubernetes.io/a"),
        ("configSource", &source, &source, ""),
        ("configSource", &source, &null, ""),
        (
            "configSource",
            &null,
            &source,
            "node \"n\" is not allowed to update configSource to a new non-nil configSource",
        ),
        ("unschedulable", &null, &json!(true), ""),
        ("podCIDR", &json!("10.0.0.0/24"), &json!("10.0.0.0/24"), ""),
        ("podCIDR", &null, &json!("10.0.0.0/24"), "node \"n\" is not allowed to set podCIDR"),
    ] {
        let (new, old) = (node(field, new), node(field, old));
        assert_eq!(said(changed_node(&new, &old, "n")), why, "{old} to {new}");
    }
}

#[test]
fn a_node_writes_the_status_of_its_pods_and_neither_labels_nor_claims() {
    let pod = json!({
        "metadata": {"labels": {"app": "a"}}, "spec": {"nodeName": "n"},
        "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "c", "resourceClaimName": "x"}]},
    });
    let with = |pointer: &str, value: Value| {
        let mut new = pod.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        new.pointer_mut(parent).unwrap()[field] = value;
        new
    };
    for (new, why) in [
        (with("/status/phase", json!("Running")), ""),
        (with("/metadata/annotations", json!({"a": "b"})), ""),
        (with("/metadata/labels", json!({"app": "b"})), "node \"n\" cannot update labels through pod status"),
        (with("/metadata/labels", json!(null)), "node \"n\" cannot update labels through pod status"),
        (
            with("/status/resourceClaimStatuses", json!([{"name": "c", "resourceClaimName": "y"}])),
            "node \"n\" cannot update resource claim statues",
        ),
        (
            with("/status/resourceClaimStatuses", json!(null)),
            "node \"n\" cannot update resource claim statues",
        ),
        (
            with("/status/extendedResourceClaimStatus", json!({"resourceClaimName": "y"})),
            "node \"n\" cannot update extended resource claim status",
        ),
    ] {
        assert_eq!(said(pod_status(&new, &pod, "n")), why, "{new}");
    }
    let why = "node \"m\" can only update pod status for pods with spec.nodeName set to itself";
    assert_eq!(said(pod_status(&pod, &pod, "m")), why);
    let unbound = json!({"metadata": {}, "spec": {}, "status": {}});
    assert!(pod_status(&unbound, &unbound, "n").is_err(), "a pod that waits for a node");
}

#[test]
fn a_node_says_how_far_the_expansion_of_a_claim_has_got_and_nothing_else() {
    let claim = json!({
        "metadata": {"name": "c", "resourceVersion": "1", "labels": {"app": "a"}},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    });
    let with = |part: &str, field: &str, value: Value| {
        let mut new = claim.clone();
        new[part][field] = value;
        new
    };
    for (new, field) in [
        (with("status", "capacity", json!({"storage": "2Gi"})), ""),
        (with("status", "conditions", json!([{"type": "Resizing", "status": "True"}])), ""),
        (with("status", "allocatedResources", json!({"storage": "2Gi"})), ""),
        (with("status", "allocatedResourceStatuses", json!({"storage": "NodeResizePending"})), ""),
        (with("metadata", "resourceVersion", json!("2")), ""),
        (with("metadata", "managedFields", json!([{"manager": "kubelet"}])), ""),
        (with("metadata", "labels", json!({"app": "b"})), "metadata.labels"),
        (with("metadata", "annotations", json!({"a": "b"})), "metadata.annotations"),
        (with("metadata", "finalizers", json!(["a/b"])), "metadata.finalizers"),
        (with("status", "phase", json!("Lost")), "status.phase"),
        (with("spec", "volumeName", json!("other")), "spec.volumeName"),
    ] {
        let found = said(claim_status(&new, &claim, "n"));
        let why =
            "node \"n\" is not allowed to update fields other than status.quantity and status.conditions";
        let expected = if field.is_empty() { String::new() } else { format!("{why}: {field}") };
        assert_eq!(found, expected, "{new}");
    }
}
