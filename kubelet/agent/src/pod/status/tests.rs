use ContainerState::{Exited, Running};
use SandboxState::{NotReady, Ready};
use k8s_openapi::api::core::v1::PodCondition;
use serde_json::{Value, json};

use super::*;
use crate::pod::testing::{at, container, pod, sandbox};

struct Scenario {
    pod: Pod,
    runtime: PodRuntime,
    probes: ProbeResults,
    backoff: Backoff,
    failures: BTreeMap<String, Failure>,
    resize: Resize,
    verdict: Option<Verdict>,
    terminated: bool,
    previous: PodStatus,
}

impl Scenario {
    fn new(spec: Value, containers: Vec<ContainerStatus>) -> Self {
        Self {
            pod: pod(spec),
            runtime: PodRuntime::new(vec![sandbox(0, Ready)], containers),
            probes: ProbeResults::default(),
            backoff: Backoff::default(),
            failures: BTreeMap::new(),
            resize: Resize::default(),
            verdict: None,
            terminated: false,
            previous: PodStatus::default(),
        }
    }

    fn status(&self) -> PodStatus {
        compute(Input {
            pod: &self.pod,
            runtime: &self.runtime,
            probes: &self.probes,
            backoff: &self.backoff,
            failures: &self.failures,
            resize: &self.resize,
            verdict: self.verdict.as_ref(),
            terminated: self.terminated,
            previous: &self.previous,
            host_ips: &["192.0.2.1".to_owned()],
            runtime_name: "containerd",
            recursive_read_only: false,
            now: at(1),
        })
    }

    fn phase(&self) -> String {
        self.status().phase.unwrap()
    }

    fn condition(&self, kind: &str) -> PodCondition {
        self.status().conditions.unwrap().into_iter().find(|c| c.type_ == kind).unwrap()
    }

    fn state(&self, index: usize) -> ApiStatus {
        self.status().container_statuses.unwrap().remove(index)
    }
}

fn one(policy: &str) -> Value {
    json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "img"}]})
}

#[test]
fn a_pod_without_anything_is_pending() {
    let mut scenario = Scenario::new(one("Always"), vec![]);
    scenario.runtime = PodRuntime::default();
    assert_eq!(scenario.phase(), "Pending");
    let waiting = scenario.state(0).state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("ContainerCreating"));
    assert_eq!(scenario.condition("PodReadyToStartContainers").status, "False");
    assert_eq!(scenario.condition("Initialized").status, "True");
    assert_eq!(scenario.condition("Ready").message.as_deref(), Some("containers with unready status: [a]"));
    assert_eq!(scenario.status().pod_ip, None);
}

#[test]
fn a_running_container_without_probes_is_ready() {
    let scenario = Scenario::new(one("Always"), vec![container("a", 2, Running, 0)]);
    let status = scenario.status();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!((status.pod_ip.as_deref(), status.host_ip.as_deref()), (Some("10.0.0.2"), Some("192.0.2.1")));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    let container = scenario.state(0);
    assert!(container.ready && container.started == Some(true));
    assert_eq!(container.container_id.as_deref(), Some("containerd://a-2"));
    assert_eq!(container.restart_count, 2);
    for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert_eq!(scenario.condition(kind).status, "True", "{kind}");
    }
}

#[test]
fn readiness_follows_the_probe_and_the_startup_probe_before_it() {
    let probe = json!({"tcpSocket": {"port": 1}});
    let spec = json!({"containers": [{"name": "a", "readinessProbe": probe, "startupProbe": probe}]});
    let mut scenario = Scenario::new(spec, vec![container("a", 0, Running, 0)]);
    assert_eq!((scenario.state(0).ready, scenario.state(0).started), (false, Some(false)));
    scenario.probes.update("a-0", |probed| probed.ready = Some(true));
    assert!(!scenario.state(0).ready, "the startup probe comes first");
    scenario.probes.update("a-0", |probed| probed.started = Some(true));
    assert_eq!((scenario.state(0).ready, scenario.state(0).started), (true, Some(true)));
}

#[test]
fn a_container_whose_hook_still_runs_is_not_ready() {
    let mut scenario = Scenario::new(one("Always"), vec![container("a", 0, Running, 0)]);
    scenario.probes.update("a-0", |probed| probed.hooked = Some(false));
    assert!(!scenario.state(0).ready);
    scenario.probes.update("a-0", |probed| probed.hooked = Some(true));
    assert!(scenario.state(0).ready);
}

