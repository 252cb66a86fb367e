//! The default objects, and bringing old ones up to date.

use std::collections::BTreeSet;

use apiserver_meta::identity::Identity;

use super::*;
use crate::attributes::Attributes;
use crate::authorizer::Authorizer;

fn find(kind: &str, name: &str) -> Value {
    objects().into_iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name).unwrap()
}

fn authorizer() -> Authorizer {
    let authorizer = Authorizer::new();
    for object in objects() {
        authorizer.apply(object["kind"].as_str().unwrap(), &object);
    }
    authorizer
}

#[test]
fn each_object_is_there_once_and_complete() {
    let mut seen = BTreeSet::new();
    for object in objects() {
        let metadata = &object["metadata"];
        let key =
            (object["kind"].to_string(), metadata["namespace"].to_string(), metadata["name"].to_string());
        assert!(seen.insert(key.clone()), "{key:?} twice");
        for rule in object["rules"].as_array().into_iter().flatten() {
            assert!(!rule["verbs"].as_array().unwrap().is_empty(), "{key:?}: {rule}");
            let what = if rule.get("nonResourceURLs").is_some() { "nonResourceURLs" } else { "resources" };
            assert!(!rule[what].as_array().unwrap().is_empty(), "{key:?}: {rule}");
        }
        if object["kind"].as_str().unwrap().ends_with("Binding") {
            let unbound = object["metadata"]["name"] == "system:node";
            assert_eq!(object["subjects"].as_array().unwrap().is_empty(), unbound, "{key:?}");
            let kind = object["roleRef"]["kind"].as_str().unwrap();
            find(kind, object["roleRef"]["name"].as_str().unwrap());
        }
    }
}

/// User, group, verb, API group, resource, subresource, and whether that is allowed.
type Case = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, bool);

