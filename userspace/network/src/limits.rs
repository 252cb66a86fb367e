//! Every bound of this crate.

use std::time::Duration;

/// Maximum number of addresses tried in a range; no node has more pods.
pub const MAX_OFFSET: u32 = 65_534;
/// Seconds of cool-down after a pod is gone, before its address is used again: clients may still send to the
/// old pod.
pub const COOL_DOWN_SECONDS: i64 = 10;
/// Age in seconds at which a lease without a sandbox or an interface counts as leaked. A sandbox that is
/// being made has its lease before both.
pub const LEAK_AGE_SECONDS: i64 = 300;
/// Smallest MTU: IPv6 needs this much (RFC 8200, section 5), and less is of no use to IPv4 either.
pub const MIN_MTU: u32 = 1280;
/// Largest MTU of an interface.
pub const MAX_MTU: u32 = 65_535;
/// Maximum length of an interface's name in the kernel.
pub const INTERFACE_BYTES: usize = 15;
/// Maximum length of a pod's UID.
pub const UID_BYTES: usize = 64;
/// Time until a pod is given up whose network policies are not in force: the runtime tries again.
pub const POLICY_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between looks at a pod's interface while its policies are not in force.
pub const POLICY_PAUSE: Duration = Duration::from_millis(5);
/// Pause after a first failure; it doubles up to [`MAX_RETRY`].
pub const MIN_RETRY: Duration = Duration::from_millis(200);
/// Longest pause after failures.
pub const MAX_RETRY: Duration = Duration::from_secs(30);
/// Interval between searches for addresses of pods that vanished.
pub const SWEEP_PAUSE: Duration = Duration::from_secs(60);
/// Pause between looks while pods with addresses of an earlier podCIDR are left.
pub const FORMER_PAUSE: Duration = Duration::from_secs(2);
/// Interval between comparisons of the kernel's tables with the plan if nothing is heard of changes.
pub const RESYNC: Duration = Duration::from_secs(60);
/// Maximum length of the annotation with a Node's WireGuard key in bytes; one that a node writes has some 90.
pub const ANNOTATION_BYTES: usize = 256;
/// Number of bytes that are read of the file with the WireGuard key, which has 45.
pub const KEY_FILE_BYTES: u64 = 64;
/// Time that a Node has to publish its WireGuard key before it is reported.
pub const KEY_GRACE: Duration = Duration::from_secs(5);
/// Number of Nodes that change at once up to which each is planned for by itself; beyond it all are.
pub const NAMED_CHANGES: usize = 32;
