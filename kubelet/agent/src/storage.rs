//! Evicts pods that exceed their limits on local storage.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    agent::Agent,
    limits,
    pod::{
        self,
        status::{EVICTED, Verdict},
        storage::{Usage, exceeded, is_critical, is_limited, limits_containers, volumes},
    },
    tracked::{Mode, TrackedPod},
};

/// Measures all pods with limits periodically, until shutdown. A slow measurement does not delay those of
/// other pods.
pub(crate) async fn run(agent: Arc<Agent>, shutdown: CancellationToken) {
    let mut checks = JoinSet::new();
    let mut interval = tokio::time::interval(limits::STORAGE_CHECK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Some(ended) = checks.join_next(), if !checks.is_empty() => {
                if let Err(error) = ended {
                    warn!(%error, "the measurement of a pod failed");
                }
            }
            _ = interval.tick() => {
                let tracked_pods: Vec<Arc<TrackedPod>> = agent.tracked_pods().values().cloned().collect();
                for tracked in tracked_pods.into_iter().filter(|tracked| is_limited(&tracked.pod())) {
                    let agent = Arc::clone(&agent);
                    checks.spawn(async move { check(&agent, &tracked).await });
                }
            }
        }
    }
}

/// Measures one pod, unless its last measurement is still running, and evicts it if it exceeds a limit.
async fn check(agent: &Agent, tracked: &TrackedPod) {
    let Ok(mut problem) = tracked.measuring.try_lock() else { return };
    if tracked.mode() != Mode::Run {
        return;
    }
    let pod = tracked.pod();
    let (usage, error) = measure(agent, tracked, &pod).await;
    if let Some(why) = &error
        && !std::mem::replace(&mut *problem, true)
    {
        let message = format!("Limits on ephemeral storage are not enforced in full: {why}");
        agent.event(&pod, None, "EphemeralStorageNotMeasured", message);
    }
    *problem = error.is_some();
    let Some(message) = exceeded(&pod, &usage) else { return };
    if tracked.mode() != Mode::Run {
        return;
    }
    if is_critical(&pod) {
        warn!(pod = tracked.place.name, message, "not evicting a critical pod");
        return;
    }
    info!(pod = tracked.place.name, namespace = tracked.place.namespace, message, "evicting a pod");
    agent.event(&pod, None, EVICTED, message.clone());
    tracked.change(|state| {
        state.verdict.get_or_insert(Verdict { reason: EVICTED, message });
    });
}

/// Returns the local storage usage of a pod, and a message if parts of it could not be measured.
async fn measure(agent: &Agent, tracked: &TrackedPod, pod: &Pod) -> (Usage, Option<String>) {
    let mut problem = None;
    let volumes: Vec<String> = volumes(pod).map(str::to_owned).collect();
    let mut containers: Vec<String> = Vec::new();
    if limits_containers(pod) {
        containers.extend(pod::all_containers(pod).map(|(_, container)| container.name.clone()));
        containers.extend(pod::ephemeral_containers(pod).map(|container| container.name.clone()));
    }
    let disk =
        agent.machine.disk_usage(&tracked.place, &volumes, &containers).await.unwrap_or_else(|error| {
            warn!(
                pod = tracked.place.name,
                error = &error as &dyn std::error::Error,
                "cannot measure the disk usage of a pod"
            );
            // The cause is not included, because it could reveal files of the node.
            problem = Some("the disk usage of its volumes and logs cannot be measured".to_owned());
            crate::machine::DiskUsage::default()
        });
    let mut usage = Usage { volumes: disk.volumes, containers: disk.logs };
    if containers.is_empty() {
        return (usage, problem);
    }
    let layers = agent.runtime.writable_layers(Some(&tracked.place.uid)).await.unwrap_or_else(|error| {
        problem =
            Some(format!("the container runtime does not report the sizes of writable layers: {error}"));
        BTreeMap::new()
    });
    let state = tracked.state();
    for name in containers {
        // Earlier attempts are removed soon and do not count.
        let layer = state.runtime.newest(&name).and_then(|newest| layers.get(&newest.id));
        let used = usage.containers.entry(name).or_default();
        *used = used.saturating_add(layer.copied().unwrap_or_default());
    }
    drop(state);
    (usage, problem)
}
