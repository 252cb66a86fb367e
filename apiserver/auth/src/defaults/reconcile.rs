//! Comparison of existing and wanted objects, which results in writes: pure.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::AUTOUPDATE;
use crate::rbac::Rule;
use crate::rbac::missing;

/// The write that brings one default object up to date.
#[derive(Clone, Debug, PartialEq)]
pub enum DefaultWrite {
    /// It is as it should be, or its owner has opted out.
    Nothing,
    Create(Value),
    /// Replace the existing object; the resource version is that of the existing one.
    Update(Value),
    /// Delete the existing object and create this one: a `roleRef` cannot be changed.
    Recreate(Value),
}

/// Subjects that earlier versions have bound, as (kind of the binding, its name, subject); they are removed. The
/// Node authorizer gives a node rights to its own objects, where this binding gave it those of all nodes.
const RETIRED: [(&str, &str, &str); 1] = [("ClusterRoleBinding", "system:node", "system:nodes")];

/// Compares an object of `objects()` with the stored one. Missing rules, subjects, labels and annotations are
/// added, only retired subjects are removed; the annotation `rbac.authorization.kubernetes.io/autoupdate:
/// "false"` leaves an object alone. Namespaces and priority classes are only created.
pub fn reconcile(existing: Option<&Value>, wanted: &Value) -> DefaultWrite {
    let Some(existing) = existing else { return DefaultWrite::Create(wanted.clone()) };
    if existing["metadata"]["annotations"][AUTOUPDATE] == "false" {
        return DefaultWrite::Nothing;
    }
    let mut updated = existing.clone();
    match wanted["kind"].as_str().unwrap_or_default() {
        "Role" | "ClusterRole" => {
            // A controller keeps those of an aggregating role; requests are authorized by its selectors.
            if wanted["aggregationRule"].is_null() {
                add_missing_rules(&mut updated, wanted);
            }
            add_missing(&mut updated, wanted, &["aggregationRule", "clusterRoleSelectors"], |a, b| a == b);
        }
        "RoleBinding" | "ClusterRoleBinding" => {
            if existing["roleRef"] != wanted["roleRef"] {
                return DefaultWrite::Recreate(wanted.clone());
            }
            add_missing(&mut updated, wanted, &["subjects"], same_subject);
            remove_retired(&mut updated);
        }
        _ => return DefaultWrite::Nothing,
    }
    for key in ["labels", "annotations"] {
        add_missing_entries(&mut updated, wanted, key);
    }
    if updated == *existing { DefaultWrite::Nothing } else { DefaultWrite::Update(updated) }
}

/// The rules of an aggregating ClusterRole: those of `cluster_roles` that it selects, each once,
/// in the order of the roles' names. `None` if it does not aggregate.
pub fn aggregate(role: &Value, cluster_roles: &[Value]) -> Option<Value> {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors")?.as_array()?;
    let name = |role: &Value| role["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let own = name(role);
    let mut members: Vec<&Value> = cluster_roles
        .iter()
        .filter(|member| name(member) != own)
        .filter(|member| selectors.iter().any(|selector| crate::rbac::selects(selector, member)))
        .collect();
    members.sort_by_key(|member| name(member));
    let mut seen = HashSet::new();
    let all = members.iter().filter_map(|member| member["rules"].as_array()).flatten();
    Some(Value::Array(all.filter(|rule| seen.insert(*rule)).cloned().collect()))
}

fn add_missing_rules(updated: &mut Value, wanted: &Value) {
    let held = Rule::list(updated);
    let wanted_rules = wanted["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    for rule in wanted_rules {
        // Whole rules are added, which keeps them readable, if any part of them is missing.
        let missing = missing::missing(&held, &[Rule::from_value(rule)]);
        if !missing.is_ok_and(|missing| missing.count == 0) {
            push(&mut updated["rules"], rule.clone());
        }
    }
}

fn remove_retired(binding: &mut Value) {
    let is = |kind: &str, name: &str| binding["kind"] == kind && binding["metadata"]["name"] == name;
    let Some((.., group)) = RETIRED.into_iter().find(|(kind, name, _)| is(kind, name)) else { return };
    if let Some(subjects) = binding.get_mut("subjects").and_then(Value::as_array_mut) {
        subjects.retain(|subject| subject["kind"] != "Group" || subject["name"] != group);
    }
}

/// Returns `true` if two subjects are the same, regardless of the defaulted `apiGroup`.
fn same_subject(one: &Value, other: &Value) -> bool {
    let text = |subject: &Value, key: &str| subject[key].as_str().unwrap_or_default().to_owned();
    ["kind", "namespace", "name"].iter().all(|key| text(one, key) == text(other, key))
}

/// Adds the elements of the list at `path` that `updated` does not have.
fn add_missing(updated: &mut Value, wanted: &Value, path: &[&str], same: fn(&Value, &Value) -> bool) {
    let wanted = path.iter().fold(wanted, |value, key| &value[*key]);
    for item in wanted.as_array().map(Vec::as_slice).unwrap_or_default() {
        let mut list = &mut *updated;
        for key in path {
            list = &mut list[*key];
        }
        if !list.as_array().is_some_and(|list| list.iter().any(|held| same(held, item))) {
            push(list, item.clone());
        }
    }
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(list) => list.push(item),
        other => *other = json!([item]),
    }
}

fn add_missing_entries(updated: &mut Value, wanted: &Value, key: &str) {
    let Some(wanted) = wanted["metadata"][key].as_object() else { return };
    let entries = &mut updated["metadata"][key];
    if !entries.is_object() {
        *entries = Value::Object(Map::new());
    }
    let Some(entries) = entries.as_object_mut() else { return };
    for (name, value) in wanted {
        if !entries.contains_key(name) {
            entries.insert(name.clone(), value.clone());
        }
    }
}
