//! Tables of the filter.

use super::super::{PodTopologySpread, PodTopologySpreadArgs};
use super::sketched;
use crate::cluster::Cluster;
use crate::framework::{Code, Plugin, PreFilter};
use crate::plugins::sketch;
use crate::pod::PodInfo;

/// Four nodes in two zones.
const FOUR: &[&str] = &["a zone=1 node=a", "b zone=1 node=b", "x zone=2 node=x", "y zone=2 node=y"];
const THREE: &[&str] = &["a node=a", "b node=b", "c node=c"];
/// Nodes of which the last is not what a pod selects by `foo`.
const SELECTED: &[&str] = &["a node=a foo=", "b node=b foo=", "x node=x foo=", "y node=y"];
const TAINTED: &[&str] = &["a node=a", "b node=b", "x node=x", "y node=y !full:NoSchedule"];

/// Reason, the nodes, their pods, the pod, and the answer for each node: `+` if it passes, `U` if another pod is too many there,
/// `M` if a label is missing.
type Row = (&'static str, &'static [&'static str], &'static str, &'static str, &'static str);

/// Returns the answers for all nodes; `skip` if nothing is to filter.
fn answers(plugin: &PodTopologySpread, pod: &PodInfo, cluster: &Cluster) -> String {
    let PreFilter::Filter { filter, .. } = plugin.pre_filter(pod, cluster) else { return "skip".to_owned() };
    let words = "node(s) didn't match pod topology spread constraints";
    let answer = |node| {
        if filter.passes(node) {
            return '+';
        }
        let refusal = filter.refusal(node);
        match refusal.code {
            Code::Unschedulable if refusal.message() == words => 'U',
            Code::Unresolvable if refusal.message() == format!("{words} (missing required label)") => 'M',
            code => panic!("unexpected {code:?} {}", refusal.message()),
        }
    };
    cluster.nodes().map(answer).collect()
}

fn check(rows: &[Row]) {
    let plugin = PodTopologySpread::default();
    for (why, nodes, pods, pod, expected) in rows {
        let mut cluster = sketched(nodes, pods);
        let pod = sketch::pod("p", pod);
        assert_eq!(answers(&plugin, &pod, &cluster), *expected, "{why}, before the pod is registered");
        plugin.register(&pod, &mut cluster);
        assert_eq!(answers(&plugin, &pod, &cluster), *expected, "{why}");
    }
}

#[test]
fn one_constraint_is_judged_by_the_pods_of_each_domain() {
    let lacking = &["a zone=1", "b zon=1", "x zone=2", "y zone=2"];
    check(&[
        ("no pods", FOUR, "", "- foo=; hard 1 zone foo", "++++"),
        ("not the pod itself", FOUR, "", "- foo=; hard 1 zone bar", "++++"),
        ("other namespaces", FOUR, "one/a:foo two/a:foo x:foo y:foo", "- foo=; hard 1 zone foo", "++UU"),
        ("no selector", FOUR, "x:foo y:foo", "- foo=; hard 1 zone null", "++++"),
        ("equal zones", FOUR, "a:foo*2 b:foo y:foo*3", "- foo=; hard 1 zone foo", "++++"),
        ("one node has no zone", lacking, "a:foo b:foo x:foo y:foo", "- foo=; hard 1 zone foo", "+MUU"),
        ("no node has the label", FOUR, "", "- foo=; hard 1 rack foo", "MMMM"),
        ("nodes", FOUR, "a:foo*2 b:foo y:foo*3", "- foo=; hard 1 node foo", "UU+U"),
        ("a skew of two", FOUR, "a:foo*2 b:foo y:foo*3", "- foo=; hard 2 node foo", "U++U"),
        ("the pod does not count", FOUR, "a:foo*2 b:foo y:foo*3", "- bar=; hard 1 node foo", "U++U"),
        ("terminating pods", &["a node=a", "b node=b"], "a:foo! b:foo", "- foo=; hard 1 node foo", "+U"),
    ]);
}

#[test]
fn nodes_that_the_pod_does_not_select_are_not_counted() {
    let pods = "a:foo*2 b:foo y:foo*3";
    check(&[
        ("two nodes", FOUR, pods, "- foo=; affine node in (a,y); hard 1 node foo", "+++U"),
        ("all but one", FOUR, "b:foo*2 y:foo", "- foo=; affine node notin (b); hard 1 zone foo", "++UU"),
    ]);
}

#[test]
fn minimum_of_domains_raises_what_is_too_much() {
    let pods = "a:foo*2 b:foo*2 c:foo";
    let zones = "a:foo b:foo y:foo";
    check(&[
        ("fewer nodes", THREE, pods, "- foo=; hard 2 node foo | min=4", "UU+"),
        ("more nodes", THREE, pods, "- foo=; hard 2 node foo | min=2", "+++"),
        ("fewer zones", FOUR, zones, "- foo=; hard 2 zone foo | min=3", "UU++"),
        ("more zones", FOUR, zones, "- foo=; hard 2 zone foo | min=1", "++++"),
    ]);
}

#[test]
fn policies_decide_which_nodes_count() {
    let pods = "a:foo b:foo y:foo";
    check(&[
        ("selector, honored", SELECTED, pods, "- foo=; nodes foo=; hard 1 node foo", "UU++"),
        (
            "selector, ignored",
            SELECTED,
            pods,
            "- foo=; nodes foo=; hard 1 node foo | affinity=Ignore",
            "UU+U",
        ),
        ("affinity, honored", SELECTED, pods, "- foo=; affine foo=; hard 1 node foo", "UU++"),
        (
            "affinity, ignored",
            SELECTED,
            pods,
            "- foo=; affine foo=; hard 1 node foo | affinity=Ignore",
            "UU+U",
        ),
        ("taints, honored", TAINTED, pods, "- foo=; hard 1 node foo | taints=Honor", "UU++"),
        ("taints, ignored", TAINTED, pods, "- foo=; hard 1 node foo", "UU+U"),
    ]);
}

#[test]
fn all_constraints_have_to_be_met() {
    let both = "- foo=; hard 1 zone foo; hard 1 node foo";
    let each = "- foo= bar=; hard 1 zone foo; hard 1 node bar";
    let zones = "- foo= bar=; hard 1 zone bar; hard 1 zone foo";
    let lacking = &["a zone=1 node=a", "b zone=1 node=b", "x zone=2", "y zone=2 node=y"];
    check(&[
        ("zone and node", FOUR, "a:foo*2 b:foo y:foo*3", both, "UU+U"),
        ("zone against node", FOUR, "a:foo*2 b:foo y:foo*4", both, "UUUU"),
        ("two selectors", FOUR, "a:foo y:bar", each, "UU+U"),
        ("two selectors against each other", FOUR, "a:foo x:bar y:bar", each, "UUUU"),
        ("pods of both", FOUR, "a:foo a:foo,bar y:foo y:foo,bar y:foo", each, "U+UU"),
        ("the pod is of one", FOUR, "a:foo x:bar y:bar", "- bar=; hard 1 zone foo; hard 1 node bar", "++UU"),
        ("one node lacks a label", lacking, "a:foo y:foo", both, "U+MU"),
        ("two of a zone", FOUR, "a:foo,bar a:foo b:foo,bar y:foo y:foo,bar y:foo", zones, "UU++"),
        (
            "two of a zone, against each other",
            FOUR,
            "a:foo,bar a:foo b:foo,bar y:foo y:foo,bar y:foo*2",
            zones,
            "UUUU",
        ),
    ]);
}

#[test]
fn constraints_have_policies_of_their_own() {
    let selected =
        &["a zone=1 node=a foo=", "b zone=1 node=b foo=", "x zone=2 node=x foo=", "y zone=2 node=y"];
    let tainted =
        &["a zone=1 node=a", "b zone=1 node=b", "x zone=2 node=x", "y zone=2 node=y !full:NoSchedule"];
    let mixed = &[
        "a zone=1 node=a foo=",
        "b zone=1 node=b",
        "x zone=2 node=x foo=",
        "y zone=2 node=y foo= !full:NoSchedule",
    ];
    let pods = "a:foo b:foo y:foo";
    check(&[
        (
            "affinity of the zone alone",
            selected,
            pods,
            "- foo=; nodes foo=; hard 1 zone foo; hard 1 node foo | affinity=Ignore",
            "UU+U",
        ),
        (
            "taints of the zone alone",
            tainted,
            pods,
            "- foo=; hard 1 zone foo | taints=Honor; hard 1 node foo",
            "UU+U",
        ),
        ("affinity of both", mixed, pods, "- foo=; nodes foo=; hard 1 zone foo; hard 1 node foo", "U++U"),
        (
            "affinity and taints of the zone",
            mixed,
            pods,
            "- foo=; nodes foo=; hard 1 zone foo | taints=Honor; hard 1 node foo | affinity=Ignore",
            "UU+U",
        ),
    ]);
}

#[test]
fn default_constraints_hold_for_pods_without_any_that_a_service_selects() {
    let constraint =
        |skew: i32, key: &str, when: &str| k8s_openapi::api::core::v1::TopologySpreadConstraint {
            max_skew: skew,
            topology_key: key.to_owned(),
            when_unsatisfiable: when.to_owned(),
            ..Default::default()
        };
    let (hard, soft) = ("DoNotSchedule", "ScheduleAnyway");
    let nodes = &["a node=a rack=1 zone=1", "b node=b rack=1 zone=2", "c node=c rack=2 zone=2"];
    let judge = |defaults: &[(i32, &str, &str)], service: &str, pods: &str, pod: &str| {
        let defaults = defaults.iter().map(|(skew, key, when)| constraint(*skew, key, when)).collect();
        let plugin = PodTopologySpread::new(&PodTopologySpreadArgs::List(defaults));
        let mut cluster = sketched(nodes, pods);
        let (label, value) = service.split_once('=').unwrap();
        cluster.set_service("default", "s", Some([(label.to_owned(), value.to_owned())].into()));
        let pod = sketch::pod("p", pod);
        plugin.register(&pod, &mut cluster);
        answers(&plugin, &pod, &cluster)
    };
    let all = [(3, "node", hard), (2, "node", soft), (5, "rack", hard)];
    assert_eq!(judge(&all, "foo=bar", "a:foo=bar*3", "- foo=bar baz=kar"), "U++");
    assert_eq!(judge(&all, "foo=bar", "a:foo=bar*3 b:foo=bar*2", "- foo=bar baz=kar"), "UU+");
    assert_eq!(judge(&[(3, "node", hard)], "baz=kep", "a:foo=bar*9", "- foo=bar"), "skip", "no service");
    assert_eq!(judge(&[(2, "node", soft)], "foo=bar", "a:foo=bar*9", "- foo=bar"), "skip", "none is hard");
    let own = "- foo=bar baz=tar; hard 1 zone baz=tar; soft 2 planet fot=rok";
    assert_eq!(judge(&[(2, "node", hard)], "foo=bar", "a:foo=bar*9 b:baz=tar", own), "+UU", "it has its own");
    assert_eq!(judge(&[], "foo=bar", "a:foo=bar*9", "- foo=bar"), "skip", "there are none");
}
