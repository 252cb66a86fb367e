//! Tables of the scores.

use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use super::super::{PodTopologySpread, PodTopologySpreadArgs};
use super::sketched;
use crate::cluster::Cluster;
use crate::cluster::terms::Owner;
use crate::framework::{Feasible, Plugin};
use crate::plugins::sketch;
use crate::selector::Selector;

const HOST: &str = "kubernetes.io/hostname";

/// Returns the scores of the first nodes of a cluster, which are those that the pod fits on. `host` is the key of hostnames.
fn scores(plugin: &PodTopologySpread, cluster: &mut Cluster, pod: &str, feasible: usize) -> Option<Vec<i64>> {
    let pod = sketch::pod("p", &pod.replace(" host", &format!(" {HOST}")));
    let nodes: Feasible = cluster.known().iter().take(feasible).collect();
    let before = plugin.score(&pod, cluster, &nodes);
    plugin.register(&pod, cluster);
    let scores = plugin.score(&pod, cluster, &nodes);
    assert_eq!(scores, before, "they do not depend on whether the pod is registered");
    Some(scores?.to_vec(nodes.list().len()))
}

/// Returns a cluster of nodes, each of them with its name as hostname.
fn hosts(nodes: &[&str], pods: &str) -> Cluster {
    let line = |node: &&str| format!("{node} {HOST}={}", node.split(' ').next().unwrap());
    let nodes: Vec<String> = nodes.iter().map(line).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    sketched(&nodes, pods)
}

/// Checks the scores of the first nodes, by their names as hostnames.
fn check(why: &str, nodes: &[&str], pods: &str, pod: &str, expected: &[i64]) {
    let scores = scores(&PodTopologySpread::default(), &mut hosts(nodes, pods), pod, expected.len());
    assert_eq!(scores.as_deref(), Some(expected), "{why}");
}

#[test]
fn nodes_are_scored_by_their_pods() {
    let four = &["a", "b", "c", "d"];
    let spread = "a:foo*2 b:foo d:foo*3";
    let steps = "a:foo*4 b:foo*3 c:foo*2 d:foo";
    let fewer = "a:foo*4 b:foo*2 x:foo y:foo*3";
    check("no pods", &["a", "b"], "", "- foo=; soft 1 host foo", &[100, 100]);
    check("one node fits", &["a", "b"], "a:foo*2 b:foo", "- foo=; soft 1 host foo", &[100]);
    check("equal numbers", &["a", "b"], "a:foo b:foo", "- foo=; soft 1 host foo", &[100, 100]);
    check("four nodes", four, spread, "- foo=; soft 1 host foo", &[20, 60, 100, 0]);
    check("no selector", four, spread, "- foo=; soft 1 host null", &[100; 4]);
    check("a skew of two", four, spread, "- foo=; soft 2 host foo", &[33, 66, 100, 16]);
    check("a skew of three", four, steps, "- foo=; soft 3 host foo", &[44, 66, 77, 100]);
    check("one does not fit", &["a", "b", "x", "y"], fewer, "- foo=; soft 1 host foo", &[33, 83, 100]);
    check("namespaces", &["a", "b"], "one/a:foo a:foo b:foo*2", "- foo=; soft 1 host foo", &[100, 33]);
    check("terminating pods", &["a", "b"], "a:foo! b:foo", "- foo=; soft 1 host foo", &[100, 0]);
    let mut lacking = sketched(&["a kubernetes.io/hostname=a", "b n=b", "x kubernetes.io/hostname=x"], fewer);
    let plugin = PodTopologySpread::default();
    let scores = scores(&plugin, &mut lacking, "- foo=; soft 1 host foo", 3);
    assert_eq!(scores, Some(vec![16, 0, 100]), "one node lacks the label");
}

#[test]
fn zones_are_scored_with_nodes_that_the_pod_does_not_fit_on() {
    let zones = &["a zone=1", "b zone=1", "x zone=2", "y zone=2"];
    let swapped = &["a zone=1", "x zone=2", "b zone=1", "y zone=2"];
    let pods = "a:foo*4 b:foo*2 x:foo y:foo*3";
    check("one does not fit", zones, pods, "- foo=; soft 1 zone foo", &[75, 75, 100]);
    let both = "- foo=; soft 1 zone foo; soft 1 host foo";
    check("zone and node", swapped, "a:foo*2 b:foo x:foo*2 y:foo*4", both, &[100, 63]);
    let twice = "- foo= bar=; soft 1 zone foo; soft 1 zone bar";
    let pods = "a:foo,bar a:foo b:foo,bar y:foo y:foo,bar y:foo";
    check("two of a zone", swapped, pods, twice, &[85, 100]);
    let each = "- foo= bar=; soft 1 zone foo; soft 1 host bar";
    let pods = "a:foo b:foo,bar y:foo y:bar";
    check("two selectors", zones, pods, each, &[60, 20, 100, 60]);
    check("nodes without pods", zones, "b:bar x:foo y:foo,bar", each, &[100, 60, 40, 0]);
    check("two selectors, one does not fit", zones, pods, each, &[50, 25, 100]);
}

