//! Tables of the changes that wake a pod.

use super::super::PodTopologySpread;
use crate::framework::Hint;
use crate::plugins::sketch;
use crate::testing;

#[test]
fn pods_wake_when_nodes_with_all_keys_come_go_or_change() {
    let one = "-; hard 1 zone foo";
    let two = "-; hard 1 zone foo; hard 1 node foo";
    let (queue, skip) = (Hint::Queue, Hint::Skip);
    let rows = [
        ("the zone changes", one, Some("a zone=1"), Some("a zone=2"), queue),
        ("another label changes", one, Some("a foo=1"), Some("a foo=2"), skip),
        ("another label goes", two, Some("a zone=1 node=1 foo=bar"), Some("a zone=1 node=1"), skip),
        ("one without the key comes", one, None, Some("a foo=bar"), skip),
        ("one with the key comes", one, None, Some("a zone=1"), queue),
        ("one without the key goes", one, Some("a foo=bar"), None, skip),
        ("one with the key goes", one, Some("a zone=1"), None, queue),
        ("one with a key of two comes", two, None, Some("a zone=1"), skip),
        ("one with both comes", two, None, Some("a zone=1 node=1"), queue),
        ("one with a key of two stays so", two, Some("a zone=1"), Some("a zone=1"), skip),
        ("one with both changes one", two, Some("a zone=1 node=1"), Some("a zone=1 node=2"), queue),
        (
            "taints of one with both change",
            two,
            Some("a zone=1 node=1 !x:NoSchedule"),
            Some("a zone=1 node=1 !y:NoSchedule"),
            queue,
        ),
        (
            "taints of one with a key of two change",
            two,
            Some("a node=1 !x:NoSchedule"),
            Some("a node=1 !y:NoSchedule"),
            skip,
        ),
    ];
    for (why, pod, old, new, expected) in rows {
        let (old, new) = (old.map(sketch::node), new.map(sketch::node));
        let (plugin, pod) = (PodTopologySpread::default(), sketch::pod("p", pod));
        assert_eq!(testing::node_hint(&plugin, &pod, old.as_ref(), new.as_ref()), expected, "{why}");
    }
}

#[test]
fn pods_wake_when_pods_that_count_come_go_or_change() {
    let one = "- foo=; hard 1 zone foo";
    let two = "- foo=; hard 1 zone foo; hard 1 node bar";
    let honor = "- foo=; hard 1 zone foo | taints=Honor; hard 1 node bar";
    let ignore = "- foo=; hard 1 zone foo | taints=Ignore; hard 1 node bar";
    let (queue, skip) = (Hint::Queue, Hint::Skip);
    let others = [
        ("one comes", one, None, Some("n foo="), queue),
        ("it has no node", one, None, Some("- foo="), skip),
        ("one without a node changes", one, Some("- bar="), Some("- foo="), skip),
        ("one without a node goes", one, Some("- foo="), None, skip),
        ("one of another namespace comes", one, None, Some("other/n foo="), skip),
        ("one that is not selected comes", one, None, Some("n bar="), skip),
        ("one goes", one, Some("n foo="), None, queue),
        ("a nominated one that is not selected goes", one, Some("- bar=; nominated n"), None, skip),
        ("a nominated one goes", one, Some("- foo=; nominated n"), None, queue),
        ("one that is not selected goes", one, Some("n bar="), None, skip),
        ("another label changes", one, Some("n foo= bar=1"), Some("n foo= bar=2"), skip),
        ("one becomes selected", one, Some("n"), Some("n foo="), queue),
        ("one is no longer selected", one, Some("n foo="), Some("n"), queue),
        ("one stays selected", one, Some("n foo=1"), Some("n foo=2"), skip),
        ("one becomes selected by one of two", two, Some("n foo="), Some("n foo= bar=2"), queue),
        ("another label comes, of two", two, Some("n foo="), Some("n foo= baz="), skip),
        ("one stays selected by both", two, Some("n foo= bar="), Some("n foo= bar=2"), skip),
    ];
    let itself = [
        ("it tolerates more, which counts", honor, "- foo=", "- foo=; tolerate full", queue),
        ("it tolerates more, which does not count", ignore, "- foo=", "- foo=; tolerate full", skip),
        ("it gets a label that counts", ignore, "-", "- foo=", queue),
        ("it gets another label", ignore, "-", "- unrelated=", skip),
    ];
    let plugin = PodTopologySpread::default();
    for (why, pod, old, new, expected) in others {
        let (old, new) = (old.map(|line| sketch::pod("o", line)), new.map(|line| sketch::pod("o", line)));
        let pod = sketch::pod("p", pod);
        assert_eq!(testing::pod_hint(&plugin, &pod, old.as_ref(), new.as_ref()), expected, "{why}");
    }
    for (why, pod, old, new, expected) in itself {
        let (old, new, pod) = (sketch::pod("p", old), sketch::pod("p", new), sketch::pod("p", pod));
        assert_eq!(testing::pod_hint(&plugin, &pod, Some(&old), Some(&new)), expected, "{why}");
    }
}
