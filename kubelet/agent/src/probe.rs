//! Probes, with one task for each probe of each running container.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, Pod, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kubelet_cri::{ContainerState, ContainerStatus, ErrorKind};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    agent::Agent,
    limits,
    machine::HttpCheck,
    pod::{self, Role, observed::timestamp, plan},
    tracked::TrackedPod,
};

/// Type of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    fn probe(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// Running probes of one pod. Dropping the value ends them.
#[derive(Default)]
pub(crate) struct Probes {
    tasks: JoinSet<()>,
    running: BTreeMap<(String, Kind), tokio::task::AbortHandle>,
}

impl Probes {
    /// Starts probes of the wanted kinds that are missing, and ends those that are no longer wanted.
    pub(crate) fn reconcile(&mut self, agent: &Arc<Agent>, tracked: &Arc<TrackedPod>, wanted: &[Kind]) {
        while self.tasks.try_join_next().is_some() {}
        let mut due = due(tracked);
        due.retain(|(_, kind), _| wanted.contains(kind));
        self.running.retain(|key, task| {
            let keep = due.contains_key(key);
            if !keep {
                task.abort();
            }
            keep
        });
        for (key, target) in due {
            let (agent, tracked) = (Arc::clone(agent), Arc::clone(tracked));
            self.running.entry(key).or_insert_with(|| self.tasks.spawn(run(agent, tracked, target)));
        }
    }
}

/// One probe of one container.
struct Target {
    kind: Kind,
    pod: Arc<Pod>,
    container: Container,
    probe: Probe,
    status: ContainerStatus,
}

/// Returns the probes that should run now: the startup probe first, then the others.
fn due(tracked: &TrackedPod) -> BTreeMap<(String, Kind), Target> {
    let state = tracked.state();
    let mut due = BTreeMap::new();
    for (role, container) in pod::all_containers(&state.pod) {
        if role == Role::Init {
            continue;
        }
        let Some(status) = state.runtime.newest(&container.name) else { continue };
        if status.state != ContainerState::Running || state.probes.get(&status.id).hooked == Some(false) {
            continue;
        }
        let kinds: &[Kind] = if plan::is_started(container, status, &state.probes) {
            &[Kind::Liveness, Kind::Readiness]
        } else {
            &[Kind::Startup]
        };
        for kind in kinds {
            let Some(probe) = kind.probe(container) else { continue };
            let target = Target {
                kind: *kind,
                pod: Arc::clone(&state.pod),
                container: container.clone(),
                probe: probe.clone(),
                status: status.clone(),
            };
            due.insert((status.id.clone(), *kind), target);
        }
    }
    due
}

fn seconds(value: Option<i32>, default: u64, least: u64) -> Duration {
    Duration::from_secs(value.map_or(default, |value| u64::try_from(value).unwrap_or_default()).max(least))
}

fn times(value: Option<i32>, default: u32) -> u32 {
    value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default).max(1)
}

/// Runs a probe until its container is gone.
async fn run(agent: Arc<Agent>, tracked: Arc<TrackedPod>, target: Target) {
    let probe = &target.probe;
    let period = seconds(probe.period_seconds, 10, 1);
    let age = agent.ambient.now().duration_since(timestamp(target.status.started_at));
    let age = Duration::try_from(age).unwrap_or_default();
    sleep(seconds(probe.initial_delay_seconds, 0, 0).saturating_sub(age)).await;
    let began = Instant::now();
    let mut next = began;
    let (mut succeeded, mut failed) = (0u32, 0u32);
    let mut ever_succeeded = tracked.state().probes.get(&target.status.id).ready == Some(true);
    loop {
        let outcome = check(&agent, &tracked, &target).await;
        match outcome {
            Outcome::Success => {
                (succeeded, failed) = (succeeded.saturating_add(1), 0);
                ever_succeeded = true;
                if succeeded >= times(probe.success_threshold, 1) {
                    report(&tracked, &target, true);
                }
            }
            Outcome::Failure(why) => {
                (succeeded, failed) = (0, failed.saturating_add(1));
                // Readiness probes fail while a container starts; record no events for that.
                let expected = target.kind == Kind::Readiness && !ever_succeeded;
                if !expected || began.elapsed() > limits::FIRST_READINESS_WINDOW {
                    let message = format!("{} probe failed: {why}", target.kind.title());
                    agent.event(&target.pod, Some(&target.container.name), "Unhealthy", message);
                }
                if failed >= times(probe.failure_threshold, 3) {
                    report(&tracked, &target, false);
                }
            }
            Outcome::Unknown => {}
        }
        let fast = target.kind == Kind::Readiness
            && !ever_succeeded
            && began.elapsed() < limits::FIRST_READINESS_WINDOW;
        if fast {
            // Probe at a short period until the first success, so that readiness is noticed at once.
            let pause =
                if probe.exec.is_some() { limits::FIRST_EXEC_READINESS } else { limits::FIRST_READINESS };
            sleep(pause.min(period)).await;
            next = Instant::now();
        } else {
            next += period;
            tokio::time::sleep_until(next).await;
        }
    }
}