#[test]
fn exit_codes_and_restart_policy_determine_the_phase() {
    for (policy, exit_code, phase) in [
        ("Always", 0, "Running"),
        ("Always", 1, "Running"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 1, "Running"),
        ("Never", 0, "Succeeded"),
        ("Never", 1, "Failed"),
    ] {
        let scenario = Scenario::new(one(policy), vec![container("a", 0, Exited, exit_code)]);
        assert_eq!(scenario.phase(), phase, "{policy} {exit_code}");
    }
}

#[test]
fn a_finished_pod_stays_finished_and_keeps_its_address() {
    let mut scenario = Scenario::new(one("Never"), vec![container("a", 0, Exited, 0)]);
    scenario.previous = scenario.status();
    scenario.runtime.sandboxes = vec![sandbox(0, NotReady)];
    scenario.runtime.sandboxes[0].ips.clear();
    scenario.runtime.containers[0].exit_code = 1;
    let status = scenario.status();
    assert_eq!((status.phase.as_deref(), status.pod_ip.as_deref()), (Some("Succeeded"), Some("10.0.0.2")));
    assert_eq!(scenario.condition("Ready").reason.as_deref(), Some("PodCompleted"));
}

#[test]
fn a_finished_pod_is_remembered_when_the_runtime_has_forgotten_it() {
    let mut scenario = Scenario::new(one("Never"), vec![container("a", 0, Exited, 0)]);
    scenario.previous = scenario.status();
    scenario.runtime = PodRuntime::default();
    assert_eq!(scenario.status().container_statuses, scenario.previous.container_statuses);
}

#[test]
fn a_deleted_pod_ends_in_a_final_phase_even_if_it_would_always_restart() {
    for (exit_code, phase) in [(0, "Succeeded"), (137, "Failed")] {
        let mut scenario = Scenario::new(one("Always"), vec![container("a", 0, Exited, exit_code)]);
        scenario.terminated = true;
        assert_eq!(scenario.phase(), phase);
        assert_eq!(scenario.state(0).state.unwrap().terminated.unwrap().exit_code, exit_code);
    }
}

#[test]
fn a_crash_loop_shows_the_back_off_and_the_last_termination() {
    let mut scenario = Scenario::new(one("Always"), vec![container("a", 1, Exited, 3)]);
    scenario.backoff.restarted("a", at(-5));
    let status = scenario.state(0);
    let waiting = status.state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    assert_eq!(
        waiting.message.as_deref(),
        Some("back-off 10s restarting failed container=a pod=web_shop(u1)")
    );
    assert_eq!(status.last_state.unwrap().terminated.unwrap().exit_code, 3);
    assert_eq!(status.restart_count, 1);
}

#[test]
fn a_failed_start_shows_its_reason() {
    let mut scenario = Scenario::new(one("Always"), vec![]);
    let failure = Failure { reason: "ErrImagePull".into(), message: "no".into(), retry_at: at(5) };
    scenario.failures.insert("a".into(), failure);
    let waiting = scenario.state(0).state.unwrap().waiting.unwrap();
    assert_eq!((waiting.reason.as_deref(), waiting.message.as_deref()), (Some("ErrImagePull"), Some("no")));
}

#[test]
fn init_containers_determine_phase_and_reason() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}],
                      "initContainers": [{"name": "i"}, {"name": "j"}]});
    let mut scenario = Scenario::new(spec, vec![container("i", 0, Running, 0)]);
    assert_eq!(scenario.phase(), "Pending");
    assert_eq!(
        scenario.condition("Initialized").message.as_deref(),
        Some("containers with incomplete status: [i j]")
    );
    assert_eq!(scenario.state(0).state.unwrap().waiting.unwrap().reason.as_deref(), Some("PodInitializing"));
    scenario.runtime.containers = vec![container("i", 0, Exited, 0), container("j", 0, Exited, 0)];
    assert_eq!(scenario.condition("Initialized").status, "True");
    scenario.runtime.containers = vec![container("i", 0, Exited, 1)];
    assert_eq!(scenario.phase(), "Failed");
}

