//! Bounds of what is read from protobuf.

/// Maximum nesting of messages. A schema of a CustomResourceDefinition takes one level for each of its own.
pub const MESSAGE_DEPTH: usize = 100;
/// Maximum number of values that one body may become. Two bytes can make one; a value of JSON takes about a
/// hundred.
pub const MESSAGE_VALUES: usize = 300_000;
/// Maximum nesting of groups; no message of Kubernetes has any.
pub(crate) const GROUP_DEPTH: usize = 16;
