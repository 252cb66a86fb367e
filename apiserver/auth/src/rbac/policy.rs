//! The compiled form of roles and bindings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::rules::Rule;

/// The subject of a binding. A ServiceAccount is the user of that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    User(String),
    Group(String),
}

impl Subject {
    /// Returns the subject as in the reasons of decisions.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::User(name) => format!("User {name:?}"),
            Self::Group(name) => format!("Group {name:?}"),
        }
    }
}

/// The role that a binding grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoleRef {
    /// A ClusterRole, otherwise a Role of the binding's namespace.
    pub(crate) cluster: bool,
    pub(crate) name: String,
}

impl RoleRef {
    pub(crate) fn from_value(value: &Value) -> Self {
        Self {
            cluster: value["kind"].as_str() == Some("ClusterRole"),
            name: value["name"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

struct Binding {
    subjects: Vec<Subject>,
    role: RoleRef,
}

struct ClusterRole {
    labels: BTreeMap<String, String>,
    /// `aggregationRule.clusterRoleSelectors`, if it has one.
    selectors: Option<Vec<Value>>,
    /// The rules in effect: its own, or those it aggregates.
    rules: Arc<Vec<Rule>>,
}

/// (namespace, name); the namespace is empty for cluster-wide kinds.
type Key = (String, String);

/// Roles, bindings, and the bindings by subject.
#[derive(Default)]
pub(crate) struct Policy {
    roles: BTreeMap<Key, Arc<Vec<Rule>>>,
    cluster_roles: BTreeMap<String, ClusterRole>,
    bindings: BTreeMap<Key, Binding>,
    /// Namespace (empty: the whole cluster) to subject to names of bindings.
    by_subject: BTreeMap<String, BTreeMap<Subject, BTreeSet<String>>>,
}

/// A binding that applies to a user.
pub(crate) struct Grant<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) binding: &'a str,
    pub(crate) subject: &'a Subject,
    pub(crate) role: &'a RoleRef,
    /// `None` if the role does not exist.
    pub(crate) rules: Option<&'a Arc<Vec<Rule>>>,
}

impl Policy {
    pub(crate) fn apply(&mut self, kind: &str, object: &Value) {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        match kind {
            "Role" => {
                self.roles.insert((namespace, name), Arc::new(Rule::list(object)));
            }
            "ClusterRole" => {
                self.cluster_roles.insert(name, cluster_role(object));
                self.aggregate();
            }
            "RoleBinding" => self.bind((namespace, name), object),
            "ClusterRoleBinding" => self.bind((String::new(), name), object),
            _ => {}
        }
    }

    pub(crate) fn remove(&mut self, kind: &str, namespace: &str, name: &str) {
        match kind {
            "Role" => {
                self.roles.remove(&(namespace.to_owned(), name.to_owned()));
            }
            "ClusterRole" => {
                self.cluster_roles.remove(name);
                self.aggregate();
            }
            "RoleBinding" => self.unbind(&(namespace.to_owned(), name.to_owned())),
            "ClusterRoleBinding" => self.unbind(&(String::new(), name.to_owned())),
            _ => {}
        }
    }

    /// The rules of a role, `None` if it does not exist.
    pub(crate) fn rules(&self, namespace: &str, role: &RoleRef) -> Option<&Arc<Vec<Rule>>> {
        if role.cluster {
            self.cluster_roles.get(&role.name).map(|role| &role.rules)
        } else {
            self.roles.get(&(namespace.to_owned(), role.name.clone()))
        }
    }

    /// The bindings for any of `subjects`: those of the cluster, then those of `namespace`.
    pub(crate) fn grants<'a>(
        &'a self,
        subjects: &'a [Subject],
        namespace: &'a str,
    ) -> impl Iterator<Item = Grant<'a>> + 'a {
        let scopes = if namespace.is_empty() { vec![""] } else { vec!["", namespace] };
        scopes.into_iter().filter_map(|scope| Some((scope, self.by_subject.get(scope)?))).flat_map(
            move |(scope, index)| {
                subjects.iter().filter_map(|s| Some((s, index.get(s)?))).flat_map(move |(subject, names)| {
                    names.iter().filter_map(move |name| {
                        let binding = self.bindings.get(&(scope.to_owned(), name.clone()))?;
                        let rules = self.rules(scope, &binding.role);
                        Some(Grant { namespace: scope, binding: name, subject, role: &binding.role, rules })
                    })
                })
            },
        )
    }

    fn bind(&mut self, key: Key, object: &Value) {
        self.unbind(&key);
        let list = object["subjects"].as_array().map(Vec::as_slice).unwrap_or_default();
        let subjects: Vec<Subject> = list.iter().filter_map(|s| subject(s, &key.0)).collect();
        let index = self.by_subject.entry(key.0.clone()).or_default();
        for subject in &subjects {
            index.entry(subject.clone()).or_default().insert(key.1.clone());
        }
        self.bindings.insert(key, Binding { subjects, role: RoleRef::from_value(&object["roleRef"]) });
    }

    fn unbind(&mut self, key: &Key) {
        let Some(binding) = self.bindings.remove(key) else { return };
        let Some(index) = self.by_subject.get_mut(&key.0) else { return };
        for subject in &binding.subjects {
            if let Some(names) = index.get_mut(subject) {
                names.remove(&key.1);
                if names.is_empty() {
                    index.remove(subject);
                }
            }
        }
        if index.is_empty() {
            self.by_subject.remove(&key.0);
        }
    }

    /// Fills in the rules of aggregating roles. A role that aggregates may itself be aggregated
    /// (`edit` into `admin`), hence the walk with a set of those seen.
    fn aggregate(&mut self) {
        let aggregating: Vec<String> = self
            .cluster_roles
            .iter()
            .filter(|(_, r)| r.selectors.is_some())
            .map(|(n, _)| n.clone())
            .collect();
        for name in aggregating {
            let mut seen = BTreeSet::new();
            let mut rules = BTreeSet::new();
            self.collect(&name, &mut seen, &mut rules);
            if let Some(role) = self.cluster_roles.get_mut(&name) {
                role.rules = Arc::new(rules.into_iter().collect());
            }
        }
    }

    fn collect(&self, name: &str, seen: &mut BTreeSet<String>, rules: &mut BTreeSet<Rule>) {
        if !seen.insert(name.to_owned()) {
            return;
        }
        let Some(role) = self.cluster_roles.get(name) else { return };
        match &role.selectors {
            None => rules.extend(role.rules.iter().cloned()),
            Some(selectors) => {
                for (member, candidate) in &self.cluster_roles {
                    if selectors.iter().any(|selector| selects(selector, &candidate.labels)) {
                        self.collect(member, seen, rules);
                    }
                }
            }
        }
    }
}

fn cluster_role(object: &Value) -> ClusterRole {
    let selectors =
        object.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array).cloned();
    // The rules that a controller wrote into an aggregating role are a copy that may be out of date.
    let rules = if selectors.is_some() { Vec::new() } else { Rule::list(object) };
    ClusterRole { labels: labels(object), selectors, rules: Arc::new(rules) }
}