#[test]
fn scores_follow_the_fields_of_constraints() {
    let nodes = &["a node=a", "b node=b", "c node=c"];
    let pods = "a:foo*2 b:foo*2 c:foo";
    check("least number of domains", nodes, pods, "- foo=; soft 2 node foo | min=10", &[75, 75, 100]);
    let selected = &["a node=a foo=", "b node=b foo=", "c node=c"];
    let tainted = &["a node=a", "b node=b", "c node=c !full:NoSchedule"];
    let pods = "a:foo*2 b:foo c:foo";
    for select in ["nodes foo=", "affine foo="] {
        let honor = format!("- foo=; {select}; soft 1 node foo");
        check(select, selected, pods, &honor, &[0, 33, 100]);
        check(select, selected, pods, &format!("{honor} | affinity=Ignore"), &[66, 100, 100]);
    }
    check("taints", tainted, pods, "- foo=; soft 1 node foo | taints=Honor", &[0, 33, 100]);
    check("taints, ignored", tainted, pods, "- foo=; soft 1 node foo", &[66, 100, 100]);
    let zones = &["a zone=1", "b zone=1", "c zone=2", "d zone=2"];
    let keys = "- foo= bar=; soft 1 zone | keys=foo; soft 1 host | keys=bar";
    check("keys alone", zones, "a:foo b:foo,bar c:foo c:bar", keys, &[60, 20, 60, 100]);
    let keys = "- foo= bar= baz=; soft 1 zone foo; soft 1 host bar | keys=baz";
    check("keys", zones, "a:foo b:foo,bar,baz c:foo c:bar c:bar,baz", keys, &[60, 20, 60, 100]);
}

#[test]
fn constraints_weigh_as_many_domains_as_they_have() {
    let zones = &["a zone=1", "b zone=1", "x zone=2"];
    let both = "- foo=; soft 1 zone foo; soft 1 host foo";
    // ln(4) + ln(5) is 3, and ln(4) is 1.
    check("two zones, three nodes", zones, "a:foo", both, &[0, 66, 100]);
    check("no selector", zones, "a:foo", "- foo=; soft 1 zone null", &[100; 3]);
    let lacking = &["a zone=1", "b zone=1", "x"];
    let each = "- foo=; soft 1 zone foo; soft 1 host bar";
    // ln(3) is 1, and ln(3) + ln(4) is 2.
    check("one node lacks a label", lacking, "a:foo b:bar", each, &[100, 50, 0]);
    let selected = &["a zone=1 foo=", "b zone=1 foo=", "x zone=2"];
    let tainted = &["a zone=1", "b zone=1", "x zone=2 !full:NoSchedule"];
    for select in ["nodes foo=", "affine foo="] {
        let honor = format!("- foo=; {select}; soft 1 zone bar");
        check(select, selected, "x:bar", &honor, &[100; 3]);
        check(select, selected, "x:bar", &format!("{honor} | affinity=Ignore"), &[100, 100, 0]);
    }
    check("taints", tainted, "x:bar", "- foo=; soft 1 zone bar | taints=Honor", &[100; 3]);
    check("taints, ignored", tainted, "x:bar", "- foo=; soft 1 zone bar", &[100, 100, 0]);
}

#[test]
fn default_constraints_score_pods_without_any() {
    let set = |cluster: &mut Cluster, label: &str| {
        let selector = Selector::of_labels(&[(label.to_owned(), "bar".to_owned())].into());
        cluster.set_controller(Owner::ReplicaSet, "default", "r", Some(selector));
    };
    let system = PodTopologySpread::default();
    let zone = "topology.kubernetes.io/zone";
    let mut cluster = hosts(&[&format!("a {zone}=m"), &format!("b {zone}=m"), "c", "d"], "a:foo=bar");
    set(&mut cluster, "foo");
    // ln(6) + 2 and ln(4) + 4 are 9, 2 and ln(4) + 4 are 7, and without a zone it is 2: no zone is a zone of its own.
    let spread = scores(&system, &mut cluster, "- foo=bar; owned r", 4);
    assert_eq!(spread, Some(vec![22, 44, 100, 100]), "the defaults of the system");
    let mut cluster = hosts(&["a", "b", "c", "d"], "a:foo*4 b:foo*3 c:foo*2 d:foo");
    cluster.set_service("default", "s", Some([("foo".to_owned(), String::new())].into()));
    assert_eq!(scores(&system, &mut cluster, "- foo=", 4), Some(vec![44, 66, 77, 100]), "no node has a zone");
    let list = |list: &[(i32, &str, &str)]| {
        let constraint = |(skew, key, when): &(i32, &str, &str)| TopologySpreadConstraint {
            max_skew: *skew,
            topology_key: (*key).to_owned(),
            when_unsatisfiable: (*when).to_owned(),
            ..Default::default()
        };
        PodTopologySpread::new(&PodTopologySpreadArgs::List(list.iter().map(constraint).collect()))
    };
    let (hard, soft) = ("DoNotSchedule", "ScheduleAnyway");
    let three = list(&[(1, HOST, soft), (2, "rack", hard), (2, "planet", soft)]);
    let mut cluster = hosts(&["a rack=1 planet=m", "b rack=2 planet=v"], "a:foo=bar a:baz=sup");
    set(&mut cluster, "foo");
    // 2 ln(4) + 1 is 4, and 1.
    assert_eq!(scores(&three, &mut cluster, "- foo=bar; owned r", 2), Some(vec![25, 100]), "a list");
    let own = "- foo=bar; owned r; hard 1 zone bar; soft 2 planet baz=sup";
    assert_eq!(scores(&list(&[(2, "rack", soft)]), &mut cluster, own, 2), Some(vec![50, 100]), "its own");
    set(&mut cluster, "tar");
    let planet = list(&[(2, "planet", soft)]);
    assert_eq!(scores(&planet, &mut cluster, "- foo=bar; owned q", 2), None, "another ReplicaSet");
    assert_eq!(scores(&list(&[]), &mut cluster, "- foo=bar", 2), None, "there are none");
}
