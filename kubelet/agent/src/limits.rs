//! All limits, intervals and deadlines of this crate.

use std::time::Duration;

/// Interval between relists of the runtime when nothing hints at a change.
pub const RELIST: Duration = Duration::from_secs(1);
/// Delay between a hint and the relist, so that a burst of hints causes only one.
pub const HINT_PAUSE: Duration = Duration::from_millis(5);
/// Delay before failed work on a pod is retried, unless something else wakes the pod earlier.
pub const RETRY: Duration = Duration::from_secs(2);
/// Maximum delay between retries of the same work.
pub const MAX_RETRY: Duration = Duration::from_secs(20);
/// Initial back-off before a container that ended is restarted.
pub const BACKOFF_MIN: Duration = Duration::from_secs(10);
/// Maximum back-off before a container that ended is restarted.
pub const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Interval between renewals of the node's Lease.
pub const LEASE_RENEWAL: Duration = Duration::from_secs(10);
/// Deadline of a request that shows that the node is alive: a quarter of the Lease, as in Kubernetes.
pub const HEARTBEAT_DEADLINE: Duration = Duration::from_secs(10);
/// Duration of the node's Lease, in seconds.
pub const LEASE_SECONDS: i32 = 40;
/// Interval between updates of the node's own state.
pub const NODE_CHECK: Duration = Duration::from_secs(10);
/// Maximum interval between writes of the node's status.
pub const NODE_REPORT: Duration = Duration::from_secs(300);
/// Interval between searches for orphaned sandboxes, directories and cgroups.
pub const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Delay between attempts to start while the runtime or the API server is unavailable.
pub const START_RETRY: Duration = Duration::from_millis(500);
/// Period of readiness probes until the first success.
pub const FIRST_READINESS: Duration = Duration::from_millis(100);
/// Period of exec readiness probes until the first success. They cost the runtime tens of milliseconds each.
pub const FIRST_EXEC_READINESS: Duration = Duration::from_secs(1);
/// Time after a container's start during which its readiness probes run at the shorter period.
pub const FIRST_READINESS_WINDOW: Duration = Duration::from_secs(10);
/// Percentage of a service account token's lifetime after which it is replaced.
pub const TOKEN_REFRESH_PERCENT: u32 = 80;
/// Maximum size of a termination message, in bytes.
pub const TERMINATION_MESSAGE: usize = 4096;
/// Maximum total size of the termination messages of a pod, in bytes.
pub const TERMINATION_MESSAGES: usize = 12 << 10;
/// Size of the in-memory file system for a pod's termination messages, in bytes.
pub const TERMINATION_BYTES: u64 = 256 << 10;
/// Maximum number of files and directories in a pod's file system for termination messages.
pub const TERMINATION_INODES: u64 = 4096;
/// Bytes, in memory, that a pod's containers can add to the files in `/etc` that the kubelet provides.
pub const ETC_BYTES: u64 = 64 << 10;
/// Directory entries that are read at once while a tree is removed.
pub const REMOVAL_BATCH: usize = 1024;
/// Directories that are held open at once while a tree is removed.
pub const REMOVAL_DEPTH: usize = 64;
/// Attempts to resolve a path in the kernel while others rename parts of it; after that it is walked step by
/// step.
pub const RESOLVE_RETRIES: usize = 32;
/// Maximum number of symbolic links in one path, as in the kernel.
pub const SYMBOLIC_LINKS: usize = 40;
/// Bytes of a container's log that are used in place of a missing termination message.
pub const TERMINATION_LOG: usize = 2048;
/// Lines of a container's log that are used in place of a missing termination message.
pub const TERMINATION_LOG_LINES: usize = 80;
/// Bytes of a probe's output that are included in an event.
pub const PROBE_OUTPUT: usize = 1024;
/// Maximum number of concurrent exec probes. They cost the runtime tens of milliseconds each.
pub const EXEC_PROBES: usize = 4;
/// Maximum length of one line of a container's log, in bytes.
pub const LOG_LINE: usize = 64 * 1024;
/// Interval at which a followed log is polled.
pub const LOG_POLL: Duration = Duration::from_millis(100);
/// Time for which a reader keeps a removed log file open; its disk space is in use until then.
pub const LOG_HOLD: Duration = Duration::from_secs(1);
/// Bytes at the end of a log, held in memory, in which the last lines are searched. If they do not suffice,
/// the log is read from its beginning.
pub const LOG_TAIL_WINDOW: u64 = 512 << 10;
/// Bytes at the beginning of a log line that suffice to see whether it continues in the next one.
pub const LOG_LINE_HEAD: usize = 128;
/// Maximum number of logs of the node itself that are read at the same time.
pub const NODE_LOG_STREAMS: usize = 8;
/// Maximum number of entries in a list of the node's logs.
pub const NODE_LOG_NAMES: usize = 10_000;
/// Time after which a reader of a log of the node that takes nothing is left.
pub const NODE_LOG_STALL: Duration = Duration::from_secs(60);
/// Time after which a log of the node ends, so that slow readers do not keep the places for ever.
pub const NODE_LOG_TIME: Duration = Duration::from_secs(15 * 60);
/// Minimum time that remains for stopping a container after its preStop hook.
pub const MIN_GRACE: Duration = Duration::from_secs(2);
/// Deadline of a request to the API server.
pub const API_DEADLINE: Duration = Duration::from_secs(30);
/// Deadline for opening a tunnel to an API server.
pub const TUNNEL_OPEN: Duration = Duration::from_secs(10);
/// First pause before a tunnel that ended, or could not be opened, is opened again; it doubles up to the next value.
pub const TUNNEL_RETRY: Duration = Duration::from_millis(250);
/// Maximum pause before a tunnel is opened again.
pub const TUNNEL_RETRY_MAX: Duration = Duration::from_secs(5);
/// Maximum pause before a tunnel is opened again to an API server that refused it: one that is starting, or of another
/// make.
pub const TUNNEL_REFUSED: Duration = Duration::from_secs(60);
/// Age at which a tunnel is no failure when it ends.
pub const TUNNEL_STEADY: Duration = Duration::from_secs(10);
/// Bytes of a refusal that are read.
pub const TUNNEL_REFUSAL: usize = 16 * 1024;
/// Deadline for a client's TLS handshake with the node's server, and for the header of each request.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time after which connections of clients other than the API server are closed.
pub const UNAUTHORIZED_LIFETIME: Duration = Duration::from_secs(20);
/// Maximum number of concurrent connections to the node's server.
pub const CONNECTIONS: usize = 512;
/// Maximum number of concurrent log, exec, attach and port-forward streams: three quarters of the
/// connections.
pub const STREAMS: usize = 384;
/// Streams reserved for pods in `kube-system`.
pub const SYSTEM_STREAMS: usize = 32;
/// Maximum number of streams to the pods of one namespace: a third of all, and more than a node's default
/// number of pods.
pub const NAMESPACE_STREAMS: usize = 128;
/// Maximum number of streams to one pod.
pub const POD_STREAMS: usize = 32;
/// Time that a client has to close an exec, attach or port-forward stream after the runtime has ended it.
pub const STREAM_LINGER: Duration = Duration::from_secs(10);
/// Additional streams for logs that are not followed, so that followed logs cannot block them.
pub const RESERVED_LOGS: usize = 32;
/// Maximum size of a request line and headers that the node's server reads, in bytes.
pub const HEADERS: usize = 64 * 1024;
/// Maximum size of a WebSocket frame that the stream translation accepts, in bytes.
pub const FRAME: usize = 1 << 20;
/// Time that killed processes in a pod's cgroup have to end.
pub const CGROUP_END: Duration = Duration::from_millis(500);
/// Delay between attempts to remove the cgroup of a pod.
pub const CGROUP_PAUSE: Duration = Duration::from_millis(10);
/// Interval between measurements of a pod's disk usage.
pub const STORAGE_CHECK: Duration = Duration::from_secs(10);
/// Grace period of the containers of an evicted pod, as in Kubernetes.
pub const EVICTION_GRACE: Duration = Duration::from_secs(1);
/// Maximum number of pods measured at the same time.
pub const CONCURRENT_MEASUREMENTS: usize = 2;
/// Directory entries visited by a measurement before it pauses.
pub const WALK_STEP: usize = 10_000;
/// Pause between steps of a measurement, so that wide trees do not occupy a CPU.
pub const WALK_PAUSE: Duration = Duration::from_millis(20);
/// Directories that are held open at once while a tree is measured; a deeper tree counts as larger than any
/// limit.
pub const WALK_DEPTH: usize = 128;
/// Directory entries that a measurement visits; a tree with more counts as larger than any limit.
pub const WALK_ENTRIES: u64 = 20_000_000;
/// Interval between checks of the size of the logs.
pub const LOG_CHECK: Duration = Duration::from_secs(1);
/// Maximum number of logs that are checked and rotated at the same time.
pub const LOG_ROTATIONS: usize = 8;
/// Deadline for the runtime to reopen a log.
pub const LOG_REOPEN: Duration = Duration::from_secs(5);
/// Size at which a container's log is rotated, in bytes.
pub const LOG_ROTATE_BYTES: u64 = 10 << 20;
/// Maximum number of log files of a container, including the current one.
pub const LOG_FILES: usize = 5;
/// Bytes that the kernel gives a process for its arguments and environment: three quarters of 8 MiB, see
/// execve(2). References to variables can make them far larger than the pod object.
pub const ARGUMENTS: usize = 6 << 20;
/// Bytes that each argument or variable takes in addition to its text: a terminator and a pointer.
pub const ARGUMENT_OVERHEAD: usize = 9;
/// Maximum length of a path in the kernel, in bytes.
pub const PATH: usize = 4096;
/// Bytes of the files that the kubelet writes into the volumes of a pod: each item may repeat an object of 1
/// MiB.
pub const VOLUME_FILES: usize = 64 << 20;

