use serde_json::json;

use crate::rbac::role_binding;
use crate::testing::{apply_defaults, errors, row, update_errors, with};

#[test]
fn bindings_get_the_group_of_their_role_and_subjects() {
    let binding = apply_defaults(
        role_binding::default,
        json!({
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]}),
    );
    assert_eq!(binding["roleRef"]["apiGroup"], "rbac.authorization.k8s.io");
    assert_eq!(binding["subjects"][0]["apiGroup"], "rbac.authorization.k8s.io");
    assert!(binding["subjects"][1].get("apiGroup").is_none());
}

#[test]
fn roles_and_bindings_with_wrong_fields_are_refused() {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let role = json!({"metadata": {"name": "system:x"}, "rules": [
        {"verbs": [], "apiGroups": [""], "resources": ["pods"]}, {"verbs": ["get"]}, {"verbs": ["get"], "nonResourceURLs": ["/x"]}]});
    assert_eq!(
        errors(GROUP, "roles", &role),
        [
            "rules[0].verbs: Required value: verbs must contain at least one value",
            "rules[1].apiGroups: Required value: resource rules must supply at least one api group",
            "rules[1].resources: Required value: resource rules must supply at least one resource",
            "rules[2].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
        ]
    );
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "s"}, {"kind": "Robot", "name": "x"}]});
    assert_eq!(
        errors(GROUP, "clusterrolebindings", &binding),
        [
            "subjects[0].namespace: Required value",
            "subjects[1].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
        ]
    );
    let other = with(binding.clone(), "/roleRef/name", json!("other"));
    let found = update_errors(GROUP, "clusterrolebindings", &other, &binding);
    assert!(found.len() == 1 && found[0].ends_with("cannot change roleRef"), "{found:?}");
}

#[test]
fn rows_of_bindings_show_role_and_subjects() {
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "view"}, "subjects": [
        {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]});
    assert_eq!(
        row("rbac.authorization.k8s.io", "rolebindings", &binding),
        "b | ClusterRole/view | <unknown> | u |  | n/s"
    );
}

#[test]
fn rows_of_roles_show_their_creation() {
    let role = json!({"metadata": {"name": "r", "creationTimestamp": "2024-01-01T00:59:00Z"}});
    assert_eq!(row("rbac.authorization.k8s.io", "roles", &role), "r | 2024-01-01T00:59:00Z");
}