const CASES: &[Case] = &[
    ("system:kube-scheduler", "", "create", "", "pods", "binding", true),
    ("system:kube-scheduler", "", "update", "", "nodes", "", false),
    ("system:kube-scheduler", "", "update", "resource.k8s.io", "resourceclaims", "", true),
    ("system:kube-scheduler", "", "patch", "resource.k8s.io", "resourceclaims", "status", true),
    ("system:kube-scheduler", "", "update", "resource.k8s.io", "resourceclaims", "binding", true),
    ("system:kube-scheduler", "", "create", "resource.k8s.io", "resourceclaims", "", true),
    ("system:kube-scheduler", "", "delete", "resource.k8s.io", "resourceclaims", "", true),
    ("system:kube-scheduler", "", "update", "", "pods", "finalizers", true),
    ("system:kube-scheduler", "", "update", "resource.k8s.io", "resourceslices", "", false),
    ("system:kube-scheduler", "", "update", "resource.k8s.io", "deviceclasses", "", false),
    ("system:kube-controller-manager", "", "create", "", "pods", "", true),
    ("system:kube-controller-manager", "", "update", "apps", "deployments", "status", true),
    ("system:kube-controller-manager", "", "delete", "discovery.k8s.io", "endpointslices", "", true),
    ("system:kube-controller-manager", "", "create", "rbac.authorization.k8s.io", "clusterroles", "", false),
    ("system:kube-controller-manager", "", "patch", "rbac.authorization.k8s.io", "clusterroles", "", true),
    ("system:kube-controller-manager", "", "update", "", "secrets", "", true),
    ("system:kube-controller-manager", "", "update", "", "serviceaccounts", "", true),
    ("system:kube-controller-manager", "", "create", "", "persistentvolumeclaims", "", true),
    ("system:kube-controller-manager", "", "patch", "", "nodes", "", true),
    ("system:kube-controller-manager", "", "patch", "", "persistentvolumeclaims", "", true),
    ("system:kube-controller-manager", "", "patch", "", "persistentvolumes", "", true),
    ("system:kube-controller-manager", "", "patch", "", "services", "", true),
    ("system:kube-controller-manager", "", "patch", "", "services", "status", true),
    ("system:kube-controller-manager", "", "patch", "storage.k8s.io", "volumeattributesclasses", "", true),
    ("system:kube-proxy", "", "watch", "discovery.k8s.io", "endpointslices", "", true),
    ("system:kube-proxy", "", "get", "", "secrets", "", false),
    ("system:kube-dns", "", "watch", "", "services", "", true),
    ("system:kube-dns", "", "watch", "", "nodes", "", true),
    // Slices are written in kube-system alone.
    ("system:kube-dns", "", "update", "discovery.k8s.io", "endpointslices", "", false),
    ("system:kube-dns", "", "get", "", "secrets", "", false),
    ("system:serviceaccount:kube-system:replicaset-controller", "", "create", "", "pods", "", true),
    (
        "system:serviceaccount:kube-system:replicaset-controller",
        "",
        "create",
        "apps",
        "deployments",
        "",
        false,
    ),
    (
        "system:serviceaccount:kube-system:resource-claim-controller",
        "",
        "create",
        "resource.k8s.io",
        "resourceclaims",
        "",
        true,
    ),
    (
        "system:serviceaccount:kube-system:resource-claim-controller",
        "",
        "patch",
        "resource.k8s.io",
        "resourceclaims",
        "status",
        true,
    ),
    ("system:serviceaccount:kube-system:resource-claim-controller", "", "patch", "", "pods", "status", true),
    ("system:serviceaccount:kube-system:resource-claim-controller", "", "delete", "", "pods", "", false),
    (
        "system:serviceaccount:kube-system:device-taint-eviction-controller",
        "",
        "delete",
        "",
        "pods",
        "",
        true,
    ),
    (
        "system:serviceaccount:kube-system:device-taint-eviction-controller",
        "",
        "patch",
        "resource.k8s.io",
        "devicetaintrules",
        "status",
        true,
    ),
    (
        "system:serviceaccount:kube-system:device-taint-eviction-controller",
        "",
        "patch",
        "resource.k8s.io",
        "resourceclaims",
        "status",
        false,
    ),
    (
        "system:serviceaccount:kube-system:resourcepoolstatusrequest-controller",
        "",
        "patch",
        "resource.k8s.io",
        "resourcepoolstatusrequests",
        "status",
        true,
    ),
    (
        "system:serviceaccount:kube-system:resourcepoolstatusrequest-controller",
        "",
        "delete",
        "resource.k8s.io",
        "resourceclaims",
        "",
        false,
    ),
    (
        "system:serviceaccount:kube-system:validatingadmissionpolicy-status-controller",
        "",
        "patch",
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        "status",
        true,
    ),
    (
        "system:serviceaccount:kube-system:validatingadmissionpolicy-status-controller",
        "",
        "patch",
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        "",
        false,
    ),
    ("system:node:a", "system:nodes", "list", "", "services", "", true),
    ("system:node:a", "system:nodes", "create", "", "serviceaccounts", "token", false),
    ("jane", "", "create", "authorization.k8s.io", "selfsubjectaccessreviews", "", true),
    ("jane", "", "list", "", "pods", "", false),
];

#[test]
fn the_users_of_the_components_may_what_they_need() {
    let authorizer = authorizer();
    for (user, group, verb, api_group, resource, subresource, expected) in CASES.iter().copied() {
        let groups: &[&str] = if group.is_empty() { &[] } else { &[group] };
        let identity = Identity::authenticated(user, groups);
        let attributes = Attributes {
            subresource,
            namespace: "ns",
            ..Attributes::resource(&identity, verb, api_group, resource)
        };
        let decision = authorizer.authorize(&attributes);
        assert_eq!(decision.allowed, expected, "{user} {verb} {resource}/{subresource}");
    }
    let anonymous = Identity::anonymous();
    for (path, expected) in [("/livez", true), ("/version", true), ("/apis", false), ("/metrics", false)] {
        let decision = authorizer.authorize(&Attributes::path(&anonymous, "get", path));
        assert_eq!(decision.allowed, expected, "{path}");
    }
}

