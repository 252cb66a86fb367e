//! Limits and intervals of the controllers.

use std::time::Duration;

use jiff::SignedDuration;

/// Default number of workers per controller: writes that wait at the same time share one commit.
pub const WORKERS: usize = 16;
/// Number of combinations of labels of one metric; further ones are not counted.
pub const SERIES: usize = 1024;
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

/// Pause before the Lease of a silent node is asked for again, after an error.
pub const HEARTBEAT_RETRY: Duration = Duration::from_secs(5);

/// Time for which a volume that no pod uses waits until an unhealthy node says that it is not in use; then it is
/// detached anyway, which may lose what that node has not written.
pub const UNMOUNT_WAIT: Duration = Duration::from_secs(6 * 60);
/// Time after which pods are told that an external attacher has not attached their volume.
pub const ATTACH_WAIT: Duration = Duration::from_secs(2 * 60);
/// Least and greatest time until a volume that cannot be attached or detached is looked at again.
pub const ATTACH_RETRY_MIN: Duration = Duration::from_millis(500);
pub const ATTACH_RETRY_MAX: Duration = Duration::from_secs(122);
/// Attempts to write the status of a node, which others write as well.
pub const NODE_STATUS_ATTEMPTS: usize = 5;

/// Time within which a node answers that it has removed the directory of a volume.
pub const LOCAL_PATH_REMOVAL: Duration = Duration::from_secs(60);
/// Maximum length in bytes of what a node says about a directory that it has not removed; the rest is not read.
pub const LOCAL_PATH_ANSWER: usize = 4096;
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

/// Number of nodes per second that are tainted for eviction in a healthy zone.
pub const EVICTION_RATE: f64 = 0.1;
/// Number of nodes per second that are tainted for eviction in an unhealthy zone, if it is large.
pub const EVICTION_RATE_UNHEALTHY: f64 = 0.01;
/// Number of nodes up to which a zone is small.
pub const LARGE_ZONE: usize = 50;
/// Fraction of nodes that are not ready from which a zone is unhealthy, and the least number of them.
pub const UNHEALTHY_ZONE: f64 = 0.55;
pub const UNHEALTHY_ZONE_NODES: usize = 3;

/// Number of finished pods kept in the cluster.
pub const TERMINATED_PODS: usize = 12_500;
/// Interval of the pod garbage collection.
pub const POD_GC_PERIOD: Duration = Duration::from_secs(20);
/// Time for which a node must be missing before its pods are deleted.
pub const NODE_QUARANTINE: Duration = Duration::from_secs(40);

/// Interval at which the garbage collector discovers kinds, and at which kinds are looked for that are off by default.
pub const DISCOVERY_PERIOD: Duration = Duration::from_secs(30);
/// Time between a failed request for the kinds of an API version and the next one.
pub const DISCOVERY_RETRY: Duration = Duration::from_secs(1);
/// Time for which an owner may be unknown to the collector's graph before the server is queried.
pub const UNKNOWN_OWNER_DELAY: Duration = Duration::from_millis(500);
/// Interval between the first attempts to empty a namespace.
pub const NAMESPACE_PERIOD: Duration = Duration::from_secs(1);
/// Longest such interval: it doubles while what is left waits for finalizers. Pods that end are an attempt by themselves.
pub const NAMESPACE_PERIOD_MAX: Duration = Duration::from_secs(8);
/// Longest pause after failed attempts to empty a namespace, as in Kubernetes.
pub const NAMESPACE_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Page size of lists that a controller requests from the server rather than from its cache.
pub const LIST_PAGE: u32 = 500;

/// Time without a use after which a generated token of a ServiceAccount is marked, and then deleted.
pub const LEGACY_TOKEN_PERIOD: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Interval at which such tokens are looked for.
pub const LEGACY_TOKEN_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

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

/// Number of budgets that are evaluated at the same time.
pub const DISRUPTION_WORKERS: usize = 2;
/// Time within which a pod must be seen as being deleted after the API server has allowed its eviction; then it counts
/// as healthy again. The clocks of API servers and controllers must agree better than this.
pub const DISRUPTION_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which an eviction is remembered although the cache does not show the pod, from when it should have been
/// deleted on.
pub const DISRUPTION_UNSEEN: Duration = Duration::from_secs(60 * 60);
/// Time after which the condition `DisruptionTarget` of a pod that nobody has deleted becomes `False`.
pub const DISRUPTION_TARGET_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which the resources of an API version are remembered.
pub const SCALES_REMEMBERED: Duration = Duration::from_secs(30);

