//! Completion indexes of the pods of an Indexed Job, and the failures of each index.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::JobSpec;

use super::backoff::finished_at;
use super::intervals::Intervals;
use super::policy::{Verdict, has_failed, judge};
use crate::meta::{annotation, created};
use crate::pods::{Pod, max_restarts, ready_since};

/// Annotation and label with a pod's completion index.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation with the number of failures of the index before this pod.
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Annotation with the number of those that the failure policy ignored.
pub(super) const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// Returns the completion index of a pod.
pub(super) fn index_of(pod: &Pod) -> Option<usize> {
    annotation(&pod.metadata, INDEX)?.parse().ok()
}

/// Returns the indexes of these pods.
pub(super) fn indexes_of<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> BTreeSet<usize> {
    pods.into_iter().filter_map(|pod| index_of(pod)).collect()
}

/// Returns the failures of the pod's index before it: those that count, and those that were ignored. Users can write
/// anything into the annotations; what is no count is zero.
fn failures_before(pod: &Pod) -> (i32, i32) {
    let count = |key| annotation(&pod.metadata, key).and_then(|text| text.parse::<i32>().ok()).unwrap_or(0);
    (count(FAILURES).max(0), count(IGNORED_FAILURES).max(0))
}

/// Returns all failures of the pod's index before it.
pub(super) fn all_failures_before(pod: &Pod) -> i32 {
    let (counted, ignored) = failures_before(pod);
    counted.saturating_add(ignored)
}

/// Returns the failures of an index before the pod that replaces `replaced`: those that count, and those ignored.
pub(super) fn failures_after(spec: &JobSpec, replaced: Option<&Pod>) -> (i32, i32) {
    let Some(pod) = replaced else { return (0, 0) };
    let (counted, ignored) = failures_before(pod);
    if judge(spec.pod_failure_policy.as_ref(), pod) == Verdict::Ignore {
        (counted, ignored.saturating_add(1))
    } else {
        (counted.saturating_add(1), ignored)
    }
}

/// Returns `true` if the index of the pod has failed with it.
pub(super) fn fails_index(spec: &JobSpec, limit: i32, pod: &Pod) -> bool {
    has_failed(spec, pod)
        && match judge(spec.pod_failure_policy.as_ref(), pod) {
            Verdict::FailIndex => true,
            Verdict::Ignore => false,
            Verdict::Count | Verdict::FailJob(_) => failures_before(pod).0 >= limit,
        }
}

/// Returns, of each index that waits for a new pod, the failed pod to be replaced: that with the most failures before
/// it. It keeps its finalizer until then, because its annotations are the count of failures.
pub(super) fn to_be_replaced<'a>(
    failed: impl IntoIterator<Item = &'a Arc<Pod>>,
    settled: &Intervals,
) -> BTreeMap<usize, Arc<Pod>> {
    let mut newest: BTreeMap<usize, Arc<Pod>> = BTreeMap::new();
    let age = |pod: &Pod| (all_failures_before(pod), finished_at(pod));
    for pod in failed {
        let Some(index) = index_of(pod).filter(|index| !settled.contains(*index)) else { continue };
        let known = newest.entry(index).or_insert_with(|| Arc::clone(pod));
        if age(known) <= age(pod) {
            *known = Arc::clone(pod);
        }
    }
    newest
}

/// Chooses the pods to remove: in an Indexed Job all without a valid index and all but one of each index, and then
/// further ones until they are at least `least`. Those go first whose loss costs least.
pub(super) fn surplus(active: &[Arc<Pod>], completions: Option<usize>, least: usize) -> Vec<Arc<Pod>> {
    let mut active: Vec<_> = active.to_vec();
    active.sort_by_cached_key(|pod| worth(pod));
    let Some(completions) = completions else {
        active.truncate(least);
        return active;
    };
    let mut kept = BTreeSet::new();
    let mut left = Vec::new();
    let mut removed = Vec::new();
    // The most valuable pod of an index stays, so it is looked at first.
    for pod in active.into_iter().rev() {
        let valid = index_of(&pod).is_some_and(|index| index < completions && kept.insert(index));
        if valid { left.push(pod) } else { removed.push(pod) }
    }
    left.reverse();
    left.truncate(least.saturating_sub(removed.len()));
    removed.extend(left);
    removed
}

/// Time after which something began; nothing that has begun is less than everything that has.
type Since = Option<Reverse<Timestamp>>;

