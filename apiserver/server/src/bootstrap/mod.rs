//! Initial contents of a cluster, as data: system namespaces, priority classes, the default roles and bindings, the
//! configuration of priority and fairness, and the APIServices.

pub mod api_services;
pub mod flow;

use apiserver_auth::defaults;
use serde_json::{Value, json};

/// Everything that must exist before the server is ready, in the order in which to write it. The roles by which
/// machines join are there only if bootstrap tokens are accepted.
pub fn objects(bootstrap_tokens: bool) -> Vec<Value> {
    let mut objects: Vec<Value> =
        ["default", "kube-system", "kube-public", "kube-node-lease"].map(namespace).into();
    objects.extend(priority_classes());
    objects.extend(defaults::objects());
    if bootstrap_tokens {
        objects.extend(defaults::joining::objects());
    }
    objects
}

fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    })
}

fn priority_classes() -> [Value; 2] {
    let class = |name: &str, value: i64, description: &str| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description, "preemptionPolicy": "PreemptLowerPriority",
        })
    };
    [
        class("system-node-critical", 2_000_001_000, "For pods that a node cannot do without."),
        class(
            "system-cluster-critical",
            2_000_000_000,
            "For pods that the cluster cannot do without, on whichever node.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_and_priority_classes_precede_the_roles() {
        let objects = objects(true);
        let kinds: Vec<&str> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
        assert_eq!(
            kinds[..6],
            ["Namespace", "Namespace", "Namespace", "Namespace", "PriorityClass", "PriorityClass"]
        );
        assert!(kinds[6..].iter().all(|kind| kind.contains("Role")), "{kinds:?}");
        assert_eq!(objects[4]["value"], 2_000_001_000);
    }
}
