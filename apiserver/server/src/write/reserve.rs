//! Stage `reserve`: addresses and node ports of Services. They are claimed before the object is validated, and
//! committed or given back when the write has ended.

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;

use super::{Part, Write};
use crate::addresses::Addresses;
use crate::allocate::{Refused, Reservation};
use crate::errors;
use crate::objects::Outcome;

/// Fills in a Service; `None` for other kinds, and for statuses. Errors are 422, 500 if nothing is free, and
/// those of the store.
pub(super) async fn reserve(write: &Write<'_>, object: &mut Value) -> Result<Option<Reservation>, ApiError> {
    if write.part == Part::Status || !write.resource.behaviour.allocates_addresses {
        return Ok(None);
    }
    let allocator = write.context.server.addresses().allocator()?;
    let dry_run = write.context.dry_run()?;
    let reserved = match write.old() {
        None => allocator.create(object, dry_run).await,
        Some(old) => allocator.update(object, old, dry_run).await,
    };
    reserved.map(Some).map_err(|refused| match refused {
        Refused::Fields(errors) => ApiError::invalid("", "Service", meta::name(object), &errors),
        Refused::Internal(why) => ApiError::internal(why),
        Refused::Store(error) => errors::store_error(error),
    })
}

/// Commits or releases a reservation, depending on how the write ended.
pub(super) async fn commit_or_release(reservation: Option<Reservation>, outcome: &Result<Outcome, ApiError>) {
    let Some(reservation) = reservation else { return };
    match outcome {
        Ok(Outcome::Done(_) | Outcome::Unchanged(_)) => reservation.commit().await,
        Ok(Outcome::Conflict(_)) => reservation.abandon().await,
        Err(error) if errors::is_refusal(error) => reservation.abandon().await,
        // An address that is kept for nothing is better than one that is given out twice.
        Err(_) => reservation.leave(),
    }
}

/// Gives back what a removed Service held; nothing for other kinds.
pub(super) async fn released(addresses: &Addresses, resource: &Resource, object: &Value) {
    if resource.behaviour.allocates_addresses
        && let Ok(allocator) = addresses.allocator()
    {
        allocator.release(object).await;
    }
}
