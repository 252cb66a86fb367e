//! Exponential back-off of the replacement of failed pods.

use apiserver_client::Metadata;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ContainerStatus;

use crate::limits::{JOB_BACKOFF_MAX, JOB_BACKOFF_MIN};
use crate::meta::created;
use crate::pods::{Pod, until};

/// Failures of a Job since its last success. It is kept in memory only: after a restart of the controller the delay
/// begins anew, as in Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    pub count: u32,
    pub last: Option<Timestamp>,
}

impl Failures {
    /// Returns the failures after further pods have ended.
    pub fn after(self, succeeded: &[Arc<Pod>], failed: &[Arc<Pod>]) -> Self {
        let success = succeeded.iter().map(|pod| finished_at(pod)).max();
        let mut failures = if success.is_some() { Self::default() } else { self };
        let later =
            failed.iter().map(|pod| finished_at(pod)).filter(|at| success.is_none_or(|end| *at > end));
        let mut newest = None;
        for at in later {
            failures.count = failures.count.saturating_add(1);
            newest = newest.max(Some(at));
        }
        failures.last = newest.or(failures.last);
        failures
    }

    /// Returns the time until the next pod may be created; zero if that is now.
    pub fn remaining(&self, now: Timestamp) -> Duration {
        match (self.count.checked_sub(1), self.last) {
            (Some(earlier), Some(last)) => {
                let factor = 1_u32.checked_shl(earlier).unwrap_or(u32::MAX);
                let pause = JOB_BACKOFF_MIN.saturating_mul(factor).min(JOB_BACKOFF_MAX);
                last.checked_add(pause).map_or(Duration::ZERO, |at| until(at, now))
            }
            _ => Duration::ZERO,
        }
    }
}

/// Returns when a pod ended, as exactly as is known.
pub(super) fn finished_at(pod: &Pod) -> Timestamp {
    let not_ready = || {
        let ready = pod.condition("Ready").filter(|ready| ready.status() == "False")?;
        ready.last_transition_time
    };
    let deleted = || {
        let grace = pod.metadata.grace().unwrap_or(0);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        pod.metadata.deleted()?.checked_sub(grace).ok()
    };
    let created = || created(&pod.metadata);
    let known = containers_finished(pod).or_else(not_ready).or_else(deleted).or_else(created);
    known.unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns when the last container ended, sidecars included; `None` unless all of them have.
fn containers_finished(pod: &Pod) -> Option<Timestamp> {
    let sidecars: Vec<&str> = pod
        .spec()
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let init = pod.init_container_statuses().iter();
    let init = init.filter(|container| sidecars.contains(&container.name.as_str()));
    let all = pod.container_statuses().iter().chain(init);
    let ends: Option<Vec<Timestamp>> = all.map(ended).collect();
    ends?.into_iter().max()
}

fn ended(container: &ContainerStatus) -> Option<Timestamp> {
    Some(container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, pod, set_ready, time};
    use serde_json::{from_value, json};

    fn ended_at(second: i64) -> Arc<Pod> {
        let mut pod = pod("p");
        set_ready(&mut pod, false, second);
        Arc::new(pod.into())
    }

    #[test]
    fn failures_count_since_the_last_success() {
        let before = Failures { count: 2, last: Some(at(5)) };
        for (succeeded, failed, expected) in [
            (&[][..], &[][..], before),
            (&[], &[9, 7], Failures { count: 4, last: Some(at(9)) }),
            (&[8], &[], Failures::default()),
            (&[8], &[7, 8], Failures::default()),
            (&[6, 8], &[7, 9, 12], Failures { count: 2, last: Some(at(12)) }),
        ] {
            let pods = |ends: &[i64]| ends.iter().map(|second| ended_at(*second)).collect::<Vec<_>>();
            let after = before.after(&pods(succeeded), &pods(failed));
            assert_eq!(after, expected, "{succeeded:?} {failed:?}");
        }
    }

    #[test]
    fn the_delay_doubles_up_to_ten_minutes_and_time_passes() {
        let remaining = |count, now| Failures { count, last: Some(at(0)) }.remaining(at(now)).as_secs();
        let delays: Vec<u64> = (0..9).map(|count| remaining(count, 0)).collect();
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!((remaining(500, 0), remaining(2, 15), remaining(2, 21)), (600, 5, 0));
        assert_eq!(Failures::default().remaining(at(0)), Duration::ZERO);
    }

    #[test]
    fn the_end_is_that_of_the_containers_then_of_readiness_then_of_deletion_then_the_creation() {
        let status = |name: &str, second: i64| {
            json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                   "state": {"terminated": {"exitCode": 0, "finishedAt": time(second)}}})
        };
        let mut pod = pod("p");
        assert_eq!(finished_at(&pod.clone().into()), at(0));
        pod.metadata.deletion_timestamp = time(60);
        pod.metadata.deletion_grace_period_seconds = Some(30);
        assert_eq!(finished_at(&pod.clone().into()), at(30));
        set_ready(&mut pod, false, 20);
        assert_eq!(finished_at(&pod.clone().into()), at(20));
        pod.spec = Some(
            from_value(json!({"containers": [], "initContainers": [
                {"name": "side", "restartPolicy": "Always"}, {"name": "setup"}]}))
            .unwrap(),
        );
        let statuses = pod.status.as_mut().unwrap();
        statuses.container_statuses = Some(vec![from_value(status("main", 10)).unwrap()]);
        let init = [status("side", 12), status("setup", 99)];
        statuses.init_container_statuses = Some(init.map(|one| from_value(one).unwrap()).to_vec());
        assert_eq!(finished_at(&pod.clone().into()), at(12));
        pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap()[0].state = None;
        assert_eq!(finished_at(&pod.clone().into()), at(20), "one container has not ended");
    }
}
