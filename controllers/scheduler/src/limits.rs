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
/// Longest message of an event in bytes (`NoteLengthLimit`); longer ones are cut.
pub const NOTE: usize = 1024;
/// Events that are remembered for attempts under way: a pod whose attempt takes longer is tried again after its back-off.
pub const FLIGHT_EVENTS: usize = 16_384;
/// Selectors of devices that are kept compiled.
pub const SELECTORS: usize = 1024;
/// Selectors whose answers are remembered for each slice of devices: an answer takes 24 bytes, and a slice has up to 128
/// devices.
pub const SLICE_ANSWERS: usize = 32;
/// Steps of a search for devices that take a millisecond, or less.
pub const SEARCH_STEPS: u64 = 1000;
/// Devices and requests that one search can go through: each takes some frames of the stack.
pub const SEARCH_DEPTH: usize = 512;
/// Attempts to write a claim that others write at the same time, as in kube-scheduler.
pub const CLAIM_WRITES: u32 = 5;
/// Pause between these.
pub const CLAIM_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait until a claim that was made for resources of a pod is seen, as in kube-scheduler.
pub const CLAIM_SEEN: Duration = Duration::from_secs(120);
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
/// Topology keys whose domains are kept, besides those of the terms of placed pods: at 5,000 nodes, each takes 20 kB, and
/// some 500 kB with a value for each node.
pub const TOPOLOGY_KEYS: usize = 128;
