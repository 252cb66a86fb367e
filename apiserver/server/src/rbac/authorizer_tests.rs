//! Tables of who may do what.

use serde_json::json;

use super::*;
use crate::auth::tokens::{BoundKind, BoundObject};
use crate::rbac::forbidden;

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

/// One pod, `elsewhere`, on node b.
struct PodOnB;

impl BoundObjects for PodOnB {
    fn lookup(&self, kind: BoundKind, _: &str, name: &str) -> Option<BoundObject> {
        let found = kind == BoundKind::Pod && name == "elsewhere";
        found.then(|| BoundObject { node_name: "b".to_owned(), ..BoundObject::default() })
    }
}

#[test]
fn a_node_writes_its_own_objects_only() {
    let authorizer = Authorizer::new();
    for object in crate::bootstrap::objects() {
        authorizer.apply(object["kind"].as_str().unwrap(), &object);
    }
    let node = Identity::authenticated("system:node:a", &["system:nodes"]);
    let lease = |namespace: &str, name: &str| {
        let group = "coordination.k8s.io";
        let attributes =
            Attributes { namespace, name, ..Attributes::resource(&node, "update", group, "leases") };
        authorizer.authorize(&attributes).allowed
    };
    assert!(allowed(&authorizer, &node, "create nodes - -"));
    assert!(allowed(&authorizer, &node, "patch nodes/status - a"));
    assert!(!allowed(&authorizer, &node, "patch nodes/status - b"));
    assert!(allowed(&authorizer, &node, "list pods - -"));
    assert!(allowed(&authorizer, &node, "patch pods/status ns p"));
    assert!(!allowed(&authorizer, &node, "update secrets ns s"));
    assert!(lease("kube-node-lease", "a"));
    assert!(!lease("kube-node-lease", "b"));
    assert!(!lease("kube-system", "a"), "no leader's lease");
    assert!(allowed(&authorizer, &node, "patch pods/status ns elsewhere"), "nothing known about pods yet");
    authorizer.limit_nodes(Arc::new(PodOnB));
    assert!(!allowed(&authorizer, &node, "patch pods/status ns elsewhere"));
    assert!(!allowed(&authorizer, &node, "delete pods ns elsewhere"));
    assert!(allowed(&authorizer, &node, "get pods ns elsewhere"));
    assert!(allowed(&authorizer, &node, "patch pods/status ns gone"));
    let odd = Identity::authenticated("somebody", &["system:nodes"]);
    assert!(!allowed(&authorizer, &odd, "get pods ns p"), "in the group, but no node");
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
