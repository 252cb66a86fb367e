//! Tables of who may do what.

use serde_json::json;

use super::*;
use crate::attributes::forbidden;

fn role(kind: &str, namespace: &str, name: &str, rules: Value) -> Value {
    json!({"kind": kind, "metadata": {"namespace": namespace, "name": name}, "rules": rules})
}

fn binding(kind: &str, namespace: &str, role: (&str, &str), subjects: Value) -> Value {
    json!({
        "kind": kind, "metadata": {"namespace": namespace, "name": format!("bind-{}", role.1)},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1},
        "subjects": subjects,
    })
}

fn with(objects: &[Value]) -> Authorizer {
    let authorizer = Authorizer::new();
    for object in objects {
        authorizer.apply(object["kind"].as_str().unwrap(), object);
    }
    authorizer
}

fn user(name: &str) -> Identity {
    Identity::authenticated(name, &[])
}

/// `VERB RESOURCE[/SUB] NAMESPACE NAME`, `-` for empty, group `""`.
fn allowed(authorizer: &Authorizer, identity: &Identity, text: &str) -> bool {
    let words: Vec<&str> = text.split(' ').map(|w| if w == "-" { "" } else { w }).collect();
    let (resource, subresource) = words[1].split_once('/').unwrap_or((words[1], ""));
    let attributes = Attributes {
        subresource,
        namespace: words[2],
        name: words[3],
        ..Attributes::resource(identity, words[0], "", resource)
    };
    let allowed = authorizer.authorize(&attributes).allowed;
    assert_eq!(authorizer.allows(&attributes), allowed, "the short way decides alike: {text}");
    allowed
}

#[test]
fn rules_match_verbs_groups_resources_subresources_and_names() {
    let cases = [
        (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}), "get pods a x", true),
        (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}), "list pods a -", false),
        (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}), "get pods/log a x", false),
        (json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["pods"]}), "get pods a x", false),
        (json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}), "delete pods/log a x", true),
        (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"]}), "get pods/log a x", true),
        (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"]}), "get pods a x", false),
        (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["*/log"]}), "get pods/log a x", true),
        (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["*/log"]}), "get pods/exec a x", false),
        (
            json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]}),
            "get pods a x",
            true,
        ),
        (
            json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]}),
            "get pods a y",
            false,
        ),
        (
            json!({"verbs": ["list"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]}),
            "list pods a -",
            false,
        ),
    ];
    for (rule, request, expected) in cases {
        let authorizer = with(&[
            role("ClusterRole", "", "r", json!([rule])),
            binding(
                "ClusterRoleBinding",
                "",
                ("ClusterRole", "r"),
                json!([{"kind": "User", "name": "jane"}]),
            ),
        ]);
        assert_eq!(allowed(&authorizer, &user("jane"), request), expected, "{rule} for {request}");
        assert!(!allowed(&authorizer, &user("joe"), request), "{rule} is jane's");
    }
}

#[test]
fn a_binding_reaches_as_far_as_its_namespace() {
    let pods = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "nodes"]}]);
    let authorizer = with(&[
        role("ClusterRole", "", "r", pods.clone()),
        role("Role", "b", "r", pods),
        binding("RoleBinding", "a", ("ClusterRole", "r"), json!([{"kind": "Group", "name": "team"}])),
        binding("RoleBinding", "b", ("Role", "r"), json!([{"kind": "ServiceAccount", "name": "bot"}])),
        binding("RoleBinding", "c", ("Role", "r"), json!([{"kind": "Group", "name": "team"}])),
    ]);
    let team = Identity::authenticated("jane", &["team"]);
    assert!(allowed(&authorizer, &team, "get pods a x"));
    assert!(!allowed(&authorizer, &team, "get pods b x"));
    assert!(!allowed(&authorizer, &team, "get nodes - n"), "a cluster's resource needs a cluster's binding");
    assert!(!allowed(&authorizer, &team, "get pods c x"), "the role is in another namespace");
    let attributes = Attributes { namespace: "c", ..Attributes::resource(&team, "get", "", "pods") };
    let decision = authorizer.authorize(&attributes);
    assert_eq!(decision.reason, "RBAC: role.rbac.authorization.k8s.io \"r\" not found");
    // A ServiceAccount without a namespace is one of the binding's.
    assert!(allowed(&authorizer, &user("system:serviceaccount:b:bot"), "get pods b x"));
    assert!(!allowed(&authorizer, &user("system:serviceaccount:a:bot"), "get pods b x"));
}

