//! Rotates and trims the logs of containers. This runs in a task of its own, so that no other slow work
//! allows a container to fill the node's disk, and each log is handled separately, so that none waits for a
//! slow one.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use kubelet_cri::ContainerState;
use tokio::{sync::Semaphore, task::JoinSet, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{agent::Agent, limits, tracked::TrackedPod};

/// Log of one attempt of a container.
struct Log {
    tracked: Arc<TrackedPod>,
    /// Id of the container.
    id: String,
    container: String,
    attempt: u32,
    state: ContainerState,
}

/// Checks all logs periodically, until shutdown.
pub(crate) async fn run(agent: Arc<Agent>, shutdown: CancellationToken) {
    let places = Arc::new(Semaphore::new(limits::LOG_ROTATIONS));
    // Ids of the containers whose logs are currently being checked.
    let busy: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let mut tasks = JoinSet::new();
    let mut looks = tokio::time::interval(limits::LOG_CHECK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
            _ = looks.tick() => {}
        }
        for log in logs(&agent) {
            if !busy.lock().unwrap_or_else(PoisonError::into_inner).insert(log.id.clone()) {
                continue;
            }
            let (agent, places, busy) = (Arc::clone(&agent), Arc::clone(&places), Arc::clone(&busy));
            tasks.spawn(async move {
                if let Ok(_place) = places.acquire().await {
                    check(&agent, &log).await;
                }
                busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&log.id);
            });
        }
    }
}

/// Returns the logs of all containers that have been started.
fn logs(agent: &Agent) -> Vec<Log> {
    let tracked_pods: Vec<Arc<TrackedPod>> = agent.tracked_pods().values().cloned().collect();
    let mut logs = Vec::new();
    for tracked in tracked_pods {
        let state = tracked.state();
        let has_written = |state| matches!(state, ContainerState::Running | ContainerState::Exited);
        let written = state.runtime.containers.iter().filter(|container| has_written(container.state));
        logs.extend(written.map(|container| Log {
            tracked: Arc::clone(&tracked),
            id: container.id.clone(),
            container: container.name.clone(),
            attempt: container.attempt,
            state: container.state,
        }));
    }
    logs
}

async fn check(agent: &Agent, log: &Log) {
    let (place, name) = (&log.tracked.place, &log.container);
    if log.state == ContainerState::Exited {
        agent.machine.trim_log(place, name, log.attempt, true).await;
        return;
    }
    if !agent.machine.rotate_log(place, name, log.attempt).await {
        return;
    }
    let reopened = agent.runtime.reopen_container_log(&log.id);
    match tokio::time::timeout(limits::LOG_REOPEN, reopened).await {
        Ok(Ok(())) => agent.machine.trim_log(place, name, log.attempt, false).await,
        Ok(Err(error)) => {
            debug!(pod = place.name, container = name, %error, "cannot reopen a rotated log")
        }
        Err(_) => {
            debug!(pod = place.name, container = name, "the runtime did not reopen a rotated log in time")
        }
    }
}
