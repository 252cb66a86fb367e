//! Pods of a workload, sorted by what their samples tell, and their requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_meta::{quantity, resources};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::replicas::{Sample, Samples, Undecided};
use crate::meta::{is_deleted, name};
use crate::pods::Pod;

/// Durations after the start of a pod in which its use of the CPU is not that of its work.
#[derive(Clone, Copy)]
pub(super) struct Startup {
    /// Time after the start for which samples of the CPU count only while the pod is ready, and taken since.
    pub initialization: SignedDuration,
    /// Time after the start in which a pod that becomes unready counts as one that has never been ready.
    pub readiness_delay: SignedDuration,
}

/// Names of pods by what is known about them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Groups<'a> {
    /// Number of pods whose samples count.
    pub ready: usize,
    /// Pods that have not begun to work.
    pub unready: BTreeSet<&'a str>,
    /// Pods without a sample.
    pub missing: BTreeSet<&'a str>,
    /// Pods that are about to go.
    pub ignored: BTreeSet<&'a str>,
}

/// Sorts the pods. `resource` is the one that the samples are of, if they are of one.
pub(super) fn group<'a>(
    pods: &'a [Arc<Pod>],
    samples: &Samples,
    resource: Option<&str>,
    startup: Startup,
    now: Timestamp,
) -> Groups<'a> {
    let mut groups = Groups::default();
    for pod in pods {
        let name = name(&pod.metadata);
        if is_deleted(&pod.metadata) || pod.phase() == "Failed" {
            groups.ignored.insert(name);
        } else if pod.phase() == "Pending" {
            groups.unready.insert(name);
        } else if let Some(sample) = samples.get(name) {
            if resource == Some("cpu") && !has_warmed_up(pod, sample, startup, now) {
                groups.unready.insert(name);
            } else {
                groups.ready += 1;
            }
        } else {
            groups.missing.insert(name);
        }
    }
    groups
}

/// Returns `true` if a sample of the CPU is that of the pod's work, not of its start.
fn has_warmed_up(pod: &Pod, sample: &Sample, startup: Startup, now: Timestamp) -> bool {
    let (Some(ready), Some(started)) = (pod.condition("Ready"), pod.start_time()) else { return false };
    let changed = ready.last_transition_time.unwrap_or(Timestamp::MIN);
    let is_unready = ready.status() == "False";
    if later(started, startup.initialization) > now {
        !is_unready && sample.at >= later(changed, sample.window)
    } else {
        !is_unready || later(started, startup.readiness_delay) <= changed
    }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Returns the thousandths of a resource that each pod requests: for the pod as a whole if it has requests of its
/// own, or else the sum of its containers, or that of one container.
pub(super) fn requests(
    pods: &[Arc<Pod>],
    resource: &str,
    container: Option<&str>,
) -> Result<BTreeMap<String, i64>, Undecided> {
    pods.iter()
        .map(|pod| {
            let (spec, pod) = (pod.spec(), name(&pod.metadata));
            let of_whole = spec.resources.as_ref().and_then(|whole| whole.requests.as_ref());
            let has_whole = of_whole.is_some_and(|all| all.keys().any(|name| resources::is_pod_level(name)));
            let request = match container {
                Some(container) => of_container(spec, resource, container, pod)?,
                None if has_whole => of_pod(spec, resource, pod)?,
                None => of_containers(spec, resource, pod)?,
            };
            Ok((pod.to_owned(), request))
        })
        .collect()
}

fn of_pod(spec: &PodSpec, resource: &str, pod: &str) -> Result<i64, Undecided> {
    let requests = resources::pod_requests(spec);
    let request = requests.get(resource).map(|request| request.milli());
    request.ok_or_else(|| Undecided::PodRequest { resource: resource.to_owned(), pod: pod.to_owned() })
}

fn of_containers(spec: &PodSpec, resource: &str, pod: &str) -> Result<i64, Undecided> {
    working(spec).try_fold(0_i64, |sum, one| Ok(sum.saturating_add(request(one, resource, pod)?)))
}

fn of_container(spec: &PodSpec, resource: &str, container: &str, pod: &str) -> Result<i64, Undecided> {
    match working(spec).find(|one| one.name == container) {
        Some(one) => request(one, resource, pod),
        None => Err(Undecided::Container { container: container.to_owned(), pod: pod.to_owned() }),
    }
}

/// Returns the containers that run while the pod does.
fn working(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let sidecars = spec.init_containers.iter().flatten();
    spec.containers.iter().chain(sidecars.filter(|one| one.restart_policy.as_deref() == Some("Always")))
}

fn request(container: &Container, resource: &str, pod: &str) -> Result<i64, Undecided> {
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let request = requests.and_then(|requests| requests.get(resource)).and_then(quantity::read);
    request.map(quantity::Quantity::milli).ok_or_else(|| Undecided::Request {
        resource: resource.to_owned(),
        container: container.name.clone(),
        pod: pod.to_owned(),
    })
}
