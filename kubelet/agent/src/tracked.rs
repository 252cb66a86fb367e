//! State shared by the tasks of one pod: its spec, its observed state, and what is derived from them.

use apiserver_meta::pods;
use std::{
    collections::{BTreeMap, BTreeSet},
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
        resize::{self, EventText, Refusal, Resize},
        resources,
        status::Verdict,
    },
    volumes,
};

/// One pod on this node.
pub(crate) struct TrackedPod {
    pub place: PodPlace,
    state: Mutex<State>,
    /// Incremented with each change of the state.
    version: watch::Sender<u64>,
    /// Serializes refreshes, so that an older answer never replaces a newer one.
    pub refreshing: tokio::sync::Mutex<()>,
    /// Serializes measurements of disk usage; true if the last one was incomplete.
    pub measuring: tokio::sync::Mutex<bool>,
}

/// All that the kubelet knows of a pod.
pub(crate) struct State {
    /// The pod with its granted resources, which may differ from the requested ones.
    pub pod: Arc<Pod>,
    /// The pod as in the API.
    pub desired: Arc<Pod>,
    pub resize: Resize,
    /// Resources last set on the pod's cgroup.
    pub cgroup: Option<Resources>,
    /// True once the object has been deleted from the API.
    pub gone: bool,
    pub runtime: PodRuntime,
    pub probes: ProbeResults,
    pub backoff: Backoff,
    pub failures: BTreeMap<String, Failure>,
    pub verdict: Option<Verdict>,
    /// True once everything has ended because the pod is being deleted.
    pub terminated: bool,
    /// The last computed status, or initially that of the API.
    pub status: PodStatus,
    /// Service account tokens by audience and lifetime, each with the time of its renewal.
    pub tokens: BTreeMap<TokenKey, (String, Timestamp)>,
    /// True if the pod, or an object that its volumes contain, has changed since they were last written.
    pub volumes_outdated: bool,
    /// Names of the PersistentVolumes behind its claims, once they are known.
    pub claimed: BTreeSet<String>,
}

/// Phase of a pod's life from the worker's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The pod runs or is to be run.
    Run,
    /// The pod has finished and its object still exists.
    Finish,
    /// The pod is being deleted.
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
            claimed: BTreeSet::new(),
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

    /// Changes the state and wakes the tasks that wait for changes.
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

    /// Replaces the pod with a newer state, decides on its resize, and wakes its tasks, in one step, so that
    /// no status reports the new state before the decision. Returns an event to record.
    pub(crate) fn replace_pod(
        &self,
        desired: Arc<Pod>,
        verdict: Option<Result<(), Refusal>>,
        now: Timestamp,
    ) -> Option<EventText> {
        self.change(|state| {
            let event = verdict.and_then(|verdict| state.resize.decide(&desired, verdict, now));
            let pod = resize::granted(&desired, &state.resize);
            state.volumes_outdated |= volumes::may_differ(&state.pod, &pod);
            (state.desired, state.pod) = (desired, pod);
            event
        })
    }

    /// Returns the pod and marks its volumes as up to date; any change from now on marks them as outdated
    /// again.
    pub(crate) fn pod_to_mount(&self) -> Arc<Pod> {
        let mut state = self.state();
        state.volumes_outdated = false;
        Arc::clone(&state.pod)
    }

    /// Returns the resources that the pod's cgroup needs: enough for what its containers have and for what
    /// they are granted.
    pub(crate) fn cgroup_to_hold(&self) -> Resources {
        let state = self.state();
        let running = |name: &str| {
            let newest = state.runtime.newest(name)?;
            (newest.state == ContainerState::Running).then(|| newest.id.clone())
        };
        let has = resize::as_it_runs(&state.pod, &state.resize, running);
        resources::wider(resources::pod_resources(&has), resources::pod_resources(&state.pod))
    }

    /// Records a probe result; wakes tasks only if it is a change.
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

    /// Returns `true` if the lists differ from the known state.
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

/// Restores probe results from the status of a pod: a restarted kubelet has probed nothing yet, but the API
/// has the results of the previous one for the same containers.
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
