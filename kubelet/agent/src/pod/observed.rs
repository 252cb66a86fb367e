//! State of a pod as reported by the runtime and by probes.

use std::net::IpAddr;

use jiff::Timestamp;
use kubelet_cri::{ContainerState, ContainerStatus, SandboxState, SandboxStatus};

/// Sandboxes and containers of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRuntime {
    /// Sandboxes, newest first.
    pub sandboxes: Vec<SandboxStatus>,
    /// All attempts of all containers, newest first.
    pub containers: Vec<ContainerStatus>,
}

impl PodRuntime {
    /// Creates the value, sorting both lists newest first.
    pub fn new(mut sandboxes: Vec<SandboxStatus>, mut containers: Vec<ContainerStatus>) -> Self {
        sandboxes.sort_by(|a, b| {
            let key = |s: &SandboxStatus| (s.summary.attempt, s.summary.created_at, s.summary.id.clone());
            key(b).cmp(&key(a))
        });
        containers.sort_by(|a, b| {
            let key = |c: &ContainerStatus| (c.attempt, c.created_at, c.id.clone());
            key(b).cmp(&key(a))
        });
        Self { sandboxes, containers }
    }

    /// Returns the newest sandbox.
    pub fn sandbox(&self) -> Option<&SandboxStatus> {
        self.sandboxes.first()
    }

    /// Returns the newest sandbox if it is ready to hold containers.
    pub fn ready_sandbox(&self) -> Option<&SandboxStatus> {
        self.sandbox().filter(|sandbox| sandbox.summary.state == SandboxState::Ready)
    }

    /// Returns all attempts of a container, newest first.
    pub fn attempts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ContainerStatus> {
        self.containers.iter().filter(move |container| container.name == name)
    }

    /// Returns the newest attempt of a container.
    pub fn newest<'a>(&'a self, name: &'a str) -> Option<&'a ContainerStatus> {
        self.attempts(name).next()
    }

    /// Returns a container by id.
    pub fn by_id(&self, id: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|container| container.id == id)
    }

    /// Returns `true` if any container is running.
    pub fn has_running(&self) -> bool {
        self.containers.iter().any(|container| container.state == ContainerState::Running)
    }

    /// Returns `true` if the runtime knows nothing of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

/// Converts a runtime's timestamp; the epoch if it is out of range.
pub fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Results of the probes of running containers, by container id. A container without an entry has not been
/// probed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults {
    results: std::collections::BTreeMap<String, Probed>,
}

/// Probe results of one container. `None` means that the probe has not run yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// Set once the startup probe has succeeded or has finally failed.
    pub started: Option<bool>,
    /// True if the liveness probe succeeds.
    pub alive: Option<bool>,
    /// True if the readiness probe succeeds.
    pub ready: Option<bool>,
    /// True once the postStart hook has finished, `false` while it runs.
    pub hooked: Option<bool>,
}

impl ProbeResults {
    /// Returns the results of a container.
    pub fn get(&self, id: &str) -> Probed {
        self.results.get(id).copied().unwrap_or_default()
    }

    /// Updates the results of a container; returns whether they changed.
    pub fn update(&mut self, id: &str, change: impl FnOnce(&mut Probed)) -> bool {
        let entry = self.results.entry(id.to_owned()).or_default();
        let before = *entry;
        change(entry);
        before != *entry
    }

    /// Removes the results of containers that are gone.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.results.retain(|id, _| keep(id));
    }
}

/// Returns the addresses of a pod in the order of its node's families, one of each: the primary family of the node,
/// whose addresses are `host_ips`, goes first. A node without addresses counts as one of IPv4.
pub fn ordered_ips(ips: &[String], host_ips: &[String]) -> Vec<String> {
    let is_ipv4 = |ip: &String| ip.parse::<IpAddr>().ok().map(|ip| ip.is_ipv4());
    let primary = host_ips.first().and_then(is_ipv4).unwrap_or(true);
    let first = |ipv4: bool| ips.iter().find(|ip| is_ipv4(ip) == Some(ipv4)).cloned();
    [first(primary), first(!primary)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_addresses_follow_the_families_of_the_node() {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let (v4, v6) = ("10.244.0.5", "fd00:244::5");
        for (ips, host_ips, expected) in [
            (&[v4, v6][..], &["192.0.2.1", "2001:db8::1"][..], &[v4, v6][..]),
            (&[v4, v6], &["2001:db8::1", "192.0.2.1"], &[v6, v4]),
            (&[v6, v4], &["192.0.2.1"], &[v4, v6]),
            (&[v6], &["192.0.2.1"], &[v6]),
            (&[v4, "10.244.0.6", v6], &[], &[v4, v6]),
            (&["", v6], &["2001:db8::1"], &[v6]),
            (&[], &["192.0.2.1"], &[]),
        ] {
            assert_eq!(ordered_ips(&list(ips), &list(host_ips)), list(expected), "{ips:?} {host_ips:?}");
        }
    }
}
