//! Pod conditions that the kubelet maintains.

use k8s_openapi::{
    api::core::v1::{PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{Input, initialized};
use apiserver_meta::pods::is_final;

use crate::pod::{Role, host_network, init_containers, spec};

/// A condition without its transition time.
struct Draft {
    kind: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

/// Returns the conditions for a status whose other fields are already computed.
pub(super) fn compute(input: &Input<'_>, status: &PodStatus) -> Vec<PodCondition> {
    let sandboxed =
        input.runtime.ready_sandbox().is_some_and(|s| host_network(input.pod) || !s.ips.is_empty());
    let (containers_ready, ready) = readiness(input, status);
    let drafts = [
        Draft { kind: "PodReadyToStartContainers", holds: sandboxed, reason: "", message: String::new() },
        initialization(input, status),
        ready,
        containers_ready,
        Draft { kind: "PodScheduled", holds: true, reason: "", message: String::new() },
    ];
    // A finished pod is no longer resized.
    let ended = is_final(status.phase.as_deref().unwrap_or_default());
    let resize = input.resize.conditions().filter(|_| !ended);
    resize.chain(drafts.into_iter().map(|draft| timed(draft, input))).collect()
}

fn timed(draft: Draft, input: &Input<'_>) -> PodCondition {
    let status = if draft.holds { "True" } else { "False" };
    let before = input.previous.conditions.iter().flatten().find(|condition| condition.type_ == draft.kind);
    let since = before
        .filter(|condition| condition.status == status)
        .and_then(|condition| condition.last_transition_time.clone())
        .unwrap_or(Time(input.now));
    PodCondition {
        type_: draft.kind.to_owned(),
        status: status.to_owned(),
        reason: (!draft.reason.is_empty()).then(|| draft.reason.to_owned()),
        message: (!draft.message.is_empty()).then_some(draft.message),
        last_transition_time: Some(since),
        observed_generation: input.pod.metadata.generation,
        ..PodCondition::default()
    }
}

fn initialization(input: &Input<'_>, status: &PodStatus) -> Draft {
    let kind = "Initialized";
    if status.phase.as_deref() == Some("Succeeded") {
        return Draft { kind, holds: true, reason: "PodCompleted", message: String::new() };
    }
    if initialized(input) {
        return Draft { kind, holds: true, reason: "", message: String::new() };
    }
    let incomplete: Vec<&str> = init_containers(input.pod)
        .zip(status.init_container_statuses.iter().flatten())
        .filter(|((role, _), status)| match role {
            Role::Sidecar => status.started != Some(true),
            _ => !status.ready,
        })
        .map(|((_, container), _)| container.name.as_str())
        .collect();
    if incomplete.is_empty() && init_containers(input.pod).next().is_none() {
        return Draft { kind, holds: true, reason: "", message: String::new() };
    }
    let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
    Draft { kind, holds: false, reason: "ContainersNotInitialized", message }
}

/// Returns `ContainersReady` and `Ready`.
fn readiness(input: &Input<'_>, status: &PodStatus) -> (Draft, Draft) {
    let (reason, message) = match status.phase.as_deref() {
        Some("Succeeded") => ("PodCompleted", String::new()),
        Some("Failed") => ("PodFailed", String::new()),
        _ => {
            let sidecars = init_containers(input.pod)
                .zip(status.init_container_statuses.iter().flatten())
                .filter(|((role, _), _)| *role == Role::Sidecar)
                .map(|(_, status)| status);
            let main = status.container_statuses.iter().flatten();
            let unready: Vec<&str> = sidecars
                .chain(main)
                .filter(|status| !status.ready)
                .map(|status| status.name.as_str())
                .collect();
            let none = status.container_statuses.is_none() && !spec(input.pod).containers.is_empty();
            if unready.is_empty() && !none {
                ("", String::new())
            } else {
                ("ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" ")))
            }
        }
    };
    let holds = reason.is_empty();
    let containers = Draft { kind: "ContainersReady", holds, reason, message: message.clone() };
    if !holds {
        return (containers, Draft { kind: "Ready", holds, reason, message });
    }
    let known = input.pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let open: Vec<String> = spec(input.pod)
        .readiness_gates
        .iter()
        .flatten()
        .map(|gate| gate.condition_type.as_str())
        .filter(|kind| !known.iter().any(|c| c.type_ == *kind && c.status == "True"))
        .map(|kind| {
            format!("corresponding condition of pod readiness gate \"{kind}\" does not exist or is not True.")
        })
        .collect();
    let ready = if open.is_empty() {
        Draft { kind: "Ready", holds: true, reason: "", message: String::new() }
    } else {
        Draft { kind: "Ready", holds: false, reason: "ReadinessGatesNotReady", message: open.join(", ") }
    };
    (containers, ready)
}
