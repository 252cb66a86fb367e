//! The default roles and bindings of Kubernetes as data, and the way in which those of an existing cluster are brought
//! up to date with them.

mod controllers;
pub mod joining;
mod reconcile;
mod roles;

use serde_json::{Value, json};

use crate::rbac::Rule;

pub use reconcile::{DefaultWrite, aggregate, reconcile};

const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const RBAC: &str = "rbac.authorization.k8s.io";
const MANAGER: &str = "system:kube-controller-manager";

/// Returns the roles and bindings that every cluster has, in the order in which to write them.
pub fn objects() -> Vec<Value> {
    let mut objects = cluster_roles();
    fill_in_aggregated(&mut objects);
    objects.extend(cluster_role_bindings());
    objects.extend(roles::ROLES.iter().map(|(namespace, name, rules)| {
        let mut role = with_metadata("Role", name, None);
        role["metadata"]["namespace"] = json!(namespace);
        role["rules"] = Value::Array(rules.iter().map(|rule| parse_rule(rule)).collect());
        role
    }));
    objects.extend(roles::ROLE_BINDINGS.iter().map(|(namespace, name, subjects)| {
        let mut binding = with_metadata("RoleBinding", name, None);
        binding["metadata"]["namespace"] = json!(namespace);
        bind(binding, "Role", name, subjects)
    }));
    objects
}

fn cluster_roles() -> Vec<Value> {
    let plain = roles::CLUSTER_ROLES.iter().map(|(name, label, rules)| {
        let mut role = with_metadata("ClusterRole", name, label.map(aggregate_label));
        role["rules"] = Value::Array(rules.iter().map(|rule| parse_rule(rule)).collect());
        role
    });
    let aggregated = roles::AGGREGATED.iter().map(|(name, into)| {
        let mut role = with_metadata("ClusterRole", name, into.map(aggregate_label));
        role["aggregationRule"] =
            json!({"clusterRoleSelectors": [{"matchLabels": {aggregate_label(name): "true"}}]});
        role
    });
    let controllers = controllers::ROLES.iter().map(|(name, rules)| {
        let mut role = with_metadata("ClusterRole", &format!("system:controller:{name}"), None);
        let events = controllers::EVENTS.iter().filter(|_| controllers::writes_events(name));
        role["rules"] = Value::Array(rules.iter().chain(events).map(|rule| parse_rule(rule)).collect());
        role
    });
    aggregated.chain(plain).chain(controllers).collect()
}

/// Returns the rules by which the Node authorizer allows requests of every node: those of the role
/// `system:node`.
pub fn node_rules() -> Vec<Rule> {
    let role = roles::CLUSTER_ROLES.iter().find(|(name, ..)| *name == "system:node");
    role.into_iter().flat_map(|(.., rules)| *rules).map(|rule| Rule::from_value(&parse_rule(rule))).collect()
}

fn cluster_role_bindings() -> Vec<Value> {
    let plain = roles::CLUSTER_ROLE_BINDINGS.iter().map(|(name, subjects)| {
        bind(with_metadata("ClusterRoleBinding", name, None), "ClusterRole", name, subjects)
    });
    let controllers = controllers::ROLES.iter().map(|(controller, _)| {
        let name = format!("system:controller:{controller}");
        let account = format!("serviceaccount:kube-system/{controller}");
        // All controllers may also run under the manager's own name.
        let manager = format!("user:{MANAGER}");
        bind(with_metadata("ClusterRoleBinding", &name, None), "ClusterRole", &name, &[&account, &manager])
    });
    plain.chain(controllers).collect()
}

/// Writes the rules in effect into the aggregating roles, so that they can be read there.
fn fill_in_aggregated(roles: &mut [Value]) {
    // `view` is part of `edit` and that of `admin`; each round completes one more of them.
    for _ in roles::AGGREGATED {
        let snapshot = roles.to_vec();
        for role in roles.iter_mut() {
            if let Some(rules) = aggregate(role, &snapshot) {
                role["rules"] = rules;
            }
        }
    }
}

fn aggregate_label(target: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{target}")
}

fn with_metadata(kind: &str, name: &str, label: Option<String>) -> Value {
    let mut object = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind,
        "metadata": {
            "name": name,
            "annotations": {AUTOUPDATE: "true"},
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        },
    });
    if let Some(label) = label {
        object["metadata"]["labels"][label] = json!("true");
    }
    object
}

fn bind(mut binding: Value, role_kind: &str, role: &str, subjects: &[&str]) -> Value {
    binding["roleRef"] = json!({"apiGroup": RBAC, "kind": role_kind, "name": role});
    binding["subjects"] = Value::Array(subjects.iter().filter_map(|s| parse_subject(s)).collect());
    binding
}

/// `group:NAME`, `user:NAME`, `serviceaccount:NAMESPACE/NAME`.
fn parse_subject(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once(':')?;
    match kind {
        "group" => Some(json!({"apiGroup": RBAC, "kind": "Group", "name": name})),
        "user" => Some(json!({"apiGroup": RBAC, "kind": "User", "name": name})),
        "serviceaccount" => {
            let (namespace, name) = name.split_once('/')?;
            Some(json!({"kind": "ServiceAccount", "namespace": namespace, "name": name}))
        }
        _ => None,
    }
}

/// Parses a rule in one line, `VERBS GROUPS RESOURCES [NAMES]` or `VERBS url URLS`, lists separated by
/// commas; `core` is the group without a name, `READ` and `WRITE` are replaced by their verbs.
fn parse_rule(text: &str) -> Value {
    let mut words = text.split_whitespace();
    let mut list =
        || -> Vec<&str> { words.next().unwrap_or_default().split(',').filter(|w| !w.is_empty()).collect() };
    let verbs: Vec<&str> = list()
        .into_iter()
        .flat_map(|verb| match verb {
            "READ" => vec!["get", "list", "watch"],
            "WRITE" => vec!["create", "delete", "deletecollection", "patch", "update"],
            other => vec![other],
        })
        .collect();
    let groups = list();
    if groups == ["url"] {
        return json!({"verbs": verbs, "nonResourceURLs": list()});
    }
    let groups: Vec<&str> = groups.into_iter().map(|g| if g == "core" { "" } else { g }).collect();
    let mut rule = json!({"verbs": verbs, "apiGroups": groups, "resources": list()});
    let names = list();
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

#[cfg(test)]
mod tests;
