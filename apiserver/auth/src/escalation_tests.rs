//! Tests of which users may grant which rights.

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
fn missing_rights_are_listed_one_by_one() {
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
        let found = missing(&held, std::slice::from_ref(&wanted)).unwrap();
        assert_eq!((found.count, found.named), (expected.len() as u64, expected), "{wanted:?}");
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
fn a_label_that_aggregates_a_role_needs_its_rules() {
    let plain = authorizer(json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]));
    let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let role = |meta: serde_json::Value| {
        let mut role = json!({"metadata": {"name": "r", "resourceVersion": "1"}, "rules": all});
        for (key, value) in meta.as_object().unwrap() {
            role["metadata"][key] = value.clone();
        }
        role
    };
    let old = role(json!({"managedFields": [{"manager": "a"}]}));
    let check = |meta| check_role(&plain, &jane(), "ClusterRole", &role(meta), Some(&old));
    for granting in [
        json!({"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}),
        json!({"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}),
    ] {
        assert_eq!(check(granting.clone()).unwrap_err().code, 403, "{granting}");
    }
    let upkeep =
        json!({"finalizers": ["x"], "ownerReferences": [{}], "managedFields": [], "resourceVersion": "2"});
    assert_eq!(check(upkeep), Ok(()));
    let binding = |labels: serde_json::Value| {
        json!({
            "metadata": {"name": "b", "namespace": "a", "labels": labels},
            "roleRef": {"kind": "ClusterRole", "name": "strong"}, "subjects": [{"kind": "User", "name": "joe"}],
        })
    };
    let (old, new) = (binding(json!({})), binding(json!({"x": "y"})));
    assert_eq!(check_binding(&plain, &jane(), "RoleBinding", &new, Some(&old)).unwrap_err().code, 403);
    assert_eq!(check_binding(&plain, &jane(), "RoleBinding", &old, Some(&old)), Ok(()));
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
        subset(&["/a", "/a/b", "/a*", "*"]),
    )
        .prop_map(|(verbs, api_groups, resources, resource_names, non_resource_urls)| Rule {
            verbs,
            api_groups,
            resources,
            resource_names,
            non_resource_urls,
        })
}

/// Computes the result of [`missing`] piece by piece.
fn pieces_missing(held: &[Rule], wanted: &Rule) -> Vec<Rule> {
    let one = |item: &String| vec![item.clone()];
    let mut names: Vec<Vec<String>> = wanted.resource_names.iter().map(one).collect();
    if names.is_empty() {
        names.push(Vec::new());
    }
    let mut pieces = Vec::new();
    for verb in &wanted.verbs {
        for group in &wanted.api_groups {
            for resource in &wanted.resources {
                pieces.extend(names.iter().map(|names| Rule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: names.clone(),
                    non_resource_urls: Vec::new(),
                }));
            }
        }
        pieces.extend(wanted.non_resource_urls.iter().map(|url| Rule {
            verbs: one(verb),
            non_resource_urls: one(url),
            ..Rule::default()
        }));
    }
    pieces.retain(|piece| !held.iter().any(|rule| covers_piece(rule, piece)));
    pieces
}

fn covers_piece(rule: &Rule, piece: &Rule) -> bool {
    let within = |list: &[String], wanted: &str| list.iter().any(|entry| entry == "*" || entry == wanted);
    let urls = &piece.non_resource_urls;
    let url =
        |url: &String| rule.non_resource_urls.iter().any(|held| crate::rbac::rules::url_covers(held, url));
    let resource = |wanted: &String| {
        let child = wanted.split_once('/').map(|(_, child)| format!("*/{child}"));
        within(&rule.resources, wanted) || child.is_some_and(|child| rule.resources.contains(&child))
    };
    let named = rule.resource_names.is_empty()
        || (!piece.resource_names.is_empty()
            && piece.resource_names.iter().all(|name| rule.resource_names.contains(name)));
    within(&rule.verbs, &piece.verbs[0])
        && urls.iter().all(url)
        && piece.api_groups.iter().all(|group| within(&rule.api_groups, group))
        && piece.resources.iter().all(resource)
        && (!urls.is_empty() || named)
}

/// A rule of 2 KB expands to a million pieces, and one of a few MB to more than there are atoms.
#[test]
fn missing_rights_are_counted_without_being_built() {
    let many =
        |what: &str, count: usize| -> Vec<String> { (0..count).map(|n| format!("{what}{n}")).collect() };
    let of = |count: usize| Rule {
        verbs: many("v", count),
        api_groups: many("g", count),
        resources: many("r", count),
        ..Rule::default()
    };
    let held = rule(&["get"], &["pods"], &[]);
    let found = missing(std::slice::from_ref(&held), &[of(100)]).unwrap();
    assert_eq!((found.count, found.named.len()), (1_000_000, 50));
    assert_eq!(found.named[49].resources, ["r49"]);
    let found = missing(std::slice::from_ref(&held), &[of(20_000), of(10)]).unwrap();
    assert_eq!((found.count, found.named.len()), (8_000_000_000_000 + 1000, 50));
    assert_eq!(missing(&[of(20_000)], &[of(20_000)]).unwrap().count, 0);
    // For rules that have nothing in common each entry differs; they are not enumerated.
    let each: Vec<Rule> = (0..1000)
        .map(|n| Rule {
            verbs: vec![format!("v{n}")],
            api_groups: vec![format!("g{n}")],
            resources: vec![format!("r{n}")],
            ..Rule::default()
        })
        .collect();
    assert!(missing(&each, &[of(1000)]).is_err());
    let role = json!({
        "metadata": {"name": "r", "namespace": "a"},
        "rules": [{"verbs": many("v", 100), "apiGroups": many("g", 100), "resources": many("r", 100)}],
    });
    let error = check_role(&authorizer(json!([])), &jane(), "Role", &role, None).unwrap_err();
    assert!(error.message.ends_with("\nand 999950 more"), "{}", error.message);
    assert!(error.message.len() < 8 * 1024);
}

proptest! {
    /// If nothing is missing, every request that the wanted rules allow is allowed by those held.
    #[test]
    fn nothing_missing_means_nothing_gained(
        held in proptest::collection::vec(any_rule(), 0..4),
        wanted in any_rule(),
    ) {
        let identity = jane();
        let gained = missing(&held, std::slice::from_ref(&wanted)).unwrap();
        let pieces = pieces_missing(&held, &wanted);
        prop_assert_eq!(gained.count, pieces.len() as u64);
        prop_assert_eq!(&gained.named[..], &pieces[..pieces.len().min(50)]);
        for verb in ["get", "list", "delete"] {
            for group in ["", "apps", "batch"] {
                for (resource, subresource) in [("pods", ""), ("pods", "log"), ("secrets", ""), ("nodes", "log")] {
                    for name in ["", "x", "z"] {
                        let attributes = Attributes {
                            subresource, name, ..Attributes::resource(&identity, verb, group, resource)
                        };
                        if wanted.covers(&attributes) && gained.count == 0 {
                            prop_assert!(held.iter().any(|rule| rule.covers(&attributes)));
                        }
                    }
                }
            }
        }
    }
}
