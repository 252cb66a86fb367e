//! Updates a tracked pod from the runtime and computes its status.

use k8s_openapi::api::core::v1::PodStatus;
use kubelet_cri::{
    ContainerState, ContainerStatus, ContainerSummary, SandboxState, SandboxStatus, SandboxSummary,
};

use crate::{
    agent::Agent,
    limits,
    pod::{
        self,
        observed::{PodRuntime, ordered_ips},
        status,
    },
    tracked::TrackedPod,
};

impl TrackedPod {
    /// Computes the status and stores it.
    pub(crate) fn compute_status(&self, agent: &Agent) -> PodStatus {
        let mut state = self.state();
        let status = status::compute(status::Input {
            pod: &state.pod,
            runtime: &state.runtime,
            probes: &state.probes,
            backoff: &state.backoff,
            failures: &state.failures,
            resize: &state.resize,
            verdict: state.verdict.as_ref(),
            terminated: state.terminated,
            previous: &state.status,
            host_ips: &agent.host_ips,
            runtime_name: &agent.runtime_name(),
            // Capabilities of the default handler: those of another handler are known only when a container
            // starts.
            recursive_read_only: agent.runtime_status.load().handler("").recursive_read_only_mounts,
            now: agent.ambient.now(),
        });
        state.status = status.clone();
        status
    }

    /// Queries the runtime for the state of this pod.
    pub(crate) async fn refresh(&self, agent: &Agent) -> kubelet_cri::Result<()> {
        let _one_at_a_time = self.refreshing.lock().await;
        let uid = Some(self.place.uid.as_str());
        let sandboxes = agent.runtime.list_pod_sandboxes(uid).await?;
        let containers = agent.runtime.list_containers(uid).await?;
        let before = self.state().runtime.clone();
        let sandboxes = sandbox_statuses(agent, &before, sandboxes).await?;
        let containers = container_statuses(agent, self, &before, containers).await?;
        let after = PodRuntime::new(sandboxes, containers);
        if after != before {
            self.change(|state| {
                state.probes.retain(|id| after.by_id(id).is_some());
                state.resize.retain(|id| after.by_id(id).is_some());
                state.runtime = after;
            });
        }
        Ok(())
    }
}

/// Queries only the sandboxes that the list shows as changed. Sandboxes that vanish in between are skipped.
async fn sandbox_statuses(
    agent: &Agent,
    before: &PodRuntime,
    listed: Vec<SandboxSummary>,
) -> kubelet_cri::Result<Vec<SandboxStatus>> {
    let mut statuses = Vec::with_capacity(listed.len());
    for summary in listed {
        let known = before.sandboxes.iter().find(|known| {
            known.summary.id == summary.id
                && known.summary.state == summary.state
                && (summary.state == SandboxState::NotReady || !known.ips.is_empty())
        });
        match known {
            Some(known) => statuses.push(known.clone()),
            None => match agent.runtime.pod_sandbox_status(&summary.id).await {
                Ok(mut status) => {
                    status.ips = ordered_ips(&status.ips, &agent.host_ips);
                    statuses.push(status);
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            },
        }
    }
    Ok(statuses)
}

async fn container_statuses(
    agent: &Agent,
    tracked: &TrackedPod,
    before: &PodRuntime,
    listed: Vec<ContainerSummary>,
) -> kubelet_cri::Result<Vec<ContainerStatus>> {
    let mut statuses = Vec::with_capacity(listed.len());
    for summary in listed {
        if let Some(known) = before.by_id(&summary.id).filter(|known| known.state == summary.state) {
            statuses.push(known.clone());
            continue;
        }
        match agent.runtime.container_status(&summary.id).await {
            Ok(mut status) => {
                status.sandbox_id = summary.sandbox_id;
                if status.state == ContainerState::Exited {
                    add_termination_message(agent, tracked, &mut status).await;
                }
                statuses.push(status);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(statuses)
}

/// Sets the termination message of a container that has ended: its file, or, after a failure, the end of its
/// log.
async fn add_termination_message(agent: &Agent, tracked: &TrackedPod, status: &mut ContainerStatus) {
    let message = agent.machine.termination_message(&tracked.place, &status.name, status.attempt).await;
    if !message.is_empty() {
        status.message = message;
        return;
    }
    let pod = tracked.pod();
    let from_logs = pod::container(&pod, &status.name)
        .and_then(|(_, container)| container.termination_message_policy.as_deref())
        == Some("FallbackToLogsOnError");
    if from_logs && status.exit_code != 0 {
        let (lines, bytes) = (limits::TERMINATION_LOG_LINES, limits::TERMINATION_LOG);
        status.message =
            agent.machine.log_tail(&tracked.place, &status.name, status.attempt, lines, bytes).await;
    }
}
