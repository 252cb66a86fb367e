//! Stages `mutate` and `admit`: the two phases of the admission plugins, which Kubernetes calls `admit` and `validate`.

use apiserver_admission::{Charges, Operation};
use apiserver_schema::error::ApiError;
use serde_json::Value;

use super::{Part, Write};
use crate::objects::Outcome;
use crate::{admission, errors};

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

/// Returns `true` if the object may have to be charged to quotas.
pub(super) fn is_limited(write: &Write<'_>, object: &Value) -> Result<bool, ApiError> {
    Ok(write.part != Part::Admitted && apiserver_admission::is_limited(&described(write), object)?)
}

/// Charges the object to the quotas of its namespace.
pub(super) async fn charge(write: &Write<'_>, object: &Value) -> Result<Charges, ApiError> {
    let dry_run = write.context.dry_run()?;
    Box::pin(apiserver_admission::charge(&described(write), object, dry_run)).await
}

/// Gives back what was charged for an object that was not stored. If it may have been stored, the charges stay: the
/// controller of quotas finds out.
pub(super) async fn settle(write: &Write<'_>, charges: Charges, outcome: &Result<Outcome, ApiError>) {
    let stored = match outcome {
        Ok(Outcome::Done(_)) => true,
        Ok(Outcome::Unchanged(_) | Outcome::Conflict(_)) => false,
        Err(error) => !errors::is_refusal(error),
    };
    if !stored && !charges.is_empty() {
        Box::pin(apiserver_admission::refund(write.context, charges)).await;
    }
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
