//! Prevention of privilege escalation: nobody grants rights that they do not hold.

use apiserver_schema::error::ApiError;
use serde_json::Value;

use super::{Admission, Operation};
use apiserver_auth::escalation;

/// Judges writes of roles and bindings.
pub fn validate(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    let (context, resource) = (admission.context, admission.resource);
    let writes = admission.operation != Operation::Delete && admission.subresource.is_empty();
    if resource.group != "rbac.authorization.k8s.io" || !writes {
        return Ok(());
    }
    let (authorizer, identity) = (context.server.authorizer(), &context.identity);
    match resource.kind.as_str() {
        kind @ ("Role" | "ClusterRole") => {
            escalation::check_role(authorizer, identity, kind, object, admission.old)
        }
        kind @ ("RoleBinding" | "ClusterRoleBinding") => {
            escalation::check_binding(authorizer, identity, kind, object, admission.old)
        }
        _ => Ok(()),
    }
}
