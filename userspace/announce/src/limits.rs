//! Limits and intervals.

use std::time::Duration;

/// Interval between pings to a node.
pub const PING: Duration = Duration::from_millis(250);
/// Silence after which a node counts as dead: three pings and half a pause. With the time for [`PROBES`] an address
/// is taken over 1.5 s after the death of its node at the latest.
pub const SILENCE: Duration = Duration::from_millis(900);
/// Nonces of a node that still count, so that answers may take this number of pings.
pub const NONCES: usize = 3;
/// Nodes among which one is chosen for an address, if there are more: each pings the others.
pub const CONTENDERS: usize = 16;

/// Probes before an address is taken.
pub const PROBES: u8 = 3;
/// Interval between probes, and from the last one to the announcement.
pub const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// Announcements when an address is taken; those after the first are for hosts that missed it.
pub const ANNOUNCEMENTS: u8 = 5;
/// Interval between these.
pub const ANNOUNCE_PAUSE: Duration = Duration::from_millis(500);
/// Least interval between announcements with which a node defends its address.
pub const DEFENCE_PAUSE: Duration = Duration::from_secs(1);
/// Time until an address for which somebody else answers is probed again.
pub const CONTEST_PAUSE: Duration = Duration::from_millis(400);
/// Answers of somebody else in a row after which they are reported.
pub const CONTESTS: u32 = 10;
/// Time for which a node goes on to answer for an address that another one is to take.
pub const YIELD: Duration = Duration::from_secs(2);
/// Longest time for which a node that is shut down waits for others to take its addresses.
pub const FAREWELL: Duration = Duration::from_millis(1_200);

/// Maximum number of addresses: each takes a socket, for its multicast group, on the IPv6 side.
pub const ADDRESSES: usize = 4_096;
/// Networks of a node that others learn of.
pub const NETWORKS: usize = 8;
/// Interval between attempts to open the sockets.
pub const OPEN_PAUSE: Duration = Duration::from_secs(5);
