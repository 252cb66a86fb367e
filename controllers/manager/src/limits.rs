//! Bounds and periods of the controllers.

use std::time::Duration;

/// Workers of a controller unless configured: writes that wait together share one commit.
pub const WORKERS: usize = 16;
/// Every object is looked at again after this time, whatever events arrived.
pub const RESYNC: Duration = Duration::from_secs(600);

/// Pods that one reconciliation of a ReplicaSet creates or deletes at most.
pub const POD_BURST: usize = 500;
/// An expectation that the cache has not fulfilled after this time is given up.
pub const EXPECTATION_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause before a Deployment is looked at again whose ReplicaSets the cache does not show yet.
pub const STALE: Duration = Duration::from_millis(20);

/// Endpoints in one EndpointSlice.
pub const ENDPOINTS_PER_SLICE: usize = 100;
/// Addresses in one Endpoints object; more are left out, and the object says so.
pub const ENDPOINTS_ADDRESSES: usize = 1000;
/// How long changes of pods are gathered for one write of an Endpoints object, which is written
/// whole. EndpointSlices, which carry the traffic, are written at once.
pub const ENDPOINTS_PAUSE: Duration = Duration::from_millis(100);
/// A slice of ours that the cache does not show after this time was deleted unseen.
pub const SLICE_PATIENCE: Duration = Duration::from_secs(10);

/// Silence after which a node is `Unknown`.
pub const NODE_GRACE: Duration = Duration::from_secs(40);
/// Silence after which a node that never reported is `Unknown`.
pub const NODE_STARTUP_GRACE: Duration = Duration::from_secs(60);

/// Finished pods kept in the cluster.
pub const TERMINATED_PODS: usize = 12_500;
/// Period of the pod garbage collection.
pub const POD_GC_PERIOD: Duration = Duration::from_secs(20);
/// How long a node must be missing before its pods are deleted.
pub const NODE_QUARANTINE: Duration = Duration::from_secs(40);

/// How often the garbage collector asks which kinds there are.
pub const DISCOVERY_PERIOD: Duration = Duration::from_secs(30);
/// How long an owner may be unknown to the collector's graph before it is asked for.
pub const OWNER_PATIENCE: Duration = Duration::from_millis(500);
/// Pause between looks at a namespace that is being emptied.
pub const NAMESPACE_PERIOD: Duration = Duration::from_secs(1);
/// Objects that one page of a list has at most, where a controller asks the server and not its cache.
pub const LIST_PAGE: u32 = 500;
