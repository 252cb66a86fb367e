//! Tables of the scores.

use super::super::{InterPodAffinity, InterPodAffinityArgs};
use crate::framework::Plugin;
use crate::plugins::sketch;
use crate::testing;

const NEAR_1: &str = "prefer 5 region sec=1";
const NEAR_2: &str = "prefer 6 region sec=2";
const AWAY_1: &str = "avoid 5 az sec=1";
const AWAY_2: &str = "avoid 5 az sec=2";
const BOTH: &str = "prefer 8 region sec=1; avoid 5 az sec=2";
const NEAR_TEAM: &str = "prefer 5 region sec=1 | names=t2b teams=1";
const AWAY_TEAM: &str = "avoid 5 region sec=1 | names=t2b teams=1";

/// Returns the scores of all nodes; `None` if nothing is to score.
fn scores(args: InterPodAffinityArgs, nodes: &[&str], pods: &[&str], pod: &str) -> Option<Vec<i64>> {
    let mut cluster = sketch::cluster(nodes, pods);
    for (name, team) in [("t1a", "1"), ("t1b", "1"), ("t2a", "2"), ("t2b", "2")] {
        cluster.set_namespace(name, Some([("team".to_owned(), team.to_owned())].into()));
    }
    let (plugin, pod) = (InterPodAffinity::new(args), sketch::pod("p", pod));
    let before = testing::scores(&plugin, &pod, &cluster);
    plugin.register(&pod, &mut cluster);
    let scores = testing::scores(&plugin, &pod, &cluster);
    assert_eq!(scores, before, "they do not depend on whether the pod is registered");
    scores
}

/// Checks the scores of nodes, with a part for all pods of a line: `""` for none.
fn check(why: &str, nodes: &[&str], pods: &[(&str, &str)], pod: (&str, &str), expected: &[i64]) {
    let line = |(line, part): &(&str, &str)| match *part {
        "" => (*line).to_owned(),
        part => format!("{line}; {part}"),
    };
    let pods: Vec<String> = pods.iter().map(line).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let expected = if expected.is_empty() { None } else { Some(expected.to_vec()) };
    assert_eq!(scores(InterPodAffinityArgs::default(), nodes, &pods, &line(&pod)), expected, "{why}");
}

#[test]
fn preferred_terms_of_the_pod_count_pods_by_domain() {
    let mixed = &["a region=c", "b region=i", "c az=1"];
    check("no affinity", mixed, &[], ("- sec=1", ""), &[]);
    let each = &[("a sec=1", ""), ("b sec=2", ""), ("c sec=1", "")];
    check("key and label", mixed, each, ("- sec=1", NEAR_1), &[100, 0, 0]);
    let region = &["a region=c", "b region=c az=1", "x region=i"];
    check("the whole region", region, &[("a sec=1", "")], ("-", NEAR_1), &[100, 100, 0]);
    let five = &["a region=c", "b region=i", "c region=c", "d region=c", "e region=i"];
    let more = ["a sec=2", "a sec=2", "b sec=2", "c sec=2", "d sec=2", "e sec=2"].map(|pod| (pod, ""));
    check("more pods", five, &more, ("- sec=1", NEAR_2), &[100, 0, 100, 100, 0]);
    let operators = "prefer 8 region sec notin (1), sec=2; prefer 2 region sec, !wrong";
    check("operators", mixed, each, ("- sec=1", operators), &[20, 100, 0]);
}

#[test]
fn terms_of_pods_that_are_there_count_for_the_pods_they_select() {
    let mixed = &["a region=c", "b region=i", "c az=1"];
    check("theirs", mixed, &[("a sec=1", NEAR_1), ("b sec=2", NEAR_2)], ("- sec=2", ""), &[0, 100, 0]);
    let near = &[("a sec=1", NEAR_TEAM), ("b sec=2", NEAR_2)];
    check("theirs, of a team", mixed, near, ("t1a/- sec=1", ""), &[100, 0, 0]);
    let away = &[("a sec=1", AWAY_TEAM), ("b sec=2", NEAR_2)];
    check("theirs, away from a team", mixed, away, ("t1a/- sec=1", ""), &[0, 100, 100]);
    let required = "near region sec in (1,x); near region sec, !wrong";
    let hard = &[("a sec=1", required), ("b sec=2", required)];
    check("theirs, required", mixed, hard, ("- sec=1", ""), &[100, 100, 0]);
    let zones = &["a az=1", "b az=2"];
    let away = &[("a sec=1", AWAY_2), ("b sec=2", AWAY_1)];
    check("theirs, away", zones, away, ("- sec=2", ""), &[0, 100]);
    let one_region = &["a region=c", "b region=c"];
    check("half a region", one_region, &[("a sec=1", ""), ("b", BOTH)], ("- sec=1", ""), &[0, 0]);
}

