//! Decides how many pods of a ReplicaSet or a ReplicationController to create, which to delete, and its status.

use k8s_openapi::api::core::v1;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::kind::Replicated;
use super::ranking;
use crate::limits::POD_BURST;
use crate::meta::{is_deleted, labels, selects_map};
use crate::pods::{Pod, available_at, is_active, is_available, of_template, until};

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Inputs that a plan is computed from.
pub(super) struct Input<'a, K> {
    pub set: &'a K,
    /// Pods that the set controls, including finished and terminating ones.
    pub pods: Vec<Arc<Pod>>,
    /// Returns the pods of all sets of the same owner. Called only if pods are to be deleted.
    pub related: &'a (dyn Fn() -> Vec<Arc<Pod>> + Sync),
    /// True if the cache shows the effects of all previous writes.
    pub expectations_met: bool,
    pub now: Timestamp,
}

/// Change of the set of pods.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    None,
    /// Create this many pods.
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

pub(super) fn plan<K: Replicated>(input: &Input<'_, K>) -> Action {
    if !input.expectations_met || is_deleted(input.set.meta()) {
        return Action::None;
    }
    let active: Vec<_> = input.pods.iter().filter(|pod| is_active(pod)).cloned().collect();
    let wanted = usize::try_from(input.set.replicas()).unwrap_or(0);
    if active.len() < wanted {
        Action::Create((wanted - active.len()).min(POD_BURST))
    } else if active.len() > wanted {
        let count = (active.len() - wanted).min(POD_BURST);
        Action::Delete(ranking::choose(active, &(input.related)(), count, input.now))
    } else {
        Action::None
    }
}

/// Returns the status that follows from the pods. `failure` contains reason and message of a failed action.
pub(super) fn status<K: Replicated>(
    input: &Input<'_, K>,
    failure: Option<(&str, String)>,
) -> ReplicaSetStatus {
    let template = input.set.template().and_then(|template| template.metadata.as_ref());
    let template_labels = template.and_then(|meta| meta.labels.clone()).unwrap_or_default();
    let min_ready = input.set.min_ready_seconds();
    let active: Vec<_> = input.pods.iter().filter(|pod| is_active(pod)).collect();
    let count = |f: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|pod| f(pod)).count()).unwrap_or(i32::MAX)
    };
    // Zero is represented as absent, as in Kubernetes.
    let some = |count: i32| (count != 0).then_some(count);
    let leaving = input.pods.iter().filter(|pod| is_deleted(&pod.metadata) && !pod.is_finished()).count();
    let mut status = input.set.status();
    status.replicas = count(&|_| true);
    status.fully_labeled_replicas = some(count(&|pod| selects_map(&template_labels, labels(&pod.metadata))));
    status.ready_replicas = some(count(&Pod::is_ready));
    status.available_replicas = some(count(&|pod| is_available(pod, min_ready, input.now)));
    status.terminating_replicas = Some(i32::try_from(leaving).unwrap_or(i32::MAX));
    status.observed_generation = input.set.meta().generation;
    put_failure(&mut status, failure, input.now);
    status
}

fn put_failure(status: &mut ReplicaSetStatus, failure: Option<(&str, String)>, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    match failure {
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        Some((reason, message)) => {
            let known = conditions.iter().any(|condition| condition.type_ == REPLICA_FAILURE);
            if !known {
                conditions.push(ReplicaSetCondition {
                    type_: REPLICA_FAILURE.to_owned(),
                    status: "True".to_owned(),
                    reason: Some(reason.to_owned()),
                    message: Some(message),
                    last_transition_time: Some(Time(now)),
                });
            }
        }
    }
    status.conditions.take_if(|conditions| conditions.is_empty());
}

