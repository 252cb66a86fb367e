//! Tables of the filter.

use super::super::InterPodAffinity;
use crate::cluster::Cluster;
use crate::framework::{Code, Plugin, PreFilter};
use crate::plugins::sketch;
use crate::pod::PodInfo;

/// Reason, the pods that are there, the pod, and the answer for each node: `+` if it passes, `N` if no pod is near that has to
/// be, `A` if one is near that may not be, `E` if a pod that is there keeps the pod away; `skip` if nothing is to filter.
type Row = (&'static str, &'static [&'static str], &'static str, &'static str);

/// Returns the answers for all nodes, without registering the pod.
fn answers(cluster: &Cluster, pod: &PodInfo) -> String {
    let plugin = InterPodAffinity::default();
    let PreFilter::Filter { filter, .. } = plugin.pre_filter(pod, cluster) else { return "skip".to_owned() };
    let answer = |node| {
        if filter.passes(node) {
            return '+';
        }
        let refusal = filter.refusal(node);
        match (refusal.message().as_str(), refusal.code) {
            ("node(s) didn't match pod affinity rules", Code::Unresolvable) => 'N',
            ("node(s) didn't match pod anti-affinity rules", Code::Unschedulable) => 'A',
            ("node(s) didn't satisfy existing pods anti-affinity rules", Code::Unschedulable) => 'E',
            (message, code) => panic!("unexpected {code:?} {message}"),
        }
    };
    cluster.nodes().filter(|node| cluster.known().contains(node.id)).map(answer).collect()
}

fn cluster(nodes: &[&str], pods: &[&str]) -> Cluster {
    let mut cluster = sketch::cluster(nodes, pods);
    for (name, team) in [("t1a", "1"), ("t1b", "1"), ("t2a", "2"), ("t2b", "2")] {
        cluster.set_namespace(name, Some([("team".to_owned(), team.to_owned())].into()));
    }
    cluster
}

fn check(nodes: &[&str], rows: &[Row]) {
    for (why, pods, pod, expected) in rows {
        let mut cluster = cluster(nodes, pods);
        let pod = sketch::pod("p", pod);
        assert_eq!(answers(&cluster, &pod), *expected, "{why}, before the pod is registered");
        InterPodAffinity::default().register(&pod, &mut cluster);
        assert_eq!(answers(&cluster, &pod), *expected, "{why}");
    }
}

#[test]
fn one_node_is_judged_by_the_terms_of_both_sides() {
    let rows: &[Row] = &[
        ("nothing is asked for", &[], "-", "skip"),
        ("one of several values", &["a app=web"], "- tier=db; near region app in (web,x)", "+"),
        ("none of several values", &["a app=web"], "- tier=db; near region app notin (x,y)", "+"),
        ("another namespace", &["other/a app=web"], "-; near region app in (web,x) | names=else", "N"),
        ("no value", &["a app=web"], "- app=web; near region app in (x,y)", "N"),
        ("operators", &["a app=web"], "-; near region app, !no; near region app=web, app notin (x)", "+"),
        (
            "all requirements",
            &["a app=web"],
            "-; near region app, !no; near region app=x, app notin (y)",
            "N",
        ),
        ("both kinds", &["a app=web"], "-; near region app in (web,x); away node app in (x,y)", "+"),
        (
            "both kinds, and theirs",
            &["a app=web; away node app in (x,y)"],
            "- tier=db; near region app in (web,x); away node app in (x,y)",
            "+",
        ),
        (
            "near, but too near",
            &["a app=web"],
            "-; near region app in (web,x); away zone app in (web,x)",
            "A",
        ),
        (
            "near, but not wanted there",
            &["a app=web; away zone app in (web,x)"],
            "- app=web; near region app in (web,x); away node app in (x,y)",
            "E",
        ),
        ("pods of another node", &["b app=web"], "- app=web; near region app notin (web,x)", "N"),
        ("theirs alone", &["a app=web; away zone app in (web,x)"], "- app=web", "E"),
        ("theirs do not select it", &["a app=web; away zone app notin (web,x)"], "- app=web", "skip"),
        (
            "own terms are judged before theirs",
            &["a tier=db; away zone tier"],
            "- app=web; away region app; away region tier",
            "A",
        ),
        ("one of its terms", &["a tier=db; away zone tier"], "- app=web; away zone app; away zone tier", "A"),
        ("one of theirs", &["a app=web; away zone app; away zone tier"], "- tier=db; away zone tier", "E"),
        (
            "each selects the other",
            &["a y= z=; away zone x; away zone y"],
            "- x= z=; away zone x; away zone y",
            "A",
        ),
        (
            "and the other way round",
            &["a x= z=; away zone x; away zone y"],
            "- y= z=; away zone x; away zone y",
            "A",
        ),
        ("a namespace of the team", &["t1a/a app=web"], "-; near region app in (web,x) | teams=1", "+"),
        ("a namespace of another", &["t2a/a app=web"], "-; near region app in (web,x) | teams=1", "N"),
        ("away from a team", &["t1b/a app=web"], "t1a/-; away zone app in (web,x) | teams=1", "A"),
        ("away from all", &["t1b/a app=web"], "t1a/-; away zone app in (web,x) | everywhere", "A"),
        ("away from another team", &["t2a/a app=web"], "t1a/-; away zone app in (web,x) | teams=1", "+"),
    ];
    check(&["a region=r1 zone=z11"], rows);
}

#[test]
fn nodes_of_a_region_are_judged_alike() {
    let rows: &[Row] = &[
        ("a pod in the region", &["a foo=bar"], "-; near region foo=bar", "++N"),
        ("away from a region", &["a foo=abc"], "-; away region foo=abc", "AA+"),
        (
            "terms of another namespace",
            &["one/a foo=bar", "two/x; away region foo=123"],
            "one/- foo=123; away region foo=bar",
            "AA+",
        ),
    ];
    check(&["a region=c", "b region=c az=1", "x region=i"], rows);
}

#[test]
fn first_pod_of_a_group_needs_the_keys_alone() {
    let group = "- foo=bar app=web; near zone foo=bar; near zone app=web";
    check(&["a zone=1", "b zone=2"], &[("no pod is both", &["a foo=bar"], group, "++")]);
    check(&["a district=1", "b district=2"], &[("the key is missing", &["a foo=bar"], group, "NN")]);
}

#[test]
fn terms_of_anti_affinity_count_one_by_one_and_terms_of_affinity_together() {
    let rows: &[Row] = &[
        ("same region", &["a foo=abc"], "-; away region foo=abc", "AA"),
        ("any term", &["a foo=abc app=web"], "-; away region foo=abc; away zone app=web", "AA"),
        ("no node has the key of theirs", &["a; away rack foo"], "- foo=", "skip"),
        ("no node has the key", &["a foo="], "-; away rack foo", "++"),
        ("theirs of two pods", &["a; away zone foo", "a; away region bar"], "- foo= bar=", "EE"),
        ("two pods", &["a foo=", "b bar="], "-; away zone foo; away region bar", "AA"),
        ("one key of theirs is missing", &["a; away rack foo; away zone bar"], "- foo= bar=", "E+"),
        ("one key is missing", &["a foo= bar="], "-; away rack foo; away zone bar", "A+"),
        ("both keys of theirs", &["a; away region foo; away zone bar"], "- foo= bar=", "EE"),
        ("both keys", &["a foo= bar="], "-; away region foo; away zone bar", "AA"),
        ("two pods are not one", &["a foo=", "b bar="], "-; near region foo; near zone bar", "NN"),
    ];
    check(&["a region=r1 zone=z1", "b region=r1 zone=z2"], rows);
    let one_zone: &[Row] =
        &[("all keys of the terms", &["a foo= bar="], "-; near region foo; near zone bar", "++")];
    check(&["a region=r1 zone=z1", "b region=r1 zone=z1"], one_zone);
    let two = &["a; away zone foo; away zone here", "b; away zone bar; away zone there"];
    let three: &[Row] = &[("one term of each", two, "- foo= bar=", "EE+")];
    check(&["a region=r1 zone=z1", "b region=r1 zone=z2", "c region=r1 zone=z3"], three);
}

#[test]
fn pods_count_for_affinity_if_all_terms_select_them_and_for_anti_affinity_if_one_does() {
    let rows: &[Row] = &[
        ("nothing is there", &[], "-", "skip"),
        ("nothing is asked for", &["a aaa="], "-", "skip"),
        ("neither", &["a bbb="], "-; near host aaa; away host aaa", "N"),
        ("both", &["a aaa="], "-; near host aaa; away host aaa", "A"),
        ("both of two terms", &["a aaa= bbb="], "-; near host aaa; near host bbb; away host aaa", "A"),
        ("one of two terms", &["a aaa="], "-; near host aaa; near host bbb", "N"),
        ("one of two, away", &["a aaa="], "-; away host aaa; away host bbb", "A"),
        ("one of two, with more labels", &["a aaa= bbb="], "-; near host aaa; near host ccc", "N"),
        ("one of two, with more labels, away", &["a aaa= bbb="], "-; away host aaa; away host ccc", "A"),
        ("the second of two", &["a bbb="], "-; near host aaa; near host bbb", "N"),
        ("the second of two, away", &["a bbb="], "-; away host aaa; away host bbb", "A"),
    ];
    check(&["a host=a"], rows);
}

/// Compares a pod that comes and goes in a trial with one that is there and one that is not.
fn check_trial(pods: &[&str], pod: &str, added: &str, expected: [&str; 2]) {
    let nodes = &["a region=r1 zone=z11", "b region=r1 zone=z12", "x region=r2 zone=z21"];
    let mut cluster = cluster(nodes, pods);
    let (pod, added) = (sketch::pod("p", pod), sketch::pod("added", added));
    let place = added.node.clone().unwrap();
    let id = cluster.named(&place).unwrap().id;
    InterPodAffinity::default().register(&pod, &mut cluster);
    assert_eq!(answers(&cluster, &pod), expected[0]);
    let mut trial = cluster.trial();
    trial.add(&added, id);
    assert_eq!(answers(&trial, &pod), expected[1]);
    drop(trial);
    assert_eq!(answers(&cluster, &pod), expected[0]);
    cluster.place(&added, &place);
    assert_eq!(answers(&cluster, &pod), expected[1]);
    let mut trial = cluster.trial();
    trial.remove(&added);
    assert_eq!(answers(&trial, &pod), expected[0]);
    drop(trial);
    assert_eq!(answers(&cluster, &pod), expected[1]);
}

#[test]
fn terms_follow_pods_that_come_and_go_in_trials() {
    let away = "away region foo=bar";
    let there = ["a foo=bar", "x; away region foo=bar"];
    let (pod, added) = (format!("- foo=bar; {away}"), format!("b foo=bar; {away}"));
    check_trial(&there, &pod, &added, ["AAE", "AAE"]);
    check_trial(&there[1..], &pod, &added, ["++E", "AAE"]);
    let both = |kind| format!("{kind} region foo in (bar,buzz); {kind} zone app notin (bar,security,test)");
    let (away, near) = (both("away"), both("near"));
    let (pod, added) = (format!("- foo=bar; {away}"), format!("a foo=bar; {away}"));
    check_trial(&there, &pod, &added, ["AAA", "AAA"]);
    check_trial(&["b app=test"], &pod, &added, ["+++", "AA+"]);
    let holder = format!("x; away region foo=bar; {near}");
    check_trial(&["a foo=bar", &holder], &format!("- foo=bar; {near}"), &added, ["+NN", "ENN"]);
}
