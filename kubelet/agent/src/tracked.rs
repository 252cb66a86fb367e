//! What the tasks of one pod share: the wish, the observation, and what follows from them.

use apiserver_meta::pods;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_cri::{ContainerState, ContainerSummary, Resources, SandboxStatus, SandboxSummary};
use tokio::sync::watch;

use crate::{
    machine::PodPlace,
    pod::{
        self,
        backoff::Backoff,
        env::TokenKey,
        observed::{PodRuntime, ProbeResults, Probed},
        plan::{self, Failure, Plan},
        resize::{self, News, Refusal, Resize},
        resources,
        status::Verdict,
    },
    volumes,
};

/// One pod on this node.
pub(crate) struct TrackedPod {
    pub place: PodPlace,
    state: Mutex<State>,
    /// Grows with each change of the state.
    version: watch::Sender<u64>,
    /// Refreshes one at a time, so that an older answer never replaces a newer one.
    pub refreshing: tokio::sync::Mutex<()>,
    /// Measures its part of the disk one at a time; whether the last measurement was not complete.
    pub measuring: tokio::sync::Mutex<bool>,
}

/// All that is known of a pod.
pub(crate) struct State {
    /// With the resources that it is granted, which may not be those that it asks for.
    pub pod: Arc<Pod>,
    /// As the API has it.
    pub desired: Arc<Pod>,
    pub resize: Resize,
    /// What the pod's cgroup was last given.
    pub cgroup: Option<Resources>,
    /// The object is gone from the API.
    pub gone: bool,
    pub runtime: PodRuntime,
    pub probes: ProbeResults,
    pub backoff: Backoff,
    pub failures: BTreeMap<String, Failure>,
    pub verdict: Option<Verdict>,
    /// All has ended since the pod is being deleted.
    pub terminated: bool,
    /// The last computed status, or the one that the API had.
    pub status: PodStatus,
    /// Tokens by what was asked for, with the time for the next one.
    pub tokens: BTreeMap<TokenKey, (String, Timestamp)>,
    /// The pod, or an object that its volumes are made of, has changed since they were last written.
    pub volumes_outdated: bool,
}

/// What is to be done with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It shall run.
    Run,
    /// It has reached its end and stays to be looked at.
    Finish,
    /// It is being deleted.
    Terminate,
}

impl TrackedPod {
    pub(crate) fn new(desired: Arc<Pod>, cgroup_root: &str, now: Timestamp) -> Self {
        let resize = Resize::from_status(&desired, now);
        let pod = resize::granted(&desired, &resize);
        let place = PodPlace {
            uid: pod::uid(&pod).to_owned(),
            namespace: pod::namespace(&pod).to_owned(),
            name: pod::name(&pod).to_owned(),
            cgroup: resources::pod_cgroup(cgroup_root, &pod),
        };
        let status = pod.status.clone().unwrap_or_default();
        let state = State {
            probes: readiness_before_restart(&status),
            status,
            pod,
            desired,
            resize,
            cgroup: None,
            gone: false,
            runtime: PodRuntime::default(),
            backoff: Backoff::default(),
            failures: BTreeMap::new(),
            verdict: None,
            terminated: false,
            tokens: BTreeMap::new(),
            volumes_outdated: false,
        };
        Self {
            place,
            state: Mutex::new(state),
            version: watch::Sender::new(0),
            refreshing: tokio::sync::Mutex::default(),
            measuring: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes whoever waits for that.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.version.send_modify(|version| *version += 1);
        result
    }

    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(crate) fn pod(&self) -> Arc<Pod> {
        Arc::clone(&self.state().pod)
    }

    /// Replaces the pod by a newer state of it, decides on its resize, and wakes the tasks of the pod: no
    /// status tells of the new state before the decision. Returns what is worth an event.
    pub(crate) fn replace_pod(
        &self,
        desired: Arc<Pod>,
        verdict: Option<Result<(), Refusal>>,
        now: Timestamp,
    ) -> Option<News> {
        self.change(|state| {
            let news = verdict.and_then(|verdict| state.resize.decide(&desired, verdict, now));
            let pod = resize::granted(&desired, &state.resize);
            state.volumes_outdated |= volumes::may_differ(&state.pod, &pod);
            (state.desired, state.pod) = (desired, pod);
            news
        })
    }

    /// The pod, for the purpose of writing its volumes: a change from now on makes them outdated again.
    pub(crate) fn pod_to_mount(&self) -> Arc<Pod> {
        let mut state = self.state();
        state.volumes_outdated = false;
        Arc::clone(&state.pod)
    }

    /// What the pod's cgroup must hold: what its running containers have, and what they are granted.
    pub(crate) fn cgroup_to_hold(&self) -> Resources {
        let state = self.state();
        let running = |name: &str| {
            let newest = state.runtime.newest(name)?;
            (newest.state == ContainerState::Running).then(|| newest.id.clone())
        };
        let has = resize::as_it_runs(&state.pod, &state.resize, running);
        resources::wider(resources::pod_resources(&has), resources::pod_resources(&state.pod))
    }

    /// Notes a probe's finding; wakes only where that is news.
    pub(crate) fn probed(&self, container_id: &str, change: impl FnOnce(&mut Probed)) {
        if self.state().probes.update(container_id, change) {
            self.version.send_modify(|version| *version += 1);
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        let state = self.state();
        if state.gone || state.pod.metadata.deletion_timestamp.is_some() {
            Mode::Terminate
        } else if state.verdict.is_some() || pods::is_final(state.status.phase.as_deref().unwrap_or_default())
        {
            Mode::Finish
        } else {
            Mode::Run
        }
    }

    pub(crate) fn plan(&self, now: Timestamp) -> Plan {
        let state = self.state();
        plan::plan(plan::Input {
            pod: &state.pod,
            runtime: &state.runtime,
            probes: &state.probes,
            backoff: &state.backoff,
            failures: &state.failures,
            resize: &state.resize,
            now,
        })
    }

    /// Whether the lists show something else than what is known.
    pub(crate) fn differs(&self, sandboxes: &[&SandboxSummary], containers: &[&ContainerSummary]) -> bool {
        let state = self.state();
        let known = &state.runtime;
        sandboxes.len() != known.sandboxes.len()
            || containers.len() != known.containers.len()
            || sandboxes.iter().any(|listed| {
                let same = |s: &&SandboxStatus| s.summary.id == listed.id;
                known.sandboxes.iter().find(same).is_none_or(|s| s.summary.state != listed.state)
            })
            || containers.iter().any(|listed| known.by_id(&listed.id).is_none_or(|c| c.state != listed.state))
    }
}

/// A restarted kubelet has probed nothing yet, but the API remembers what the last one found out
/// about the very same containers.
fn readiness_before_restart(status: &PodStatus) -> ProbeResults {
    let mut results = ProbeResults::default();
    let lists = [&status.init_container_statuses, &status.container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        let Some((_, id)) = container.container_id.as_deref().and_then(|id| id.split_once("://")) else {
            continue;
        };
        if container.state.as_ref().is_some_and(|state| state.running.is_some()) {
            results.update(id, |probed| {
                probed.ready = container.ready.then_some(true);
                probed.started = (container.started == Some(true)).then_some(true);
            });
        }
    }
    results
}
