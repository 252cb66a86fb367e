//! Stages `mutate` and `admit`: the two phases of the admission plugins, which Kubernetes calls `admit` and `validate`.

use apiserver_admission::Operation;
use apiserver_schema::error::ApiError;
use serde_json::Value;

use super::{Part, Write};
use crate::admission;

/// Plugins that change the object, and those that must judge it before it is changed.
pub(super) async fn mutate(write: &Write<'_>, object: &mut Value) -> Result<(), ApiError> {
    if write.part == Part::Admitted {
        return Ok(());
    }
    apiserver_admission::admit(&described(write), object).await
}

/// Plugins that accept or refuse the object as it will be stored.
pub(super) async fn admit(write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
    if write.part == Part::Admitted {
        return Ok(());
    }
    apiserver_admission::validate(&described(write), object).await
}

fn described<'a>(write: &'a Write<'_>) -> apiserver_admission::AdmissionRequest<'a> {
    let (context, resource, old) = (write.context, write.resource, write.old());
    let (operation, subresource) = match (old, write.part, context.info.subresource.as_str()) {
        (None, ..) => (Operation::Create, ""),
        // The server writes statuses of its own without a request.
        (Some(_), Part::Status, "") => (Operation::Update, "status"),
        (Some(_), _, named) => (Operation::Update, named),
    };
    admission::described(context, resource, subresource, operation, old)
}
