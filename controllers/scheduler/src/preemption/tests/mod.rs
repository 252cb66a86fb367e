//! Covers the cases that Kubernetes tests of preemption; docs/scheduler.md counts them. What kube-scheduler itself answers in
//! hundreds of random clusters is in `tests/differential`.

mod messages;
mod pick;
mod victims;

use serde_json::{Value, from_value, json};

use super::*;
use crate::config::default_profile;
use crate::framework::{Meter, NominatedFirst, Views, find_feasible};
use crate::testing::{cluster, pod, sized};

/// Returns a pod that requests this many cores and has a priority, with its name as its only label.
fn importance(name: &str, cores: u32, priority: i32, node: Option<&str>) -> Arc<PodInfo> {
    let started = format!("2026-01-01T00:00:{:02}Z", name.len());
    pod(
        name,
        json!({"metadata": {"labels": {"app": name}}, "status": {"startTime": started},
            "spec": {"priority": priority, "nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cores.to_string()}}}]}}),
    )
}

fn on(name: &str, cores: u32, priority: i32, node: &str) -> Arc<PodInfo> {
    importance(name, cores, priority, Some(node))
}

/// Returns the node that is chosen for a pod of four cores and priority 10, with the victims.
fn outcome(cluster: &mut Cluster, preemptor: &PodInfo) -> Result<(String, Vec<String>), String> {
    let profile = default_profile();
    let found = find_feasible(
        &profile,
        preemptor,
        cluster,
        &mut Views::default(),
        0,
        NominatedFirst::Yes,
        &mut Meter::default(),
    );
    let mut diagnosis = *found.expect_err("the pod fits nowhere");
    match post_filter(&profile, preemptor, cluster, &mut diagnosis, 0) {
        Some(Found::Candidate(candidate)) => {
            let victims = candidate.victims.iter().map(|victim| victim.name().to_owned());
            Ok((cluster.node(candidate.node).name.to_string(), victims.collect()))
        }
        _ => Err(diagnosis.to_string()),
    }
}

/// Returns the pod of a line, `NAME NODE PRIORITY CORES [sSECOND] [LABEL]`, where the node `-` is none and the pod has
/// started in this second; and with these fields over it.
fn sketched(line: &str, fields: Value) -> Arc<PodInfo> {
    let words: Vec<&str> = line.split(' ').collect();
    let [name, node, priority, cores, more @ ..] = &words[..] else { panic!("{line:?} has too few words") };
    let priority: i32 = priority.parse().unwrap();
    let second = more.iter().find_map(|word| word.strip_prefix('s')).unwrap_or("0");
    let labels =
        more.iter().filter(|word| !word.starts_with('s')).map(|word| ((*word).to_owned(), json!("")));
    let mut whole = json!({"metadata": {"labels": Value::Object(labels.collect())},
        "status": {"startTime": format!("2026-01-01T00:00:{second:0>2}Z")},
        "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": *cores}}}]}});
    if *node != "-" {
        whole["spec"]["nodeName"] = json!(node);
    }
    crate::testing::merge(&mut whole, fields);
    pod(name, whole)
}

/// Returns nodes of five cores with these names, such as `a/1` for a node in the zone 1.
fn five_cores(names: &[&str]) -> Vec<Arc<crate::cluster::NodeFacts>> {
    let node = |name: &&str| {
        let (name, zone) = name.split_once('/').unwrap_or((name, "0"));
        let labels = json!({"zone": zone, "host": name});
        crate::testing::node(
            name,
            json!({"metadata": {"labels": labels}, "status": {"allocatable": {"cpu": "5"}}}),
        )
    };
    names.iter().map(node).collect()
}

fn sketched_cluster(names: &[&str], pods: &[&str]) -> Cluster {
    let pods: Vec<Arc<PodInfo>> = pods.iter().map(|line| sketched(line, json!({}))).collect();
    cluster(&five_cores(names), &pods)
}

fn four_cores(priority: i32) -> Arc<PodInfo> {
    importance("new", 4, priority, None)
}

