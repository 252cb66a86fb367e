//! The options of a write in its query: `dryRun`, `fieldManager`, `fieldValidation`, `force`.

use apiserver_apply::check_manager_name;
use apiserver_schema::error::{ApiError, FieldError};
use serde_json::json;

use crate::context::Context;

/// Checks `fieldManager`; `options` is `CreateOptions`, `UpdateOptions` or `PatchOptions`. Errors
/// are 422.
pub fn check_options(context: &Context, options: &str) -> Result<(), ApiError> {
    let manager = context.query.get("fieldManager");
    let mut errors = unsupported_options(context);
    errors.extend(manager.into_iter().flat_map(|name| check_manager_name("fieldManager", name)));
    refuse(options, errors)
}

/// `dryRun` and `fieldValidation` have few values.
fn unsupported_options(context: &Context) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let dry: Vec<&str> = context.query.all("dryRun").collect();
    if dry.iter().any(|value| *value != "All") {
        errors.push(FieldError::not_supported("dryRun", &json!(dry), &["All"]));
    }
    if let Some(value) = context.query.get("fieldValidation")
        && !matches!(value, "Ignore" | "Strict" | "Warn")
    {
        errors.push(FieldError::not_supported(
            "fieldValidation",
            &json!(value),
            &["", "Ignore", "Strict", "Warn"],
        ));
    }
    errors
}

/// Checks the options of a patch; `apply` is true for a server-side apply.
pub fn check_patch_options(context: &Context, apply: bool) -> Result<(), ApiError> {
    let manager = context.query.get("fieldManager");
    let mut errors = unsupported_options(context);
    if apply && manager.is_none() {
        errors.push(FieldError::required("fieldManager", "is required for apply patch"));
    }
    if !apply && context.query.get("force").is_some() {
        errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
    }
    errors.extend(manager.into_iter().flat_map(|name| check_manager_name("fieldManager", name)));
    refuse("PatchOptions", errors)
}

fn refuse(options: &str, errors: Vec<FieldError>) -> Result<(), ApiError> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", options, "", &errors)) }
}
