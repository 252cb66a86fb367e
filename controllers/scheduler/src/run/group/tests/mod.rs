//! The attempts of groups with the whole scheduler and an API in memory: gathering their pods, the name of their scheduler, pods
//! that take no part any more, and what is written in the end.

mod chaos;
mod crowds;
mod ends;
mod sharing;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tests_fake::ambient;
use tests_fake::api::FakeApi;
use tests_fake::faults::Line;

use super::super::Config;
use super::super::bad_days::{Life, add_node, add_pod, node_of, send, waiting};
use super::*;
use crate::cluster::Cluster;
use crate::config::{Gates, default_profile_with};
use crate::framework::{Code, Permission, Permit, Plugin, PreFilter, Profile, Refusal};
use crate::plugins::{DefaultPreemption, GangScheduling, NodeResourcesFit, profile};

const ON: Gates = Gates { generic_workload: true, gang_scheduling: true, async_api_calls: false };
const GROUPS: &str = "/apis/scheduling.k8s.io/v1alpha2/namespaces/ns/podgroups";

/// Answers as the labels of a pod say.
struct Scripted;

impl Plugin for Scripted {
    fn name(&self) -> &'static str {
        "Scripted"
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, _: &'a Cluster) -> PreFilter<'a> {
        match pod.labels().get("filter").map(String::as_str) {
            Some("error") => PreFilter::Refuse(Refusal::new(Code::Error, "broken")),
            _ => PreFilter::Skip,
        }
    }

    fn permit(&self, pod: &PodInfo, _: NodeId, _: &Cluster) -> Permission {
        match pod.labels().get("permit").map(String::as_str) {
            Some("wait") => {
                let answer = Permit::Wait { reason: "not yet".to_owned(), timeout: Duration::from_secs(30) };
                Permission { answer, ..Permission::default() }
            }
            Some("refuse") => Permission::refuse(Refusal::unschedulable("never")),
            Some("error") => Permission::refuse(Refusal::new(Code::Error, "broken")),
            _ => Permission::default(),
        }
    }
}

/// A cluster with a scheduler.
struct World {
    api: FakeApi,
    line: Line,
    _life: Life,
}

impl World {
    /// Returns a cluster with a node for each number of cores.
    async fn new(profiles: Vec<Profile>, gates: Gates, cores: &[u32]) -> Self {
        let api = FakeApi::new();
        for (index, cores) in cores.iter().enumerate() {
            add_node(&api, &format!("n{index}"), json!({"cpu": cores.to_string()})).await;
        }
        let line = Line::new(&api, vec![]);
        let config = Config { profiles: profiles.into(), gates, ..Config::default() };
        let life = Life::begin(line.client(), ambient(), config);
        Self { api, line, _life: life }
    }

    /// Returns a cluster with the default profile.
    async fn of_gangs(cores: &[u32]) -> Self {
        Self::new(vec![default_profile_with(ON)], ON, cores).await
    }

    /// Returns a cluster whose pods say themselves how they are answered.
    async fn scripted(cores: &[u32]) -> Self {
        let plugins: Vec<(Box<dyn Plugin>, i64)> = vec![
            (Box::new(GangScheduling), 0),
            (Box::new(Scripted), 0),
            (Box::new(NodeResourcesFit::default()), 1),
            (Box::new(DefaultPreemption::default()), 0),
        ];
        Self::new(vec![profile("default-scheduler", plugins)], ON, cores).await
    }

    async fn add_group(&self, name: &str, policy: Value) {
        let group = json!({"metadata": {"name": name}, "spec": {"schedulingPolicy": policy}});
        send(&self.api, "POST", GROUPS, &group).await;
    }

    /// Creates a pod of the group `g` that asks for a core, with these fields over it.
    async fn add(&self, name: &str, fields: Value) {
        let mut object = json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}});
        crate::testing::merge(&mut object, fields);
        add_pod(&self.api, name, "1", object).await;
    }

    /// Creates pods with these labels.
    async fn add_all(&self, pods: &[(&str, Value)]) {
        for (name, labels) in pods {
            self.add(name, json!({"metadata": {"labels": labels}})).await;
        }
    }

    fn pod(&self, name: &str) -> Value {
        self.api.all("pods").into_iter().find(|pod| pod["metadata"]["name"] == name).unwrap()
    }

    /// Returns reason and message of the condition of each pod that has one.
    fn told(&self) -> BTreeMap<String, (String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let told = |pod: Value| {
            let condition = pod["status"]["conditions"].as_array()?.first()?.clone();
            Some((text(&pod["metadata"]["name"]), (text(&condition["reason"]), text(&condition["message"]))))
        };
        self.api.all("pods").into_iter().filter_map(told).collect()
    }

    /// Returns the condition of the group `g`: status, reason and message.
    fn condition(&self) -> Option<(String, String, String)> {
        let group = self.api.all("podgroups").pop()?;
        let condition = group["status"]["conditions"].as_array()?.first()?.clone();
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        assert_eq!(condition["type"], "PodGroupScheduled");
        assert_eq!(condition["observedGeneration"], 1);
        Some((text("status"), text("reason"), text("message")))
    }

    fn is_scheduled(&self) -> bool {
        self.condition() == Some(("True".to_owned(), "Scheduled".to_owned(), String::new()))
    }

    /// Returns the notes of all events with a reason.
    fn notes(&self, reason: &str) -> Vec<String> {
        let events = self.api.all("events").into_iter().filter(|event| event["reason"] == reason);
        let mut notes: Vec<String> =
            events.map(|event| event["note"].as_str().unwrap_or_default().to_owned()).collect();
        notes.sort();
        notes.dedup();
        notes
    }
}