#[test]
fn the_autoscaler_may_scale_anything_and_write_nothing_else() {
    let authorizer = authorizer();
    let identity =
        Identity::authenticated("system:serviceaccount:kube-system:horizontal-pod-autoscaler", &[]);
    for (verb, group, resource, subresource, expected) in [
        ("patch", "autoscaling", "horizontalpodautoscalers", "status", true),
        ("patch", "autoscaling", "horizontalpodautoscalers", "", false),
        ("update", "example.com", "shops", "scale", true),
        ("update", "example.com", "shops", "", false),
        ("list", "metrics.k8s.io", "pods", "", true),
        ("list", "external.metrics.k8s.io", "queue", "", true),
        ("get", "custom.metrics.k8s.io", "pods", "qps", true),
        ("list", "", "secrets", "", false),
    ] {
        let attributes = Attributes {
            subresource,
            namespace: "ns",
            ..Attributes::resource(&identity, verb, group, resource)
        };
        let decision = authorizer.authorize(&attributes);
        assert_eq!(decision.allowed, expected, "{verb} {resource}/{subresource}");
    }
}

#[test]
fn the_aggregates_hold_the_rules_that_the_authorizer_finds() {
    let authorizer = authorizer();
    for name in ["admin", "edit", "view"] {
        let stored: BTreeSet<_> = crate::rbac::Rule::list(&find("ClusterRole", name)).into_iter().collect();
        let in_effect = authorizer.role_rules("", &json!({"kind": "ClusterRole", "name": name})).unwrap();
        assert_eq!(stored, in_effect.into_iter().collect(), "{name}");
        assert!(!stored.is_empty());
    }
    let verbs = |name: &str| find("ClusterRole", name)["rules"].to_string();
    assert!(!verbs("view").contains("secrets"));
    assert!(verbs("edit").contains("secrets") && !verbs("edit").contains("rolebindings"));
    assert!(verbs("admin").contains("rolebindings"));
}

#[test]
fn reconciling_adds_and_never_takes_away() {
    let wanted = find("ClusterRole", "system:kube-dns");
    assert_eq!(reconcile(None, &wanted), DefaultWrite::Create(wanted.clone()));
    assert_eq!(reconcile(Some(&wanted), &wanted), DefaultWrite::Nothing);

    let mut older = wanted.clone();
    older["metadata"]["resourceVersion"] = json!("7");
    older["metadata"]["labels"] = json!({"mine": "1"});
    let own = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]});
    older["rules"] = json!([own]);
    let DefaultWrite::Update(updated) = reconcile(Some(&older), &wanted) else {
        panic!("it has to be updated")
    };
    assert_eq!(updated["metadata"]["resourceVersion"], "7");
    assert_eq!(
        updated["metadata"]["labels"],
        json!({"mine": "1", "kubernetes.io/bootstrapping": "rbac-defaults"})
    );
    let rules = updated["rules"].as_array().unwrap();
    assert_eq!(rules[0], own);
    assert_eq!(rules[1..], wanted["rules"].as_array().unwrap()[..]);
    assert_eq!(reconcile(Some(&updated), &wanted), DefaultWrite::Nothing, "once is enough");

    older["metadata"]["annotations"] = json!({AUTOUPDATE: "false"});
    assert_eq!(reconcile(Some(&older), &wanted), DefaultWrite::Nothing, "its owner has opted out");
}

