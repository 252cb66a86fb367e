//! Bounds of custom objects, of their schemas, and of what is reported about them.

/// Memory that the defaults of one object may take: many times what the store takes of an object. Beyond it
/// fields stay absent, so that a small body that repeats an item cannot make the server copy a large default for
/// each.
pub(crate) const DEFAULTS_BYTES: usize = 32 << 20;
/// Number of bytes of choices after which no more are shown: there may be many, and many values that are none.
pub(crate) const CHOICES_BYTES: usize = 4 * 1024;
/// Maximum length of a regular expression.
pub(crate) const PATTERN_BYTES: usize = 32 * 1024;
/// Maximum memory of a compiled expression. `^[\p{L}]{1,253}$` takes about 2 MiB.
pub(crate) const PROGRAM_BYTES: usize = 8 * 1024 * 1024;
/// Maximum memory of all compiled expressions of a definition: 10 ms of work take about 1 MiB.
pub(crate) const DEFINITION_BYTES: usize = 4 * PROGRAM_BYTES;
/// Maximum memory of the states that are made while matching.
pub(crate) const STATES_BYTES: usize = 2 * 1024 * 1024;
/// Maximum nesting of groups in an expression.
pub(crate) const GROUP_NESTING: u32 = 250;
/// Largest repetition in an expression, as in Go.
pub(crate) const REPETITION: u32 = 1000;
/// Maximum number of unknown fields that are reported.
pub(crate) const UNKNOWN_FIELDS: usize = 100;
/// Maximum number of errors that are reported.
pub(crate) const ERRORS: usize = 256;
