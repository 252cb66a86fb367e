//! Bounds of what is computed and reported about one object.

/// Most warnings that are sent with one answer; further ones are not searched.
pub const WARNINGS: usize = 32;
/// Most files of one volume that are compared with each other.
pub(crate) const OVERLAP_FILES: usize = 256;
/// Most changed fields that a message names.
pub(crate) const CHANGED_FIELDS: usize = 8;
/// Longest path of a changed field in a message, bytes; a longer one is cut.
pub(crate) const CHANGED_PATH_BYTES: usize = 256;
