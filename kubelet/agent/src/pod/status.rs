//! Computes the `PodStatus` that is reported to the API from spec and observed state.

use std::{collections::BTreeMap, time::Duration};

use apiserver_meta::pods::is_final;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
        ContainerStateWaiting, ContainerStatus as ApiStatus, HostIP, Pod, PodIP, PodStatus, VolumeMount,
        VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kubelet_cri::{ContainerState, ContainerStatus, SandboxState};

use super::{
    Role, all_containers,
    backoff::Backoff,
    ephemeral_as_container, ephemeral_containers, host_network, init_containers, name, namespace,
    observed::{PodRuntime, ProbeResults, timestamp},
    plan::{self, Failure},
    resize::Resize,
    resources, restart_policy, spec,
    spec::recursive_read_only,
    uid,
};
use crate::limits::{EVICTION_GRACE, TERMINATION_MESSAGE, TERMINATION_MESSAGES};

mod conditions;

/// Reason of a pod that was evicted because it exceeded a limit.
pub const EVICTED: &str = "Evicted";

/// Reason for which a pod has failed independently of its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Machine-readable reason: `DeadlineExceeded`, `OutOfcpu`, …
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
}

impl Verdict {
    /// Returns the grace period of the containers if it differs from the pod's.
    pub fn grace(&self) -> Option<Duration> {
        (self.reason == EVICTED).then_some(EVICTION_GRACE)
    }
}

/// Inputs that a status is computed from.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub pod: &'a Pod,
    pub runtime: &'a PodRuntime,
    pub probes: &'a ProbeResults,
    pub backoff: &'a Backoff,
    /// Failures by container name, or under [`plan::WHOLE_POD`].
    pub failures: &'a BTreeMap<String, Failure>,
    pub resize: &'a Resize,
    pub verdict: Option<&'a Verdict>,
    /// True once all containers have ended for good because the pod is being deleted.
    pub terminated: bool,
    /// The last computed status, or that of the API when the kubelet started.
    pub previous: &'a PodStatus,
    /// Addresses of the node, primary IP family first.
    pub host_ips: &'a [String],
    /// Name of the runtime, such as `containerd`: the scheme of container ids.
    pub runtime_name: &'a str,
    /// True if the runtime can make submounts of read-only mounts read-only, too.
    pub recursive_read_only: bool,
    pub now: Timestamp,
}