/// An administrator may take a part out of `edit` by its label; the server and the controller would otherwise write the
/// rules in turn.
#[test]
fn rules_of_aggregating_roles_are_left_to_the_controller() {
    let wanted = find("ClusterRole", "edit");
    let mut fewer = wanted.clone();
    fewer["rules"] = json!([]);
    assert_eq!(reconcile(Some(&fewer), &wanted), DefaultWrite::Nothing);
    fewer.as_object_mut().unwrap().remove("aggregationRule");
    let DefaultWrite::Update(updated) = reconcile(Some(&fewer), &wanted) else {
        panic!("it has to aggregate again")
    };
    assert_eq!((&updated["aggregationRule"], &updated["rules"]), (&wanted["aggregationRule"], &json!([])));
}

#[test]
fn a_binding_gets_missing_subjects_and_is_made_anew_for_another_role() {
    let wanted = find("ClusterRoleBinding", "system:node-proxier");
    let mut existing = wanted.clone();
    existing["subjects"] = json!([{"kind": "User", "name": "jane"}]);
    let DefaultWrite::Update(updated) = reconcile(Some(&existing), &wanted) else {
        panic!("it has to be updated")
    };
    assert_eq!(updated["subjects"].as_array().unwrap().len(), 2);
    let accounts = find("ClusterRoleBinding", "system:controller:deployment-controller");
    let mut defaulted = accounts.clone();
    defaulted["subjects"][0]["apiGroup"] = json!("");
    assert_eq!(reconcile(Some(&defaulted), &accounts), DefaultWrite::Nothing);
    existing["roleRef"]["name"] = json!("cluster-admin");
    assert_eq!(reconcile(Some(&existing), &wanted), DefaultWrite::Recreate(wanted));
    let namespace = json!({"kind": "Namespace", "metadata": {"name": "default", "labels": {"a": "b"}}});
    let mut unlabelled = namespace.clone();
    unlabelled["metadata"]["labels"] = json!({});
    assert_eq!(reconcile(Some(&unlabelled), &namespace), DefaultWrite::Nothing);
}

#[test]
fn the_group_of_nodes_is_taken_out_of_the_binding_that_earlier_versions_made() {
    let wanted = find("ClusterRoleBinding", "system:node");
    let mut older = wanted.clone();
    let jane = json!({"apiGroup": RBAC, "kind": "User", "name": "jane"});
    older["subjects"] = json!([{"apiGroup": RBAC, "kind": "Group", "name": "system:nodes"}, jane]);
    let DefaultWrite::Update(updated) = reconcile(Some(&older), &wanted) else {
        panic!("it has to be updated")
    };
    assert_eq!(updated["subjects"], json!([jane]));
    let mut stored = wanted.clone();
    stored.as_object_mut().unwrap().remove("subjects");
    assert_eq!(reconcile(Some(&stored), &wanted), DefaultWrite::Nothing);
    let mut elsewhere = find("ClusterRoleBinding", "system:node-proxier");
    elsewhere["subjects"] = older["subjects"].clone();
    let DefaultWrite::Update(updated) =
        reconcile(Some(&elsewhere), &find("ClusterRoleBinding", "system:node-proxier"))
    else {
        panic!("it has to be updated")
    };
    assert_eq!(updated["subjects"].as_array().unwrap().len(), 3, "an administrator's own choice");
}

/// A writer of EndpointSlices could send a Service's traffic anywhere (CVE-2021-25740).
#[test]
fn editors_of_a_namespace_send_no_traffic_elsewhere() {
    let authorizer = authorizer();
    for role in ["admin", "edit"] {
        let reference = json!({"kind": "ClusterRole", "name": role});
        let rules = authorizer.role_rules("", &reference).unwrap();
        let writes = |rule: &crate::rbac::Rule| {
            rule.verbs.iter().any(|verb| !matches!(verb.as_str(), "get" | "list" | "watch"))
        };
        for rule in rules.iter().filter(|rule| writes(rule)) {
            for resource in &rule.resources {
                assert!(!resource.starts_with("endpoint") && resource != "*", "{role}: {rule:?}");
            }
        }
        assert!(rules.iter().any(writes), "{role} writes nothing at all");
    }
}