/// Returns a key that orders pods by the loss that their removal is: assigned, running, ready ones, ready for long,
/// with few restarts, and old.
fn worth(pod: &Pod) -> (bool, u8, bool, Since, Reverse<i32>, Since) {
    let progress = match pod.phase() {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let created = created(&pod.metadata).map(Reverse);
    let ready = ready_since(pod).map(Reverse);
    (!pod.node_name().is_empty(), progress, pod.is_ready(), ready, Reverse(max_restarts(pod)), created)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::name;
    use crate::testing::{labels, pod, running, set_ready, slim, time};
    use serde_json::{from_value, json};

    fn indexed(name: &str, index: &str, failures: &str) -> Arc<Pod> {
        let mut pod = pod(name);
        pod.metadata.annotations = Some(labels(&[(INDEX, index), (FAILURES, failures)]));
        Arc::new(pod.into())
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| name(&pod.metadata)).collect()
    }

    #[test]
    fn annotations_that_are_no_numbers_count_as_none() {
        for (text, index, failures) in [
            ("3", Some(3), 3),
            ("-1", None, 0),
            ("x", None, 0),
            ("", None, 0),
            ("99999999999", Some(99_999_999_999), 0),
        ] {
            let pod = indexed("p", text, text);
            assert_eq!((index_of(&pod), all_failures_before(&pod)), (index, failures), "{text:?}");
        }
        assert_eq!(index_of(&pod("none").into()), None);
    }

    #[test]
    fn removal_begins_with_pods_whose_loss_costs_least() {
        let mut unready = running("unready", "n1", "10.0.0.1");
        set_ready(&mut unready, false, 0);
        let mut young = running("young", "n1", "10.0.0.2");
        set_ready(&mut young, true, 50);
        let mut newer = running("newer", "n1", "10.0.0.3");
        newer.metadata.creation_timestamp = time(9);
        let pods = slim([running("old", "n1", "10.0.0.4"), newer, young, unready, pod("unassigned")]);
        assert_eq!(names(&surplus(&pods, None, 5)), ["unassigned", "unready", "young", "newer", "old"]);
        assert_eq!(names(&surplus(&pods, None, 1)), ["unassigned"]);
        assert!(surplus(&pods, None, 0).is_empty());
    }

    #[test]
    fn pods_without_a_valid_index_and_repeated_indexes_are_surplus() {
        let mut twin = running("twin", "n1", "10.0.0.1");
        twin.metadata.annotations = Some(labels(&[(INDEX, "0")]));
        let pods = [
            indexed("zero", "0", "0"),
            Arc::new(Pod::from(twin)),
            indexed("one", "1", "0"),
            indexed("beyond", "5", "0"),
            Arc::new(Pod::from(pod("none"))),
        ];
        let removed = |least| {
            let removed = surplus(&pods, Some(3), least);
            let mut names: Vec<String> = names(&removed).into_iter().map(str::to_owned).collect();
            names.sort();
            names.join(" ")
        };
        assert_eq!(removed(0), "beyond none zero", "the running one of index 0 stays");
        assert_eq!(removed(4), "beyond none one zero");
        assert_eq!(removed(9), "beyond none one twin zero");
    }

    #[test]
    fn the_pod_with_the_most_failures_is_the_one_to_replace() {
        let pods =
            [indexed("a", "0", "1"), indexed("b", "0", "2"), indexed("c", "0", "0"), indexed("d", "1", "0")];
        let found = to_be_replaced(&pods, &Intervals::parse("1", 9));
        let found: Vec<_> = found.iter().map(|(index, pod)| (*index, name(&pod.metadata))).collect();
        assert_eq!(found, [(0, "b")]);
    }

    #[test]
    fn failures_are_carried_over_and_the_ignored_ones_apart() {
        let spec: JobSpec = from_value(json!({"template": {}, "podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "Ready", "status": "False"}]}]}}))
        .unwrap();
        let plain: JobSpec = from_value(json!({"template": {}})).unwrap();
        let mut pod = pod("p");
        pod.metadata.annotations = Some(labels(&[(FAILURES, "2"), (IGNORED_FAILURES, "1")]));
        set_ready(&mut pod, false, 0);
        let replaced = Pod::from(pod.clone());
        assert_eq!(failures_after(&spec, Some(&replaced)), (2, 2));
        assert_eq!(failures_after(&plain, Some(&replaced)), (3, 1));
        assert_eq!(failures_after(&plain, None), (0, 0));
        pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        let failed = Pod::from(pod);
        assert!(!fails_index(&spec, 0, &failed), "ignored");
        assert!(fails_index(&plain, 2, &failed) && !fails_index(&plain, 3, &failed));
    }
}
