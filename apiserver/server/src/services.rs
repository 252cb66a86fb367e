//! Addresses and node ports of Services, in step with the store.

use apiserver_api::error::ApiError;
use apiserver_api::meta;
use apiserver_api::registry::Resource;
use serde_json::Value;

use crate::allocate::Reservation;
use crate::context::Context;
use crate::storage::Outcome;

/// Whether the kind has addresses.
pub fn is_service(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.kind == "Service"
}

/// Fills in a Service; `None` for other kinds. Errors are 422.
pub fn reserve(
    context: &Context,
    resource: &Resource,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<Option<Reservation>, ApiError> {
    if !is_service(resource) {
        return Ok(None);
    }
    let allocator = context.server.allocator()?;
    let reserved = match old {
        None => allocator.allocate_create(object),
        Some(old) => allocator.allocate_update(object, old),
    };
    reserved.map(Some).map_err(|errors| ApiError::invalid("", "Service", meta::name(object), &errors))
}

/// Keeps or gives back what was reserved, as the write ended.
pub fn settle(reservation: Option<Reservation>, outcome: &Result<Outcome, ApiError>) {
    match outcome {
        Ok(Outcome::Conflict(_)) => drop(reservation),
        // After an error of the store nobody knows whether the write happened; an address that is
        // kept for nothing is better than one that is given out twice.
        Ok(Outcome::Done(_)) | Err(_) => {
            if let Some(reservation) = reservation {
                reservation.commit();
            }
        }
    }
}
