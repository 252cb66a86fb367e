//! Limits on the connections, the memory and the places in flight that clients may take of the server.

pub mod accounts;
pub mod budget;
pub mod connection_admission;
pub mod connections;
pub mod delivery;
pub mod frame_limit;
pub mod intake;
pub mod lanes;

use apiserver_schema::error::ApiError;

use crate::storage;

/// 429 with a time to come back.
pub fn too_many_requests() -> ApiError {
    let error = ApiError::new(429, "TooManyRequests", "Too many requests, please try again later.");
    storage::retry_after(error, 1)
}
