//! Tables of the choice among candidates.

use super::*;

/// Returns the node that is chosen for a pod.
fn chosen(pods: &[&str], pod: &str) -> String {
    let nodes = &["n1", "n2", "n3", "n4"];
    let mut cluster = sketched_cluster(nodes, pods);
    // Nodes that a row does not name are full of pods that are more important.
    for node in nodes.iter().filter(|node| !pods.iter().any(|line| line.contains(*node))) {
        let full = sketched(&format!("full-{node} {node} 1000 5"), json!({}));
        cluster.place(&full, &(*node).into());
    }
    outcome(&mut cluster, &sketched(pod, json!({}))).expect("there is a candidate").0
}

#[test]
fn node_is_chosen_by_the_priorities_of_its_victims() {
    let rows: &[(&str, &[&str], &str, &str)] = &[
        ("equal ones", &["a n1 5 3", "b n2 5 3"], "p - 10 3", "n1"),
        (
            "the highest one",
            &["a1 n1 5 2", "a2 n1 5 3", "b1 n2 5 2", "b2 n2 0 2", "c1 n3 0 2", "c2 n3 0 2"],
            "p - 10 5",
            "n3",
        ),
        (
            "then their sum",
            &["a1 n1 5 2", "a2 n1 5 3", "b1 n2 5 3", "b2 n2 0 2", "c1 n3 5 2", "c2 n3 5 2"],
            "p - 10 5",
            "n2",
        ),
        (
            "then their number",
            &[
                "a1 n1 5 1",
                "a2 n1 -9 1",
                "a3 n1 5 1",
                "a4 n1 -9 1",
                "b1 n2 5 3",
                "b2 n2 -9 2",
                "c1 n3 5 2",
                "c2 n3 -9 1",
                "c3 n3 0 1",
            ],
            "p - 10 5",
            "n2",
        ),
        (
            "negative priorities do not lower the sum",
            &[
                "a1 n1 5 1",
                "a2 n1 -9 1",
                "a3 n1 -9 1",
                "b1 n2 5 3",
                "b2 n2 -9 2",
                "c1 n3 5 2",
                "c2 n3 -9 1",
                "c3 n3 0 1",
            ],
            "p - 10 5",
            "n2",
        ),
        (
            "each by another rule",
            &[
                "a1 n1 5 1",
                "a2 n1 0 1",
                "a3 n1 0 1",
                "b n2 10 3",
                "c1 n3 5 2",
                "c2 n3 0 1",
                "c3 n3 0 1",
                "c4 n3 0 2",
                "d1 n4 5 2",
                "d2 n4 5 1",
                "d3 n4 5 1",
                "d4 n4 -9 1",
            ],
            "p - 20 5",
            "n1",
        ),
    ];
    for (why, pods, pod, expected) in rows {
        assert_eq!(chosen(pods, pod), *expected, "{why}");
    }
}

#[test]
fn node_is_chosen_whose_most_important_victims_have_started_last() {
    let rows: &[(&str, &[&str], &str)] = &[
        (
            "each node at one time",
            &["a1 n1 5 2 s2", "a2 n1 5 2 s2", "b1 n2 5 2 s3", "b2 n2 5 2 s3", "c1 n3 5 2 s1", "c2 n3 5 2 s1"],
            "n2",
        ),
        (
            "the first of equal ones",
            &["a1 n1 5 2 s4", "a2 n1 5 2 s2", "b1 n2 5 2 s5", "b2 n2 5 2 s1", "c1 n3 5 2 s3", "c2 n3 5 2 s6"],
            "n3",
        ),
        (
            "the important ones alone",
            &["a1 n1 0 2 s4", "a2 n1 5 2 s2", "b1 n2 5 2 s6", "b2 n2 0 2 s1", "c1 n3 0 2 s3", "c2 n3 5 2 s5"],
            "n2",
        ),
    ];
    for (why, pods, expected) in rows {
        assert_eq!(chosen(pods, "p - 10 5"), *expected, "{why}");
    }
}

#[test]
fn victims_of_the_chosen_node_are_as_few_as_possible() {
    let pods = ["a1 n1 0 1", "a2 n1 0 1", "b n2 10 3", "c n3 5 2"];
    let names = &["n1", "n2", "n3"];
    let preempt = |fields: Value| outcome(&mut sketched_cluster(names, &pods), &sketched("p - 10 5", fields));
    let expected = ("n1".to_owned(), vec!["a1".to_owned(), "a2".to_owned()]);
    assert_eq!(preempt(json!({"spec": {"preemptionPolicy": "PreemptLowerPriority"}})), Ok(expected.clone()));
    assert_eq!(preempt(json!({})), Ok(expected));
    let never = preempt(json!({"spec": {"preemptionPolicy": "Never"}})).unwrap_err();
    assert!(never.ends_with("preemption: not eligible due to preemptionPolicy=Never."), "{never}");
}
