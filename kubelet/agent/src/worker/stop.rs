//! Stops containers gracefully, and pods for good.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};
use kubelet_cri::ContainerState;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::Worker;
use crate::{
    agent::Agent,
    limits,
    pod::{self, Role, plan::Kill},
    tracked::TrackedPod,
};

/// Returns the grace period of a pod.
pub(super) fn grace(pod: &Pod) -> Duration {
    let seconds = pod
        .metadata
        .deletion_grace_period_seconds
        .or(pod::spec(pod).termination_grace_period_seconds)
        .unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// A running container and its role.
struct Running {
    id: String,
    name: String,
    role: Role,
    /// Index of the container in its pod.
    index: usize,
}

impl Worker {
    /// Stops single containers of a pod that continues to run; returns whether all could be stopped.
    pub(super) async fn kill(&self, kills: &[Kill]) -> bool {
        let pod = self.tracked.pod();
        let all = kills.iter().map(|kill| {
            self.agent.event(&pod, Some(&kill.name), "Killing", kill.message.clone());
            self.stop_one(&pod, &kill.id, &kill.name, kill.grace.unwrap_or_else(|| grace(&pod)))
        });
        join_all(all).await.into_iter().all(|stopped| stopped)
    }

    /// Runs the preStop hook and stops a container, both within `grace`; returns whether that succeeded.
    async fn stop_one(&self, pod: &Pod, id: &str, name: &str, grace: Duration) -> bool {
        let began = Instant::now();
        let container = pod::container(pod, name).map(|(_, container)| container);
        let handler = container.and_then(|c| c.lifecycle.as_ref()?.pre_stop.as_ref().map(|hook| (c, hook)));
        if let Some((container, handler)) = handler
            && !grace.is_zero()
        {
            let outcome = tokio::time::timeout(grace, self.hook(handler, container, id, grace)).await;
            if let Ok(Err(why)) = outcome {
                self.agent.event(pod, Some(name), "FailedPreStopHook", format!("PreStopHook failed: {why}"));
            }
        }
        // Without a grace period the container is killed at once; after a hook it gets at least a moment.
        let left = if handler.is_some() && !grace.is_zero() {
            grace.saturating_sub(began.elapsed()).max(limits::MIN_GRACE)
        } else {
            grace
        };
        if let Err(error) = self.agent.runtime.stop_container(id, left).await {
            warn!(pod = %self.tracked.place.name, container = name, %error, "cannot stop a container");
            return false;
        }
        true
    }

    fn running(&self) -> Vec<Running> {
        let state = self.tracked.state();
        let order: Vec<(Role, String)> =
            pod::all_containers(&state.pod).map(|(role, container)| (role, container.name.clone())).collect();
        let alive = state.runtime.containers.iter().filter(|c| c.state == ContainerState::Running);
        alive
            .map(|status| {
                let index = order.iter().position(|(_, name)| *name == status.name);
                Running {
                    id: status.id.clone(),
                    name: status.name.clone(),
                    role: index.map_or(Role::Ephemeral, |index| order[index].0),
                    index: index.unwrap_or(usize::MAX),
                }
            })
            .collect()
    }

    /// Stops all containers of the pod: the main containers concurrently, then the sidecars in reverse order,
    /// then the sandboxes.
    pub(super) async fn kill_pod(&self, grace: Duration) {
        let pod = self.tracked.pod();
        let began = Instant::now();
        let (mut sidecars, others): (Vec<Running>, Vec<Running>) =
            self.running().into_iter().partition(|running| running.role == Role::Sidecar);
        let stop = |running: &Running, grace: Duration| {
            let message = format!("Stopping container {}", running.name);
            self.agent.event(&pod, Some(&running.name), "Killing", message);
            let (id, name, pod) = (running.id.clone(), running.name.clone(), pod.clone());
            async move { self.stop_one(&pod, &id, &name, grace).await }
        };
        join_all(others.iter().map(|running| stop(running, grace))).await;
        sidecars.sort_by_key(|sidecar| std::cmp::Reverse(sidecar.index));
        for sidecar in &sidecars {
            stop(sidecar, grace.saturating_sub(began.elapsed()).max(limits::MIN_GRACE.min(grace))).await;
        }
    }

    /// Takes down the network of all sandboxes, including those that died on their own.
    pub(super) async fn stop_sandboxes(&self) {
        let ids: Vec<String> = {
            let state = self.tracked.state();
            state.runtime.sandboxes.iter().map(|sandbox| sandbox.summary.id.clone()).collect()
        };
        for id in ids {
            while let Err(error) = self.agent.runtime.stop_pod_sandbox(&id).await {
                warn!(pod = %self.tracked.place.name, %error, "cannot stop a sandbox");
                tokio::time::sleep(limits::RETRY).await;
            }
        }
    }

    /// Stops everything, repeating as often as needed. If the grace period is shortened in the meantime, that
    /// takes effect at once.
    pub(super) async fn stop_all(&self) {
        loop {
            let pod = self.tracked.pod();
            let grace = grace(&pod);
            tokio::select! {
                biased;
                () = self.kill_pod(grace) => {}
                () = shortened(&self.tracked, grace) => continue,
            }
            self.refresh().await;
            if self.tracked.state().runtime.has_running() {
                tokio::time::sleep(limits::RETRY).await;
                continue;
            }
            return;
        }
    }

    /// Removes the pod and its logs from the runtime.
    pub(super) async fn forget_runtime(&self) {
        let ids: Vec<String> = {
            let state = self.tracked.state();
            state.runtime.sandboxes.iter().map(|sandbox| sandbox.summary.id.clone()).collect()
        };
        for id in ids {
            // The next search for orphans finds a sandbox that remains.
            if let Err(error) = self.agent.runtime.remove_pod_sandbox(&id).await {
                debug!(%error, "cannot remove a sandbox");
            }
        }
        self.agent.machine.remove_logs(&self.tracked.place).await;
    }
}

/// Returns when the pod's grace period has become shorter than `grace`.
async fn shortened(tracked: &TrackedPod, before: Duration) {
    let mut versions = tracked.versions();
    while grace(&tracked.pod()) >= before {
        if versions.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Deletes the object, unless its name belongs to another pod by now.
pub(super) async fn delete(agent: &Agent, tracked: &TrackedPod) {
    let api: Api<Pod> = Api::namespaced(agent.client.clone(), &tracked.place.namespace);
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(tracked.place.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    loop {
        match api.delete(&tracked.place.name, &parameters).await {
            Ok(_) => return,
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => return,
            Err(error) => {
                warn!(pod = %tracked.place.name, error = &error as &dyn std::error::Error, "cannot delete a pod");
                tokio::time::sleep(limits::RETRY).await;
            }
        }
    }
}
