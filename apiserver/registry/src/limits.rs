//! Bounds of CustomResourceDefinitions.

/// Maximum number of selectable fields of a version.
pub(crate) const SELECTABLE_FIELDS: usize = 8;
/// Maximum number of columns of a version: each may show all of an object, in each row of a table.
pub(crate) const COLUMNS: usize = 128;
/// Maximum length of a JSON path in bytes.
pub(crate) const JSON_PATH_BYTES: usize = 1024;
