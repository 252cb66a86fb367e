//! The APIServices of what this server answers itself: one for each group and version. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The label that names the manager of an APIService.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Made once at the start of a server, of a built-in version.
const ON_START: &str = "onstart";
/// Kept as long as there is a definition of a kind of this version.
const ALWAYS: &str = "true";

/// A group, its priority, and its versions with theirs.
type Priorities = (&'static str, u32, &'static [(&'static str, u32)]);

/// Group priorities, and version priorities in it, as Kubernetes 1.36 gives them.
const PRIORITIES: &[Priorities] = &[
    ("", 18000, &[("v1", 1)]),
    ("apps", 17800, &[("v1", 15)]),
    ("events.k8s.io", 17750, &[("v1", 15)]),
    ("authentication.k8s.io", 17700, &[("v1", 15)]),
    ("authorization.k8s.io", 17600, &[("v1", 15)]),
    ("autoscaling", 17500, &[("v2", 30), ("v1", 15)]),
    ("batch", 17400, &[("v1", 15)]),
    ("certificates.k8s.io", 17300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("networking.k8s.io", 17200, &[("v1", 15), ("v1beta1", 9)]),
    ("policy", 17100, &[("v1", 15)]),
    ("rbac.authorization.k8s.io", 17000, &[("v1", 15)]),
    ("storage.k8s.io", 16800, &[("v1", 15), ("v1beta1", 9)]),
    ("apiextensions.k8s.io", 16700, &[("v1", 15)]),
    ("admissionregistration.k8s.io", 16700, &[("v1", 15), ("v1beta1", 12), ("v1alpha1", 9)]),
    ("scheduling.k8s.io", 16600, &[("v1", 15), ("v1alpha2", 2)]),
    ("coordination.k8s.io", 16500, &[("v1", 15), ("v1beta1", 13), ("v1alpha2", 12)]),
    ("node.k8s.io", 16300, &[("v1", 15)]),
    ("discovery.k8s.io", 16200, &[("v1", 15)]),
    ("resource.k8s.io", 16200, &[("v1", 21), ("v1beta2", 15), ("v1beta1", 9), ("v1alpha3", 1)]),
    ("flowcontrol.apiserver.k8s.io", 16100, &[("v1", 21)]),
    ("internal.apiserver.k8s.io", 16000, &[("v1alpha1", 9)]),
    ("storagemigration.k8s.io", 15800, &[("v1beta1", 9)]),
];

/// Definitions come behind everything that is built in, and are all equal.
const CUSTOM: (u32, u32) = (1000, 100);

/// Returns the priority of a group in discovery. APIServices come before all others, and groups of
/// definitions come last.
pub fn group_priority(group: &str) -> u32 {
    if group == "apiregistration.k8s.io" {
        return u32::MAX;
    }
    PRIORITIES.iter().find(|(name, ..)| *name == group).map_or(CUSTOM.0, |(_, priority, _)| *priority)
}

/// The action to take for one APIService.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Create(Value),
    Update(Value),
    /// The name of one that is no longer needed.
    Delete(String),
}

/// `v1.`, `v1.apps`.
pub fn name(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}

/// Returns the APIService of a version; of a built-in one, or of definitions. `None` for a version that the
/// group itself answers for (the registration of APIServices).
pub fn wanted(group: &str, version: &str, custom: bool) -> Option<Value> {
    if group == "apiregistration.k8s.io" {
        return None;
    }
    let known = PRIORITIES.iter().find(|row| row.0 == group).filter(|_| !custom);
    let (of_group, of_version) = match known {
        Some((_, of_group, versions)) => {
            (*of_group, versions.iter().find(|row| row.0 == version).map_or(9, |row| row.1))
        }
        None => CUSTOM,
    };
    let mut spec =
        json!({"version": version, "groupPriorityMinimum": of_group, "versionPriority": of_version});
    if !group.is_empty() {
        spec["group"] = group.into();
    }
    Some(json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {
            "name": name(group, version),
            "labels": {MANAGED: if custom { ALWAYS } else { ON_START }},
        },
        "spec": spec,
    }))
}

/// Computes the actions from the existing and the wanted objects, both by name. Objects of users are left
/// alone. `at_start`: for objects that are only made at the start of a server, whether this is it.
pub fn plan(
    existing: &BTreeMap<String, Value>,
    wanted: &BTreeMap<String, Value>,
    at_start: bool,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for (name, service) in wanted {
        let managed = &service["metadata"]["labels"][MANAGED];
        let due = at_start || managed == ALWAYS;
        match existing.get(name) {
            None if due => steps.push(Step::Create(service.clone())),
            Some(held) if due && held["metadata"]["labels"][MANAGED].is_string() => {
                let mut new = held.clone();
                new["spec"] = service["spec"].clone();
                new["metadata"]["labels"][MANAGED] = managed.clone();
                if new != *held {
                    steps.push(Step::Update(new));
                }
            }
            _ => {}
        }
    }
    for (name, held) in existing.iter().filter(|(name, _)| !wanted.contains_key(*name)) {
        let managed = &held["metadata"]["labels"][MANAGED];
        if managed == ALWAYS || (managed == ON_START && at_start) {
            steps.push(Step::Delete(name.clone()));
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_name(list: impl IntoIterator<Item = Value>) -> BTreeMap<String, Value> {
        let name = |service: &Value| service["metadata"]["name"].as_str().unwrap().to_owned();
        list.into_iter().map(|service| (name(&service), service)).collect()
    }

    #[test]
    fn every_built_in_version_has_priorities_and_a_valid_object() {
        let registry = apiserver_kinds::registry();
        let resource = registry.by_kind("apiregistration.k8s.io/v1", "APIService").unwrap();
        for kind in registry.iter() {
            let Some(mut service) = wanted(&kind.group, &kind.version, false) else { continue };
            assert_ne!(service["spec"]["groupPriorityMinimum"], CUSTOM.0, "{}", kind.group);
            let row = PRIORITIES.iter().find(|row| row.0 == kind.group).unwrap();
            assert!(row.2.iter().any(|row| row.0 == kind.version), "{} {}", kind.group, kind.version);
            (resource.behaviour.default)(&mut service);
            let errors = (resource.behaviour.validate)(&service);
            assert!(errors.is_empty(), "{service}: {errors:?}");
        }
        assert_eq!(wanted("", "v1", false).unwrap()["metadata"]["name"], "v1.");
    }

    #[test]
    fn built_in_ones_are_made_at_the_start_and_custom_ones_always() {
        let builtin = wanted("apps", "v1", false).unwrap();
        let custom = wanted("example.com", "v1", true).unwrap();
        let all = by_name([builtin.clone(), custom.clone()]);
        let none = BTreeMap::new();
        let both = vec![Step::Create(builtin.clone()), Step::Create(custom.clone())];
        assert_eq!(plan(&none, &all, true), both);
        assert_eq!(plan(&none, &all, false), [Step::Create(custom.clone())]);
        assert_eq!(plan(&all, &all, true), []);
        assert_eq!(plan(&all, &none, true).len(), 2);
        assert_eq!(plan(&all, &none, false), [Step::Delete("v1.example.com".to_owned())]);
    }

    #[test]
    fn api_services_of_users_are_left_alone() {
        let mut own = wanted("apps", "v1", false).unwrap();
        own["metadata"]["labels"] = json!({});
        own["spec"]["service"] = json!({"name": "s", "namespace": "n"});
        let wanted = by_name([wanted("apps", "v1", false).unwrap()]);
        assert_eq!(plan(&by_name([own.clone()]), &wanted, true), []);
        assert_eq!(plan(&by_name([own]), &BTreeMap::new(), true), []);
    }
}
