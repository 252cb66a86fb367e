//! Chooses which pods to delete when there are too many: those whose loss costs least.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::meta::{annotation, created, uid};
use crate::pods::{Pod, is_active, max_restarts, ready_since};

/// Annotation with which users rate the cost of losing a pod; the lowest is deleted first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Chooses `count` pods of `candidates` to delete. `related` are the pods of all sets of the same
/// owner: of several on one node, one is deleted first.
pub(super) fn choose(
    mut candidates: Vec<Arc<Pod>>,
    related: &[Arc<Pod>],
    count: usize,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    let mut on_node: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in related.iter().filter(|pod| is_active(pod)) {
        *on_node.entry(pod.node_name()).or_default() += 1;
    }
    let colocated = |pod: &Pod| on_node.get(pod.node_name()).copied().unwrap_or(0);
    candidates.sort_by(|a, b| order(a, b, colocated(a), colocated(b), now));
    candidates.truncate(count);
    candidates
}

/// Compares two pods; `Less` means that `a` is deleted before `b`.
fn order(a: &Pod, b: &Pod, colocated_a: usize, colocated_b: usize, now: Timestamp) -> Ordering {
    // `false` sorts first, so each line states what protects a pod.
    let assigned = |pod: &Pod| !pod.node_name().is_empty();
    assigned(a)
        .cmp(&assigned(b))
        .then_with(|| progress(a).cmp(&progress(b)))
        .then_with(|| a.is_ready().cmp(&b.is_ready()))
        .then_with(|| cost(a).cmp(&cost(b)))
        .then_with(|| colocated_b.cmp(&colocated_a))
        .then_with(|| younger(ready_since(a), ready_since(b), now))
        .then_with(|| max_restarts(b).cmp(&max_restarts(a)))
        .then_with(|| younger(created(&a.metadata), created(&b.metadata), now))
        .then_with(|| uid(&a.metadata).cmp(uid(&b.metadata)))
}

fn progress(pod: &Pod) -> u8 {
    match pod.phase() {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    }
}

fn cost(pod: &Pod) -> i32 {
    annotation(&pod.metadata, DELETION_COST).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Compares ages; the younger pod is deleted first. Ages are compared by their power of two, so that among
/// pods of about the same age it is not always the same that survives; then uids decide, effectively at
/// random.
fn younger(a: Option<Timestamp>, b: Option<Timestamp>, now: Timestamp) -> Ordering {
    let rank = |at: Timestamp| {
        let nanoseconds = now.duration_since(at).as_nanos();
        u128::try_from(nanoseconds).ok().and_then(u128::checked_ilog2).map_or(-1, i64::from)
    };
    match (a, b) {
        (Some(a), Some(b)) => rank(a).cmp(&rank(b)),
        // A pod without a start time has only just been created.
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1;

    use super::*;
    use crate::meta::name;
    use crate::testing::{at, labels, pod, running, set_ready, slim, time};

    fn chosen(pods: &[v1::Pod], count: usize) -> Vec<String> {
        let pods = slim(pods.iter().cloned());
        let related = pods.clone();
        choose(pods, &related, count, at(100_000)).iter().map(|pod| name(&pod.metadata).to_owned()).collect()
    }

    #[test]
    fn scale_down_order_is_unassigned_pending_unready_cheap_colocated_young() {
        let old = running("old", "n1", "10.0.0.1");
        let mut young = running("young", "n2", "10.0.0.2");
        set_ready(&mut young, true, 99_000);
        let mut cheap = running("cheap", "n3", "10.0.0.3");
        cheap.metadata.annotations = Some(labels(&[(DELETION_COST, "-5")]));
        let mut unready = running("unready", "n4", "10.0.0.4");
        set_ready(&mut unready, false, 0);
        let mut pending = pod("pending");
        pending.spec.get_or_insert_default().node_name = Some("n5".to_owned());
        let unassigned = pod("unassigned");
        let pods = [old, young, cheap, unready, pending, unassigned];
        assert_eq!(chosen(&pods, 6), ["unassigned", "pending", "unready", "cheap", "young", "old"]);
    }

    #[test]
    fn scale_down_prefers_pods_that_share_a_node() {
        let mut alone = running("alone", "n1", "10.0.0.1");
        set_ready(&mut alone, true, 99_999);
        let pods = [alone, running("first", "n2", "10.0.0.2"), running("second", "n2", "10.0.0.3")];
        assert_eq!(chosen(&pods, 1), ["first"]);
    }

    #[test]
    fn scale_down_prefers_more_restarts_then_newer() {
        let mut new = running("new", "n1", "10.0.0.1");
        new.metadata.creation_timestamp = time(99_990);
        let old = running("old", "n2", "10.0.0.2");
        assert_eq!(chosen(&[old, new], 1), ["new"]);
    }
}
