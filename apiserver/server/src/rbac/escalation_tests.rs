//! What may be granted by whom.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn rule(verbs: &[&str], resources: &[&str], names: &[&str]) -> Rule {
    let list = |items: &[&str]| items.iter().map(ToString::to_string).collect();
    Rule {
        verbs: list(verbs),
        api_groups: vec![String::new()],
        resources: list(resources),
        resource_names: list(names),
        non_resource_urls: Vec::new(),
    }
}

#[test]
fn what_is_missing_is_told_piece_by_piece() {
    let held = [
        rule(&["get", "list"], &["pods"], &[]),
        rule(&["get"], &["secrets"], &["one"]),
        rule(&["*"], &["*/log"], &[]),
    ];
    let cases = [
        (rule(&["get"], &["pods"], &[]), vec![]),
        (rule(&["get"], &["pods"], &["x"]), vec![]),
        (rule(&["get", "delete"], &["pods"], &[]), vec![rule(&["delete"], &["pods"], &[])]),
        (rule(&["get"], &["secrets"], &["one"]), vec![]),
        (rule(&["get"], &["secrets"], &["one", "two"]), vec![rule(&["get"], &["secrets"], &["two"])]),
        (rule(&["get"], &["secrets"], &[]), vec![rule(&["get"], &["secrets"], &[])]),
        (rule(&["*"], &["pods"], &[]), vec![rule(&["*"], &["pods"], &[])]),
        (rule(&["get"], &["pods/log"], &[]), vec![]),
        (rule(&["get"], &["*"], &[]), vec![rule(&["get"], &["*"], &[])]),
    ];
    for (wanted, expected) in cases {
        assert_eq!(missing(&held, std::slice::from_ref(&wanted)), expected, "{wanted:?}");
    }
}

fn authorizer(rules: Value) -> Authorizer {
    let authorizer = Authorizer::new();
    authorizer.apply("ClusterRole", &json!({"metadata": {"name": "mine"}, "rules": rules}));
    authorizer.apply(
        "ClusterRole",
        &json!({"metadata": {"name": "strong"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}),
    );
    authorizer.apply(
        "ClusterRoleBinding",
        &json!({
            "metadata": {"name": "mine"}, "roleRef": {"kind": "ClusterRole", "name": "mine"},
            "subjects": [{"kind": "User", "name": "jane"}],
        }),
    );
    authorizer
}

fn jane() -> Identity {
    Identity::authenticated("jane", &[])
}

#[test]
fn a_role_needs_its_rules_or_the_verb_escalate() {
    let pods = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    let secrets = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]);
    let role = |rules: &Value| json!({"metadata": {"name": "r", "namespace": "a"}, "rules": rules});
    let plain = authorizer(pods.clone());
    assert_eq!(check_role(&plain, &jane(), "Role", &role(&pods), None), Ok(()));
    let error = check_role(&plain, &jane(), "Role", &role(&secrets), None).unwrap_err();
    assert_eq!(error.code, 403);
    assert_eq!(
        error.message,
        "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"jane\" (groups=[\"system:authenticated\"]) is \
         attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}"
    );
    let unchanged = role(&secrets);
    assert_eq!(check_role(&plain, &jane(), "Role", &role(&secrets), Some(&unchanged)), Ok(()));
    let aggregating = json!({"metadata": {"name": "r"}, "aggregationRule": {"clusterRoleSelectors": []}});
    assert!(check_role(&plain, &jane(), "ClusterRole", &aggregating, None).is_err());
    let escalating = authorizer(json!([
        {"verbs": ["escalate"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]},
    ]));
    assert_eq!(check_role(&escalating, &jane(), "Role", &role(&secrets), None), Ok(()));
    assert!(check_role(&escalating, &jane(), "ClusterRole", &role(&secrets), None).is_err());
    let admin = Identity::authenticated("root", &["system:masters"]);
    assert_eq!(check_role(&plain, &admin, "Role", &role(&secrets), None), Ok(()));
}

#[test]
fn a_binding_needs_the_roles_rules_or_the_verb_bind() {
    let binding = |role: &str| {
        json!({
            "metadata": {"name": "b", "namespace": "a"}, "roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": "joe"}],
        })
    };
    let plain = authorizer(json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]));
    assert_eq!(check_binding(&plain, &jane(), "RoleBinding", &binding("mine"), None), Ok(()));
    assert_eq!(
        check_binding(&plain, &jane(), "RoleBinding", &binding("strong"), None).unwrap_err().code,
        403
    );
    assert_eq!(check_binding(&plain, &jane(), "RoleBinding", &binding("none"), None).unwrap_err().code, 404);
    let may_bind = authorizer(json!([{
        "verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
        "resourceNames": ["strong"],
    }]));
    assert_eq!(check_binding(&may_bind, &jane(), "RoleBinding", &binding("strong"), None), Ok(()));
    let old = binding("strong");
    assert_eq!(check_binding(&plain, &jane(), "RoleBinding", &binding("strong"), Some(&old)), Ok(()));
    let mut widened = binding("strong");
    widened["subjects"] = json!([{"kind": "User", "name": "jane"}]);
    assert!(check_binding(&plain, &jane(), "RoleBinding", &widened, Some(&old)).is_err(), "another subject");
}

#[test]
fn a_namespace_in_a_cluster_wide_object_gains_nothing() {
    let authorizer = Authorizer::new();
    let pods = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    let metadata = json!({"name": "r", "namespace": "a"});
    authorizer.apply("Role", &json!({"metadata": metadata, "rules": pods}));
    authorizer.apply(
        "RoleBinding",
        &json!({
            "metadata": metadata, "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "jane"}],
        }),
    );
    let role = json!({"metadata": metadata, "rules": pods});
    assert_eq!(check_role(&authorizer, &jane(), "Role", &role, None), Ok(()));
    assert_eq!(check_role(&authorizer, &jane(), "ClusterRole", &role, None).unwrap_err().code, 403);
}

fn subset(items: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    proptest::sample::subsequence(items, 0..=items.len())
        .prop_map(|list| list.iter().map(ToString::to_string).collect())
}

fn any_rule() -> impl Strategy<Value = Rule> {
    (
        subset(&["get", "list", "*"]),
        subset(&["", "apps", "*"]),
        subset(&["pods", "pods/log", "*/log", "secrets", "*"]),
        subset(&["x", "y"]),
    )
        .prop_map(|(verbs, api_groups, resources, resource_names)| Rule {
            verbs,
            api_groups,
            resources,
            resource_names,
            non_resource_urls: Vec::new(),
        })
}

proptest! {
    /// If nothing is missing, every request that the wanted rules allow is allowed by those held.
    #[test]
    fn nothing_missing_means_nothing_gained(
        held in proptest::collection::vec(any_rule(), 0..4),
        wanted in any_rule(),
    ) {
        let identity = jane();
        let gained = missing(&held, std::slice::from_ref(&wanted));
        for verb in ["get", "list", "delete"] {
            for group in ["", "apps", "batch"] {
                for (resource, subresource) in [("pods", ""), ("pods", "log"), ("secrets", ""), ("nodes", "log")] {
                    for name in ["", "x", "z"] {
                        let attributes = Attributes {
                            subresource, name, ..Attributes::resource(&identity, verb, group, resource)
                        };
                        if wanted.covers(&attributes) && gained.is_empty() {
                            prop_assert!(held.iter().any(|rule| rule.covers(&attributes)));
                        }
                    }
                }
            }
        }
    }
}
