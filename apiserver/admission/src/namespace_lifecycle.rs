//! NamespaceLifecycle: nothing new in a namespace that is missing or going.

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{Operation, Phase, Plugin, Write};

/// Namespaces that the cluster cannot do without.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Refuses what is new in a namespace that is missing or going, and to delete the namespaces of the system.
pub struct NamespaceLifecycle;

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, write: &Write<'_>, phase: Phase) -> bool {
        match phase {
            Phase::Admit => write.operation == Operation::Create && write.resource.namespaced,
            Phase::Validate => write.operation == Operation::Delete && write.resource.is("", "Namespace"),
        }
    }

    async fn admit(&self, write: &Write<'_>, object: &mut Value) -> Result<(), ApiError> {
        exists(write, object).await
    }

    async fn validate(&self, _: &Write<'_>, object: &Value) -> Result<(), ApiError> {
        protects(object)
    }
}

/// Refuses to create objects where they cannot live.
async fn exists(write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
    let name = write.namespace(object);
    let Some(namespaces) = write.cluster.kind("", "v1", "namespaces") else { return Ok(()) };
    let cache = write.cluster.cache(namespaces)?;
    let phase = cache.fields.index("status.phase");
    let terminating = match cache.get(name) {
        Some(entry) => phase.is_some_and(|i| entry.field(i) == "Terminating"),
        // The namespace may be newer than the cache.
        None => match write.cluster.stored(namespaces, "", name).await? {
            Some(namespace) => meta::deletion_timestamp(&namespace).is_some(),
            None => return Err(ApiError::not_found("", "namespaces", name)),
        },
    };
    if terminating {
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        let mut error = write.forbidden(object, &why);
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