#[test]
fn paths_match_exactly_or_by_prefix_and_only_from_the_cluster() {
    let urls = json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/openapi/*"]}]);
    let subject = json!([{"kind": "User", "name": "jane"}]);
    let cluster = with(&[
        role("ClusterRole", "", "r", urls.clone()),
        binding("ClusterRoleBinding", "", ("ClusterRole", "r"), subject.clone()),
    ]);
    let jane = user("jane");
    let get = |authorizer: &Authorizer, path: &str| {
        authorizer.authorize(&Attributes::path(&jane, "get", path)).allowed
    };
    for (path, expected) in [
        ("/healthz", true),
        ("/healthz/etcd", false),
        ("/openapi/v2", true),
        ("/openapi", false),
        ("/metrics", false),
    ] {
        assert_eq!(get(&cluster, path), expected, "{path}");
    }
    assert!(!cluster.authorize(&Attributes::path(&jane, "post", "/healthz")).allowed);
    let namespaced = with(&[
        role("ClusterRole", "", "r", urls),
        binding("RoleBinding", "a", ("ClusterRole", "r"), subject),
    ]);
    assert!(!get(&namespaced, "/healthz"));
}

#[test]
fn masters_may_everything_and_strangers_nothing() {
    let authorizer = Authorizer::new();
    let admin = Identity::authenticated("admin", &["system:masters"]);
    assert!(allowed(&authorizer, &admin, "delete nodes - n"));
    assert!(!allowed(&authorizer, &user("jane"), "get pods a x"));
    assert!(!allowed(&authorizer, &Identity::anonymous(), "get pods a x"));
}

#[test]
fn changes_and_removals_take_effect() {
    let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    let bind = |name: &str| {
        binding("ClusterRoleBinding", "", ("ClusterRole", "r"), json!([{"kind": "User", "name": name}]))
    };
    let authorizer = with(&[role("ClusterRole", "", "r", rules.clone()), bind("jane")]);
    authorizer.apply("ClusterRoleBinding", &bind("joe"));
    assert!(!allowed(&authorizer, &user("jane"), "get pods a x"), "replaced in the binding");
    assert!(allowed(&authorizer, &user("joe"), "get pods a x"));
    authorizer.remove("ClusterRole", "", "r");
    assert!(!allowed(&authorizer, &user("joe"), "get pods a x"));
    authorizer.apply("ClusterRole", &role("ClusterRole", "", "r", rules));
    authorizer.remove("ClusterRoleBinding", "", "bind-r");
    assert!(!allowed(&authorizer, &user("joe"), "get pods a x"));
}

#[test]
fn aggregation_follows_labels_through_other_aggregates_and_around_circles() {
    let labelled = |name: &str, label: &str, resource: &str| {
        let mut role = role(
            "ClusterRole",
            "",
            name,
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]),
        );
        role["metadata"]["labels"] = json!({label: "true"});
        role
    };
    let aggregate = |name: &str, label: &str, into: &str| {
        json!({
            "kind": "ClusterRole", "metadata": {"name": name, "labels": {into: "true"}},
            "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]},
        })
    };
    let authorizer = with(&[
        // Each is part of the other.
        aggregate("admin", "to-admin", "to-edit"),
        aggregate("edit", "to-edit", "to-admin"),
        labelled("one", "to-edit", "pods"),
        binding(
            "ClusterRoleBinding",
            "",
            ("ClusterRole", "admin"),
            json!([{"kind": "User", "name": "jane"}]),
        ),
    ]);
    let jane = user("jane");
    assert!(allowed(&authorizer, &jane, "get pods a x"));
    assert!(!allowed(&authorizer, &jane, "get secrets a x"), "rules written into an aggregate do not count");
    authorizer.apply("ClusterRole", &labelled("two", "to-admin", "secrets"));
    assert!(allowed(&authorizer, &jane, "get secrets a x"));
    authorizer.remove("ClusterRole", "", "two");
    assert!(!allowed(&authorizer, &jane, "get secrets a x"));
}

#[test]
fn the_group_of_nodes_gains_nothing_through_roles() {
    let authorizer = Authorizer::with_modes(&[Mode::Rbac]);
    for object in crate::defaults::objects() {
        authorizer.apply(object["kind"].as_str().unwrap(), &object);
    }
    let node = Identity::authenticated("system:node:a", &["system:nodes"]);
    for request in ["get secrets ns s", "list pods - -", "get nodes - a", "list services - -"] {
        assert!(!allowed(&authorizer, &node, request), "{request}");
    }
}

#[test]
fn the_modes_are_asked_in_order_and_one_is_enough() {
    let jane = user("jane");
    let node = Identity::authenticated("system:node:a", &["system:nodes"]);
    let table: [(&[Mode], &Identity, bool, &str); 6] = [
        (&[], &jane, false, ""),
        (&[Mode::AlwaysDeny], &jane, false, "Everything is forbidden."),
        (&[Mode::AlwaysDeny, Mode::AlwaysAllow], &jane, true, ""),
        (&Mode::DEFAULT, &jane, false, ""),
        (&[Mode::Node, Mode::AlwaysDeny], &node, false, "No Object name found\nEverything is forbidden."),
        (&[Mode::Node, Mode::AlwaysAllow], &node, true, ""),
    ];
    for (modes, identity, expected, reason) in table {
        let authorizer = Authorizer::with_modes(modes);
        let list = Attributes { namespace: "ns", ..Attributes::resource(identity, "list", "", "secrets") };
        let decision = authorizer.authorize(&list);
        assert_eq!((decision.allowed, decision.reason.as_str()), (expected, reason), "{modes:?}");
        assert_eq!(authorizer.allows(&list), expected, "{modes:?}");
    }
    assert_eq!("RBAC".parse(), Ok(Mode::Rbac));
    assert!("rbac".parse::<Mode>().unwrap_err().contains("AlwaysAllow, AlwaysDeny, Node, RBAC"));
}

#[test]
fn a_refusal_reads_as_in_kubernetes() {
    let jane = user("jane");
    let no = Decision::default();
    let list = Attributes { namespace: "shop", ..Attributes::resource(&jane, "list", "apps", "deployments") };
    assert_eq!(
        forbidden(&list, &no).message,
        "deployments.apps is forbidden: User \"jane\" cannot list resource \"deployments\" in API group \"apps\" \
         in the namespace \"shop\""
    );
    let log = Attributes { name: "p", subresource: "log", ..Attributes::resource(&jane, "get", "", "pods") };
    assert_eq!(
        forbidden(&log, &no).message,
        "pods \"p\" is forbidden: User \"jane\" cannot get resource \"pods/log\" in API group \"\" at the cluster scope"
    );
    let path = forbidden(&Attributes::path(&jane, "get", "/metrics"), &no);
    assert_eq!(
        (path.code, path.message.as_str()),
        (403, "forbidden: User \"jane\" cannot get path \"/metrics\"")
    );
}
