//! Every bound of this crate.

use std::time::Duration;

/// Addresses tried in a range; more pods fit on no node.
pub const MAX_OFFSET: u32 = 65_534;
/// Seconds that an address rests after its pod is gone: somebody may still send to the old pod.
pub const COOL_DOWN_SECONDS: i64 = 10;
/// Seconds after which a lease without a sandbox or an interface counts as leaked. A sandbox that
/// is being made has its lease before both.
pub const LEAK_AGE_SECONDS: i64 = 300;
/// IPv6 needs this much (RFC 8200, section 5); less is of no use to IPv4 either.
pub const MIN_MTU: u32 = 1280;
/// Largest MTU that an interface can be given.
pub const MAX_MTU: u32 = 65_535;
/// Longest name of an interface in the kernel.
pub const INTERFACE_BYTES: usize = 15;
/// Pause after a first failure; it doubles up to [`MAX_RETRY`].
pub const MIN_RETRY: Duration = Duration::from_millis(200);
/// Longest pause after failures.
pub const MAX_RETRY: Duration = Duration::from_secs(30);
/// Pause between looks for addresses of pods that vanished.
pub const SWEEP_PAUSE: Duration = Duration::from_secs(60);
