//! Writes the rules of aggregating ClusterRoles: those of the ClusterRoles that their selectors match.
//!
//! Hawser's API server authorizes by the selectors themselves; the written rules are for those who read the role, and
//! for API servers that authorize by them.

use std::sync::Arc;

use apiserver_client::{Cache, IndexBy, ObjectKey};
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Patch, PatchParams};
use kube::core::{Selector, SelectorExt};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::context::{Context, Tasks};
use crate::meta::{Labels, name, uid};

/// The field manager of the rules.
const MANAGER: &str = "clusterrole-aggregation-controller";

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("ClusterRoleAggregator");
    let roles = context.informers.cache::<ClusterRole>();
    context.feed(tasks, &roles, &queue);
    let (aggregating, affected) = (roles.index::<Aggregating>(), queue.clone());
    roles.on_change(move |_| {
        // There are few of them, and any change may concern all.
        aggregating.get(&()).iter().for_each(|role| affected.add(ObjectKey::of(role.as_ref())));
    });
    let controller = Roles { client: context.client.clone(), roles: roles.clone() };
    context.start(tasks, queue, controller, async move { roles.synced().await });
}

/// Index of the ClusterRoles that aggregate others.
struct Aggregating;

impl IndexBy<ClusterRole> for Aggregating {
    type Value = ();

    fn values(role: &ClusterRole) -> Vec<()> {
        role.aggregation_rule.iter().map(|_| ()).collect()
    }
}

struct Roles {
    client: Client,
    roles: Cache<ClusterRole>,
}

impl Reconcile for Roles {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(role) = self.roles.get(key) else { return Ok(Outcome::Done) };
        let Some(rules) = plan(&role, &self.roles.list())? else { return Ok(Outcome::Done) };
        let api: Api<ClusterRole> = Api::all(self.client.clone());
        let params = PatchParams::apply(MANAGER).force();
        let written = api.patch(&key.name, &params, &Patch::Apply(configuration(&role, &rules))).await;
        written.attempt(|| format!("apply the rules of ClusterRole {key}")).map(|_| Outcome::Done)
    }
}

/// Returns the configuration to apply. Without the UID it would create a role that was deleted in the meantime.
fn configuration(role: &ClusterRole, rules: &[PolicyRule]) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name(&role.metadata), "uid": uid(&role.metadata)}, "rules": rules})
}

/// Returns the rules that a role must get; `None` if it aggregates no others, or has its rules.
fn plan(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Result<Option<Vec<PolicyRule>>> {
    let Some(aggregation) = &role.aggregation_rule else { return Ok(None) };
    let mut wanted: Vec<PolicyRule> = Vec::new();
    for selector in aggregation.cluster_role_selectors.iter().flatten() {
        for member in selected(role, selector, all)? {
            for rule in member.rules.iter().flatten() {
                if !wanted.iter().any(|held| same(held, rule)) {
                    wanted.push(rule.clone());
                }
            }
        }
    }
    let held = role.rules.as_deref().unwrap_or_default();
    let unchanged =
        held.len() == wanted.len() && held.iter().zip(&wanted).all(|(held, rule)| same(held, rule));
    Ok((!unchanged).then_some(wanted))
}

/// Returns the roles that a selector of `role` matches, without the role itself, by name. Unlike the selectors of
/// workloads an empty one matches all.
fn selected<'a>(
    role: &ClusterRole,
    selector: &LabelSelector,
    all: &'a [Arc<ClusterRole>],
) -> Result<impl Iterator<Item = &'a Arc<ClusterRole>> + use<'a>> {
    let own = name(&role.metadata).to_owned();
    let selector = Selector::try_from(selector.clone()).map_err(|error| Error::Unusable {
        object: format!("ClusterRole {own}"),
        problem: format!("its aggregationRule has an invalid selector: {error}"),
    })?;
    let none = Labels::new();
    Ok(all.iter().filter(move |member| {
        let labels = member.metadata.labels.as_ref().unwrap_or(&none);
        name(&member.metadata) != own && selector.matches(labels)
    }))
}

