//! Limits and intervals of the controllers.

use std::time::Duration;

/// Default number of workers per controller: writes that wait at the same time share one commit.
pub const WORKERS: usize = 16;
/// Interval after which every object is reconciled again, regardless of events.
pub const RESYNC: Duration = Duration::from_secs(600);

/// Maximum number of pods that one reconciliation of a workload creates or deletes.
pub const POD_BURST: usize = 500;
/// Time after which an expectation that the cache has not fulfilled is dropped.
pub const EXPECTATION_TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum number of pods that one reconciliation of a DaemonSet creates, and of those that it deletes.
pub const DAEMON_BURST: usize = 250;
/// Least and greatest time between deletions of failed pods of a DaemonSet on one node.
pub const FAILED_POD_BACKOFF: Duration = Duration::from_secs(1);
pub const FAILED_POD_BACKOFF_MAX: Duration = Duration::from_secs(15 * 60);

/// Maximum number of pods that one reconciliation of a Job creates or deletes.
pub const JOB_POD_BURST: usize = 500;
/// Number of uids in `status.uncountedTerminatedPods` of a Job from which no further ones are added: about 20 KB.
pub const JOB_UNCOUNTED: usize = 500;
/// Delay before a failed pod of a Job is replaced; it doubles with each failure, up to the maximum.
pub const JOB_BACKOFF_MIN: Duration = Duration::from_secs(10);
/// Maximum delay before a failed pod of a Job is replaced.
pub const JOB_BACKOFF_MAX: Duration = Duration::from_secs(600);
/// Time for which changes of the pods of a Job are batched into one write of its status.
pub const JOB_BATCH: Duration = Duration::from_millis(100);

/// Number of missed starts of a CronJob above which it is warned of.
pub const CRON_MISSED: i64 = 100;
/// Delay after the time of a schedule, because clocks differ.
pub const CRON_DELAY: Duration = Duration::from_millis(100);

/// Delay before a workload is reconciled again if a cache does not show yet what was written for it.
pub const STALE: Duration = Duration::from_millis(20);

/// Maximum number of names that are tried for a new ControllerRevision.
pub const REVISION_NAMES: usize = 16;

/// Time within which a node answers that it has removed the directory of a volume.
pub const LOCAL_PATH_REMOVAL: Duration = Duration::from_secs(60);
/// Number of directories that are removed at the same time: a node that does not answer holds one of them.
pub const LOCAL_PATH_REMOVALS: usize = 8;

/// Maximum number of endpoints in one EndpointSlice.
pub const ENDPOINTS_PER_SLICE: usize = 100;
/// Maximum number of addresses in one Endpoints object; if there are more, it is marked as truncated.
pub const ENDPOINTS_ADDRESSES: usize = 1000;
/// Time for which changes of pods are batched into one write of an Endpoints object, which is always written
/// as a whole. EndpointSlices, which carry the traffic, are written immediately.
pub const ENDPOINTS_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of addresses of one subset of an Endpoints object that are mirrored to an EndpointSlice.
pub const MIRRORED_ADDRESSES: usize = 1000;
/// Maximum number of pairs of an address and a port in an Endpoints object that is mirrored.
pub const MIRRORED_PAIRS: usize = 100_000;
/// Maximum number of EndpointSlices that mirror an Endpoints object, each with its labels and annotations.
pub const MIRRORED_SLICES: usize = 100;

/// Time without a heartbeat after which a node becomes `Unknown`.
pub const NODE_GRACE: Duration = Duration::from_secs(40);
/// Time without a heartbeat after which a node that never sent one becomes `Unknown`.
pub const NODE_STARTUP_GRACE: Duration = Duration::from_secs(60);

/// Number of finished pods kept in the cluster.
pub const TERMINATED_PODS: usize = 12_500;
/// Interval of the pod garbage collection.
pub const POD_GC_PERIOD: Duration = Duration::from_secs(20);
/// Time for which a node must be missing before its pods are deleted.
pub const NODE_QUARANTINE: Duration = Duration::from_secs(40);

/// Interval at which the garbage collector discovers kinds.
pub const DISCOVERY_PERIOD: Duration = Duration::from_secs(30);
/// Time for which an owner may be unknown to the collector's graph before the server is queried.
pub const UNKNOWN_OWNER_DELAY: Duration = Duration::from_millis(500);
/// Interval between attempts to empty a namespace.
pub const NAMESPACE_PERIOD: Duration = Duration::from_secs(1);
/// Page size of lists that a controller requests from the server rather than from its cache.
pub const LIST_PAGE: u32 = 500;

/// Number of workers that approve certificate requests, and of those that sign them.
pub const CERTIFICATE_WORKERS: usize = 2;
/// Least and greatest time until an open certificate request is looked at again.
pub const CERTIFICATE_RETRY_MIN: Duration = Duration::from_secs(5);
pub const CERTIFICATE_RETRY_MAX: Duration = Duration::from_secs(10 * 60);
/// Time that each certificate request adds to the pause between looks at one of them: 20 looks a second in total.
pub const CERTIFICATE_LOOK: Duration = Duration::from_millis(50);
/// Number of open certificate requests of a node that are looked at again when its addresses change.
pub const CERTIFICATE_REQUESTS_OF_NODE: usize = 8;
/// Interval at which old certificate requests are looked for.
pub const CERTIFICATE_CLEAN_PERIOD: Duration = Duration::from_secs(60 * 60);
/// Life of the certificates that are signed, unless configured or asked for otherwise.
pub const CERTIFICATE_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Time for which a podCIDR that became free is given to no other node. Nodes that can reach the API server
/// remove their routes to it within a second; a node that cannot hears of both changes together later.
pub const NETWORK_REST: Duration = Duration::from_secs(60);
