//! Bounds of the work of this crate. Those of the maps are in [`ebpf_common::limits`].

use std::time::Duration;

/// Maximum size of a datagram of the kernel's answer to a netlink request.
pub(crate) const ANSWER_BYTES: usize = 64 * 1024;
/// Maximum time to wait for an answer about sockets (sock_diag).
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of namespaces visited in one scan.
pub(crate) const NAMESPACES: usize = 16_384;
/// Delay between the call for a scan of sockets and the first one: close changes share a scan, and system
/// calls in progress have ended.
pub(crate) const SCAN_DELAY: Duration = Duration::from_millis(100);
/// Interval between scans without a call, for sockets that were missed.
pub(crate) const SCAN_PERIOD: Duration = Duration::from_secs(30);
/// Number of scans for sockets that should be destroyed and could not be found; the slots of some belong to
/// sockets that never got their connection.
pub(crate) const SCANS: u32 = 3;
/// Maximum number of scan durations that are stored until they are requested; later ones are dropped.
pub(crate) const SCAN_TIMES: usize = 1_024;
/// Maximum number of names of services and policies that a reader of events holds before all are dropped:
/// services come and go.
pub(crate) const EVENT_NAMES: usize = 4_096;
/// Number of reads of one slot of a flow table that may find it half written, before it is taken for empty.
pub(crate) const SLOT_READS: usize = 4;
/// Maximum number of attempts to lock a directory that is replaced meanwhile: the previous holder may have
/// removed it.
pub(crate) const LOCK_ATTEMPTS: usize = 8;
/// Maximum number of attempts to load a program that a signal interrupts.
pub(crate) const LOAD_ATTEMPTS: u32 = 5;
/// Maximum number of frontends written by one system call.
pub(crate) const FRONTENDS_AT_ONCE: usize = 4_096;
/// The part of the room for sockets without a slot that open ones may take after an upgrade: one in so many.
/// The kernel evicts before all is taken, beginning with entries that were never looked up.
pub(crate) const OPEN_SOCKETS_PART: usize = 3;
/// The part of that room for other sockets, one in so many, which may be in namespaces that are not visible.
pub(crate) const OTHER_SOCKETS_PART: usize = 8;
