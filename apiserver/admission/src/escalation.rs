//! Prevention of privilege escalation: nobody grants rights that they do not hold.

use apiserver_schema::error::ApiError;
use async_trait::async_trait;
use serde_json::Value;

use apiserver_auth::escalation;

use crate::{AdmissionRequest, Operation, Phase, Plugin};

/// Refuses roles and bindings that grant more than their author holds. In Kubernetes this is a part of the storage
/// of these kinds, which comes after admission too.
pub struct RoleEscalation;

#[async_trait]
impl Plugin for RoleEscalation {
    fn name(&self) -> &'static str {
        "RoleEscalation"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Validate
            && request.operation != Operation::Delete
            && request.subresource.is_empty()
            && request.resource.group == "rbac.authorization.k8s.io"
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        validate(request, object)
    }
}

/// Judges writes of roles and bindings.
fn validate(request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
    let (authorizer, identity) = (request.cluster.authorizer(), request.identity);
    match request.resource.kind.as_str() {
        kind @ ("Role" | "ClusterRole") => {
            escalation::check_role(authorizer, identity, kind, object, request.old)
        }
        kind @ ("RoleBinding" | "ClusterRoleBinding") => {
            escalation::check_binding(authorizer, identity, kind, object, request.old)
        }
        _ => Ok(()),
    }
}
