//! Decides the next step for a pod from its spec and its observed state.
//!
//! A plan is a single step: the caller carries it out, observes the pod again and asks for the next plan,
//! until a plan is empty.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use kubelet_cri::{ContainerState, ContainerStatus};

use super::{
    Role, all_containers,
    backoff::Backoff,
    container_hash, ephemeral_containers, host_network, init_containers,
    observed::{PodRuntime, ProbeResults, timestamp},
    resize::{Change, Resize},
    restart_policy, spec,
};

/// Container annotation with the [`container_hash`] of its spec.
pub const HASH_ANNOTATION: &str = "io.kubernetes.container.hash";

/// Key under which failures of the pod as a whole are stored beside those of its containers.
pub const WHOLE_POD: &str = "";

/// A container or pod could not be started and is retried later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Reason shown in the container's status, such as `ErrImagePull`.
    pub reason: String,
    /// Message shown in the container's status.
    pub message: String,
    /// Earliest time of the next attempt.
    pub retry_at: Timestamp,
}

/// Inputs that a plan is computed from.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub pod: &'a Pod,
    pub runtime: &'a PodRuntime,
    pub probes: &'a ProbeResults,
    pub backoff: &'a Backoff,
    /// Failures by container name, or under [`WHOLE_POD`].
    pub failures: &'a BTreeMap<String, Failure>,
    pub resize: &'a Resize,
    pub now: Timestamp,
}

/// One step towards the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Sandboxes to stop, with all of their containers, before anything else.
    pub stop_sandboxes: Vec<String>,
    /// Attempt number of a sandbox to create. The rest is left to the next plan.
    pub create_sandbox: Option<u32>,
    /// Running containers to stop.
    pub kill: Vec<Kill>,
    /// Running containers whose granted resources must be applied.
    pub resize: Vec<Resized>,
    /// Containers to start, in this order.
    pub start: Vec<Start>,
    /// Dead containers that are no longer needed.
    pub remove_containers: Vec<String>,
    /// Dead sandboxes that are no longer needed.
    pub remove_sandboxes: Vec<String>,
    /// Time of the next plan if nothing else changes until then.
    pub wake_at: Option<Timestamp>,
    /// Containers that are in back-off.
    pub backing_off: Vec<String>,
}

/// A container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    pub id: String,
    pub name: String,
    /// Message of the event.
    pub message: String,
    /// Grace period, if it differs from the pod's.
    pub grace: Option<Duration>,
    /// True if the container is restarted to change its resources.
    pub resizes: bool,
}

/// A container to resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resized {
    pub id: String,
    pub name: String,
}

/// A container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub name: String,
    pub role: Role,
    pub attempt: u32,
    /// Time at which the previous attempt ended.
    pub finished: Option<Timestamp>,
}

impl Plan {
    /// Returns `true` if there is nothing to do now.
    pub fn is_idle(&self) -> bool {
        self.stop_sandboxes.is_empty()
            && self.create_sandbox.is_none()
            && self.kill.is_empty()
            && self.resize.is_empty()
            && self.start.is_empty()
            && self.remove_containers.is_empty()
            && self.remove_sandboxes.is_empty()
    }

    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}

/// Computes the next step towards a running pod. The caller has checked that the pod is meant to run: it is
/// neither being deleted nor finished.
pub fn plan(input: Input<'_>) -> Plan {
    let mut plan = Plan::default();
    collect_garbage(&input, &mut plan);
    let usable =
        input.runtime.ready_sandbox().filter(|sandbox| host_network(input.pod) || !sandbox.ips.is_empty());
    match usable {
        Some(sandbox) => {
            let id = sandbox.summary.id.clone();
            plan_containers(&input, &id, &mut plan);
        }
        None => plan_sandbox(&input, &mut plan),
    }
    plan
}

fn plan_sandbox(input: &Input<'_>, plan: &mut Plan) {
    let newest = input.runtime.sandbox();
    if newest.is_some() && !anything_left_to_run(input) {
        return;
    }
    if let Some(failure) = input.failures.get(WHOLE_POD).filter(|failure| failure.retry_at > input.now) {
        plan.wake(failure.retry_at);
        return;
    }
    plan.stop_sandboxes = input.runtime.sandboxes.iter().map(|s| s.summary.id.clone()).collect();
    plan.remove_sandboxes.clear();
    plan.create_sandbox = Some(newest.map_or(0, |sandbox| sandbox.summary.attempt + 1));
}

