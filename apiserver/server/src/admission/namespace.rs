//! NamespaceLifecycle: nothing new in a namespace that is missing or going.

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::{Value, json};

use super::{Admission, Operation};
use crate::storage;

/// Namespaces that the cluster cannot do without.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Refuses to create objects where they cannot live.
pub async fn exists(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    let (context, resource) = (admission.context, admission.resource);
    if admission.operation != Operation::Create || !resource.namespaced {
        return Ok(());
    }
    let name = admission.namespace(object);
    let Some(namespaces) = context.server.registry().lookup("", "v1", "namespaces") else { return Ok(()) };
    let cache = context.server.cache(namespaces)?;
    let phase = cache.fields.index("status.phase");
    let terminating = match cache.get(name) {
        Some(entry) => phase.is_some_and(|i| entry.field(i) == "Terminating"),
        // The namespace may be newer than the cache.
        None => match storage::fetch(&context.server, namespaces, "", name).await? {
            Some(stored) => meta::deletion_timestamp(&stored.object).is_some(),
            None => return Err(ApiError::not_found("", "namespaces", name)),
        },
    };
    if terminating {
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        let mut error = admission.forbidden(object, &why);
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
pub fn protects(admission: &Admission<'_>, object: &Value) -> Result<(), ApiError> {
    let namespace = admission.resource.group.is_empty() && admission.resource.kind == "Namespace";
    if namespace && admission.operation == Operation::Delete && IMMORTAL.contains(&meta::name(object)) {
        return Err(ApiError::forbidden(
            "",
            "namespaces",
            meta::name(object),
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}
