//! Keeps the logs of containers within their bounds. A task of its own, so that nothing else that takes
//! its time lets a container fill the node's disk.

use std::sync::Arc;

use kubelet_cri::ContainerState;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{agent::Agent, cell::PodCell, limits};

/// Looks at all logs again and again, until shutdown.
pub(crate) async fn run(agent: Arc<Agent>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(limits::LOG_CHECK) => {}
        }
        let cells: Vec<Arc<PodCell>> = agent.cells().values().cloned().collect();
        for cell in cells {
            check(&agent, &cell).await;
        }
    }
}

async fn check(agent: &Agent, cell: &PodCell) {
    let containers: Vec<(String, String, u32, ContainerState)> = {
        let state = cell.state();
        let all = state.runtime.containers.iter();
        all.map(|c| (c.id.clone(), c.name.clone(), c.attempt, c.state)).collect()
    };
    for (id, name, attempt, state) in containers {
        match state {
            ContainerState::Running => {
                if agent.machine.rotate_log(&cell.place, &name, attempt).await {
                    if let Err(error) = agent.runtime.reopen_container_log(&id).await {
                        debug!(%error, "a rotated log could not be opened anew");
                        continue;
                    }
                    agent.machine.trim_log(&cell.place, &name, attempt, false).await;
                }
            }
            ContainerState::Exited => agent.machine.trim_log(&cell.place, &name, attempt, true).await,
            ContainerState::Created | ContainerState::Unknown => {}
        }
    }
}
