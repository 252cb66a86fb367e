//! NamespaceLifecycle: nothing new in a namespace that is missing or going.

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{AdmissionRequest, Operation, Phase, Plugin};

/// Namespaces that the cluster cannot do without.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Refuses what is new in a namespace that is missing or going, and to delete the namespaces of the system.
pub struct NamespaceLifecycle;

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        match phase {
            Phase::Admit => request.operation == Operation::Create && request.resource.namespaced,
            Phase::Validate => request.operation == Operation::Delete && request.resource.is("", "Namespace"),
        }
    }

    async fn admit(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        exists(request, object).await
    }

    async fn validate(&self, _: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        protects(object)
    }
}

/// Refuses to create objects where they cannot live.
async fn exists(request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
    let name = request.namespace(object);
    let Some(namespaces) = request.cluster.kind("", "v1", "namespaces") else { return Ok(()) };
    let cache = request.cluster.cache(namespaces)?;
    let phase = cache.fields.index("status.phase");
    let terminating = match cache.get(name) {
        Some(entry) => phase.is_some_and(|i| entry.field(i) == "Terminating"),
        // The namespace may be newer than the cache.
        None => match request.cluster.stored(namespaces, "", name).await? {
            Some(namespace) => meta::deletion_timestamp(&namespace).is_some(),
            None => return Err(ApiError::not_found("", "namespaces", name)),
        },
    };
    if terminating {
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        let mut error = request.forbidden(object, &why);
        if let Some(details) = &mut error.details {
            details["causes"] = json!([{
                "reason": "NamespaceTerminating", "message": format!("namespace {name} is being terminated"),
                "field": "metadata.namespace",
            }]);
        }
        return Err(error);
    }
    Ok(())
}

/// Refuses to delete the namespaces of the system.
fn protects(object: &Value) -> Result<(), ApiError> {
    if IMMORTAL.contains(&meta::name(object)) {
        return Err(ApiError::forbidden(
            "",
            "namespaces",
            meta::name(object),
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}
