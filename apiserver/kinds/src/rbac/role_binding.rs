//! RoleBindings and ClusterRoleBindings.

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, items, names, same, text};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::rbac::role::{self, GROUP};
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{each_object, fill, has_text, object};

pub(crate) static CLUSTER_ROLE_BINDING: Kind = Kind {
    group: "rbac.authorization.k8s.io",
    plural: "clusterrolebindings",
    create_on_update: true,
    default,
    validate: validate_cluster_role_binding,
    validate_update,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

pub(crate) static ROLE_BINDING: Kind = Kind {
    group: "rbac.authorization.k8s.io",
    plural: "rolebindings",
    create_on_update: true,
    default,
    validate: validate_role_binding,
    validate_update,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a binding of either scope.
pub(crate) fn default(value: &mut Value) {
    let Value::Object(map) = value else { return };
    if let Some(role) = object(map, "roleRef") {
        fill(role, "apiGroup", GROUP);
    }
    each_object(map, "subjects", |subject| {
        if has_text(subject, "kind", "User") || has_text(subject, "kind", "Group") {
            fill(subject, "apiGroup", GROUP);
        }
    });
}

/// Errors of a RoleBinding.
fn validate_role_binding(object: &Value) -> Vec<FieldError> {
    validate_binding(object, &["Role", "ClusterRole"], true)
}

/// Errors of a ClusterRoleBinding.
fn validate_cluster_role_binding(object: &Value) -> Vec<FieldError> {
    validate_binding(object, &["ClusterRole"], false)
}

fn validate_binding(object: &Value, kinds: &[&str], namespaced: bool) -> Vec<FieldError> {
    let mut errors = role::with_metadata(object);
    let role = &object["roleRef"];
    let group = text(role, "apiGroup");
    if group != GROUP {
        errors.not_supported("roleRef.apiGroup", &json!(group), &[GROUP]);
    }
    let kind = text(role, "kind");
    if !kinds.contains(&kind) {
        errors.not_supported("roleRef.kind", &json!(kind), kinds);
    }
    let name = text(role, "name");
    if name.is_empty() {
        errors.required("roleRef.name", "");
    } else {
        errors.faults("roleRef.name", name, names::path_segment(name));
    }
    for (index, subject) in items(object, "subjects").iter().enumerate() {
        let path = format!("subjects[{index}]");
        let name = text(subject, "name");
        if name.is_empty() {
            errors.required(format!("{path}.name"), "");
        }
        let group = text(subject, "apiGroup");
        match text(subject, "kind") {
            "ServiceAccount" => {
                if !name.is_empty() {
                    errors.faults(&format!("{path}.name"), name, names::dns_subdomain(name));
                }
                if !group.is_empty() {
                    errors.extend([FieldError::not_supported(
                        format!("{path}.apiGroup"),
                        &json!(group),
                        &[""],
                    )]);
                }
                // A role binding's own namespace is meant where none is given.
                if !namespaced && text(subject, "namespace").is_empty() {
                    errors.required(format!("{path}.namespace"), "");
                }
            }
            "User" | "Group" => {
                if group != GROUP {
                    errors.extend([FieldError::not_supported(
                        format!("{path}.apiGroup"),
                        &json!(group),
                        &[GROUP],
                    )]);
                }
            }
            other => {
                let kinds = ["ServiceAccount", "User", "Group"];
                errors.not_supported(format!("{path}.kind"), &json!(other), &kinds);
            }
        }
    }
    errors.list()
}

/// The role that a binding grants stays. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if !same(new.get("roleRef"), old.get("roleRef")) {
        errors.invalid("roleRef", &new["roleRef"], "cannot change roleRef");
    }
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Role", "string", 0, "What is granted"),
        AGE,
        ("Users", "string", 1, "Users to whom it is granted"),
        ("Groups", "string", 1, "Groups to which it is granted"),
        ("ServiceAccounts", "string", 1, "Service accounts to which it is granted"),
    ],
    cells: |object, now| {
        let role = &object["roleRef"];
        vec![
            cells::name(object),
            json!(format!("{}/{}", meta::text(role, "/kind"), meta::text(role, "/name"))),
            cells::age(object, now),
            subjects(object, "User"),
            subjects(object, "Group"),
            subjects(object, "ServiceAccount"),
        ]
    },
};

fn subjects(object: &Value, kind: &str) -> Value {
    let list = meta::list(object, "/subjects").iter().filter(|s| s["kind"] == kind).map(|subject| {
        let name = meta::text(subject, "/name");
        if kind == "ServiceAccount" {
            format!("{}/{name}", meta::text(subject, "/namespace"))
        } else {
            name.to_owned()
        }
    });
    json!(list.collect::<Vec<_>>().join(", "))
}
