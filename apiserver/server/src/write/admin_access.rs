//! Admin access to devices. Only claims in namespaces with a label may ask for it, or be given it.

use apiserver_registry::{Resource, Written};
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use serde_json::Value;

use super::Part;
use crate::context::Context;

/// The label of a namespace whose claims may have admin access.
const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Returns the error of a claim, or a template of claims, that wants admin access in a namespace without the
/// label. `old` is the object before, if there was one.
pub async fn refused(
    context: &Context,
    resource: &Resource,
    part: Part,
    new: &Value,
    old: Option<&Value>,
) -> Result<Option<FieldError>, ApiError> {
    let server = &context.server;
    let written = if part == Part::Status { Written::Status } else { Written::Main };
    let path = resource.behaviour.admin_access.and_then(|wanted| wanted(new, old, written));
    let Some(path) = path else { return Ok(None) };
    let Some(namespaces) = server.objects().registry().lookup("", "v1", "namespaces") else {
        return Ok(None);
    };
    let namespace = server.objects().referred(namespaces, "", meta::namespace(new)).await?;
    let allowed = namespace.is_some_and(|namespace| namespace["metadata"]["labels"][LABEL] == "true");
    let detail =
        format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    Ok((!allowed).then(|| FieldError::forbidden(path, &detail)))
}