/// Number of directories of volumes that are removed at the same time: others are asked for again.
pub const LOCAL_VOLUME_REMOVALS: usize = 2;

/// First pause between looks at a certificate request that is open.
pub const CERTIFICATE_POLL_MIN: Duration = Duration::from_millis(50);
/// Longest pause between looks at a certificate request that is open.
pub const CERTIFICATE_POLL_MAX: Duration = Duration::from_secs(2);
/// Time after which it is said that a certificate request waits for a person.
pub const CERTIFICATE_WARN_AFTER: Duration = Duration::from_secs(5);
/// Time after which a certificate request is given up, and another one made: longer than the day for which the
/// cluster keeps one that nobody has approved, so that an approval is never too late.
pub const CERTIFICATE_WAIT: Duration = Duration::from_secs(25 * 60 * 60);
/// Time for one request about a certificate, with its answer.
pub const CERTIFICATE_REQUEST: Duration = Duration::from_secs(10);
/// Longest time without a look at the clock before a certificate is replaced.
pub const CERTIFICATE_CHECK: Duration = Duration::from_secs(60);
/// Pause after the first failure to replace a certificate.
pub const CERTIFICATE_RETRY: Duration = Duration::from_secs(1);
/// Longest pause between attempts to replace a certificate.
pub const CERTIFICATE_RETRY_MAX: Duration = Duration::from_secs(128);
