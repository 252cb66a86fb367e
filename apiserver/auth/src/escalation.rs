//! Prevention of privilege escalation: writing a role needs its rules or the verb `escalate`, writing a
//! binding needs the rules of the role or the verb `bind`.

use apiserver_meta::identity::Identity;
use apiserver_schema::error::ApiError;
use serde_json::Value;

use crate::attributes::Attributes;
use crate::authorizer::Authorizer;
use crate::limits::MISSING_RULES_TEXT;
use crate::rbac::Rule;
use crate::rbac::missing::{TooMany, missing};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Checks the creation or change of a `Role` or `ClusterRole` (`kind`); `old` is the object
/// before an update. 403 with the missing rules.
pub fn check_role(
    authorizer: &Authorizer,
    identity: &Identity,
    kind: &str,
    role: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let (namespace, name) = place(kind, role);
    let resource = if kind == "ClusterRole" { "clusterroles" } else { "roles" };
    if old.is_some_and(|old| grants_as_before(role, old))
        || may(authorizer, identity, "escalate", resource, namespace, name)
    {
        return Ok(());
    }
    let mut wanted = Rule::list(role);
    let aggregates = |role: &Value| role.get("aggregationRule").is_some_and(|rule| !rule.is_null());
    if aggregates(role) || old.is_some_and(aggregates) {
        // The rules that it will aggregate are unknown, so it counts as everything.
        wanted.extend(everything());
    }
    let held = authorizer.rules_for(identity, namespace);
    refuse_unless_held(identity, resource, name, &held, &wanted)
}

/// Checks the creation or change of a `RoleBinding` or `ClusterRoleBinding` (`kind`).
pub fn check_binding(
    authorizer: &Authorizer,
    identity: &Identity,
    kind: &str,
    binding: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let (namespace, name) = place(kind, binding);
    let resource = if kind == "ClusterRoleBinding" { "clusterrolebindings" } else { "rolebindings" };
    let role_ref = &binding["roleRef"];
    let role_name = role_ref["name"].as_str().unwrap_or_default();
    let role_resource =
        if role_ref["kind"].as_str() == Some("ClusterRole") { "clusterroles" } else { "roles" };
    if old.is_some_and(|old| grants_as_before(binding, old))
        || may(authorizer, identity, "bind", role_resource, namespace, role_name)
    {
        return Ok(());
    }
    let Some(wanted) = authorizer.role_rules(namespace, role_ref) else {
        return Err(ApiError::not_found(GROUP, role_resource, role_name));
    };
    let held = authorizer.rules_for(identity, namespace);
    refuse_unless_held(identity, resource, name, &held, &wanted)
}

/// Returns `true` if a change is of nothing but what garbage collection has to write. Labels count: those
/// of a ClusterRole decide which other roles gain its rules.
fn grants_as_before(new: &Value, old: &Value) -> bool {
    let without_upkeep = |object: &Value| {
        let mut object = object.clone();
        if let Some(meta) = object["metadata"].as_object_mut() {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                meta.remove(field);
            }
        }
        object
    };
    without_upkeep(new) == without_upkeep(old)
}

fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
    ]
}

fn place<'a>(kind: &str, object: &'a Value) -> (&'a str, &'a str) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    // The body of a cluster-wide kind may name a namespace, but it grants in all of them.
    let namespace = if kind.starts_with("Cluster") { "" } else { text("/metadata/namespace") };
    (namespace, text("/metadata/name"))
}

fn may(
    authorizer: &Authorizer,
    identity: &Identity,
    verb: &str,
    resource: &str,
    namespace: &str,
    name: &str,
) -> bool {
    let attributes = Attributes {
        namespace,
        name,
        version: "v1",
        ..Attributes::resource(identity, verb, GROUP, resource)
    };
    authorizer.authorize(&attributes).allowed
}

fn refuse_unless_held(
    identity: &Identity,
    resource: &str,
    name: &str,
    held: &[Rule],
    wanted: &[Rule],
) -> Result<(), ApiError> {
    let lines = match missing(held, wanted) {
        Ok(missing) if missing.count == 0 => return Ok(()),
        Ok(missing) => named(&missing.named, missing.count),
        Err(TooMany) => "too many different ones to be compared with those that are held".to_owned(),
    };
    let why = format!(
        "user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{lines}",
        identity.user, identity.groups
    );
    Err(ApiError::forbidden(GROUP, resource, name, &why))
}

/// The pieces that are missing, a line each as long as they fit, and how many more there are.
fn named(pieces: &[Rule], count: u64) -> String {
    let mut text = String::new();
    let mut told = 0;
    for piece in pieces {
        if text.len() >= MISSING_RULES_TEXT {
            break;
        }
        let line = if told == 0 { "" } else { "\n" };
        text.push_str(line);
        text.push_str(&describe(piece));
        told += 1;
    }
    if told < count {
        text.push_str(&format!("\nand {} more", count - told));
    }
    text
}

fn describe(rule: &Rule) -> String {
    let mut parts = Vec::new();
    for (name, list) in [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("ResourceNames", &rule.resource_names),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("Verbs", &rule.verbs),
    ] {
        if !list.is_empty() {
            parts.push(format!("{name}:{list:?}"));
        }
    }
    format!("{{{}}}", parts.join(", "))
}

#[cfg(test)]
#[path = "escalation_tests.rs"]
mod tests;