/// Returns `true` if a new sandbox would have any container to run.
fn anything_left_to_run(input: &Input<'_>) -> bool {
    spec(input.pod).containers.iter().any(|container| match input.runtime.newest(&container.name) {
        None => true,
        Some(status) if status.state == ContainerState::Exited => {
            restart_policy(input.pod, Role::Main, container).restarts(status.exit_code)
        }
        // The container died with its sandbox, even if the runtime still lists it as running.
        Some(_) => restart_policy(input.pod, Role::Main, container).restarts(137),
    })
}

/// Returns the state of a container in the current sandbox.
fn current<'a>(input: &Input<'a>, sandbox: &str, name: &'a str) -> Option<&'a ContainerStatus> {
    input.runtime.newest(name).filter(|status| status.sandbox_id == sandbox)
}

fn plan_containers(input: &Input<'_>, sandbox: &str, plan: &mut Plan) {
    let initialized = is_initialized(input, sandbox);
    for (role, container) in init_containers(input.pod) {
        if initialized && role == Role::Init {
            continue;
        }
        let done = plan_init(input, sandbox, role, container, plan);
        if !done && !initialized {
            return;
        }
    }
    for container in &spec(input.pod).containers {
        plan_main(input, sandbox, container, plan);
    }
    for ephemeral in ephemeral_containers(input.pod) {
        if input.runtime.newest(&ephemeral.name).is_none() {
            start(input, &ephemeral.name, Role::Ephemeral, None, plan);
        }
    }
}

/// Returns `true` if the main containers may run: either one of them runs or has run in this sandbox, or all
/// init containers are done.
pub fn is_initialized(input: &Input<'_>, sandbox: &str) -> bool {
    let began = |name: &str| {
        current(input, sandbox, name)
            .is_some_and(|c| matches!(c.state, ContainerState::Running | ContainerState::Exited))
    };
    spec(input.pod).containers.iter().any(|container| began(&container.name))
        || init_containers(input.pod).all(|(role, container)| init_done(input, sandbox, role, container))
}

fn init_done(input: &Input<'_>, sandbox: &str, role: Role, container: &Container) -> bool {
    let Some(status) = current(input, sandbox, &container.name) else { return false };
    match role {
        Role::Sidecar => {
            status.state == ContainerState::Running && is_started(container, status, input.probes)
        }
        _ => status.state == ContainerState::Exited && status.exit_code == 0,
    }
}

/// Returns `true` if a running container is started: its postStart hook has finished and its startup probe has
/// succeeded.
pub fn is_started(container: &Container, status: &ContainerStatus, probes: &ProbeResults) -> bool {
    let probed = probes.get(&status.id);
    probed.hooked != Some(false) && (container.startup_probe.is_none() || probed.started == Some(true))
}

/// Plans one init container; returns whether the next one may start.
fn plan_init(input: &Input<'_>, sandbox: &str, role: Role, container: &Container, plan: &mut Plan) -> bool {
    match current(input, sandbox, &container.name) {
        Some(status) if status.state == ContainerState::Running => {
            if role == Role::Sidecar
                && let Some(kill) = reason_to_kill(input, container, status)
            {
                plan.kill.push(kill);
                return false;
            }
            plan_resize(input, role, container, status, plan);
            init_done(input, sandbox, role, container)
        }
        Some(status) if status.state == ContainerState::Exited => {
            if role == Role::Init && status.exit_code == 0 {
                return true;
            }
            if restart_policy(input.pod, role, container).restarts(status.exit_code) {
                start(input, &container.name, role, Some(status), plan);
            }
            false
        }
        Some(status) => {
            restart_unfinished(input, role, status, plan);
            false
        }
        None => {
            let before = input.runtime.newest(&container.name);
            start(input, &container.name, role, before, plan);
            false
        }
    }
}

fn plan_main(input: &Input<'_>, sandbox: &str, container: &Container, plan: &mut Plan) {
    let Some(status) = input.runtime.newest(&container.name) else {
        start(input, &container.name, Role::Main, None, plan);
        return;
    };
    let here = status.sandbox_id == sandbox;
    match status.state {
        ContainerState::Running if here => match reason_to_kill(input, container, status) {
            Some(kill) => plan.kill.push(kill),
            None => plan_resize(input, Role::Main, container, status, plan),
        },
        ContainerState::Exited => {
            let policy = restart_policy(input.pod, Role::Main, container);
            let resizes = input.resize.restarting.contains(&status.id);
            if policy.restarts(status.exit_code) || is_outdated(container, status) || resizes {
                start(input, &container.name, Role::Main, Some(status), plan);
            }
        }
        _ => restart_unfinished(input, Role::Main, status, plan),
    }
}

