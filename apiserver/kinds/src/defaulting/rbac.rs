//! RoleBinding and ClusterRoleBinding.

use serde_json::Value;

use super::{each, fill, is, object};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Defaults of a binding of either scope.
pub fn binding(value: &mut Value) {
    let Value::Object(map) = value else { return };
    if let Some(role) = object(map, "roleRef") {
        fill(role, "apiGroup", GROUP);
    }
    each(map, "subjects", |subject| {
        if is(subject, "kind", "User") || is(subject, "kind", "Group") {
            fill(subject, "apiGroup", GROUP);
        }
    });
}
