//! What the runtime shows of a pod.

use jiff::Timestamp;
use kubelet_cri::{ContainerState, ContainerStatus, SandboxState, SandboxStatus};

/// Sandboxes and containers of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRuntime {
    /// The newest first.
    pub sandboxes: Vec<SandboxStatus>,
    /// All attempts of all containers, the newest first.
    pub containers: Vec<ContainerStatus>,
}

impl PodRuntime {
    /// Puts the newest first.
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

    /// The newest sandbox.
    pub fn sandbox(&self) -> Option<&SandboxStatus> {
        self.sandboxes.first()
    }

    /// The newest sandbox, if it can hold containers.
    pub fn ready_sandbox(&self) -> Option<&SandboxStatus> {
        self.sandbox().filter(|sandbox| sandbox.summary.state == SandboxState::Ready)
    }

    /// All attempts of a container, the newest first.
    pub fn attempts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ContainerStatus> {
        self.containers.iter().filter(move |container| container.name == name)
    }

    /// The newest attempt of a container.
    pub fn newest<'a>(&'a self, name: &'a str) -> Option<&'a ContainerStatus> {
        self.attempts(name).next()
    }

    /// A container by its id.
    pub fn by_id(&self, id: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|container| container.id == id)
    }

    /// Whether a container runs.
    pub fn has_running(&self) -> bool {
        self.containers.iter().any(|container| container.state == ContainerState::Running)
    }

    /// Whether the runtime knows nothing of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

/// A runtime's time; the epoch where it is out of range.
pub fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// What probes have found out about the running containers, by container id. A container without
/// an entry has not been probed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults {
    results: std::collections::BTreeMap<String, Probed>,
}

/// What is known of one container. `None` is "not probed so far".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// The startup probe has succeeded, or has finally failed.
    pub started: Option<bool>,
    /// The liveness probe succeeds.
    pub alive: Option<bool>,
    /// The readiness probe succeeds.
    pub ready: Option<bool>,
    /// The postStart hook has ended; `false` while it runs.
    pub hooked: Option<bool>,
}

impl ProbeResults {
    /// What is known of a container.
    pub fn get(&self, id: &str) -> Probed {
        self.results.get(id).copied().unwrap_or_default()
    }

    /// Changes what is known of a container; whether that was news.
    pub fn update(&mut self, id: &str, change: impl FnOnce(&mut Probed)) -> bool {
        let entry = self.results.entry(id.to_owned()).or_default();
        let before = *entry;
        change(entry);
        before != *entry
    }

    /// Forgets containers that are gone.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.results.retain(|id, _| keep(id));
    }
}
