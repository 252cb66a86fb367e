//! Properties of pods that several controllers use.

use std::net::IpAddr;
use std::time::Duration;

use apiserver_meta::volumes;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self, ContainerState, PodCondition, PodTemplateSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;

mod reduced;
mod secrets;
mod slim;
mod writes;

pub(crate) use self::secrets::secrets_of;
pub(crate) use self::slim::{Condition, Pod, pin};
pub(crate) use self::writes::Writes;
use crate::meta::{controller_reference, is_deleted, name};

/// Returns a pod of the template that `owner` controls. The server completes its name, which begins with that of the
/// owner, unless the caller sets another one.
pub(crate) fn of_template<K: Resource<DynamicType = ()>>(owner: &K, template: PodTemplateSpec) -> v1::Pod {
    let given = template.metadata.unwrap_or_default();
    v1::Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", name(owner.meta()))),
            namespace: owner.meta().namespace.clone(),
            labels: given.labels,
            annotations: given.annotations,
            finalizers: given.finalizers,
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// Returns `true` if a pod is neither finished nor being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !pod.is_finished() && !is_deleted(&pod.metadata)
}

/// Returns the addresses of a pod that are valid for an endpoint. Its node can write arbitrary ones into its
/// status, and the API refuses a slice with an invalid one, which would block all endpoints of the Service.
pub(crate) fn endpoint_addresses(pod: &Pod) -> impl Iterator<Item = &str> {
    pod.addresses().filter(|address| address.parse().is_ok_and(leads_somewhere))
}

/// Returns `true` if an address is valid for an endpoint. The API refuses addresses whose traffic stays on the
/// sender's machine or link.
fn leads_somewhere(address: IpAddr) -> bool {
    let on_link = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local() || v6.segments()[0] & 0xff0f == 0xff02 || v6.to_ipv4_mapped().is_some()
        }
    };
    !address.is_unspecified() && !address.is_loopback() && !on_link
}

/// Returns since when the pod has been ready, if it is.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    pod.condition("Ready").filter(Condition::is_true)?.last_transition_time
}

/// Returns when the pod has been ready for `min_ready_seconds`; `None` while it is not ready.
pub(crate) fn available_at(pod: &Pod, min_ready_seconds: i32) -> Option<Timestamp> {
    if !pod.is_ready() {
        return None;
    }
    if min_ready_seconds <= 0 {
        return Some(Timestamp::UNIX_EPOCH);
    }
    let since = ready_since(pod)?;
    since.checked_add(Duration::from_secs(u64::from(min_ready_seconds.unsigned_abs()))).ok()
}

pub(crate) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_at(pod, min_ready_seconds).is_some_and(|at| at <= now)
}

/// Returns `true` if a pod uses no volume any more: it is finished, or being deleted with no container that runs.
pub(crate) fn is_terminated(pod: &Pod) -> bool {
    let statuses =
        [pod.init_container_statuses(), pod.container_statuses(), pod.ephemeral_container_statuses()];
    let mut states = statuses.into_iter().flatten().map(|status| status.state.as_ref());
    let is_idle = |state: Option<&ContainerState>| {
        state.is_some_and(|state| state.terminated.is_some() || state.waiting.is_some())
    };
    pod.is_finished() || is_deleted(&pod.metadata) && states.all(is_idle)
}

/// Returns the volumes of the pod.
pub(crate) fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec().volumes.as_deref().unwrap_or_default()
}

/// Returns the name of the claim behind a volume of the pod.
pub(crate) fn claim_of(pod: &Pod, volume: &Volume) -> Option<String> {
    volumes::claim_of(name(&pod.metadata), volume)
}

/// Returns the names of the claims behind the volumes of the pod.
pub(crate) fn claims_of(pod: &Pod) -> impl Iterator<Item = String> {
    volumes(pod).iter().filter_map(|volume| claim_of(pod, volume))
}

/// Sets the condition that says who ended a pod, so that the pod is not counted as failed. The time of a condition that
/// was true before stays.
pub(crate) fn put_disruption(pod: &mut v1::Pod, reason: &str, message: &str, now: Timestamp) {
    let observed_generation = pod.metadata.generation;
    let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
    let held = conditions.iter().position(|condition| condition.type_ == "DisruptionTarget");
    let held =
        held.map(|position| conditions.remove(position)).filter(|condition| condition.status == "True");
    conditions.push(PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: held.and_then(|held| held.last_transition_time).or(Some(Time(now))),
        observed_generation,
        ..PodCondition::default()
    });
}

/// Returns the restarts of the container that restarted most.
pub(crate) fn max_restarts(pod: &Pod) -> i32 {
    pod.container_statuses().iter().map(|status| status.restart_count).max().unwrap_or(0)
}

/// Returns the duration from `now` until `at`; zero if it has passed.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use apiserver_meta::pods::condition;

    use super::*;
    use crate::testing::{at, running, time};

    #[test]
    fn disruption_condition_keeps_the_time_of_its_transition() {
        let mut pod = running("p", "n", "10.0.0.1");
        put_disruption(&mut pod, "First", "first", at(1));
        put_disruption(&mut pod, "Second", "second", at(2));
        let disruption = condition(&pod, "DisruptionTarget").unwrap();
        assert_eq!(
            (disruption.reason.as_deref(), &disruption.last_transition_time),
            (Some("Second"), &time(1))
        );
        assert_eq!(disruption.observed_generation, Some(1));
        assert_eq!(pod.status.as_ref().unwrap().conditions.as_ref().unwrap().len(), 2);
        let conditions = pod.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.last_mut().unwrap().status = "False".to_owned();
        put_disruption(&mut pod, "Third", "third", at(3));
        assert_eq!(condition(&pod, "DisruptionTarget").unwrap().last_transition_time, time(3));
    }
}
