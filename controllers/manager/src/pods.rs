//! Properties of pods that several controllers use.

use std::net::IpAddr;
use std::time::Duration;

use apiserver_meta::pods::{condition, is_finished, is_ready};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::meta::is_deleted;

/// Returns `true` if a pod is neither finished nor being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_deleted(&pod.metadata)
}

/// Returns the addresses of a pod that are valid for an endpoint. Its node can write arbitrary ones into its
/// status, and the API refuses a slice with an invalid one, which would block all endpoints of the Service.
pub(crate) fn endpoint_addresses(pod: &Pod) -> impl Iterator<Item = &str> {
    let status = pod.status.iter();
    let all = status.flat_map(|status| {
        status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).chain(status.pod_ip.as_deref())
    });
    all.filter(|address| address.parse().is_ok_and(leads_somewhere))
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
    let ready = condition(pod, "Ready")?;
    if ready.status != "True" {
        return None;
    }
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// Returns when the pod has been ready for `min_ready_seconds`; `None` while it is not ready.
pub(crate) fn available_at(pod: &Pod, min_ready_seconds: i32) -> Option<Timestamp> {
    if !is_ready(pod) {
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

/// Returns the node that the pod is bound to; empty if none.
pub(crate) fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// Returns the restarts of the container that restarted most.
pub(crate) fn max_restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    statuses.unwrap_or_default().iter().map(|status| status.restart_count).max().unwrap_or(0)
}

/// Returns the duration from `now` until `at`; zero if it has passed.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}