fn nodes(names: &[&str]) -> Vec<Arc<crate::cluster::NodeFacts>> {
    names.iter().map(|name| sized(name, json!({"cpu": "8"}))).collect()
}

fn budget(app: &str, allowed: i32) -> (apiserver_client::ObjectKey, Value) {
    let key = apiserver_client::ObjectKey::new("default", app);
    (
        key,
        json!({"spec": {"selector": {"matchLabels": {"app": app}}}, "status": {"disruptionsAllowed": allowed}}),
    )
}

#[test]
fn least_important_pods_go_and_no_more_than_needed() {
    let pods = [on("a", 2, 5, "n"), on("bb", 2, 1, "n"), on("ccc", 2, 1, "n"), on("dddd", 2, 20, "n")];
    let mut cluster = cluster(&nodes(&["n"]), &pods);
    // Among pods of equal priority, those that have run longer are spared.
    let expected = ("n".to_owned(), vec!["bb".to_owned(), "ccc".to_owned()]);
    assert_eq!(outcome(&mut cluster, &four_cores(10)), Ok(expected));
    let before: Vec<_> = cluster.named("n").unwrap().pods.iter().map(|pod| pod.name().to_owned()).collect();
    assert_eq!(before.len(), 4, "nothing was removed by the search");
}

#[test]
fn pods_of_equal_priority_are_not_preempted() {
    let mut cluster = cluster(&nodes(&["n"]), &[on("a", 8, 10, "n")]);
    let message = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: \
         1 No preemption victims found for incoming pod.";
    assert_eq!(outcome(&mut cluster, &four_cores(10)), Err(message.to_owned()));
}

#[test]
fn protected_pods_are_spared_if_others_suffice() {
    let mut cluster = cluster(&nodes(&["n"]), &[on("a", 4, 1, "n"), on("b", 4, 2, "n")]);
    let (key, object) = budget("a", 0);
    cluster.budgets.set(key, Some(Arc::new(from_value(object).unwrap())));
    assert_eq!(outcome(&mut cluster, &four_cores(10)), Ok(("n".to_owned(), vec!["b".to_owned()])));
}

#[test]
fn node_with_the_lowest_highest_victim_is_chosen_unless_a_budget_is_violated_there() {
    let pods = [on("a", 8, 1, "n1"), on("b", 8, 3, "n2"), on("c", 8, 2, "n3")];
    let mut cluster = cluster(&nodes(&["n1", "n2", "n3"]), &pods);
    assert_eq!(outcome(&mut cluster, &four_cores(10)).unwrap().0, "n1");
    let (key, object) = budget("a", 0);
    cluster.budgets.set(key, Some(Arc::new(from_value(object).unwrap())));
    assert_eq!(outcome(&mut cluster, &four_cores(10)).unwrap().0, "n3");
}

#[test]
fn pods_wait_for_victims_that_are_being_removed_for_them() {
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "n",
        "priority": 1, "containers": [{"name": "c", "resources": {"requests": {"cpu": "8"}}}]},
        "status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}});
    let mut cluster = cluster(&nodes(&["n"]), &[pod("leaving", leaving)]);
    let waiting = pod(
        "new",
        json!({"spec": {"priority": 10,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}]}, "status": {"nominatedNodeName": "n"}}),
    );
    let message = "0/1 nodes are available: 1 Insufficient cpu. \
         no new claims to deallocate, preemption: not eligible due to a terminating pod on the nominated node.";
    assert_eq!(outcome(&mut cluster, &waiting), Err(message.to_owned()));
}

#[test]
fn room_of_a_nominated_pod_is_not_taken_by_one_of_lower_priority() {
    let mut cluster = cluster(&nodes(&["n"]), &[on("a", 2, 1, "n")]);
    let nominated = pod(
        "first",
        json!({"spec": {"priority": 50,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}]}}),
    );
    cluster.nominated.set(&nominated, &Arc::from("n"));
    let taken = |cluster: &mut Cluster, pod: &PodInfo| {
        find_feasible(
            &default_profile(),
            pod,
            cluster,
            &mut Views::default(),
            0,
            NominatedFirst::Yes,
            &mut Meter::default(),
        )
        .is_ok()
    };
    assert!(!taken(&mut cluster, &four_cores(10)));
    assert!(taken(&mut cluster, &four_cores(60)), "a more important pod does not wait");
    assert!(taken(&mut cluster, &nominated), "nor does the nominated pod itself");
}

