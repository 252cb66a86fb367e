//! Tables of the pods that are counted in each domain, as the least skew shows them with which a node passes: their number
//! with the pod itself, above the least number of a domain, and at least 1.

use super::super::PodTopologySpread;
use super::sketched;
use crate::cluster::{Cluster, NodeId};
use crate::framework::{Plugin, PreFilter};
use crate::plugins::sketch;

const FOUR: &[&str] = &["a zone=1 node=a", "b zone=1 node=b", "x zone=2 node=x", "y zone=2 node=y"];
const A_B: &[&str] = &["a zone=1 node=a", "b zone=1 node=b"];
const A_X: &[&str] = &["a zone=1 node=a", "x zone=2 node=x"];
const A_B_X: &[&str] = &["a zone=1 node=a", "b zone=1 node=b", "x zone=2 node=x"];
const A_B_Y: &[&str] = &["a zone=1 node=a", "b zone=1 node=b", "y zone=2 node=y"];

/// Reason, the nodes, their pods, the pod, its constraints without their skew, and for each of them the least skew of each node.
type Row = (
    &'static str,
    &'static [&'static str],
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

/// Returns the least skew of each constraint for each node, while the other constraints allow everything.
fn skews(cluster: &Cluster, pod: &str, constraints: &[&str]) -> Vec<String> {
    let plugin = PodTopologySpread::default();
    let passes = |which: usize, skew: i32, node: NodeId| {
        let mut line = pod.to_owned();
        for (index, constraint) in constraints.iter().enumerate() {
            line += &format!("; hard {} {constraint}", if index == which { skew } else { 99 });
        }
        let pod = sketch::pod("p", &line);
        let PreFilter::Filter { filter, .. } = plugin.pre_filter(&pod, cluster) else { panic!("it filters") };
        filter.passes(cluster.node(node))
    };
    let least = |which: usize, node: NodeId| (1..9).find(|skew| passes(which, *skew, node)).unwrap_or(9);
    let of = |which| cluster.known().iter().map(|node| least(which, node).to_string()).collect();
    (0..constraints.len()).map(of).collect()
}

fn register(cluster: &mut Cluster, pod: &str, constraints: &[&str]) {
    let constraints: Vec<String> =
        constraints.iter().map(|constraint| format!("hard 1 {constraint}")).collect();
    let line = format!("{pod}; {}", constraints.join("; "));
    PodTopologySpread::default().register(&sketch::pod("p", &line), cluster);
}

fn check(rows: &[Row]) {
    for (why, nodes, pods, pod, constraints, expected) in rows {
        let mut cluster = sketched(nodes, pods);
        assert_eq!(skews(&cluster, pod, constraints), *expected, "{why}, before the pod is registered");
        register(&mut cluster, pod, constraints);
        assert_eq!(skews(&cluster, pod, constraints), *expected, "{why}");
    }
}

#[test]
fn pods_that_the_selector_matches_are_counted_by_domain() {
    let six = &["a zone=1", "b zone=1", "x zone=2", "y zone=2", "o zone=3", "p zone=3"];
    let both = &["zone foo", "node foo"];
    let each = &["zone foo", "node bar"];
    check(&[
        ("no pods", FOUR, "", "- foo=", &["zone foo=bar"], &["1111"]),
        ("two zones", FOUR, "a:foo*2 b:foo y:foo*2", "- foo=", &["zone foo"], &["2211"]),
        ("no selector", FOUR, "a:foo*2 b:foo y:foo*2", "- foo=", &["zone null"], &["1111"]),
        ("three zones", six, "a:foo*2 b:foo y:foo*2", "- foo=", &["zone foo"], &["443311"]),
        ("namespaces", FOUR, "a:foo one/a:foo b:foo two/y:foo y:foo", "- foo=", &["zone foo"], &["2211"]),
        ("zone and node", FOUR, "a:foo*2 b:foo y:foo*4", "- foo=", both, &["1122", "3215"]),
        (
            "soft ones do not matter",
            A_B_Y,
            "a:foo*2 b:foo y:foo*4",
            "- foo=; soft 1 zone foo; soft 1 node foo",
            both,
            &["112", "214"],
        ),
        ("two selectors", A_B_Y, "a:foo b:bar", "- foo= bar=", each, &["221", "121"]),
        (
            "pods of both",
            A_B_Y,
            "a:foo a:foo,bar b:foo y:foo*2 y:foo,bar*2",
            "- foo= bar=",
            each,
            &["112", "213"],
        ),
        (
            "one node is out",
            FOUR,
            "a:foo*2 b:foo y:foo*4",
            "- foo=; affine node notin (x)",
            both,
            &["1122", "2114"],
        ),
        (
            "two selectors of a zone",
            FOUR,
            "a:foo,bar b:foo x:bar y:foo,bar y:bar",
            "- foo= bar=",
            &["zone foo", "zone bar"],
            &["2211", "1133"],
        ),
    ]);
    let plain = sketch::pod("p", "- foo=");
    let (plugin, cluster) = (PodTopologySpread::default(), sketched(A_B, "a:foo"));
    assert!(matches!(plugin.pre_filter(&plain, &cluster), PreFilter::Skip), "a pod without constraints");
}