fn unschedulable_condition(message: &str) -> Option<(String, String, String)> {
    Some(("False".to_owned(), "Unschedulable".to_owned(), message.to_owned()))
}

fn told_of(message: &str) -> (String, String) {
    ("Unschedulable".to_owned(), message.to_owned())
}

const REST: &str = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, \
                    one or more plugins asked to wait and no plugin rejected pod";

#[tokio::test(start_paused = true)]
async fn gang_is_bound_as_soon_as_it_is_complete_and_not_before() {
    let world = World::of_gangs(&[2, 2]).await;
    for name in ["a", "b"] {
        world.add(name, json!({})).await;
    }
    world.line.until(5).await;
    assert_eq!(waiting(&world.api).len(), 2, "its group is not there");
    world.add_group("g", json!({"gang": {"minCount": 3}})).await;
    world.line.until(10).await;
    assert_eq!(waiting(&world.api).len(), 2, "a pod is missing");
    assert!(world.told().is_empty() && world.condition().is_none(), "nothing was tried");
    world.add("c", json!({})).await;
    world.line.until(15).await;
    assert_eq!(waiting(&world.api), Vec::<String>::new());
    assert!(world.is_scheduled());
    let nominated = |pod: &Value| pod["status"]["nominatedNodeName"].is_string();
    assert!(
        !world.api.history("pods").iter().any(|(_, pod)| nominated(pod)),
        "no pod had to wait for others"
    );
}

#[tokio::test(start_paused = true)]
async fn gang_that_does_not_fit_as_a_whole_takes_no_room_and_is_tried_again_after_pauses() {
    let world = World::of_gangs(&[1, 1]).await;
    world.add_group("g", json!({"gang": {"minCount": 3}})).await;
    for name in ["a", "b", "c"] {
        world.add(name, json!({})).await;
    }
    world.line.until(3).await;
    assert_eq!(waiting(&world.api).len(), 3);
    let fit = "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available: \
               2 No preemption victims found for incoming pod.";
    let expected = [("a", told_of(REST)), ("b", told_of(REST)), ("c", told_of(fit))];
    let expected: BTreeMap<_, _> = expected.map(|(name, told)| (name.to_owned(), told)).into();
    assert_eq!(world.told(), expected);
    assert_eq!(world.condition(), unschedulable_condition("pod group is unschedulable"));
    assert_eq!(world.notes("FailedScheduling"), [fit, REST]);
    add_pod(&world.api, "alone", "1", json!({})).await;
    world.line.until(4).await;
    assert!(!waiting(&world.api).contains(&"alone".to_owned()), "the room is free for others");
    for name in ["n2", "n3"] {
        add_node(&world.api, name, json!({"cpu": "1"})).await;
    }
    world.line.until(30).await;
    assert_eq!(waiting(&world.api), Vec::<String>::new());
    assert!(world.is_scheduled());
}