/// Plans a resize if a running container does not have its granted resources.
fn plan_resize(
    input: &Input<'_>,
    role: Role,
    container: &Container,
    status: &ContainerStatus,
    plan: &mut Plan,
) {
    let (id, name) = (status.id.clone(), container.name.clone());
    match input.resize.change(&id, container) {
        Change::None => {}
        Change::Restart if restart_policy(input.pod, role, container).restarts(137) => {
            let message = format!("Container {name} resize requires restart");
            plan.kill.push(Kill { id, name, message, grace: None, resizes: true });
        }
        Change::Restart | Change::InPlace => match input.resize.retry_at.filter(|at| *at > input.now) {
            Some(at) => plan.wake(at),
            None => plan.resize.push(Resized { id, name }),
        },
    }
}

/// A container that was created but never started was left behind by a kubelet that died in between.
fn restart_unfinished(input: &Input<'_>, role: Role, status: &ContainerStatus, plan: &mut Plan) {
    if !plan.remove_containers.contains(&status.id) {
        plan.remove_containers.push(status.id.clone());
    }
    start(input, &status.name, role, Some(status), plan);
}

/// Adds a container to the list of those to start, unless it is in back-off.
fn start(input: &Input<'_>, name: &str, role: Role, before: Option<&ContainerStatus>, plan: &mut Plan) {
    let finished = before.filter(|c| c.state == ContainerState::Exited).map(|c| timestamp(c.finished_at));
    let failures = [name, WHOLE_POD].into_iter().filter_map(|name| input.failures.get(name));
    if let Some(retry_at) = failures.map(|failure| failure.retry_at).filter(|at| *at > input.now).max() {
        plan.wake(retry_at);
        return;
    }
    if let Some(until) = finished.and_then(|finished| input.backoff.until(name, finished, input.now)) {
        plan.wake(until);
        plan.backing_off.push(name.to_owned());
        return;
    }
    let attempt = before.map_or(0, |status| status.attempt + 1);
    plan.start.push(Start { name: name.to_owned(), role, attempt, finished });
}

/// Returns `true` if the container runs an image other than that of its current spec.
fn is_outdated(container: &Container, status: &ContainerStatus) -> bool {
    status.annotations.get(HASH_ANNOTATION).is_some_and(|hash| *hash != container_hash(container))
}

fn reason_to_kill(input: &Input<'_>, container: &Container, status: &ContainerStatus) -> Option<Kill> {
    let probed = input.probes.get(&status.id);
    let grace = |probe: &Option<Probe>| {
        let seconds = probe.as_ref().and_then(|probe| probe.termination_grace_period_seconds);
        seconds.map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs()))
    };
    let (message, grace) = if is_outdated(container, status) {
        (format!("Container {} definition changed, will be restarted", container.name), None)
    } else if probed.started == Some(false) {
        let message = format!("Container {} failed startup probe", container.name);
        (message, grace(&container.startup_probe))
    } else if probed.alive == Some(false) {
        let message = format!("Container {} failed liveness probe", container.name);
        (message, grace(&container.liveness_probe))
    } else {
        return None;
    };
    let suffix = if restart_policy(input.pod, Role::Main, container).restarts(137) && grace.is_none() {
        ", will be restarted"
    } else {
        ""
    };
    let message = if message.ends_with("restarted") { message } else { message + suffix };
    Some(Kill { id: status.id.clone(), name: container.name.clone(), message, grace, resizes: false })
}

/// Selects dead containers and sandboxes for removal. Of each container the current and the previous attempt
/// are kept for status and logs; of sandboxes the newest and those of kept containers.
fn collect_garbage(input: &Input<'_>, plan: &mut Plan) {
    let names = all_containers(input.pod)
        .map(|(_, container)| container.name.as_str())
        .chain(ephemeral_containers(input.pod).map(|ephemeral| ephemeral.name.as_str()));
    for name in names {
        let superfluous = input.runtime.attempts(name).skip(2);
        let dead = superfluous.filter(|status| status.state != ContainerState::Running);
        plan.remove_containers.extend(dead.map(|status| status.id.clone()));
    }
    for sandbox in input.runtime.sandboxes.iter().skip(1) {
        let id = &sandbox.summary.id;
        let mut inside = input.runtime.containers.iter().filter(|c| c.sandbox_id == *id);
        if inside.all(|status| plan.remove_containers.contains(&status.id)) {
            plan.remove_sandboxes.push(id.clone());
        }
    }
}

#[cfg(test)]
mod tests;
