//! Labels of a Node that its kubelet may set: workloads are steered by the others.

use std::collections::BTreeSet;

use serde_json::Value;

/// The labels in Kubernetes' own namespaces that a kubelet may set.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// In these namespaces, and those below them, a kubelet may set any label.
const KUBELET_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// In these namespaces, and those below them, it sets nothing else.
const KUBERNETES_NAMESPACES: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// Here administrators keep labels that no kubelet may set.
const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// The labels that differ between the metadata of two objects, and that a kubelet may not change, in order.
pub(super) fn forbidden_changes(new: &Value, old: &Value) -> Vec<String> {
    let labels = |object: &Value| object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let (new, old) = (labels(new), labels(old));
    let keys: BTreeSet<&String> = new.keys().chain(old.keys()).collect();
    let changed = keys.into_iter().filter(|key| new.get(*key) != old.get(*key));
    changed.filter(|key| is_forbidden(key)).cloned().collect()
}

fn is_forbidden(label: &str) -> bool {
    let namespace = label.split_once('/').map(|(namespace, _)| namespace).unwrap_or_default();
    let below = |parent: &str| {
        namespace.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let kubelets = KUBELET_LABELS.contains(&label) || KUBELET_NAMESPACES.into_iter().any(below);
    below(RESTRICTED) || (KUBERNETES_NAMESPACES.into_iter().any(below) && !kubelets)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kubelet_sets_its_own_labels_and_those_of_users_and_none_that_administrators_rely_on() {
        for (label, forbidden) in [
            ("app", false),
            ("example.com/role", false),
            ("kubernetes.io.example.com/role", false),
            ("notkubernetes.io/role", false),
            ("kubernetes.io/hostname", false),
            ("beta.kubernetes.io/arch", false),
            ("topology.kubernetes.io/zone", false),
            ("kubelet.kubernetes.io/x", false),
            ("a.node.kubernetes.io/x", false),
            ("node.kubernetes.io/x", false),
            ("kubernetes.io/x", true),
            ("x.kubernetes.io/y", true),
            ("k8s.io/x", true),
            ("x.k8s.io/y", true),
            ("node-role.kubernetes.io/control-plane", true),
            ("node-restriction.kubernetes.io/x", true),
            ("a.node-restriction.kubernetes.io/x", true),
            ("xnode.kubernetes.io/x", true),
            ("topology.kubernetes.io/rack", true),
        ] {
            assert_eq!(is_forbidden(label), forbidden, "{label}");
        }
    }

    #[test]
    fn labels_are_neither_added_nor_changed_nor_taken_away() {
        let node = |labels: Value| json!({"metadata": {"labels": labels}});
        let restricted = "node-restriction.kubernetes.io/a";
        let before = node(json!({restricted: "1", "app": "1"}));
        for (new, found) in [
            (json!({restricted: "1", "app": "2"}), &[][..]),
            (json!({restricted: "2"}), &[restricted][..]),
            (json!({}), &[restricted][..]),
            (json!(null), &[restricted][..]),
            (json!({restricted: "1", "x.k8s.io/b": ""}), &["x.k8s.io/b"][..]),
        ] {
            assert_eq!(forbidden_changes(&node(new.clone()), &before), found, "{new}");
        }
    }
}
