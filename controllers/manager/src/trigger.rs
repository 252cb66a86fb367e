//! Determines when the change behind a write of endpoints happened, which is where the latency from readiness to traffic
//! is measured from.

use std::sync::Arc;

use apiserver_meta::uid::Uid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::meta::uid;
use crate::pods::Pod;

/// Annotation with the time of the change behind the last write.
pub(crate) const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// State of a Service when it was last seen.
#[derive(Default)]
pub(crate) struct Seen {
    service: Option<Timestamp>,
    /// Times of the pods in microseconds, ordered by uid. There is an entry for nearly each pod of the cluster, so that
    /// it is small.
    pods: Box<[(Uid, i64)]>,
}

const _: () = assert!(size_of::<(Uid, i64)>() == 24);

impl Seen {
    /// Returns the time of the oldest change since the last call, and remembers the current state.
    pub(crate) fn oldest_change(&mut self, service: &Service, pods: &[Arc<Pod>]) -> Option<Timestamp> {
        let created = service.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let mut changes: Vec<Timestamp> = Vec::new();
        if self.service != created {
            changes.extend(created);
        }
        let mut seen = Vec::with_capacity(pods.len());
        for pod in pods {
            let Some(time) = changed_at(pod) else { continue };
            let uid = Uid::from(uid(&pod.metadata));
            if self.before(&uid).is_none_or(|before| before < time.as_microsecond()) {
                changes.push(time);
            }
            seen.push((uid, time.as_microsecond()));
        }
        seen.sort_unstable();
        self.service = created;
        self.pods = seen.into_boxed_slice();
        changes.into_iter().min()
    }

    /// Returns the time of a pod at the last call.
    fn before(&self, pod: &Uid) -> Option<i64> {
        let place = self.pods.binary_search_by(|(known, _)| known.cmp(pod)).ok()?;
        self.pods.get(place).map(|(_, time)| *time)
    }
}

/// Annotates an object with the time of the change behind its write; removes that of an earlier one if it is unknown.
pub(crate) fn set_trigger_time(meta: &mut ObjectMeta, trigger: &Option<String>) {
    let annotations = meta.annotations.get_or_insert_default();
    match trigger {
        Some(time) => annotations.insert(TRIGGER_TIME.to_owned(), time.clone()),
        None => annotations.remove(TRIGGER_TIME),
    };
    meta.annotations.take_if(|annotations| annotations.is_empty());
}

/// Returns when a pod's readiness last changed.
fn changed_at(pod: &Pod) -> Option<Timestamp> {
    pod.condition("Ready")?.last_transition_time
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, running, set_ready, slim};

    #[test]
    fn trigger_time_is_that_of_the_oldest_change_since_the_last_call() {
        let service = Service { metadata: crate::testing::meta("svc"), ..Service::default() };
        let mut seen = Seen::default();
        let mut a = running("a", "n", "10.0.0.1");
        set_ready(&mut a, true, 5);
        assert_eq!(seen.oldest_change(&service, &slim([a.clone()])), Some(at(0)));
        assert_eq!(seen.oldest_change(&service, &slim([a.clone()])), None);
        let mut b = running("b", "n", "10.0.0.2");
        set_ready(&mut b, true, 20);
        set_ready(&mut a, false, 30);
        assert_eq!(seen.oldest_change(&service, &slim([a, b])), Some(at(20)));
    }

    #[test]
    fn each_pod_is_compared_with_its_own_time_and_forgotten_with_its_end() {
        let service = Service { metadata: crate::testing::meta("svc"), ..Service::default() };
        let mut seen = Seen::default();
        let pod = |name: &str, second: i64| {
            let mut pod = running(name, "n", "10.0.0.1");
            set_ready(&mut pod, true, second);
            Arc::new(Pod::from(pod))
        };
        let pods = |changed: i64| -> Vec<_> { vec![pod("z", 9), pod("a", 7), pod("m", changed)] };
        assert_eq!(seen.oldest_change(&service, &pods(3)), Some(at(0)));
        assert_eq!(seen.oldest_change(&service, &pods(3)), None);
        assert_eq!(
            seen.oldest_change(&service, &pods(5)),
            Some(at(5)),
            "it is older than those of the others"
        );
        assert_eq!(seen.oldest_change(&service, &pods(5)[..2]), None);
        assert_eq!(seen.oldest_change(&service, &pods(5)), Some(at(5)));
    }
}