#[tokio::test(start_paused = true)]
async fn pods_beyond_the_quorum_may_find_no_node() {
    let world = World::of_gangs(&[2]).await;
    world.add_group("g", json!({"gang": {"minCount": 2}})).await;
    for name in ["a", "b", "c"] {
        world.add(name, json!({})).await;
    }
    world.line.until(3).await;
    assert_eq!(waiting(&world.api), ["c"]);
    assert!(world.is_scheduled());
    // Later attempts fail, and do not take back what was told of the group.
    world.line.until(60).await;
    assert!(world.is_scheduled());
    add_node(&world.api, "m", json!({"cpu": "1"})).await;
    world.line.until(90).await;
    assert_eq!(waiting(&world.api), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn groups_without_a_gang_are_tried_together_and_need_no_quorum() {
    let world = World::of_gangs(&[2]).await;
    for name in ["a", "b", "c"] {
        world.add(name, json!({})).await;
    }
    world.add_group("g", json!({"basic": {}})).await;
    world.line.until(3).await;
    assert_eq!(waiting(&world.api).len(), 1);
    assert!(world.is_scheduled());
}

#[tokio::test(start_paused = true)]
async fn pods_of_higher_priority_are_placed_first() {
    let world = World::of_gangs(&[2]).await;
    world.add("low", json!({})).await;
    world.add("high", json!({"spec": {"priority": 10}})).await;
    world.add("middle", json!({"spec": {"priority": 5}})).await;
    world.line.until(2).await;
    world.add_group("g", json!({"gang": {"minCount": 2}})).await;
    world.line.until(5).await;
    assert_eq!(waiting(&world.api), ["low"]);
}

#[tokio::test(start_paused = true)]
async fn without_gates_groups_are_neither_watched_nor_waited_for() {
    let gates = Gates::default();
    let world = World::new(vec![default_profile_with(gates)], gates, &[1]).await;
    world.add_group("g", json!({"gang": {"minCount": 2}})).await;
    world.add("a", json!({})).await;
    world.line.until(3).await;
    assert_eq!(waiting(&world.api), Vec::<String>::new());
    assert!(world.condition().is_none());
    let asked = world.line.asked(0..3);
    assert!(!asked.iter().any(|asked| asked.plural() == "podgroups"));
}

#[tokio::test(start_paused = true)]
async fn permission_of_one_pod_schedules_all_that_fit() {
    for (permits, waits) in [
        ([json!({}), json!({}), json!({})], vec![]),
        ([json!({"permit": "wait"}), json!({"permit": "wait"}), json!({})], vec!["a", "b"]),
        ([json!({}), json!({}), json!({"permit": "wait"})], vec!["c"]),
        ([json!({"permit": "wait"}), json!({}), json!({"permit": "refuse"})], vec!["a", "c"]),
    ] {
        let world = World::scripted(&[3]).await;
        let [a, b, c] = permits;
        world.add_all(&[("a", a), ("b", b), ("c", c)]).await;
        world.add_group("g", json!({"basic": {}})).await;
        world.line.until(20).await;
        assert_eq!(waiting(&world.api), waits);
        assert!(world.is_scheduled());
        for name in waits {
            let node = world.pod(name)["status"]["nominatedNodeName"].clone();
            let is_refused = world.pod(name)["metadata"]["labels"]["permit"] == "refuse";
            assert_eq!(node.is_string(), !is_refused, "a pod that waits shows the node that it waits on");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn group_that_nobody_permits_is_returned_with_what_it_waits_for() {
    let world = World::scripted(&[3]).await;
    world.add_all(&[("a", json!({"permit": "wait"})), ("b", json!({"permit": "refuse"}))]).await;
    world.add_group("g", json!({"basic": {}})).await;
    world.line.until(1).await;
    let waits =
        "pod group is unschedulable, not yet, one or more plugins asked to wait and no plugin rejected pod";
    let expected = [("a", told_of(waits)), ("b", told_of("0/1 nodes are available: 1 never."))];
    let expected: BTreeMap<_, _> = expected.map(|(name, told)| (name.to_owned(), told)).into();
    assert_eq!(world.told(), expected);
    assert_eq!(world.condition(), unschedulable_condition("pod group is unschedulable"));
    assert_eq!(waiting(&world.api).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn error_of_one_pod_returns_all() {
    for (labels, error) in [
        (json!({"filter": "error"}), "running PreFilter plugin \"Scripted\": broken"),
        (json!({"permit": "error"}), "running Permit plugin \"Scripted\": broken"),
    ] {
        let world = World::scripted(&[3]).await;
        world.add_all(&[("a", json!({})), ("b", labels), ("c", json!({}))]).await;
        world.add_group("g", json!({"basic": {}})).await;
        world.line.until(1).await;
        let others = format!("failed to schedule other pod from a pod group: {error}");
        let told = |message: &str| ("SchedulerError".to_owned(), message.to_owned());
        let expected = [("a", told(&others)), ("b", told(error)), ("c", told(&others))];
        let expected: BTreeMap<_, _> = expected.map(|(name, told)| (name.to_owned(), told)).into();
        assert_eq!(world.told(), expected);
        let condition = ("False".to_owned(), "SchedulerError".to_owned(), others);
        assert_eq!(world.condition(), Some(condition));
        assert_eq!(waiting(&world.api).len(), 3);
        // Without the one that fails, the group is scheduled, and says so.
        send(&world.api, "DELETE", "/api/v1/namespaces/ns/pods/b", &json!({})).await;
        world.line.until(30).await;
        assert_eq!(waiting(&world.api), Vec::<String>::new());
        assert!(world.is_scheduled());
    }
}

#[tokio::test(start_paused = true)]
async fn group_that_others_are_preempted_for_is_nominated_and_bound_when_they_are_gone() {
    let world = World::of_gangs(&[1, 1]).await;
    // The victim ends late.
    add_pod(&world.api, "victim", "1", json!({"metadata": {"finalizers": ["slow"]}})).await;
    world.line.until(2).await;
    world.add_group("g", json!({"gang": {"minCount": 2}})).await;
    for name in ["a", "b"] {
        world.add(name, json!({"spec": {"priority": 10}})).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let preempting = "pod group is unschedulable, pod group is waiting for preemption to complete";
    assert_eq!(world.condition(), unschedulable_condition(preempting));
    let told = world.told();
    assert_eq!(told["a"], told_of(preempting));
    assert!(told["b"].1.starts_with("0/2 nodes are available: 2 Insufficient cpu."), "{told:?}");
    let nodes = ["a", "b"].map(|name| world.pod(name)["status"]["nominatedNodeName"].clone());
    assert!(nodes.iter().all(Value::is_string) && nodes[0] != nodes[1], "{nodes:?}");
    send(
        &world.api,
        "PATCH",
        "/api/v1/namespaces/ns/pods/victim",
        &json!({"metadata": {"finalizers": null}}),
    )
    .await;
    world.line.until(40).await;
    assert_eq!(waiting(&world.api), Vec::<String>::new());
    assert!(world.is_scheduled());
}

#[tokio::test(start_paused = true)]
async fn pod_that_needs_victims_is_told_of_its_group_while_the_group_waits() {
    let world = World::scripted(&[1, 1]).await;
    add_pod(&world.api, "victim", "1", json!({})).await;
    world.line.until(2).await;
    for name in ["a", "b"] {
        world.add(name, json!({"metadata": {"labels": {"permit": "wait"}}, "spec": {"priority": 10}})).await;
    }
    world.add_group("g", json!({"basic": {}})).await;
    world.line.until(3).await;
    let waits =
        "pod group is unschedulable, not yet, one or more plugins asked to wait and no plugin rejected pod";
    assert_eq!(world.told().into_values().collect::<Vec<_>>(), [told_of(waits), told_of(waits)]);
    assert_eq!(world.condition(), unschedulable_condition("pod group is unschedulable"));
    let nodes = ["a", "b"].map(|name| world.pod(name)["status"]["nominatedNodeName"].clone());
    assert!(nodes.iter().all(Value::is_null), "{nodes:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_group_need_one_scheduler() {
    let profiles =
        ["default-scheduler", "second"].map(|name| profile(name, vec![(Box::new(GangScheduling), 0)]));
    let world = World::new(profiles.into(), ON, &[2]).await;
    world.add("a", json!({})).await;
    world.add("b", json!({"spec": {"schedulerName": "second", "priority": 1}})).await;
    world.add_group("g", json!({"basic": {}})).await;
    world.line.until(1).await;
    let error = "all pods in a single pod group should have the same .spec.schedulerName set, got: \"second\" and \
                 \"default-scheduler\"";
    for name in ["a", "b"] {
        assert_eq!(world.told().get(name), Some(&("SchedulerError".to_owned(), error.to_owned())), "{name}");
    }
    assert!(world.condition().is_none());
}

#[tokio::test(start_paused = true)]
async fn gated_and_deleted_pods_take_no_part() {
    let world = World::of_gangs(&[4]).await;
    world.add("gated", json!({"spec": {"schedulingGates": [{"name": "x"}]}})).await;
    world.add("a", json!({})).await;
    world.add("b", json!({})).await;
    world.line.until(1).await;
    world.add_group("g", json!({"gang": {"minCount": 3}})).await;
    world.line.until(3).await;
    assert_eq!(waiting(&world.api), ["a", "b", "gated"], "the gated one counts, and is not placed");
    let gates = json!({"spec": {"schedulingGates": null}});
    send(&world.api, "PATCH", "/api/v1/namespaces/ns/pods/gated", &gates).await;
    world.line.until(30).await;
    assert_eq!(waiting(&world.api), Vec::<String>::new());
    assert!(world.api.all("pods").iter().all(|pod| node_of(pod) == Some("n0")));
}

#[tokio::test(start_paused = true)]
async fn bound_pods_of_a_gang_count_whoever_has_bound_them() {
    let world = World::of_gangs(&[4]).await;
    world.add_group("g", json!({"gang": {"minCount": 3}})).await;
    world.add("old", json!({"spec": {"nodeName": "n0"}})).await;
    world.add("foreign", json!({"spec": {"nodeName": "n0", "schedulerName": "other"}})).await;
    world.line.until(1).await;
    world.add("new", json!({})).await;
    world.line.until(5).await;
    assert_eq!(waiting(&world.api), Vec::<String>::new());
    assert!(world.is_scheduled());
}