/// Returns a pod with a host port, which no pod may be with that has the label `lonely` if it wants to be alone.
fn with_port(name: &str, port: u16, priority: i32, node: Option<&str>, is_alone: bool) -> Arc<PodInfo> {
    let term =
        json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"lonely": ""}}});
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    pod(
        name,
        json!({"spec": {"priority": priority, "nodeName": node, "affinity": is_alone.then_some(affinity),
            "containers": [{"name": "c", "ports": [{"containerPort": port, "hostPort": port}]}]}}),
    )
}

#[test]
fn host_port_of_a_removed_pod_is_free_on_trial_though_another_pod_has_it() {
    // Filters that depend on the node alone are tried on a copy of the node, others on the cluster.
    for is_alone in [false, true] {
        let pods = [(80, "a", 1), (80, "b", 20), (81, "c", 1)]
            .map(|(port, name, priority)| with_port(name, port, priority, Some("n"), false));
        let mut cluster = cluster(&nodes(&["n"]), &pods);
        let ports = |cluster: &Cluster| {
            let mut ports: Vec<i32> =
                cluster.named("n").unwrap().ports.iter().map(|port| port.port).collect();
            ports.sort_unstable();
            ports
        };
        let preemptor = with_port("new", 80, 10, None, is_alone);
        let expected = ("n".to_owned(), vec!["a".to_owned()]);
        assert_eq!(outcome(&mut cluster, &preemptor), Ok(expected), "alone: {is_alone}");
        assert_eq!(ports(&cluster), [80, 80, 81], "the trial is undone");
        let profile = default_profile();
        cluster.remove_pod(&pods[0]);
        let (first, views, meter) = (NominatedFirst::Yes, &mut Views::default(), &mut Meter::default());
        let found = find_feasible(&profile, &preemptor, &mut cluster, views, 0, first, meter);
        assert!(found.is_err(), "once the victim is gone, the other pod still has the port");
    }
}

#[test]
fn host_port_of_a_nominated_pod_is_not_free_on_trial() {
    for is_alone in [false, true] {
        let mut cluster = cluster(&nodes(&["n"]), &[with_port("a", 80, 1, Some("n"), false)]);
        cluster.nominated.set(&with_port("first", 80, 50, None, false), &Arc::from("n"));
        let said = outcome(&mut cluster, &with_port("new", 80, 10, None, is_alone)).unwrap_err();
        let taken = "preemption: 0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.";
        assert!(said.ends_with(taken), "alone: {is_alone}: {said}");
        let other = outcome(&mut cluster, &with_port("new", 80, 60, None, is_alone));
        assert_eq!(other, Ok(("n".to_owned(), vec!["a".to_owned()])), "a more important pod does not wait");
    }
}

#[test]
fn errors_of_filters_name_the_plugin() {
    let refusals = |texts: &[(&'static str, Code, &str)]| {
        let refusal =
            |(plugin, code, text): &(&'static str, Code, &str)| Refusal::new(*code, *text).by(plugin);
        let mut refusals = Refusals::default();
        for (id, one) in texts.iter().enumerate() {
            refusals.insert(NodeId::new(id), refusal(one));
        }
        refusals
    };
    let said = |texts: &[(&'static str, Code, &str)]| errors(&refusals(texts));
    let full = ("NodePorts", Code::Unschedulable, "full");
    let broken = ("DynamicResources", Code::Error, "no such key: a");
    let none = ("", Code::Error, "expected at least one victim pod on node \"n\"");
    let text = "running \"DynamicResources\" filter plugin: no such key: a";
    assert_eq!(said(&[full]), None);
    assert_eq!(said(&[full, broken, broken]).as_deref(), Some(text));
    assert_eq!(said(&[none]).as_deref(), Some(none.2));
    assert_eq!(said(&[none, broken]), Some(format!("[{}, {text}]", none.2)));
}
