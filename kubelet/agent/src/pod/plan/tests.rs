use ContainerState::{Created, Exited, Running};
use SandboxState::{NotReady, Ready};
use kubelet_cri::SandboxState;
use serde_json::{Value, json};

use super::*;
use crate::pod::testing::{at, container, pod, sandbox};

/// Inputs of one test, with defaults that suit most of them.
struct Scenario {
    pod: Pod,
    runtime: PodRuntime,
    probes: ProbeResults,
    backoff: Backoff,
    failures: BTreeMap<String, Failure>,
    resize: Resize,
    now: Timestamp,
}

impl Scenario {
    fn new(spec: Value, runtime: PodRuntime) -> Self {
        Self {
            pod: pod(spec),
            runtime,
            probes: ProbeResults::default(),
            backoff: Backoff::default(),
            failures: BTreeMap::new(),
            resize: Resize::default(),
            now: at(1),
        }
    }

    fn plan(&self) -> Plan {
        plan(Input {
            pod: &self.pod,
            runtime: &self.runtime,
            probes: &self.probes,
            backoff: &self.backoff,
            failures: &self.failures,
            resize: &self.resize,
            now: self.now,
        })
    }

    fn starts(&self) -> Vec<(String, u32)> {
        self.plan().start.into_iter().map(|start| (start.name, start.attempt)).collect()
    }
}

fn in_sandbox(containers: Vec<ContainerStatus>) -> PodRuntime {
    PodRuntime::new(vec![sandbox(0, Ready)], containers)
}

fn two() -> Value {
    json!({"containers": [{"name": "a", "image": "img"}, {"name": "b", "image": "img"}]})
}

fn with_init(policy: &str) -> Value {
    json!({"restartPolicy": policy, "containers": [{"name": "a"}],
           "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, {"name": "j"}]})
}

fn named(names: &[&str]) -> Vec<(String, u32)> {
    names.iter().map(|name| ((*name).to_owned(), 0)).collect()
}

#[test]
fn a_new_pod_gets_a_sandbox_and_nothing_else() {
    let plan = Scenario::new(two(), PodRuntime::default()).plan();
    assert_eq!(plan, Plan { create_sandbox: Some(0), ..Plan::default() });
}

#[test]
fn in_a_ready_sandbox_all_containers_start() {
    assert_eq!(Scenario::new(two(), in_sandbox(vec![])).starts(), named(&["a", "b"]));
}

#[test]
fn a_sandbox_without_an_address_is_replaced_unless_the_node_lends_its_own() {
    let mut runtime = in_sandbox(vec![]);
    runtime.sandboxes[0].ips.clear();
    let plan = Scenario::new(two(), runtime.clone()).plan();
    assert_eq!((plan.create_sandbox, plan.stop_sandboxes), (Some(1), vec!["s0".to_owned()]));
    let mut spec = two();
    spec["hostNetwork"] = json!(true);
    assert_eq!(Scenario::new(spec, runtime).starts(), named(&["a", "b"]));
}

#[test]
fn running_containers_are_left_alone() {
    let runtime = in_sandbox(vec![container("a", 3, Running, 0), container("b", 0, Running, 0)]);
    assert!(Scenario::new(two(), runtime).plan().is_idle());
}

#[test]
fn init_containers_run_one_after_the_other() {
    let scenario = |containers| Scenario::new(with_init("Always"), in_sandbox(containers));
    let (done_i, done_j) = (container("i", 0, Exited, 0), container("j", 0, Exited, 0));
    let sidecar = container("s", 0, Running, 0);
    assert_eq!(scenario(vec![]).starts(), named(&["i"]));
    assert!(scenario(vec![container("i", 0, Running, 0)]).plan().is_idle());
    assert_eq!(scenario(vec![done_i.clone()]).starts(), named(&["s"]));
    assert_eq!(scenario(vec![done_i.clone(), sidecar.clone()]).starts(), named(&["j"]));
    assert_eq!(scenario(vec![done_i, sidecar, done_j]).starts(), named(&["a"]));
}

#[test]
fn a_failed_init_container_is_repeated_or_ends_the_pod() {
    let failed = || in_sandbox(vec![container("i", 0, Exited, 1)]);
    assert_eq!(Scenario::new(with_init("OnFailure"), failed()).starts(), [("i".to_owned(), 1)]);
    assert_eq!(Scenario::new(with_init("Never"), failed()).starts(), []);
}

#[test]
fn the_next_container_waits_for_a_sidecar_to_come_up() {
    let mut spec = with_init("Always");
    spec["initContainers"][1]["startupProbe"] = json!({"tcpSocket": {"port": 1}});
    let runtime = in_sandbox(vec![container("i", 0, Exited, 0), container("s", 0, Running, 0)]);
    let mut scenario = Scenario::new(spec, runtime);
    assert!(scenario.plan().is_idle());
    scenario.probes.update("s-0", |probed| probed.started = Some(true));
    assert_eq!(scenario.starts(), named(&["j"]));
}

#[test]
fn a_dead_sidecar_restarts_beside_the_running_pod_and_finished_init_containers_do_not() {
    let mut spec = with_init("Always");
    spec["initContainers"][0]["image"] = json!("removed");
    let runtime = in_sandbox(vec![container("s", 0, Exited, 0), container("a", 0, Running, 0)]);
    assert_eq!(Scenario::new(spec, runtime).starts(), [("s".to_owned(), 1)]);
}

#[test]
fn restart_policy_and_exit_code_decide_restarts() {
    for (policy, exit_code, restarts) in [
        ("Always", 0, true),
        ("Always", 1, true),
        ("OnFailure", 0, false),
        ("OnFailure", 1, true),
        ("Never", 0, false),
        ("Never", 1, false),
    ] {
        let spec = json!({"restartPolicy": policy, "containers": [{"name": "a"}]});
        let scenario = Scenario::new(spec, in_sandbox(vec![container("a", 4, Exited, exit_code)]));
        let expected: &[(String, u32)] = if restarts { &[("a".to_owned(), 5)] } else { &[] };
        assert_eq!(scenario.starts(), expected, "{policy} {exit_code}");
    }
}

#[test]
fn a_container_that_keeps_failing_is_in_back_off() {
    let spec = json!({"containers": [{"name": "a"}]});
    let mut scenario = Scenario::new(spec, in_sandbox(vec![container("a", 1, Exited, 1)]));
    scenario.backoff.restarted("a", at(-5));
    let plan = scenario.plan();
    assert_eq!((plan.start.len(), plan.wake_at), (0, Some(at(10))));
    assert_eq!(plan.backing_off, ["a"]);
    scenario.now = at(10);
    assert_eq!(scenario.starts(), [("a".to_owned(), 2)]);
}

#[test]
fn a_failed_start_is_retried_later_and_does_not_delay_other_containers() {
    let mut scenario = Scenario::new(two(), in_sandbox(vec![]));
    let failure = Failure { reason: "ErrImagePull".into(), message: String::new(), retry_at: at(30) };
    scenario.failures.insert("a".into(), failure.clone());
    assert_eq!((scenario.starts(), scenario.plan().wake_at), (named(&["b"]), Some(at(30))));
    let mut scenario = Scenario::new(two(), PodRuntime::default());
    scenario.failures.insert(WHOLE_POD.into(), failure);
    assert_eq!(scenario.plan(), Plan { wake_at: Some(at(30)), ..Plan::default() });
}

#[test]
fn failed_probes_kill_with_their_own_grace() {
    let probe = json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 7});
    let spec = json!({"containers": [{"name": "a", "livenessProbe": probe}]});
    let mut scenario = Scenario::new(spec, in_sandbox(vec![container("a", 0, Running, 0)]));
    scenario.probes.update("a-0", |probed| probed.alive = Some(false));
    let kill = scenario.plan().kill.remove(0);
    assert_eq!((kill.id.as_str(), kill.grace), ("a-0", Some(Duration::from_secs(7))));
    assert!(kill.message.contains("failed liveness probe"), "{}", kill.message);
}

