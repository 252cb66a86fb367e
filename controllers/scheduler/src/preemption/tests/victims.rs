//! Tables of the candidates and their victims.

use super::*;
use crate::config::default_profile;

/// Reason, the nodes, their pods, the pod, and the candidates: `NODE: VICTIM…`, with `/NUMBER` of violations of budgets.
type Row =
    (&'static str, &'static [&'static str], &'static [&'static str], &'static str, &'static [&'static str]);

/// Returns the candidates, sorted, with their victims sorted by name.
fn tried(cluster: &mut Cluster, pod: &PodInfo, start: usize, args: PreemptionArgs) -> Vec<String> {
    let profile = default_profile();
    for plugin in &profile.plugins {
        plugin.register(pod, cluster);
    }
    let nodes: Vec<NodeId> = cluster.known().iter().collect();
    let wanted = wanted(args, nodes.len());
    let (candidates, _) = candidates(&profile, pod, cluster, &nodes, start, wanted);
    let line = |candidate: &Candidate| {
        let mut names: Vec<&str> = candidate.victims.iter().map(|victim| victim.name()).collect();
        names.sort_unstable();
        let violations = match candidate.violations {
            0 => String::new(),
            violations => format!(" /{violations}"),
        };
        format!("{}: {}{violations}", cluster.node(candidate.node).name, names.join(" "))
    };
    let mut lines: Vec<String> = candidates.iter().map(line).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn victims_are_the_least_important_pods_that_suffice() {
    let two = &["n1", "n2"];
    let equal = &["a n1 5 3", "b n2 5 3"];
    let rows: &[Row] = &[
        ("too large for either", two, &["a n1 5 1", "b n2 5 1"], "p - 10 6", &[]),
        ("it fits without", two, &["a n1 5 1", "b n2 5 1"], "p - 10 1", &[]),
        ("it fits one without", two, &["a n1 5 1", "b n2 5 6"], "p - 10 1", &["n2: b"]),
        ("both", two, equal, "p - 10 3", &["n1: a", "n2: b"]),
        ("others are more important", two, equal, "p - 0 3", &[]),
        (
            "a small one may stay",
            two,
            &["a1 n1 0 1", "a2 n1 5 3", "b n2 5 3"],
            "p - 10 3",
            &["n1: a2", "n2: b"],
        ),
        (
            "mixed priorities",
            two,
            &["a1 n1 5 1", "a2 n1 0 1", "a3 n1 5 2", "a4 n1 10 1", "b n2 10 3"],
            "p - 10 3",
            &["n1: a2 a3"],
        ),
        (
            "the younger of equal ones",
            two,
            &["a1 n1 0 1 s5", "a2 n1 0 1 s4", "a3 n1 5 2 s3", "a4 n1 10 1 s2", "b n2 10 3 s1"],
            "p - 10 3",
            &["n1: a1 a3"],
        ),
    ];
    for (why, nodes, pods, pod, expected) in rows {
        let mut cluster = sketched_cluster(nodes, pods);
        let pod = sketched(pod, json!({}));
        assert_eq!(tried(&mut cluster, &pod, 0, PreemptionArgs::default()), *expected, "{why}");
    }
}

#[test]
fn pods_that_want_to_be_alone_or_are_too_many_are_victims() {
    let selector = json!({"matchExpressions": [{"key": "foo", "operator": "Exists"}]});
    let term = json!({"topologyKey": "host", "labelSelector": selector});
    let alone = json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}});
    let others = ["a2 n1 5 1", "a3 n1 10 1", "b n2 10 1"].map(|line| sketched(line, json!({})));
    let mut pods = vec![sketched("a1 n1 0 1 foo", alone)];
    pods.extend(others);
    let mut all = cluster(&five_cores(&["n1", "n2"]), &pods);
    let pod = sketched("p - 10 1 foo", json!({}));
    assert_eq!(tried(&mut all, &pod, 0, PreemptionArgs::default()), ["n1: a1"]);

    let constraint = |key: &str| json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector});
    let spread = json!({"spec": {"topologySpreadConstraints": [constraint("zone"), constraint("host")]}});
    let pod = sketched("p - 10 0 foo", spread);
    let nodes = &["a/1", "b/1", "x/2"];
    let pods = ["a1 a 5 0 foo", "a2 a 0 0 foo", "b1 b 0 0 foo", "x1 x 10 0 foo", "x2 x 10 0 foo"];
    let mut all = sketched_cluster(nodes, &pods);
    assert_eq!(tried(&mut all, &pod, 0, PreemptionArgs::default()), ["a: a2", "b: b1"]);
    let pods = ["a1 a 10 0 foo", "a2 a 10 0 foo", "b1 b 0 0 foo", "x1 x 10 0 foo", "x2 x 10 0 foo"];
    assert_eq!(
        outcome(&mut sketched_cluster(nodes, &pods), &pod),
        Ok(("b".to_owned(), vec!["b1".to_owned()]))
    );
}