/// Computes the current status of a pod. Unchanged conditions keep the times of `previous`.
pub fn compute(input: Input<'_>) -> PodStatus {
    let pod = input.pod;
    // A finished pod keeps its reason, even after a restart of the kubelet.
    let finished = is_final(input.previous.phase.as_deref().unwrap_or_default());
    let was_rejected = finished && input.previous.container_statuses.is_none();
    let rejected = (input.verdict.is_some() || was_rejected) && input.runtime.is_empty();
    let statuses = |wanted: &mut dyn Iterator<Item = (Role, Container)>| {
        let all: Vec<ApiStatus> = wanted.map(|(role, c)| container_status(&input, role, &c)).collect();
        (!all.is_empty() && !rejected).then_some(all)
    };
    let phase = phase(&input);
    let before = if finished { input.previous.clone() } else { PodStatus::default() };
    let ips = pod_ips(&input);
    let mut status = PodStatus {
        phase: Some(phase.to_owned()),
        observed_generation: pod.metadata.generation,
        host_ip: input.host_ips.first().cloned(),
        host_ips: Some(input.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: (!ips.is_empty()).then(|| ips.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: input.previous.start_time.clone().or(Some(Time(input.now))),
        qos_class: Some(resources::qos_class(pod).as_str().to_owned()),
        reason: input.verdict.map(|verdict| verdict.reason.to_owned()).or(before.reason),
        message: input.verdict.map(|verdict| verdict.message.clone()).or(before.message),
        init_container_statuses: statuses(&mut init_containers(pod).map(|(role, c)| (role, c.clone()))),
        container_statuses: statuses(&mut spec(pod).containers.iter().map(|c| (Role::Main, c.clone()))),
        ephemeral_container_statuses: statuses(
            &mut ephemeral_containers(pod).map(|e| (Role::Ephemeral, ephemeral_as_container(e))),
        ),
        ..PodStatus::default()
    };
    status.conditions = Some(conditions::compute(&input, &status));
    status
}

/// Returns the phase. A finished pod stays finished.
pub fn phase(input: &Input<'_>) -> &'static str {
    match input.previous.phase.as_deref() {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    if input.verdict.is_some() {
        return "Failed";
    }
    let main = &spec(input.pod).containers;
    let ended_well = |container: &Container| {
        input
            .runtime
            .newest(&container.name)
            .is_some_and(|s| s.state == ContainerState::Exited && s.exit_code == 0)
    };
    if input.terminated {
        return if main.iter().all(ended_well) { "Succeeded" } else { "Failed" };
    }
    let init_failed = init_containers(input.pod).any(|(role, container)| {
        role == Role::Init && has_ended_for_good(input, role, container) && !ended_well(container)
    });
    if init_failed {
        return "Failed";
    }
    if main.iter().all(|container| has_ended_for_good(input, Role::Main, container)) {
        return if main.iter().all(ended_well) { "Succeeded" } else { "Failed" };
    }
    let has_begun = |container: &Container| {
        let mut attempts = input.runtime.attempts(&container.name);
        attempts.any(|s| matches!(s.state, ContainerState::Running | ContainerState::Exited))
    };
    if main.iter().all(has_begun) { "Running" } else { "Pending" }
}

fn has_ended_for_good(input: &Input<'_>, role: Role, container: &Container) -> bool {
    input.runtime.newest(&container.name).is_some_and(|status| {
        status.state == ContainerState::Exited
            && !restart_policy(input.pod, role, container).restarts(status.exit_code)
            && !input.resize.restarting.contains(&status.id)
    })
}

/// Returns the addresses of the pod. A stopped sandbox has no address, so the previous ones are kept.
fn pod_ips(input: &Input<'_>) -> Vec<String> {
    if host_network(input.pod) {
        return if input.runtime.sandbox().is_some() || input.previous.pod_ip.is_some() {
            input.host_ips.to_vec()
        } else {
            Vec::new()
        };
    }
    match input.runtime.ready_sandbox() {
        Some(sandbox) => sandbox.ips.clone(),
        None => input.previous.pod_ips.iter().flatten().map(|entry| entry.ip.clone()).collect(),
    }
}

/// Returns `true` if all init containers are done in the current sandbox, or were before it died.
fn initialized(input: &Input<'_>) -> bool {
    let began = |container: &Container| {
        let mut attempts = input.runtime.attempts(&container.name);
        attempts.any(|s| matches!(s.state, ContainerState::Running | ContainerState::Exited))
    };
    let Some(sandbox) = input.runtime.ready_sandbox() else {
        return spec(input.pod).containers.iter().any(began);
    };
    plan::is_initialized(
        &plan::Input {
            pod: input.pod,
            runtime: input.runtime,
            probes: input.probes,
            backoff: input.backoff,
            failures: input.failures,
            resize: input.resize,
            now: input.now,
        },
        &sandbox.summary.id,
    )
}

fn container_status(input: &Input<'_>, role: Role, container: &Container) -> ApiStatus {
    let mut attempts = input.runtime.attempts(&container.name);
    let newest = attempts.next();
    let before = attempts.next();
    let mut status = ApiStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        volume_mounts: mounts(input, container),
        // Ephemeral containers have no probes.
        started: (role != Role::Ephemeral).then_some(false),
        ..ApiStatus::default()
    };
    let Some(newest) = newest else {
        if let Some(last) = remembered(input, &container.name) {
            return last;
        }
        status.state = Some(waiting(&never_started(input, container)));
        return status;
    };
    status.container_id = Some(container_id(input, newest));
    status.image_id.clone_from(&newest.image_ref);
    let running = (newest.state == ContainerState::Running).then_some(newest.id.as_str());
    status.resources = Some(input.resize.shown(running, container));
    status.allocated_resources =
        container.resources.as_ref().and_then(|resources| resources.requests.clone());
    status.restart_count = i32::try_from(newest.attempt).unwrap_or(i32::MAX);
    status.last_state = before.filter(|b| b.state == ContainerState::Exited).map(|b| terminated(input, b));
    match newest.state {
        ContainerState::Running => {
            let started = plan::is_started(container, newest, input.probes);
            let ready =
                container.readiness_probe.is_none() || input.probes.get(&newest.id).ready == Some(true);
            // A container outside of a ready sandbox cannot be reached.
            let reachable = input.runtime.sandbox().is_none_or(|s| s.summary.state == SandboxState::Ready);
            status.started = (role != Role::Ephemeral).then_some(started);
            status.ready = started && ready && reachable && role != Role::Init && role != Role::Ephemeral;
            let at = Time(timestamp(newest.started_at));
            status.state = Some(ApiState {
                running: Some(ContainerStateRunning { started_at: Some(at) }),
                ..ApiState::default()
            });
        }
        ContainerState::Exited => {
            status.ready = role == Role::Init && newest.exit_code == 0;
            match reason_to_wait(input, role, container, newest) {
                Some(reason) => {
                    status.last_state = Some(terminated(input, newest));
                    status.state = Some(waiting(&reason));
                }
                None => status.state = Some(terminated(input, newest)),
            }
        }
        ContainerState::Created | ContainerState::Unknown => {
            status.container_id = None;
            status.state = Some(waiting(&never_started(input, container)));
        }
    }
    status
}

/// Returns the mounts of a container as reported in its status.
fn mounts(input: &Input<'_>, container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_deref().filter(|mounts| !mounts.is_empty())?;
    let status = |mount: &VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: (mount.read_only == Some(true)).then(|| {
            let recursive = recursive_read_only(mount, input.recursive_read_only) == Ok(true);
            if recursive { "Enabled" } else { "Disabled" }.to_owned()
        }),
        volume_status: None,
    };
    Some(mounts.iter().map(status).collect())
}

/// Returns the previous status of a container: the runtime may have forgotten the containers of a finished
/// pod, but their reported status is kept.
fn remembered(input: &Input<'_>, name: &str) -> Option<ApiStatus> {
    let previous = input.previous;
    if !is_final(previous.phase.as_deref().unwrap_or_default()) {
        return None;
    }
    let lists = [
        &previous.init_container_statuses,
        &previous.container_statuses,
        &previous.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().find(|status| status.name == name).cloned()
}

/// Reason and message of a waiting container.
struct Waiting {
    reason: String,
    message: String,
}

/// Returns why a container that has never run is waiting.
fn never_started(input: &Input<'_>, container: &Container) -> Waiting {
    if let Some(failure) = input.failures.get(&container.name) {
        return Waiting { reason: failure.reason.clone(), message: failure.message.clone() };
    }
    // This also applies to the first init container, and after the last one has ended, as in Kubernetes.
    let reason =
        if init_containers(input.pod).next().is_some() { "PodInitializing" } else { "ContainerCreating" };
    Waiting { reason: reason.to_owned(), message: String::new() }
}

/// Returns why a container that has ended is waiting to be restarted; `None` if it is not.
fn reason_to_wait(
    input: &Input<'_>,
    role: Role,
    container: &Container,
    ended: &ContainerStatus,
) -> Option<Waiting> {
    let over = input.terminated
        || input.verdict.is_some()
        || input.pod.metadata.deletion_timestamp.is_some()
        || is_final(input.previous.phase.as_deref().unwrap_or_default())
        || !restart_policy(input.pod, role, container).restarts(ended.exit_code);
    if over {
        return None;
    }
    if let Some(failure) = input.failures.get(&container.name) {
        return Some(Waiting { reason: failure.reason.clone(), message: failure.message.clone() });
    }
    input.backoff.until(&container.name, timestamp(ended.finished_at), input.now)?;
    let (pause, pod) = (input.backoff.pause(&container.name), input.pod);
    let message = format!(
        "back-off {} restarting failed container={} pod={}_{}({})",
        duration(pause.as_secs()),
        container.name,
        name(pod),
        namespace(pod),
        uid(pod)
    );
    Some(Waiting { reason: "CrashLoopBackOff".to_owned(), message })
}

/// Formats a duration like Go does: `10s`, `2m40s`, `5m0s`.
fn duration(seconds: u64) -> String {
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}

fn waiting(waiting: &Waiting) -> ApiState {
    let state = ContainerStateWaiting {
        reason: Some(waiting.reason.clone()),
        message: (!waiting.message.is_empty()).then(|| waiting.message.clone()),
    };
    ApiState { waiting: Some(state), ..ApiState::default() }
}

fn terminated(input: &Input<'_>, ended: &ContainerStatus) -> ApiState {
    let time = |nanoseconds: i64| (nanoseconds > 0).then(|| Time(timestamp(nanoseconds)));
    let state = ContainerStateTerminated {
        container_id: Some(container_id(input, ended)),
        exit_code: ended.exit_code,
        finished_at: time(ended.finished_at),
        started_at: time(ended.started_at),
        reason: (!ended.reason.is_empty()).then(|| ended.reason.clone()),
        message: (!ended.message.is_empty()).then(|| shortened(&ended.message, message_length(input.pod))),
        signal: None,
    };
    ApiState { terminated: Some(state), ..ApiState::default() }
}

/// Returns the maximum length of each termination message of a pod, such that all of them fit into its
/// status.
fn message_length(pod: &Pod) -> usize {
    let containers = all_containers(pod).count() + ephemeral_containers(pod).count();
    (TERMINATION_MESSAGES / containers.max(1)).min(TERMINATION_MESSAGE)
}

/// Returns the beginning of a text, cut at a character boundary.
fn shortened(text: &str, length: usize) -> String {
    let end = (0..=length.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or_default()].to_owned()
}

fn container_id(input: &Input<'_>, status: &ContainerStatus) -> String {
    format!("{}://{}", input.runtime_name, status.id)
}

#[cfg(test)]
mod tests;