/// Interval at which quotas are calculated again from all objects that they count.
pub const QUOTA_RESYNC: Duration = Duration::from_secs(300);
/// Time after which an amount that was charged to a quota, and of which no object has appeared, is written off. It is
/// longer than a request of an API server lives (60 s), with what its store takes after that.
pub const QUOTA_WRITE_OFF: Duration = Duration::from_secs(120);
/// Maximum difference between the clock of an API server, which sets the time at which an object was created, and ours.
pub const QUOTA_CLOCK_SKEW: Duration = Duration::from_secs(30);
/// Time for which the watch of quotas may be behind those of the objects that they count.
pub const QUOTA_LAG: Duration = Duration::from_secs(2);
/// Number of versions of a quota that are remembered while its status is written.
pub const QUOTA_EVENTS: usize = 1024;
/// Number of workers for quotas whose status is unknown, and of those for all others.
pub const QUOTA_WORKERS: usize = 5;

/// Interval at which each HorizontalPodAutoscaler is judged.
pub const HPA_PERIOD: Duration = Duration::from_secs(15);
/// Number of HorizontalPodAutoscalers that are judged at the same time.
pub const HPA_WORKERS: usize = 16;
/// Time for the answers to all metrics of one HorizontalPodAutoscaler, so that a server of metrics that hangs holds up
/// others no longer than that.
pub const HPA_MEASURING: Duration = Duration::from_secs(10);
/// Attempts to write a scale that others write as well, and the pause between them.
pub const HPA_SCALE_ATTEMPTS: usize = 5;
pub const HPA_SCALE_PAUSE: Duration = Duration::from_millis(10);
/// Interval at which a warning about a HorizontalPodAutoscaler that has not changed is repeated.
pub const HPA_WARNING_PERIOD: SignedDuration = SignedDuration::from_secs(300);
/// Number of warnings about a HorizontalPodAutoscaler that are recorded in that time.
pub const HPA_WARNINGS: usize = 32;
/// Time for which recommendations of more replicas count, unless `spec.behavior` says otherwise.
pub const HPA_DOWNSCALE_WINDOW: SignedDuration = SignedDuration::from_secs(300);
/// Time after the start of a pod for which samples of its CPU count only while it is ready.
pub const HPA_CPU_INITIALIZATION: SignedDuration = SignedDuration::from_secs(300);
/// Time after the start of a pod in which becoming unready means that it has never been ready.
pub const HPA_READINESS_DELAY: SignedDuration = SignedDuration::from_secs(30);
/// Deviation of a metric from its target that causes no change of the number of replicas.
pub const HPA_TOLERANCE: f64 = 0.1;
/// Time for which changes of the number of replicas are remembered: the longest period of a policy.
pub const HPA_MEMORY: SignedDuration = SignedDuration::from_secs(1800);
/// Number of recommendations, and of changes, that are remembered of a HorizontalPodAutoscaler: one a period, for the
/// longest window, which is an hour. What 5,000 of them remember takes at most 60 MB.
pub const HPA_HISTORY: usize = 256;

/// Number of pods that are remembered as gone, so that the server is not asked about each of their claims.
pub const GONE_PODS: usize = 500;

/// Shortest time between two writes of the condition of a DeviceTaintRule.
pub const RULE_STATUS_PERIOD: Duration = Duration::from_secs(10);

/// Time for which an answer to a ResourcePoolStatusRequest waits for slices that a driver has not published yet. Times
/// of creation are in whole seconds.
pub const POOL_COMPLETION: SignedDuration = SignedDuration::from_secs(2);
/// Time after which an answered ResourcePoolStatusRequest is deleted, and one that nobody has answered.
pub const POOL_REQUEST_ANSWERED: SignedDuration = SignedDuration::from_secs(60 * 60);
pub const POOL_REQUEST_PENDING: SignedDuration = SignedDuration::from_secs(24 * 60 * 60);
/// Number of pools in an answer, unless the request says otherwise.
pub const POOL_REQUEST_POOLS: i32 = 100;
/// Maximum length of the error about a pool, in bytes.
pub const POOL_ERROR: usize = 256;

/// Number of ValidatingAdmissionPolicies whose expressions are checked at the same time.
pub const POLICY_WORKERS: usize = 5;
/// Number of kinds of one rule of a policy that its expressions are checked against, as in Kubernetes.
pub const KINDS_OF_RULE: usize = 10;
/// Number of kinds of a policy from which no further rules count.
pub const KINDS_OF_POLICY: usize = 100;
/// Maximum length of the warnings about a policy, in bytes; further ones are left out. An object has 1.5 MB at most.
pub const WARNINGS_BYTES: usize = 256 * 1024;
/// Maximum size of an OpenAPI document that is read. That of the core group has some 2 MB.
pub const OPENAPI_BYTES: usize = 16 * 1024 * 1024;
/// Time for which an OpenAPI document, or the resources of a version, are waited for: another server may have to answer.
pub const OPENAPI_WAIT: Duration = Duration::from_secs(30);
/// Number of kinds that are remembered, a Deployment with some 600 kB.
pub const KINDS_REMEMBERED: usize = 16;
/// Interval at which those are forgotten that were not used since the last time.
pub const KINDS_SWEEP: Duration = Duration::from_secs(60);