#[test]
fn anti_affinity_counts_against_nodes() {
    let two = &["a az=1", "b region=c"];
    check("other pods", two, &[("a sec=1", ""), ("b sec=2", "")], ("- sec=1", AWAY_1), &[0, 100]);
    check("no key", two, &[("a sec=1", ""), ("b sec=1", "")], ("- sec=1", AWAY_1), &[0, 100]);
    let pods = &[("a sec=1", ""), ("a sec=1", ""), ("b sec=2", "")];
    check("two pods", &["a az=1", "b region=i"], pods, ("- sec=1", AWAY_1), &[0, 100]);
}

#[test]
fn affinity_and_anti_affinity_add_up() {
    let two = &["a region=c", "b az=1"];
    check("both", two, &[("a sec=1", ""), ("b sec=1", "")], ("- sec=1", BOTH), &[100, 0]);
    let five = &["a region=c az=1", "b region=i", "c region=c", "d region=c", "e region=i"];
    let pods = ["a", "a", "b", "c", "c", "d", "e"].map(|node| format!("{node} sec=1"));
    let pods: Vec<(&str, &str)> = pods.iter().map(|pod| (pod.as_str(), "")).collect();
    check("one label", five, &pods, ("- sec=1", BOTH), &[100, 0, 100, 100, 0]);
    let four = &["a region=c", "b az=1", "c region=i", "d az=2"];
    let pods = &[("a sec=1", ""), ("b sec=2", ""), ("c", BOTH), ("d", AWAY_1)];
    check("both, and theirs", four, pods, ("- sec=1", BOTH), &[100, 0, 100, 0]);
}

#[test]
fn preferred_terms_select_namespaces_by_name_and_label() {
    let nodes = &["a region=c", "b region=i"];
    let by_label = ["t1a/a sec=1", "t1a/a sec=1", "t2a/a sec=1", "t1b/b sec=1"].map(|pod| (pod, ""));
    let by_name = ["t1a/a sec=1", "t1a/a sec=1", "t2b/a sec=1", "t1b/b sec=1"].map(|pod| (pod, ""));
    for pods in [by_label, by_name] {
        check("near", nodes, &pods, ("t1a/- sec=1", NEAR_TEAM), &[100, 0]);
        check("away", nodes, &pods, ("t1a/- sec=1", AWAY_TEAM), &[0, 100]);
    }
    let named = &[("t2b/a sec=1", ""), ("t2a/b sec=1", "")];
    check("the name alone", nodes, named, ("t1a/- sec=1", NEAR_TEAM), &[100, 0]);
}

#[test]
fn preferred_terms_of_others_can_be_ignored() {
    let nodes = &["a region=c", "b region=i"];
    let pods = [format!("a sec=1; {BOTH}"), format!("b sec=2; {NEAR_2}")];
    let pods = [pods[0].as_str(), pods[1].as_str()];
    let ignore = InterPodAffinityArgs { ignore_preferred_terms_of_existing_pods: true, ..Default::default() };
    assert_eq!(scores(ignore, nodes, &pods, "- sec=2"), None);
    assert_eq!(scores(InterPodAffinityArgs::default(), nodes, &pods, "- sec=2"), Some(vec![0, 100]));
    assert_eq!(scores(InterPodAffinityArgs::default(), &[], &[], "- sec=2"), None, "there are no nodes");
}

#[test]
fn required_terms_of_others_have_the_weight_of_the_arguments() {
    let nodes = &["a region=c", "b region=i", "c az=1"];
    let term = "near region app=1 | names=default,t2b teams=1";
    let pods = [format!("a; {term}"), format!("b; {term}")];
    let pods = [pods[0].as_str(), pods[1].as_str()];
    let score = |weight: i32, pod: &str| {
        let args = InterPodAffinityArgs { hard_pod_affinity_weight: weight, ..Default::default() };
        scores(args, nodes, &pods, pod)
    };
    let both = Some(vec![100, 100, 0]);
    assert_eq!(score(1, "- app=1"), both);
    assert_eq!(score(0, "- app=1"), None);
    assert_eq!(score(1, "t2a/- app=1"), None, "no namespace");
    assert_eq!(score(1, "t1a/- app=1"), both, "a namespace by label");
    assert_eq!(score(1, "t2b/- app=1"), both, "a namespace by name");
}