fn report(tracked: &TrackedPod, target: &Target, success: bool) {
    tracked.probed(&target.status.id, |probed| match target.kind {
        Kind::Startup => probed.started = Some(success),
        Kind::Liveness => probed.alive = Some(success),
        Kind::Readiness => probed.ready = Some(success),
    });
}

/// Result of one attempt of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    Failure(String),
    /// The probe itself could not be carried out, which says nothing about the container.
    Unknown,
}

async fn check(agent: &Agent, tracked: &TrackedPod, target: &Target) -> Outcome {
    let timeout = seconds(target.probe.timeout_seconds, 1, 1);
    if let Some(exec) = &target.probe.exec {
        let command = exec.command.clone().unwrap_or_default();
        let Ok(_permit) = agent.exec_probes.acquire().await else { return Outcome::Unknown };
        return match agent.runtime.exec_sync(&target.status.id, &command, timeout).await {
            Ok(output) if output.exit_code == 0 => Outcome::Success,
            Ok(output) => {
                let all = [output.stdout, output.stderr].concat();
                let end = all.len().min(limits::PROBE_OUTPUT);
                Outcome::Failure(String::from_utf8_lossy(&all[..end]).into_owned())
            }
            Err(error) if error.kind == ErrorKind::Timeout => {
                Outcome::Failure(format!("command timed out after {}s", timeout.as_secs()))
            }
            Err(_) => Outcome::Unknown,
        };
    }
    let address = pod_address(agent, tracked);
    if let Some(action) = &target.probe.http_get {
        let Some(request) = http_check(action, &target.container, &address) else { return Outcome::Unknown };
        return match agent.machine.http(&request, timeout).await {
            Ok(answer) if (200..400).contains(&answer.status) => Outcome::Success,
            Ok(answer) => Outcome::Failure(format!("HTTP probe failed with statuscode: {}", answer.status)),
            Err(why) => Outcome::Failure(why),
        };
    }
    if let Some(action) = &target.probe.tcp_socket {
        let Some(port) = port(&action.port, &target.container) else { return Outcome::Unknown };
        let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(&address);
        return match agent.machine.tcp(host, port, timeout).await {
            Ok(()) => Outcome::Success,
            Err(why) => Outcome::Failure(why),
        };
    }
    if let Some(action) = &target.probe.grpc {
        let Ok(port) = u16::try_from(action.port) else { return Outcome::Unknown };
        let service = action.service.as_deref().unwrap_or_default();
        return match agent.machine.grpc(&address, port, service, timeout).await {
            Ok(()) => Outcome::Success,
            Err(why) => Outcome::Failure(why),
        };
    }
    // A probe without an action, which no API server accepts.
    Outcome::Success
}

/// Returns the address of the pod.
pub(crate) fn pod_address(agent: &Agent, tracked: &TrackedPod) -> String {
    let state = tracked.state();
    if pod::host_network(&state.pod) {
        return agent.host_ips.first().cloned().unwrap_or_default();
    }
    state.runtime.ready_sandbox().and_then(|sandbox| sandbox.ips.first().cloned()).unwrap_or_default()
}

/// Returns the request of an HTTP probe or hook; `None` if its port cannot be resolved.
pub(crate) fn http_check(action: &HTTPGetAction, container: &Container, address: &str) -> Option<HttpCheck> {
    let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(address);
    let headers = action.http_headers.iter().flatten();
    Some(HttpCheck {
        https: action.scheme.as_deref() == Some("HTTPS"),
        host: host.to_owned(),
        port: port(&action.port, container)?,
        path: action.path.clone().unwrap_or_else(|| "/".to_owned()),
        headers: headers.map(|header| (header.name.clone(), header.value.clone())).collect(),
    })
}

/// Resolves a port by number, or by its name in the container.
fn port(port: &IntOrString, container: &Container) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(name));
            match named {
                Some(port) => u16::try_from(port.container_port).ok(),
                None => name.parse().ok(),
            }
        }
    }
}

/// Runs `future` for at most `limit`; returns a message if it took longer.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_are_resolved_by_name_and_number() {
        let container: Container =
            serde_json::from_value(json!({"name": "a", "ports": [{"name": "web", "containerPort": 8080}]}))
                .unwrap();
        let named = |name: &str| IntOrString::String(name.to_owned());
        assert_eq!(port(&IntOrString::Int(80), &container), Some(80));
        assert_eq!(port(&named("web"), &container), Some(8080));
        assert_eq!(port(&named("81"), &container), Some(81));
        assert_eq!(port(&named("none"), &container), None);
        let action = HTTPGetAction { port: named("web"), ..HTTPGetAction::default() };
        let check = http_check(&action, &container, "10.0.0.2").unwrap();
        assert_eq!((check.host.as_str(), check.port, check.path.as_str()), ("10.0.0.2", 8080, "/"));
    }
}
