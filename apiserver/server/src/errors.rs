//! Refusals that several layers share.

use std::fmt::Display;

use apiserver_cache::encoding;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_store::StoreError;
use serde_json::json;

/// 404 for a kind that is not served.
pub fn no_such_resource() -> ApiError {
    let mut error = ApiError::new(404, "NotFound", "the server could not find the requested resource");
    error.details = Some(json!({}));
    error
}

/// 405.
pub fn not_allowed() -> ApiError {
    let mut error = ApiError::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    );
    error.details = Some(json!({}));
    error
}

/// 429 with a time to come back.
pub fn too_many_requests() -> ApiError {
    let error = ApiError::new(429, "TooManyRequests", "Too many requests, please try again later.");
    retry_after(error, 1)
}

/// The words that etcd has for a store that is full, and Kubernetes passes on.
pub const FULL: &str = "etcdserver: mvcc: database space exceeded";

/// Returns the error in those words, with the remedy.
pub fn full(why: impl Display) -> ApiError {
    ApiError::new(500, "", format!("{FULL}: {why}"))
}

/// Returns the store's refusal as an answer. Nothing was acknowledged.
pub fn store_error(error: StoreError) -> ApiError {
    match &error {
        StoreError::Compacted { .. } => ApiError::expired(format!("The resourceVersion is too old: {error}")),
        StoreError::Future { .. } => too_large(&error.to_string()),
        StoreError::Unavailable { .. } => {
            retry_after(ApiError::new(503, "ServiceUnavailable", error.to_string()), 1)
        }
        StoreError::NoSpace { used, quota, .. } => full(format!(
            "{used} bytes are stored, and the quota (--quota-backend-bytes) is {quota}; delete objects to \
             make room"
        )),
        // Kubernetes passes on etcd's error in the same way.
        StoreError::Refused { why, .. } => ApiError::new(500, "", why.clone()),
        StoreError::TooLarge { .. } => encoding::value_too_large(),
        StoreError::Broken { .. } => ApiError::internal(error.to_string()),
    }
}

/// Returns `true` if the error proves that the write was not done. After other errors it may have been done.
pub fn is_refusal(error: &ApiError) -> bool {
    error.code < 500 || error.message.starts_with(FULL) || error.message == encoding::TOO_LARGE
}

/// 504: the revision asked for has not been reached.
pub fn too_large(what: &str) -> ApiError {
    let mut error = ApiError::new(504, "Timeout", format!("Timeout: Too large resource version: {what}"));
    error.details = Some(json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }));
    error
}

/// Says when to try again; the edge turns it into a header too.
pub fn retry_after(mut error: ApiError, seconds: u32) -> ApiError {
    let mut details = error.details.take().unwrap_or_else(|| json!({}));
    details["retryAfterSeconds"] = seconds.into();
    error.details = Some(details);
    error
}

/// The reason why a body is not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the client holds too much of the server's memory")]
    NoRoom,
    #[error("the request's body comes too slowly")]
    TooSlow,
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NoRoom => too_many_requests(),
            Refused::TooSlow => Self::new(408, "Timeout", refused.to_string()),
        }
    }
}

/// 404 for an object.
pub fn not_found(resource: &Resource, name: &str) -> ApiError {
    ApiError::not_found(&resource.group, &resource.plural, name)
}

/// Returns 409: the object was changed meanwhile.
pub fn modified(resource: &Resource, name: &str) -> ApiError {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    ApiError::conflict(&resource.group, &resource.plural, name, why)
}