/// Returns when the next ready pod will have been ready long enough to count as available.
pub(super) fn next_available<K: Replicated>(input: &Input<'_, K>) -> Option<Duration> {
    let min_ready = input.set.min_ready_seconds();
    let next = input
        .pods
        .iter()
        .filter(|pod| is_active(pod))
        .filter_map(|pod| available_at(pod, min_ready))
        .filter(|at| *at > input.now)
        .min()?;
    Some(until(next, input.now))
}

/// Returns a pod according to the template. The server completes its name.
pub(super) fn new_pod<K: Replicated>(set: &K) -> v1::Pod {
    of_template(set, set.template().cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::controller_reference;
    use crate::testing::{at, pod, replica_set, running, slim, time};
    use k8s_openapi::api::apps::v1::ReplicaSet;

    fn input<'a>(set: &'a ReplicaSet, pods: &[v1::Pod]) -> Input<'a, ReplicaSet> {
        Input {
            set,
            pods: slim(pods.iter().cloned()),
            related: &Vec::new,
            expectations_met: true,
            now: at(100),
        }
    }

    #[test]
    fn missing_pods_are_created_in_bounded_batches() {
        let set = replica_set("rs", 3);
        assert_eq!(plan(&input(&set, &[pod("a")])), Action::Create(2));
        assert_eq!(plan(&input(&replica_set("rs", 2000), &[])), Action::Create(POD_BURST));
    }

    #[test]
    fn nothing_is_done_before_expectations_are_met_or_for_a_deleted_set() {
        let mut set = replica_set("rs", 3);
        assert_eq!(plan(&Input { expectations_met: false, ..input(&set, &[]) }), Action::None);
        set.metadata.deletion_timestamp = time(1);
        assert_eq!(plan(&input(&set, &[])), Action::None);
    }

    #[test]
    fn finished_and_terminating_pods_are_replaced() {
        let set = replica_set("rs", 2);
        let mut failed = running("failed", "n", "10.0.0.1");
        failed.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        let mut leaving = running("leaving", "n", "10.0.0.2");
        leaving.metadata.deletion_timestamp = time(1);
        let input = input(&set, &[failed, leaving, running("good", "n", "10.0.0.3")]);
        assert_eq!(plan(&input), Action::Create(1));
        let status = status(&input, None);
        assert_eq!(
            (status.replicas, status.ready_replicas, status.terminating_replicas),
            (1, Some(1), Some(1))
        );
    }

    #[test]
    fn a_pod_is_available_after_its_ready_time_and_not_before() {
        let mut set = replica_set("rs", 1);
        set.spec.as_mut().unwrap().min_ready_seconds = Some(30);
        let mut young = running("young", "n", "10.0.0.1");
        crate::testing::set_ready(&mut young, true, 80);
        let mut input = input(&set, &[young]);
        assert_eq!(status(&input, None).available_replicas, None);
        assert_eq!(status(&input, None).ready_replicas, Some(1));
        assert_eq!(next_available(&input), Some(Duration::from_secs(10)));
        input.now = at(110);
        assert_eq!(status(&input, None).available_replicas, Some(1));
        assert_eq!(next_available(&input), None);
    }

    #[test]
    fn a_failure_is_a_condition_until_it_is_over() {
        let mut set = replica_set("rs", 1);
        let failed = status(&input(&set, &[]), Some(("FailedCreate", "quota".to_owned())));
        assert_eq!(failed.conditions.as_ref().unwrap()[0].reason.as_deref(), Some("FailedCreate"));
        set.status = Some(failed);
        assert_eq!(status(&input(&set, &[]), None).conditions, None);
    }

    #[test]
    fn a_new_pod_follows_the_template_and_is_owned() {
        let set = replica_set("rs", 1);
        let pod = new_pod(&set);
        assert_eq!(pod.metadata.generate_name.as_deref(), Some("rs-"));
        assert_eq!(pod.metadata.owner_references, Some(vec![controller_reference(&set)]));
        assert_eq!(pod.spec.unwrap().containers.len(), 1);
    }
}
