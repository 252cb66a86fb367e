//! Paths within a volume or a host.

use apiserver_schema::validation::Errors;
use serde_json::json;

pub(crate) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

/// Refuses a path that leads out of a directory.
pub(crate) fn no_backsteps(value: &str, path: &str, errors: &mut Errors) {
    if has_backsteps(value) {
        errors.invalid(path, &json!(value), "must not contain '..'");
    }
}

/// A path below a directory.
pub(crate) fn relative(value: &str, path: &str, errors: &mut Errors) {
    if value.starts_with('/') {
        errors.invalid(path, &json!(value), "must be a relative path");
    }
    no_backsteps(value, path, errors);
}

/// A path below a directory whose name is not reserved for the kubelet.
pub(crate) fn local(value: &str, path: &str, errors: &mut Errors) {
    relative(value, path, errors);
    if value.starts_with("..") && !value.starts_with("../") {
        errors.invalid(path, &json!(value), "must not start with '..'");
    }
}

/// [`local`], and it must be there.
pub(crate) fn required_local(value: &str, path: &str, errors: &mut Errors) {
    if value.is_empty() {
        errors.required(path, "");
    }
    local(value, path, errors);
}
