//! The authorizers that are asked, in order, and RBAC's: a lock around the compiled policy.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use apiserver_meta::identity::Identity;
use serde_json::Value;

use crate::attributes::{Attributes, Decision};
use crate::authentication::node_name;
use crate::nodes::NodeAuthorizer;
use crate::rbac::Rule;
use crate::rbac::policy::{Grant, Policy, RoleRef, Subject};

/// The group that may do everything, regardless of the roles: the way back in when they are broken.
const MASTERS: &str = "system:masters";

/// An authorizer by its name in `--authorization-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    AlwaysAllow,
    AlwaysDeny,
    /// The requests of kubelets, see [`crate::nodes`].
    Node,
    /// Roles and bindings.
    Rbac,
}

impl Mode {
    /// The default modes.
    pub const DEFAULT: [Self; 2] = [Self::Node, Self::Rbac];

    const ALL: [Self; 4] = [Self::AlwaysAllow, Self::AlwaysDeny, Self::Node, Self::Rbac];

    fn name(self) -> &'static str {
        match self {
            Self::AlwaysAllow => "AlwaysAllow",
            Self::AlwaysDeny => "AlwaysDeny",
            Self::Node => "Node",
            Self::Rbac => "RBAC",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|mode| mode.name()).collect();
            format!("{text:?} is not a valid mode: give some of {}", names.join(", "))
        })
    }
}

/// Asks the configured authorizers in order until one allows a request. Without roles and objects: only
/// `system:masters` may do anything.
pub struct Authorizer {
    modes: Vec<Mode>,
    nodes: Arc<NodeAuthorizer>,
    policy: RwLock<Policy>,
}

impl Default for Authorizer {
    fn default() -> Self {
        Self::new()
    }
}

impl Authorizer {
    /// An authorizer without roles and objects, in the default modes.
    pub fn new() -> Self {
        Self::with_modes(&Mode::DEFAULT)
    }

    /// An authorizer without roles and objects that asks these in order.
    pub fn with_modes(modes: &[Mode]) -> Self {
        Self { modes: modes.to_vec(), nodes: Arc::default(), policy: RwLock::default() }
    }

    /// Returns the Node authorizer, which is fed with the objects that nodes refer to.
    pub fn nodes(&self) -> &Arc<NodeAuthorizer> {
        &self.nodes
    }

    /// Returns the reason why [`Authorizer::rules_for`] does not list all that `identity` may do, if it does
    /// not.
    pub fn incomplete_rules(&self, identity: &Identity) -> Option<&'static str> {
        (self.modes.contains(&Mode::Node) && node_name(identity).is_some())
            .then_some("node authorizer does not support user rule resolution")
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

    /// Returns `true` if a request is allowed, for callers that do not need the reason.
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        attributes.identity.in_group(MASTERS)
            || self.modes.iter().any(|mode| match mode {
                Mode::AlwaysAllow => true,
                Mode::AlwaysDeny => false,
                Mode::Node => self.nodes.authorize(attributes).is_ok(),
                Mode::Rbac => self.roles_allow(attributes),
            })
    }

    /// Decides whether a request is allowed, and gives the reason.
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.identity.in_group(MASTERS) {
            return Decision { allowed: true, reason: String::new() };
        }
        let mut reasons = Vec::new();
        for mode in &self.modes {
            let decision = match mode {
                Mode::AlwaysAllow => Decision { allowed: true, reason: String::new() },
                Mode::AlwaysDeny => {
                    Decision { allowed: false, reason: "Everything is forbidden.".to_owned() }
                }
                Mode::Node => match self.nodes.authorize(attributes) {
                    Ok(()) => Decision { allowed: true, reason: String::new() },
                    Err(reason) => Decision { allowed: false, reason: reason.into_owned() },
                },
                Mode::Rbac => self.ask_roles(attributes),
            };
            if decision.allowed {
                return decision;
            }
            reasons.push(decision.reason);
        }
        reasons.retain(|reason| !reason.is_empty());
        Decision { allowed: false, reason: reasons.join("\n") }
    }

    fn roles_allow(&self, attributes: &Attributes<'_>) -> bool {
        let policy = self.read();
        let subjects = subjects(attributes.identity);
        let namespace = if attributes.is_resource { attributes.namespace } else { "" };
        policy.grants(&subjects, namespace).any(|grant| covers(&grant, attributes))
    }

    fn ask_roles(&self, attributes: &Attributes<'_>) -> Decision {
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
            if !covers(&grant, attributes) {
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
        let all = || vec!["*".to_owned()];
        let everything = [
            Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
            Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
        ];
        let policy = self.read();
        let subjects = subjects(identity);
        let granted = policy.grants(&subjects, namespace).filter_map(|grant| grant.rules);
        let mut rules: Vec<Rule> = granted.flat_map(|rules| rules.iter().cloned()).collect();
        // Administrators may do everything regardless of roles; usually a role says so too.
        let unbound = identity.in_group(MASTERS) && !everything.iter().all(|rule| rules.contains(rule));
        if unbound || self.modes.contains(&Mode::AlwaysAllow) {
            rules.extend(everything);
        }
        rules
    }

    /// Returns the rules that a binding with this `roleRef` would grant; `None` if there is no such role.
    pub fn role_rules(&self, namespace: &str, role_ref: &Value) -> Option<Vec<Rule>> {
        self.read().rules(namespace, &RoleRef::from_value(role_ref)).map(|rules| rules.to_vec())
    }

    fn read(&self) -> RwLockReadGuard<'_, Policy> {
        // A panic while the lock was held cannot come from a reader, and writers do not panic.
        self.policy.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Policy> {
        self.policy.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `true` if this grant allows the request. A path is not in a namespace, so only bindings of the
/// cluster reach here for it.
fn covers(grant: &Grant<'_>, attributes: &Attributes<'_>) -> bool {
    grant.rules.is_some_and(|rules| rules.iter().any(|rule| rule.covers(attributes)))
}

fn subjects(identity: &Identity) -> Vec<Subject> {
    let groups = identity.groups.iter().cloned().map(Subject::Group);
    std::iter::once(Subject::User(identity.user.clone())).chain(groups).collect()
}

#[cfg(test)]
#[path = "authorizer_tests.rs"]
mod tests;