#[test]
fn nodes_are_counted_by_the_policies() {
    let selected = &["a node=a foo=", "b node=b foo=", "c node=c bar="];
    let tainted = &["a node=a", "b node=b", "c node=c !full:NoSchedule"];
    let pods = "a:bar b:bar*2 c:";
    let ignore = &["node bar | affinity=Ignore"];
    let honor = &["node bar | taints=Honor"];
    check(&[
        ("selector", selected, pods, "- bar=; nodes foo=", &["node bar"], &["121"]),
        ("selector, ignored", selected, pods, "- bar=; nodes foo=", ignore, &["231"]),
        ("affinity", selected, pods, "- bar=; affine foo=", &["node bar"], &["121"]),
        ("affinity, ignored", selected, pods, "- bar=; affine foo=", ignore, &["231"]),
        ("taints, ignored", tainted, pods, "- bar=", &["node bar"], &["231"]),
        ("taints", tainted, pods, "- bar=", honor, &["121"]),
        ("taints, tolerated", tainted, pods, "- bar=; tolerate full", honor, &["231"]),
    ]);
}

#[test]
fn policies_hold_for_their_constraint_alone() {
    let one = &["a zone=1 node=a foo=", "b zone=1 node=b", "x zone=2 node=x foo="];
    let taint = &["a zone=1 node=a", "b zone=1 node=b !full:NoSchedule", "x zone=2 node=x"];
    let two = &[
        "a zone=1 node=a",
        "b zone=1 node=b foo= !full:NoSchedule",
        "x zone=2 node=x foo=",
        "y zone=2 node=y",
    ];
    let three = &[
        "a zone=1 node=a",
        "b zone=1 node=b foo= !full:NoSchedule",
        "x zone=2 node=x foo=",
        "y zone=2 node=y foo=",
    ];
    check(&[
        (
            "the zone's affinity",
            one,
            "b:foo*2 x:foo",
            "- foo=; nodes foo=",
            &["zone foo", "node foo | affinity=Ignore"],
            &["112", "132"],
        ),
        (
            "the zone's taints",
            taint,
            "b:foo*2 x:foo",
            "- foo=",
            &["zone foo | taints=Honor", "node foo"],
            &["112", "132"],
        ),
        (
            "affinity of both",
            two,
            "a:foo*2 x:foo y:foo",
            "- foo=; nodes foo=",
            &["zone foo", "node foo"],
            &["1122", "1121"],
        ),
        (
            "all of the node's",
            three,
            "a:foo*2 x:foo*2 y:foo",
            "- foo=; nodes foo=",
            &["zone foo | affinity=Ignore", "node foo | taints=Honor"],
            &["1122", "1121"],
        ),
    ]);
}

#[test]
fn labels_of_the_pod_are_added_to_the_selector() {
    let some = "a:foo a:foo,bar=a b:foo y:foo,bar=a y:bar";
    let equal = "a:foo=a*2 b:foo=a y:foo=a*2";
    check(&[
        ("to a selector", FOUR, some, "- foo= bar=a", &["zone foo | keys=bar"], &["1111"]),
        ("to an empty one", FOUR, equal, "- foo=a", &["zone | keys=foo"], &["2211"]),
        ("not to an absent one", FOUR, equal, "- foo=", &["zone null | keys=bar"], &["1111"]),
        ("unless the pod lacks the label", FOUR, equal, "- foo=", &["zone foo | keys=bar"], &["2211"]),
    ]);
}

