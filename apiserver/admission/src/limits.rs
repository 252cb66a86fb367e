//! Bounds of admission.

use std::time::Duration;

/// A new pod waits this long for its namespace's ServiceAccount `default`, which a controller makes.
pub const DEFAULT_ACCOUNT_WAIT: Duration = Duration::from_millis(1_800);
