//! Bounds of what is decoded, checked and reported about one object.

/// Maximum number of causes of one answer: a request may have thousands of faults, and each shows its value.
pub(crate) const CAUSES: usize = 1000;
/// Maximum length of their text.
pub(crate) const CAUSES_TEXT: usize = 1024 * 1024;
/// Maximum number of unknown fields, and of fields of a wrong type, that are reported.
pub(crate) const PROBLEMS: usize = 100;
/// Maximum number of duplicate fields that are reported.
pub(crate) const DUPLICATES: usize = 100;
/// Maximum number of JSON objects with fields in one text. The smallest take eight bytes of it and 700 of
/// memory; the store has no room for an object with that many.
pub const OBJECTS: usize = 200_000;
/// Number of bytes of errors after which longer values are no longer shown: a list of many faults may be shown
/// with each of them.
pub(crate) const SAID: usize = 1024 * 1024;
/// Number of bytes of a message that are kept after [`SAID`].
pub(crate) const LONG: usize = 1024;
/// Number of bytes up to which a value is always shown.
pub(crate) const SHORT: usize = 256;
/// Maximum size of all annotations of an object, including keys.
pub(crate) const ANNOTATIONS_BYTES: usize = 256 * 1024;
/// Maximum number of surplus controllers that are reported: all owners are shown with each.
pub(crate) const CONTROLLERS: usize = 16;
