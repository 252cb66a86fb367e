//! Bounds of what objects record about their managers, and of what is reported about an object's shape.

/// Maximum number of managers of an object with the operation Update; the oldest become one a version.
pub const UPDATE_MANAGERS: usize = 10;
/// Maximum length of a manager's name in bytes.
pub const MANAGER_NAME: usize = 128;
/// Maximum length of a subresource's name in bytes.
pub(crate) const SUBRESOURCE_NAME: usize = 256;
/// Maximum length of all annotations of an object together in bytes.
pub(crate) const ANNOTATIONS: usize = 256 * 1024;
/// Maximum number of errors that are collected of one object.
pub(crate) const SHAPE_ERRORS: usize = 100;
