//! Refusals that several layers share.

use apiserver_schema::error::ApiError;

/// 404 for a kind that is not served.
pub fn no_such_resource() -> ApiError {
    let mut error = ApiError::new(404, "NotFound", "the server could not find the requested resource");
    error.details = Some(serde_json::json!({}));
    error
}

/// 405.
pub fn not_allowed() -> ApiError {
    let mut error = ApiError::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    );
    error.details = Some(serde_json::json!({}));
    error
}