#[test]
fn another_image_restarts_the_container_even_where_the_policy_says_never() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "new"}]});
    let mut old = container("a", 0, Running, 0);
    old.annotations.insert(HASH_ANNOTATION.into(), "of the old image".into());
    let scenario = Scenario::new(spec.clone(), in_sandbox(vec![old.clone()]));
    assert_eq!(scenario.plan().kill.len(), 1);
    old.state = Exited;
    assert_eq!(Scenario::new(spec, in_sandbox(vec![old])).starts(), [("a".to_owned(), 1)]);
}

#[test]
fn a_dead_sandbox_is_replaced_and_init_containers_run_again() {
    let dead = vec![container("i", 0, Exited, 0), container("a", 0, Exited, 137)];
    let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]});
    let runtime = PodRuntime::new(vec![sandbox(0, NotReady)], dead.clone());
    let plan = Scenario::new(spec.clone(), runtime).plan();
    assert_eq!((plan.create_sandbox, plan.stop_sandboxes), (Some(1), vec!["s0".to_owned()]));
    let runtime = PodRuntime::new(vec![sandbox(0, NotReady), sandbox(1, Ready)], dead);
    assert_eq!(Scenario::new(spec, runtime).starts(), [("i".to_owned(), 1)]);
}

#[test]
fn a_dead_sandbox_is_not_replaced_if_no_container_would_run() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}]});
    let runtime = PodRuntime::new(vec![sandbox(0, NotReady)], vec![container("a", 0, Exited, 0)]);
    assert!(Scenario::new(spec, runtime).plan().is_idle());
}

#[test]
fn a_container_that_was_never_started_is_replaced() {
    let spec = json!({"containers": [{"name": "a"}]});
    let scenario = Scenario::new(spec, in_sandbox(vec![container("a", 0, Created, 0)]));
    assert_eq!(scenario.starts(), [("a".to_owned(), 1)]);
    assert_eq!(scenario.plan().remove_containers, ["a-0"]);
}

#[test]
fn two_attempts_and_their_sandboxes_are_kept() {
    let spec = json!({"containers": [{"name": "a"}]});
    let attempts = (0..4).map(|n| container("a", n, if n == 3 { Running } else { Exited }, 1));
    let mut runtime = PodRuntime::new(vec![sandbox(0, NotReady), sandbox(1, Ready)], attempts.collect());
    for status in runtime.containers.iter_mut().take(2) {
        status.sandbox_id = "s1".to_owned();
    }
    let plan = Scenario::new(spec, runtime).plan();
    assert_eq!(plan.remove_containers, ["a-1", "a-0"]);
    assert_eq!(plan.remove_sandboxes, ["s0"]);
}

#[test]
fn an_ephemeral_container_starts_once() {
    let mut spec = two();
    spec["ephemeralContainers"] = json!([{"name": "debug", "image": "img"}]);
    let running = vec![container("a", 0, Running, 0), container("b", 0, Running, 0)];
    let scenario = Scenario::new(spec.clone(), in_sandbox(running.clone()));
    assert_eq!(scenario.starts(), named(&["debug"]));
    let with_debug = [running, vec![container("debug", 0, Exited, 1)]].concat();
    assert!(Scenario::new(spec, in_sandbox(with_debug)).plan().is_idle());
}