pub(crate) fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    labels
        .map(|labels| labels.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect())
        .unwrap_or_default()
}

fn subject(value: &Value, binding_namespace: &str) -> Option<Subject> {
    let name = value["name"].as_str()?.to_owned();
    match value["kind"].as_str()? {
        "User" => Some(Subject::User(name)),
        "Group" => Some(Subject::Group(name)),
        "ServiceAccount" => {
            let namespace =
                value["namespace"].as_str().filter(|n| !n.is_empty()).unwrap_or(binding_namespace);
            (!namespace.is_empty())
                .then(|| Subject::User(format!("system:serviceaccount:{namespace}:{name}")))
        }
        _ => None,
    }
}

/// Returns `true` if a `LabelSelector` selects `labels`. An unknown operator selects nothing.
pub(crate) fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let exact = selector["matchLabels"].as_object();
    let exact_holds = exact.is_none_or(|wanted| {
        wanted.iter().all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
    });
    let expressions = selector["matchExpressions"].as_array().map(Vec::as_slice).unwrap_or_default();
    exact_holds
        && expressions.iter().all(|expression| {
            let value = expression["key"].as_str().and_then(|key| labels.get(key));
            let listed = || {
                let values = expression["values"].as_array().map(Vec::as_slice).unwrap_or_default();
                value.is_some_and(|value| values.iter().any(|v| v.as_str() == Some(value)))
            };
            match expression["operator"].as_str() {
                Some("In") => listed(),
                Some("NotIn") => !listed(),
                Some("Exists") => value.is_some(),
                Some("DoesNotExist") => value.is_none(),
                _ => false,
            }
        })
}