/// Checks the skews without and with a pod that comes and goes in a trial, or is there.
fn check_trial(
    nodes: &[&str],
    pods: &str,
    (pod, constraints): (&str, &[&str]),
    added: &str,
    [without, with]: [&[&str]; 2],
) {
    let mut cluster = sketched(nodes, pods);
    register(&mut cluster, pod, constraints);
    let added = sketch::pod("added", &super::lines(added)[0]);
    let place = added.node.clone().unwrap();
    let id = cluster.named(&place).unwrap().id;
    let skews = |cluster: &Cluster| skews(cluster, pod, constraints);
    assert_eq!(skews(&cluster), without, "without {pods}");
    let mut trial = cluster.trial();
    trial.add(&added, id);
    assert_eq!(skews(&trial), with, "added to {pods}");
    trial.remove(&added);
    assert_eq!(skews(&trial), without, "removed again from {pods}");
    trial.remove(&added);
    assert_eq!(skews(&trial), without, "it is not there");
    drop(trial);
    cluster.place(&added, &place);
    assert_eq!(skews(&cluster), with, "with {pods}");
    let mut trial = cluster.trial();
    trial.remove(&added);
    assert_eq!(skews(&trial), without, "removed from {pods}");
    drop(trial);
    assert_eq!(skews(&cluster), with, "undone with {pods}");
}

#[test]
fn counts_follow_pods_that_come_in_trials() {
    let node: (&str, &[&str]) = ("- foo=", &["node foo"]);
    let both: (&str, &[&str]) = ("- foo=", &["zone foo", "node foo"]);
    let each: (&str, &[&str]) = ("- foo= bar=", &["zone foo", "node bar"]);
    check_trial(A_B, "", node, "a:foo", [&["11"], &["21"]]);
    check_trial(A_B, "b:foo", node, "a:foo", [&["12"], &["11"]]);
    check_trial(A_B, "b:foo", node, "other/a:foo", [&["12"], &["12"]]);
    check_trial(A_B, "b:foo", node, "b:foo", [&["12"], &["13"]]);
    check_trial(A_X, "", both, "a:foo", [&["11", "11"], &["21", "21"]]);
    check_trial(A_X, "x:foo", both, "a:foo", [&["12", "12"], &["11", "11"]]);
    check_trial(A_B_X, "b:foo*2 x:foo", both, "a:foo", [&["221", "132"], &["331", "121"]]);
    let pods = "b:foo,bar x:foo,bar x:bar";
    check_trial(A_B_X, pods, each, "a:foo", [&["111", "123"], &["221", "123"]]);
    check_trial(A_B_X, "b:bar x:foo,bar x:bar", each, "a:foo,bar", [&["112", "123"], &["111", "112"]]);
}

#[test]
fn counts_follow_pods_that_go_in_trials() {
    let zone: (&str, &[&str]) = ("- foo=", &["zone foo"]);
    let both: (&str, &[&str]) = ("- foo=", &["zone foo", "node foo"]);
    check_trial(A_B_X, "b:foo x:foo", zone, "a:foo", [&["111"], &["221"]]);
    check_trial(FOUR, "b:foo x:foo y:foo", zone, "a:foo", [&["1122"], &["1111"]]);
    check_trial(FOUR, "a:foo b:foo x:foo y:foo", zone, "a:bar", [&["1111"], &["1111"]]);
    check_trial(A_B_X, "a:foo*2 b:foo x:foo", both, "x:foo", [&["331", "211"], &["221", "212"]]);
}

#[test]
fn trials_count_by_the_policies() {
    let nodes = &["a zone=1 foo=bar", "b zone=2 foo=", "c zone=3"];
    let zone: &[&str] = &["zone foo"];
    let unselected = ("- foo=; affine foo notin (bar)", zone);
    check_trial(nodes, "a:foo b:foo", unselected, "a:foo", [&["121"], &["121"]]);
    check_trial(&nodes[..2], "a:foo b:foo", ("- foo=", zone), "b:foo", [&["11"], &["12"]]);
    check_trial(&nodes[..2], "a:foo", ("- foo=", zone), "b:foo", [&["21"], &["11"]]);
    check_trial(&nodes[..2], "a:foo b:foo", ("- foo=", zone), "b:", [&["11"], &["11"]]);
    let tainted = &["a zone=1 !full:NoSchedule", "b zone=2", "c zone=3"];
    let honor: &[&str] = &["zone foo | taints=Honor"];
    check_trial(tainted, "a:foo b:foo", ("- foo=; tolerate full", honor), "a:foo", [&["221"], &["321"]]);
    check_trial(tainted, "a:foo b:foo", ("- foo=", honor), "a:foo", [&["121"], &["121"]]);
}