/// Returns `true` if two rules are equal; an absent list is an empty one.
fn same(one: &PolicyRule, other: &PolicyRule) -> bool {
    let lists = |rule: &PolicyRule| {
        [&rule.api_groups, &rule.non_resource_urls, &rule.resource_names, &rule.resources]
            .map(|list| list.clone().unwrap_or_default())
    };
    one.verbs == other.verbs && lists(one) == lists(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verb: &str, resource: &str) -> Value {
        json!({"verbs": [verb], "resources": [resource]})
    }

    fn role(name: &str, labels: Value, rules: &[Value]) -> Arc<ClusterRole> {
        let role = json!({"metadata": {"name": name, "labels": labels}, "rules": rules});
        Arc::new(serde_json::from_value(role).unwrap())
    }

    fn combined(selectors: Value, rules: &[Value]) -> Arc<ClusterRole> {
        let role = json!({"metadata": {"name": "combined", "labels": {"kind": "tool"}}, "rules": rules,
            "aggregationRule": {"clusterRoleSelectors": selectors}});
        Arc::new(serde_json::from_value(role).unwrap())
    }

    /// Returns the tools: two rules for the hammer, one for the others.
    fn tools() -> Vec<Arc<ClusterRole>> {
        let (tool, other) = (json!({"kind": "tool"}), json!({"kind": "other"}));
        vec![
            role("chisel", tool.clone(), &[rule("chisel", "mortises")]),
            role("hammer", tool, &[rule("hammer", "nails"), rule("hammer", "wedges")]),
            role("saw", other.clone(), &[rule("saw", "boards")]),
            role("saw-too", other, &[rule("saw", "boards")]),
        ]
    }

    #[test]
    fn rules_are_those_of_the_selected_roles_by_selector_and_name_each_once() {
        let (tool, other) =
            (json!({"matchLabels": {"kind": "tool"}}), json!({"matchLabels": {"kind": "other"}}));
        let by_expression = json!({"matchExpressions": [
            {"key": "kind", "operator": "In", "values": ["other", "none"]}]});
        let (chisel, saw) = (rule("chisel", "mortises"), rule("saw", "boards"));
        let hammer = [rule("hammer", "nails"), rule("hammer", "wedges")];
        let of_tools = [vec![chisel], hammer.to_vec()].concat();
        let both = [of_tools.clone(), vec![saw.clone()]].concat();
        let other_first = [vec![saw.clone()], of_tools.clone()].concat();
        for (selectors, held, expected) in [
            (json!([tool]), vec![], Some(of_tools.clone())),
            (json!([tool]), vec![saw.clone()], Some(of_tools.clone())),
            (json!([tool]), of_tools.clone(), None),
            (json!([tool]), both.clone(), Some(of_tools)),
            (json!([tool, other]), vec![], Some(both.clone())),
            (json!([other, tool]), both.clone(), Some(other_first)),
            (json!([tool, tool, by_expression]), vec![], Some(both.clone())),
            (json!([{}]), vec![], Some(both)),
            (json!([{"matchLabels": {"kind": "none"}}]), vec![saw], Some(vec![])),
            (json!([{"matchLabels": {"kind": "none"}}]), vec![], None),
        ] {
            let mut all = tools();
            let role = combined(selectors.clone(), &held);
            all.insert(1, role.clone());
            let rules = plan(&role, &all).unwrap();
            let expected: Option<Vec<PolicyRule>> = serde_json::from_value(json!(expected)).unwrap();
            assert_eq!(rules, expected, "{selectors} {held:?}");
        }
    }

    #[test]
    fn roles_that_aggregate_nothing_are_left_alone_and_invalid_selectors_are_errors() {
        let tools = tools();
        assert_eq!(plan(&tools[0], &tools).unwrap(), None);
        let wrong = json!([{"matchExpressions": [{"key": "kind", "operator": "Like", "values": ["tool"]}]}]);
        let error = plan(&combined(wrong, &[]), &tools).unwrap_err();
        assert!(error.to_string().starts_with("ClusterRole combined: its aggregationRule"), "{error}");
    }

    #[test]
    fn absent_and_empty_lists_in_rules_are_equal() {
        let bare = PolicyRule { verbs: vec!["get".to_owned()], ..PolicyRule::default() };
        let empty = PolicyRule { resource_names: Some(Vec::new()), ..bare.clone() };
        let other = PolicyRule { resource_names: Some(vec!["x".to_owned()]), ..bare.clone() };
        assert!(same(&bare, &empty));
        assert!(!same(&bare, &other));
    }

    #[test]
    fn configuration_names_the_uid_and_no_field_but_the_rules() {
        let mut role = ClusterRole::clone(&tools()[0]);
        role.metadata.uid = Some("u".to_owned());
        let rules = role.rules.clone().unwrap();
        let applied = configuration(&role, &rules);
        assert_eq!(applied["metadata"], json!({"name": "chisel", "uid": "u"}));
        assert_eq!(applied["rules"], json!([{"verbs": ["chisel"], "resources": ["mortises"]}]));
        assert_eq!(configuration(&role, &[])["rules"], json!([]), "an empty list takes rules away");
    }
}
