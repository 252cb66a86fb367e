//! The authorizer: a lock around the compiled policy.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use apiserver_api::auth::Identity;
use serde_json::Value;

use super::nodes;
use super::policy::{Grant, Policy, RoleRef, Subject};
use super::rules::Rule;
use super::{Attributes, Decision};
use crate::auth::tokens::BoundObjects;

/// The group that may do everything, whatever the roles say: the way back in when they are
/// broken.
const MASTERS: &str = "system:masters";

/// Decides by roles and bindings. Empty at first: only `system:masters` may do anything.
#[derive(Default)]
pub struct Authorizer {
    policy: RwLock<Policy>,
    /// Tells on which node a pod runs.
    objects: OnceLock<Arc<dyn BoundObjects>>,
}

impl Authorizer {
    /// An authorizer without roles.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on nodes may change those pods only that `objects` shows on them. The first call
    /// counts.
    pub fn limit_nodes(&self, objects: Arc<dyn BoundObjects>) {
        if self.objects.set(objects).is_err() {
            tracing::warn!("the authorizer knows the pods' nodes already");
        }
    }

    /// Takes over a new or changed object of kind `Role`, `ClusterRole`, `RoleBinding` or
    /// `ClusterRoleBinding`; other kinds are ignored.
    pub fn apply(&self, kind: &str, object: &Value) {
        self.write().apply(kind, object);
    }

    /// Forgets an object; `namespace` is empty for the cluster-wide kinds.
    pub fn remove(&self, kind: &str, namespace: &str, name: &str) {
        self.write().remove(kind, namespace, name);
    }

    /// Whether a request may go on, for those who do not ask why.
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if attributes.identity.in_group(MASTERS) {
            return true;
        }
        let policy = self.read();
        let subjects = subjects(attributes.identity);
        let namespace = if attributes.is_resource { attributes.namespace } else { "" };
        policy.grants(&subjects, namespace).any(|grant| self.grants(&grant, attributes))
    }

    /// Whether this grant lets the request go on.
    fn grants(&self, grant: &Grant<'_>, attributes: &Attributes<'_>) -> bool {
        // A path is not in a namespace, so only bindings of the cluster reach here for it.
        grant.rules.is_some_and(|rules| rules.iter().any(|rule| rule.covers(attributes)))
            && !self.limited(grant.subject, attributes)
    }

    /// Whether a request may go on, and why.
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.identity.in_group(MASTERS) {
            return Decision { allowed: true, reason: String::new() };
        }
        let policy = self.read();
        let subjects = subjects(attributes.identity);
        let namespace = if attributes.is_resource { attributes.namespace } else { "" };
        let mut missing = Vec::new();
        for grant in policy.grants(&subjects, namespace) {
            let (role_kind, binding_kind) = (
                if grant.role.cluster { "ClusterRole" } else { "Role" },
                if grant.namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" },
            );
            if grant.rules.is_none() {
                let resource = role_kind.to_lowercase();
                missing.push(format!("{resource}.rbac.authorization.k8s.io {:?} not found", grant.role.name));
                continue;
            }
            if !self.grants(&grant, attributes) {
                continue;
            }
            let place = if grant.namespace.is_empty() {
                grant.binding.to_owned()
            } else {
                format!("{}/{}", grant.binding, grant.namespace)
            };
            let reason = format!(
                "RBAC: allowed by {binding_kind} {place:?} of {role_kind} {:?} to {}",
                grant.role.name,
                grant.subject.describe()
            );
            return Decision { allowed: true, reason };
        }
        missing.dedup();
        let reason = match missing.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            more => format!("RBAC: [{}]", more.join(", ")),
        };
        Decision { allowed: false, reason }
    }

    /// Every rule that applies to `identity` in `namespace` (empty: at the cluster scope).
    pub fn rules_for(&self, identity: &Identity, namespace: &str) -> Vec<Rule> {
        if identity.in_group(MASTERS) {
            let all = || vec!["*".to_owned()];
            return vec![
                Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
                Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
            ];
        }
        let policy = self.read();
        let subjects = subjects(identity);
        policy
            .grants(&subjects, namespace)
            .filter_map(|grant| grant.rules)
            .flat_map(|r| r.iter().cloned())
            .collect()
    }

    /// The rules that a binding with this `roleRef` would grant; `None` if there is no such role.
    pub fn role_rules(&self, namespace: &str, role_ref: &Value) -> Option<Vec<Rule>> {
        self.read().rules(namespace, &RoleRef::from_value(role_ref)).map(|rules| rules.to_vec())
    }

    fn limited(&self, subject: &Subject, attributes: &Attributes<'_>) -> bool {
        matches!(subject, Subject::Group(group) if group == nodes::GROUP)
            && !nodes::permits(attributes, self.objects.get().map(|objects| &**objects))
    }

    fn read(&self) -> RwLockReadGuard<'_, Policy> {
        // A panic while the lock was held cannot come from a reader, and writers do not panic.
        self.policy.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Policy> {
        self.policy.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn subjects(identity: &Identity) -> Vec<Subject> {
    let groups = identity.groups.iter().cloned().map(Subject::Group);
    std::iter::once(Subject::User(identity.user.clone())).chain(groups).collect()
}

#[cfg(test)]
#[path = "authorizer_tests.rs"]
mod tests;