fn protect(cluster: &mut Cluster, allowed: i32, disrupted: &str) {
    let budget = json!({"spec": {"selector": {"matchLabels": {"app": ""}}},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": {disrupted: "2026-01-01T00:00:00Z"}}});
    let key = apiserver_client::ObjectKey::new("default", "b");
    cluster.budgets.set(key, Some(Arc::new(from_value(budget).unwrap())));
}

#[test]
fn victims_beyond_what_a_budget_allows_are_violations() {
    let violations = |disrupted: &str, pods: &[&str]| {
        let mut cluster = sketched_cluster(&["n"], pods);
        protect(&mut cluster, 1, disrupted);
        tried(&mut cluster, &sketched("p - 10 5", json!({})), 0, PreemptionArgs::default())
    };
    let two = &["a1 n 5 2 app", "a2 n 5 2 app"];
    let three = &["a1 n 5 2 app", "a2 n 5 2 app", "a3 n 5 2 app"];
    assert_eq!(violations("", two), ["n: a1 a2 /1"]);
    assert_eq!(violations("other", two), ["n: a1 a2 /1"], "the eviction of another pod is counted");
    assert_eq!(violations("a2", two), ["n: a1 a2"], "that of one of them is counted already");
    assert_eq!(violations("a3", three), ["n: a1 a2 a3 /1"]);
}

#[test]
fn search_ends_with_as_many_candidates_as_are_wanted() {
    let nodes = &["n1", "n2", "n3", "n4", "n5"];
    let args = |absolute| PreemptionArgs {
        min_candidate_nodes_percentage: 40,
        min_candidate_nodes_absolute: absolute,
    };
    let pod = sketched("p - 10 3", json!({}));
    let pods = &["a n1 5 3", "b n2 5 3", "c n3 5 3", "d n4 5 3", "e n5 5 3"];
    let mut all = sketched_cluster(nodes, pods);
    assert_eq!(tried(&mut all, &pod, 4, args(1)), ["n1: a", "n5: e"], "it begins anew at the end");
    assert_eq!(tried(&mut all, &pod, 1, args(1)), ["n2: b", "n3: c"]);
    assert_eq!(tried(&mut all, &pod, 3, args(1)), ["n4: d", "n5: e"]);
    let pods = &["a n1 5 3", "b n2 20 3", "c n3 5 3", "d n4 5 3", "e n5 20 3"];
    let mut some = sketched_cluster(nodes, pods);
    assert_eq!(tried(&mut some, &pod, 4, args(1)), ["n1: a", "n3: c"], "two are no candidates");
    let pods = &["a n1 5 3 app", "b n2 5 3 app", "c n3 5 3", "d n4 5 3", "e n5 5 3 app"];
    let mut protected = sketched_cluster(nodes, pods);
    protect(&mut protected, 0, "");
    let expected = ["n1: a /1", "n3: c", "n5: e /1"];
    assert_eq!(tried(&mut protected, &pod, 4, args(2)), expected, "one that violates no budget is wanted");
    let pods = &["a n1 5 3 app", "b n2 5 3 app", "c n3 5 3 app", "d n4 5 3 app", "e n5 0 3 app"];
    let mut violating = sketched_cluster(nodes, pods);
    protect(&mut violating, 0, "");
    let expected = ["n1: a /1", "n2: b /1"];
    assert_eq!(tried(&mut violating, &pod, 0, args(2)), expected, "of those that do, the first are kept");
}
