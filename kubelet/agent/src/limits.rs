//! Every bound and period of this crate.

use std::time::Duration;

/// Between two lists of the runtime, where nothing hints at a change.
pub const RELIST: Duration = Duration::from_secs(1);
/// After a hint, so that many of them at once lead to one list.
pub const HINT_PAUSE: Duration = Duration::from_millis(5);
/// A pod whose work failed is tried again after this, where nothing else wakes it.
pub const RETRY: Duration = Duration::from_secs(2);
/// Longest pause between attempts of the same work.
pub const MAX_RETRY: Duration = Duration::from_secs(20);
/// First pause before a container that ended is started again.
pub const BACKOFF_MIN: Duration = Duration::from_secs(10);
/// Longest pause before a container that ended is started again.
pub const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Between two renewals of the node's Lease.
pub const LEASE_RENEWAL: Duration = Duration::from_secs(10);
/// How long the Lease holds, in seconds.
pub const LEASE_SECONDS: i32 = 40;
/// Between two looks at the node itself.
pub const NODE_CHECK: Duration = Duration::from_secs(10);
/// The node's status is written at least this often.
pub const NODE_REPORT: Duration = Duration::from_secs(300);
/// Between two searches for pods that nobody wants any more.
pub const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Between two attempts to start work at all, while the runtime or the apiserver is away.
pub const START_RETRY: Duration = Duration::from_millis(500);
/// First readiness probes are repeated this fast until one succeeds.
pub const FIRST_READINESS: Duration = Duration::from_millis(100);
/// The same for probes that run a command: each costs the runtime tens of milliseconds.
pub const FIRST_EXEC_READINESS: Duration = Duration::from_secs(1);
/// How long first readiness probes are repeated fast.
pub const FIRST_READINESS_WINDOW: Duration = Duration::from_secs(10);
/// A service account token is replaced when this part of its life has passed, in percent.
pub const TOKEN_REFRESH_PERCENT: u32 = 80;
/// Bytes of a termination message that are kept.
pub const TERMINATION_MESSAGE: usize = 4096;
/// Bytes of the termination messages of a pod together.
pub const TERMINATION_MESSAGES: usize = 12 << 10;
/// Bytes that the containers of a pod can write as termination messages, in memory.
pub const TERMINATION_BYTES: u64 = 256 << 10;
/// Files and directories of termination messages of a pod.
pub const TERMINATION_INODES: u64 = 4096;
/// Bytes that the containers of a pod can add to the files that the kubelet puts into `/etc`, in memory.
pub const ETC_BYTES: u64 = 64 << 10;
/// Names of a directory that are read at once while a tree is removed.
pub const REMOVAL_BATCH: usize = 1024;
/// Directories that are open at once while a tree is removed.
pub const REMOVAL_DEPTH: usize = 64;
/// Attempts to find a path beneath a directory while others rename, before it is walked step by step.
pub const RESOLVE_RETRIES: usize = 32;
/// Symbolic links on one path, as the kernel has it.
pub const SYMBOLIC_LINKS: usize = 40;
/// Bytes of a log that stand in for a termination message.
pub const TERMINATION_LOG: usize = 2048;
/// Lines of a log that stand in for a termination message.
pub const TERMINATION_LOG_LINES: usize = 80;
/// Bytes of a probe's answer that are kept for an event.
pub const PROBE_OUTPUT: usize = 1024;
/// Exec probes at once: each of them costs the runtime tens of milliseconds.
pub const EXEC_PROBES: usize = 4;
/// Bytes of one line in a container's log.
pub const LOG_LINE: usize = 64 * 1024;
/// A followed log is looked at this often.
pub const LOG_POLL: Duration = Duration::from_millis(100);
/// A reader keeps a log that was removed open for this long, and with it its bytes on the disk.
pub const LOG_HOLD: Duration = Duration::from_secs(1);
/// Bytes from the end of a log in which the last lines are looked for at once, in memory; where more are
/// wanted, the log is read from its beginning.
pub const LOG_TAIL_WINDOW: u64 = 512 << 10;
/// Bytes of the beginning of a line in a log that say whether it goes on in the next one.
pub const LOG_LINE_HEAD: usize = 128;
/// Shortest time that a preStop hook leaves for the container's own end.
pub const MIN_GRACE: Duration = Duration::from_secs(2);
/// Deadline of one request to the apiserver.
pub const API_DEADLINE: Duration = Duration::from_secs(30);
/// A client of the node's server has this long for its TLS handshake, and for the head of each request.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections of clients that have not proved to be the API server end after this.
pub const STRANGER: Duration = Duration::from_secs(20);
/// Connections to the node's server at once.
pub const CONNECTIONS: usize = 512;
/// Logs, exec, attach and port-forward at once: three quarters of the connections.
pub const STREAMS: usize = 384;
/// Of these, what is kept for pods of `kube-system`.
pub const SYSTEM_STREAMS: usize = 32;
/// Of these, those to pods of one namespace: a third, and more than there are pods on a node by default.
pub const NAMESPACE_STREAMS: usize = 128;
/// Of these, those to one pod.
pub const POD_STREAMS: usize = 32;
/// How long a client may take to close an exec, attach or port-forward that the runtime has ended.
pub const STREAM_LINGER: Duration = Duration::from_secs(10);
/// Logs that are not followed, beyond those, so that followed ones do not deny them.
pub const RESERVED_LOGS: usize = 32;
/// Bytes of a request line and headers that the node's server reads.
pub const HEADERS: usize = 64 * 1024;
/// Bytes of a WebSocket frame that the stream translation takes.
pub const FRAME: usize = 1 << 20;
/// How long the processes that are left in a pod's cgroup may take to end once they are killed.
pub const CGROUP_END: Duration = Duration::from_millis(500);
/// Between two attempts to remove the cgroup of a pod.
pub const CGROUP_PAUSE: Duration = Duration::from_millis(10);
/// Between two measurements of what a pod keeps on the disk.
pub const STORAGE_CHECK: Duration = Duration::from_secs(10);
/// How long the containers of an evicted pod may take to end, as in Kubernetes.
pub const EVICTION_GRACE: Duration = Duration::from_secs(1);
/// Pods that are measured at the same time.
pub const WALKS: usize = 2;
/// Names that a measurement looks at before it pauses.
pub const WALK_STEP: usize = 10_000;
/// Pause between two steps of a measurement, so that wide trees do not take a processor.
pub const WALK_PAUSE: Duration = Duration::from_millis(20);
/// Directories that are open at once while a tree is measured; a deeper tree counts as larger than any
/// limit.
pub const WALK_DEPTH: usize = 128;
/// Names of a tree that is measured; one of more names counts as larger than any limit.
pub const WALK_ENTRIES: u64 = 20_000_000;
/// Between two looks at the size of the logs.
pub const LOG_CHECK: Duration = Duration::from_secs(1);
/// Logs that are looked at, and rotated, at the same time.
pub const LOG_ROTATIONS: usize = 8;
/// How long the runtime may take to open a log anew.
pub const LOG_REOPEN: Duration = Duration::from_secs(5);
/// Bytes of container logs before they are moved away.
pub const LOG_ROTATE_BYTES: u64 = 10 << 20;
/// Log files of a container, the present one included.
pub const LOG_FILES: usize = 5;
/// Bytes that the kernel gives a process for its arguments and environment at most: three quarters of
/// 8 MiB, see execve(2). References to variables let them grow far beyond the pod's own size.
pub const ARGUMENTS: usize = 6 << 20;
/// Bytes that a string takes beside its own among arguments and environment: its end, and a pointer to it.
pub const ARGUMENT_OVERHEAD: usize = 9;
/// Bytes of a path, as the kernel has it.
pub const PATH: usize = 4096;
/// Bytes of the files that the kubelet writes into the volumes of a pod: each item may repeat an object of
/// 1 MiB.
pub const VOLUME_FILES: usize = 64 << 20;
