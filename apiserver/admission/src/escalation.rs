//! Prevention of privilege escalation: nobody grants rights that they do not hold.

use apiserver_schema::error::ApiError;
use async_trait::async_trait;
use serde_json::Value;

use apiserver_auth::escalation;

use crate::{Operation, Phase, Plugin, Write};

/// Refuses roles and bindings that grant more than their author holds. In Kubernetes this is a part of the storage
/// of these kinds, which comes after admission too.
pub struct RoleEscalation;

#[async_trait]
impl Plugin for RoleEscalation {
    fn name(&self) -> &'static str {
        "RoleEscalation"
    }

    fn handles(&self, write: &Write<'_>, phase: Phase) -> bool {
        phase == Phase::Validate
            && write.operation != Operation::Delete
            && write.subresource.is_empty()
            && write.resource.group == "rbac.authorization.k8s.io"
    }

    async fn validate(&self, write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
        validate(write, object)
    }
}

/// Judges writes of roles and bindings.
fn validate(write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
    let (authorizer, identity) = (write.cluster.authorizer(), write.identity);
    match write.resource.kind.as_str() {
        kind @ ("Role" | "ClusterRole") => {
            escalation::check_role(authorizer, identity, kind, object, write.old)
        }
        kind @ ("RoleBinding" | "ClusterRoleBinding") => {
            escalation::check_binding(authorizer, identity, kind, object, write.old)
        }
        _ => Ok(()),
    }
}
