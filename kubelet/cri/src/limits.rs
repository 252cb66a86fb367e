//! Bounds of the calls of a container runtime. The API has no deadlines of its own: without these, a runtime that hangs
//! would hold a pod worker for ever.

use std::time::Duration;

/// Bytes of an answer, as in containerd.
pub const ANSWER: usize = 16 << 20;
/// Time for calls that read, or change no more than a few files.
pub const SHORT_CALL: Duration = Duration::from_secs(10);
/// Time for calls that start, stop or remove, besides the grace period of a container: they wait for disks and for the
/// processes of the container.
pub const LONG_CALL: Duration = Duration::from_secs(120);
/// Time for a command in a container that has no time limit of its own.
pub const EXEC: Duration = Duration::from_secs(30 * 60);
/// Time for the pull of one image, which may have many GiB and come from far.
pub const PULL: Duration = Duration::from_secs(30 * 60);
/// Pause before a lost subscription to events is renewed, so that a runtime that restarts is not asked all the time.
pub const RESUBSCRIBE: Duration = Duration::from_secs(1);
