//! Bounds of admission.

use std::time::Duration;

/// A new pod waits this long for its namespace's ServiceAccount `default`, which a controller makes.
pub const DEFAULT_ACCOUNT_WAIT: Duration = Duration::from_millis(1_800);

/// Number of attempts to write a quota that others, such as its controller and other API servers, write at the same
/// time.
pub const QUOTA_ATTEMPTS: usize = 16;
