//! Pods and observed states for the unit tests of this module.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kubelet_cri::{ContainerState, ContainerStatus, SandboxState, SandboxStatus, SandboxSummary};
use serde_json::{Value, json};

/// Returns the time at which tests happen, plus `second` seconds.
pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// Returns a pod named `web` in namespace `shop` with the given spec.
pub fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
        "spec": spec,
    }))
    .unwrap()
}

/// Returns a sandbox with the address `10.0.0.<attempt + 2>`.
pub fn sandbox(attempt: u32, state: SandboxState) -> SandboxStatus {
    SandboxStatus {
        summary: SandboxSummary { id: format!("s{attempt}"), attempt, state, ..SandboxSummary::default() },
        ips: vec![format!("10.0.0.{}", attempt + 2)],
    }
}

/// Returns an attempt of a container in sandbox `s0`; its id is `<name>-<attempt>`.
pub fn container(name: &str, attempt: u32, state: ContainerState, exit_code: i32) -> ContainerStatus {
    let nanos = |second: i64| i64::try_from(at(second).as_nanosecond()).unwrap();
    ContainerStatus {
        id: format!("{name}-{attempt}"),
        sandbox_id: "s0".to_owned(),
        name: name.to_owned(),
        attempt,
        state,
        created_at: nanos(-100),
        started_at: if state == ContainerState::Created { 0 } else { nanos(-90) },
        finished_at: if state == ContainerState::Exited { nanos(0) } else { 0 },
        exit_code,
        reason: match (state, exit_code) {
            (ContainerState::Exited, 0) => "Completed",
            (ContainerState::Exited, _) => "Error",
            _ => "",
        }
        .to_owned(),
        image: "img".to_owned(),
        image_ref: "sha256:1".to_owned(),
        ..ContainerStatus::default()
    }
}
