//! Every bound of this crate.

use std::time::Duration;

/// First pause after a failed attempt; it doubles up to [`MAX_BACKOFF`], as in kube-scheduler.
pub const MIN_BACKOFF: Duration = Duration::from_secs(1);
/// Longest pause after failed attempts.
pub const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A parked pod is tried again after this even if nothing seems to help.
pub const MAX_PARKED: Duration = Duration::from_secs(300);
/// Longest wait for the claims of a pod to be bound after its node was chosen, as in kube-scheduler.
pub const VOLUMES_BOUND: Duration = Duration::from_secs(600);
/// Longest wait of a placed pod that plugins have not permitted yet, as in kube-scheduler.
pub const PERMIT_WAIT: Duration = Duration::from_secs(900);
/// Longest wait of a placed pod for the rest of its gang, as in kube-scheduler.
pub const GANG_WAIT: Duration = Duration::from_secs(300);
/// Interval at which the counts of the queue and of the cluster are shown in the metrics.
pub const COUNTS_SHOWN: Duration = Duration::from_secs(1);
/// Attempts of which one has the times of its plugins taken (`pluginMetricsSamplePercent`: a tenth).
pub const TIMED_ATTEMPTS: u64 = 10;
/// Longest wait for a change while no pod waits for a time.
pub const IDLE: Duration = Duration::from_secs(3600);
/// Changes of nodes that are remembered for the views of templates: a view that has not been used for so many changes is
/// computed anew, which costs as much as some thousand changed nodes.
pub const CHANGES: usize = 16_384;
/// Templates whose views of the nodes are cached: at 5,000 nodes, each takes some 200 kB.
pub const VIEWS: usize = 64;
/// Nodes up to which those that a pod is restricted to are checked one by one, without a view.
pub const FEW_NODES: usize = 16;
/// Feasible nodes below which no sampling takes place (`minFeasibleNodesToFind` of kube-scheduler).
pub const MIN_FEASIBLE_NODES: usize = 100;
/// Bindings that are written at one time.
pub const BINDINGS: usize = 256;
/// Pause after a failed attempt to find out whether a pod was bound; it doubles up to [`RESOLVE_PAUSE_MAX`].
pub const RESOLVE_PAUSE: Duration = Duration::from_millis(200);
pub const RESOLVE_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Requests for one status of a pod that waits before it is given up until the next attempt: some five minutes.
pub const STATUS_ATTEMPTS: usize = 64;
/// Events that are remembered for attempts under way: a pod whose attempt takes longer is tried again after its back-off.
pub const FLIGHT_EVENTS: usize = 16_384;
/// Selectors of devices that are kept compiled.
pub const SELECTORS: usize = 1024;
/// Length of their texts together: the tree of a selector takes some 50 bytes for each byte of its text.
pub const SELECTOR_BYTES: usize = 1 << 20;
/// Selectors whose answers are remembered for each slice of devices: an answer takes a byte, and a slice has up to 128 devices.
/// A claim that has more of them for the same devices has some evaluated again.
pub const SLICE_ANSWERS: usize = 64;
/// Specifications of claims for which verdicts on nodes are remembered.
pub const DEVICE_SHAPES: usize = 4;
/// Devices that one search keeps as selectors see them: each takes up to some 10 kB.
pub const DEVICE_VALUES: usize = 1024;
/// Steps of a search for devices that take about a millisecond.
pub const SEARCH_STEPS: u64 = 1000;
/// Bytes of a selector that are compared in a step with those that are kept.
pub const TEXT_A_STEP: u64 = 1024;
/// Devices and requests that one search can go through: each takes some frames of the stack.
pub const SEARCH_DEPTH: usize = 512;
/// Attempts to write a claim that others write at the same time, as in kube-scheduler.
pub const CLAIM_WRITES: u32 = 5;
/// Pause between these.
pub const CLAIM_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait until a claim that was made for resources of a pod is seen, as in kube-scheduler.
pub const CLAIM_SEEN: Duration = Duration::from_secs(120);
/// Interval at which it is checked if devices have had their time to become ready, as in kube-scheduler.
pub const READY_CHECK: Duration = Duration::from_secs(5);
/// Values of a metric that has the names of drivers as labels: nodes and drivers choose these names.
pub const SHOWN_DRIVERS: usize = 256;
/// Updates of a pod that are remembered during its attempt: after more, it is tried again after its back-off.
pub const OWN_EVENTS: usize = 64;
/// Selectors whose matching pods are counted by node: at 5,000 nodes, each takes 20 kB.
pub const COUNTS: usize = 512;
/// Divisions of the nodes by topology key and template: at 5,000 nodes, each takes 20 kB, and as much again for keys with
/// a value for each node.
pub const PARTITIONS: usize = 128;
/// Sets of terms of placed pods that are summed up for the pods that they match: at 5,000 nodes, each takes up to 80 kB.
pub const EXPOSURES: usize = 128;
/// Namespaces with labels for which the matching terms of placed pods are remembered.
pub const MATCHED_TERMS: usize = 4096;
/// Terms of placed pods that are made before those that no pod has any more are looked for.
pub const UNUSED_TERMS: usize = 1024;
/// Selectors of namespaces in terms of incoming pods whose namespaces are remembered.
pub const SELECTED_NAMESPACES: usize = 256;
/// Labels of pods in one namespace whose selectors for default spreading are remembered.
pub const DEFAULT_SELECTORS: usize = 1024;
/// Topology keys that are kept before those that no placed pod has are dropped. At 5,000 nodes, each takes 20 kB, and some
/// 500 kB with a value for each node; one that no node has takes no more than its name.
pub const TOPOLOGY_KEYS: usize = 128;
/// Terms of inter-pod affinity and constraints of topology spreading that a pod may have: an attempt prepares a count for
/// each.
pub const POD_TERMS: usize = 64;
/// Kinds of resources that a pod may request: each is compared on each node, and named where a node lacks it.
pub const POD_RESOURCES: usize = 256;
/// Bytes of the message in a pod's condition, and in the log: texts may differ for each node.
pub const CONDITION_MESSAGE: usize = 32 << 10;
/// Namespaces that the terms of a pod may name in all: each placed term is found by each of them.
pub const POD_NAMESPACES: usize = 4096;
/// Held terms that are remembered in all for the pods that they match, 8 bytes each.
pub const MATCHED_IDS: usize = 1 << 20;
/// Attempts that wait for the answers of the same extenders at one time. Further ones wait for their turn, in the order of
/// the queue: there are never more than pods without a node.
pub const CONSULTATIONS: usize = 16;
/// Times that an attempt begins anew because no node that extenders have left is feasible any more.
pub const CONSULTATION_ROUNDS: u32 = 5;
/// Bindings that an extender is asked for at one time.
pub const EXTENDER_BINDINGS: usize = 256;
/// Longest answer of an extender in bytes: that of one without a cache of nodes has all of them, with some 20 kB each.
pub const EXTENDER_ANSWER: usize = 256 << 20;
/// Whole objects that are read for extenders at one time.
pub const EXTENDER_READS: usize = 64;
/// Longest wait for a whole object.
pub const EXTENDER_READ: Duration = Duration::from_secs(30);
