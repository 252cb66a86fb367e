//! Tables of the changes that wake a pod.

use super::super::InterPodAffinity;
use crate::framework::Hint;
use crate::plugins::sketch;
use crate::testing;

#[test]
fn pods_wake_when_changes_of_others_may_help() {
    let near = "-; near region app in (web,x)";
    let two = "-; near host aaa; near host bbb";
    let away = "-; away region app in (web,x)";
    let (queue, skip) = (Hint::Queue, Hint::Skip);
    let rows = [
        ("one to be near comes", near, None, Some("a app=web"), queue),
        ("it has no node", near, None, Some("- app=web"), skip),
        ("another comes", near, None, Some("a tier=db"), skip),
        ("one becomes one to be near", near, Some("a tier=db"), Some("a app=web"), queue),
        ("one stays one to be near", near, Some("a app=x"), Some("a app=web"), skip),
        ("one without a node becomes it", near, Some("- tier=db"), Some("- app=web"), skip),
        ("one is no longer to be near", near, Some("a app=web"), Some("a tier=db"), skip),
        ("one never was, of two terms", two, Some("a aaa="), Some("a app=web"), skip),
        ("one becomes it, of two terms", two, Some("a aaa="), Some("a aaa= bbb="), queue),
        ("one to be away from is it no longer", away, Some("a app=web"), Some("a app=y"), queue),
        ("one becomes one to be away from", away, Some("a app=y"), Some("a app=web"), skip),
        ("another goes", away, Some("a tier=db"), None, skip),
        ("one to be away from goes", away, Some("a app=web"), None, queue),
        ("one that wants to be away goes", "- app=web", Some("a; away region app in (web,x)"), None, queue),
        (
            "one that wants away from others goes",
            "- app=y",
            Some("a; away region app in (web,x)"),
            None,
            skip,
        ),
        (
            "one that neither concerns goes",
            "- app=y; away region app in (web,x)",
            Some("a app=y; away region app in (web,x)"),
            None,
            skip,
        ),
        ("a nominated one goes, another", away, Some("- tier=db; nominated a"), None, skip),
        ("a nominated one to be away from goes", away, Some("- app=web; nominated a"), None, queue),
    ];
    for (why, pod, old, new, expected) in rows {
        let (old, new) = (old.map(|line| sketch::pod("o", line)), new.map(|line| sketch::pod("o", line)));
        let pod = sketch::pod("p", pod);
        let hint = testing::pod_hint(&InterPodAffinity::default(), &pod, old.as_ref(), new.as_ref());
        assert_eq!(hint, expected, "{why}");
    }
    let (old, new) = (sketch::pod("p", "- foo=bar"), sketch::pod("p", "- foo=baz"));
    let hint = testing::pod_hint(&InterPodAffinity::default(), &new, Some(&old), Some(&new));
    assert_eq!(hint, queue, "the pod itself changes");
}

#[test]
fn pods_wake_when_nodes_come_or_change_their_domain() {
    let near = "-; near zone app in (web,x)";
    let away = "-; away zone other=label";
    let (queue, skip) = (Hint::Queue, Hint::Skip);
    let rows = [
        ("a node with the key comes", near, None, "n zone=1", queue),
        ("a node without the key comes", "-; near region app=web", None, "n zone=1", skip),
        ("another label changes", near, Some("n aaa=a"), "n aaa=b", skip),
        ("another label comes", near, Some("n zone=1"), "n zone=1 other=x", skip),
        ("the domain changes", near, Some("n zone=1"), "n zone=2", queue),
        ("the domain comes", near, Some("n aaa=a"), "n zone=1", queue),
        ("away: a node with the key comes", away, None, "n zone=1", queue),
        ("away: a node without the key comes", away, None, "n", queue),
        ("away: another label comes", away, Some("n zone=1"), "n zone=1 other=x", skip),
        ("away: the domain changes", away, Some("n zone=1"), "n zone=2", queue),
        ("away: the domain comes", away, Some("n aaa=a"), "n zone=1", skip),
        ("away: the domain goes", away, Some("n zone=1"), "n aaa=a", queue),
    ];
    for (why, pod, old, new, expected) in rows {
        let (old, new) = (old.map(sketch::node), sketch::node(new));
        let pod = sketch::pod("p", pod);
        let hint = testing::node_hint(&InterPodAffinity::default(), &pod, old.as_ref(), Some(&new));
        assert_eq!(hint, expected, "{why}");
    }
}
