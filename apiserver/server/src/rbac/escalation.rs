//! Nobody grants what they do not hold: writing a role needs its rules or the verb `escalate`,
//! writing a binding needs the rules of the role or the verb `bind`.

use apiserver_api::auth::Identity;
use apiserver_api::error::ApiError;
use serde_json::Value;

use super::rules::{Rule, url_covers};
use super::{Attributes, Authorizer};

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
    let unchanged = old.is_some_and(|old| {
        old["rules"] == role["rules"] && old["aggregationRule"] == role["aggregationRule"]
    });
    if unchanged || may(authorizer, identity, "escalate", resource, namespace, name) {
        return Ok(());
    }
    let mut wanted = Rule::list(role);
    if role.get("aggregationRule").is_some_and(|rule| !rule.is_null()) {
        // What it will aggregate cannot be known, so it counts as everything.
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
    let unchanged =
        old.is_some_and(|old| old["roleRef"] == binding["roleRef"] && old["subjects"] == binding["subjects"]);
    let role_ref = &binding["roleRef"];
    let role_name = role_ref["name"].as_str().unwrap_or_default();
    let role_resource =
        if role_ref["kind"].as_str() == Some("ClusterRole") { "clusterroles" } else { "roles" };
    if unchanged || may(authorizer, identity, "bind", role_resource, namespace, role_name) {
        return Ok(());
    }
    let Some(wanted) = authorizer.role_rules(namespace, role_ref) else {
        return Err(ApiError::not_found(GROUP, role_resource, role_name));
    };
    let held = authorizer.rules_for(identity, namespace);
    refuse_unless_held(identity, resource, name, &held, &wanted)
}

/// The parts of `wanted` that no single rule of `held` covers, in pieces of one verb and one
/// resource.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let pieces = wanted.iter().flat_map(pieces);
    pieces.filter(|piece| !held.iter().any(|rule| covers_piece(rule, piece))).collect()
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
    // Whatever namespace the body of a cluster-wide kind names, it grants in all of them.
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
    let missing = missing(held, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = missing.iter().map(describe).collect();
    let why = format!(
        "user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
        identity.user,
        identity.groups,
        lines.join("\n")
    );
    Err(ApiError::forbidden(GROUP, resource, name, &why))
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

fn pieces(rule: &Rule) -> Vec<Rule> {
    let one = |item: &String| vec![item.clone()];
    let names: Vec<Vec<String>> = if rule.resource_names.is_empty() {
        vec![Vec::new()]
    } else {
        rule.resource_names.iter().map(one).collect()
    };
    let mut pieces = Vec::new();
    for verb in &rule.verbs {
        for group in &rule.api_groups {
            for resource in &rule.resources {
                pieces.extend(names.iter().map(|names| Rule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: names.clone(),
                    non_resource_urls: Vec::new(),
                }));
            }
        }
        pieces.extend(rule.non_resource_urls.iter().map(|url| Rule {
            verbs: one(verb),
            non_resource_urls: one(url),
            ..Rule::default()
        }));
    }
    pieces
}

fn covers_piece(rule: &Rule, piece: &Rule) -> bool {
    let within = |list: &[String], items: &[String]| {
        items.iter().all(|item| list.iter().any(|entry| entry == "*" || entry == item))
    };
    if !within(&rule.verbs, &piece.verbs) {
        return false;
    }
    if !piece.non_resource_urls.is_empty() {
        return piece
            .non_resource_urls
            .iter()
            .all(|url| rule.non_resource_urls.iter().any(|r| url_covers(r, url)));
    }
    let resources = piece.resources.iter().all(|wanted| {
        rule.resources.iter().any(|held| {
            held == "*"
                || held == wanted
                || held
                    .strip_prefix("*/")
                    .is_some_and(|child| wanted.split_once('/').is_some_and(|(_, sub)| sub == child))
        })
    });
    let names = if piece.resource_names.is_empty() {
        rule.resource_names.is_empty()
    } else {
        rule.resource_names.is_empty() || piece.resource_names.iter().all(|n| rule.resource_names.contains(n))
    };
    within(&rule.api_groups, &piece.api_groups) && resources && names
}

#[cfg(test)]
#[path = "escalation_tests.rs"]
mod tests;