#[test]
fn all_containers_of_a_pod_with_init_containers_wait_for_its_initialization() {
    let spec = json!({"containers": [{"name": "a"}], "ephemeralContainers": [{"name": "e"}],
                      "initContainers": [{"name": "i"}, {"name": "j"}, {"name": "s", "restartPolicy": "Always"}]});
    let mut scenario = Scenario::new(spec, vec![]);
    let waiting = |scenario: &Scenario| -> Vec<(String, String)> {
        let status = scenario.status();
        let lists =
            [status.init_container_statuses, status.container_statuses, status.ephemeral_container_statuses];
        let all = lists.into_iter().flatten().flatten();
        all.filter_map(|status| Some((status.name, status.state?.waiting?.reason?))).collect()
    };
    let initializing = |names: &[&str]| {
        names.iter().map(|name| ((*name).into(), "PodInitializing".into())).collect::<Vec<_>>()
    };
    assert_eq!(waiting(&scenario), initializing(&["i", "j", "s", "a", "e"]));
    scenario.runtime = PodRuntime::default();
    assert_eq!(waiting(&scenario), initializing(&["i", "j", "s", "a", "e"]), "before there is a sandbox");
    scenario.runtime = PodRuntime::new(vec![sandbox(0, Ready)], vec![container("i", 0, Exited, 1)]);
    assert_eq!(waiting(&scenario), initializing(&["j", "s", "a", "e"]), "behind one that has failed");
    scenario.pod.spec.as_mut().unwrap().restart_policy = Some("Never".into());
    assert_eq!(
        (scenario.phase().as_str(), waiting(&scenario)),
        ("Failed", initializing(&["j", "s", "a", "e"]))
    );
}

#[test]
fn a_running_ephemeral_container_is_neither_started_nor_ready() {
    let mut spec = one("Always");
    spec["ephemeralContainers"] = json!([{"name": "e", "image": "img"}]);
    let mut scenario =
        Scenario::new(spec, vec![container("a", 0, Running, 0), container("e", 0, Running, 0)]);
    scenario.pod.metadata.generation = Some(2);
    let status = scenario.status();
    let ephemeral = &status.ephemeral_container_statuses.unwrap()[0];
    assert!(ephemeral.state.as_ref().unwrap().running.is_some());
    assert_eq!((ephemeral.ready, ephemeral.started), (false, None), "nothing probes it");
    assert_eq!(status.observed_generation, Some(2));
    for condition in status.conditions.unwrap() {
        assert_eq!(condition.observed_generation, Some(2), "{}", condition.type_);
    }
    assert_eq!(scenario.condition("Ready").status, "True");
}

#[test]
fn a_verdict_fails_the_pod_with_its_reason() {
    let mut scenario = Scenario::new(one("Always"), vec![]);
    scenario.runtime = PodRuntime::default();
    scenario.verdict = Some(Verdict { reason: "OutOfpods", message: "too many".into() });
    let status = scenario.status();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("OutOfpods")));
    assert_eq!(status.container_statuses, None);
    assert_eq!(scenario.condition("Ready").reason.as_deref(), Some("PodFailed"));
}

#[test]
fn times_of_conditions_change_only_with_the_condition() {
    let mut scenario = Scenario::new(one("Always"), vec![container("a", 0, Running, 0)]);
    let old = Some(Time(at(-1000)));
    scenario.previous.conditions = Some(vec![
        PodCondition {
            type_: "Ready".into(),
            status: "False".into(),
            last_transition_time: old.clone(),
            ..Default::default()
        },
        PodCondition {
            type_: "PodScheduled".into(),
            status: "True".into(),
            last_transition_time: old.clone(),
            ..Default::default()
        },
    ]);
    assert_eq!(scenario.condition("Ready").last_transition_time, Some(Time(at(1))));
    assert_eq!(scenario.condition("PodScheduled").last_transition_time, old);
}

#[test]
fn unmet_readiness_gates_keep_a_pod_unready() {
    let mut spec = one("Always");
    spec["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
    let mut scenario = Scenario::new(spec, vec![container("a", 0, Running, 0)]);
    assert_eq!(scenario.condition("Ready").reason.as_deref(), Some("ReadinessGatesNotReady"));
    assert_eq!(scenario.condition("ContainersReady").status, "True");
    let gate = PodCondition { type_: "example.com/gate".into(), status: "True".into(), ..Default::default() };
    scenario.pod.status = Some(PodStatus { conditions: Some(vec![gate]), ..PodStatus::default() });
    assert_eq!(scenario.condition("Ready").status, "True");
}

#[test]
fn termination_messages_fit_into_a_status_together() {
    let containers: Vec<Value> = (0..6).map(|index| json!({"name": format!("c{index}")})).collect();
    let pod = pod(json!({"containers": containers}));
    assert_eq!(message_length(&pod), 2048);
    assert_eq!(shortened(&"é".repeat(4096), 5), "éé");
    assert_eq!(shortened("short", 4096), "short");
}
