//! Covers the 14 cases that kube-scheduler's tests of the search for a group name, and of those of its results the 12 that are
//! about pods. Letters stand for pods: `F` fits and is permitted, `w` fits and is to wait, `P` and `p` are so with other pods
//! preempted for them, `u` fits nowhere, and `e` fails.

use super::*;

const ERROR: &str = "failed to schedule other pod from a pod group: broken";

fn outcome(letter: char) -> Outcome {
    let diagnosis = |error: Option<&str>| {
        let refusal = Refusal::unschedulable("no room").by("Scripted");
        let mut diagnosis = Diagnosis { nodes: 1, error: error.map(str::to_owned), ..Diagnosis::default() };
        diagnosis.refuse(NodeId::new(0), refusal);
        Box::new(diagnosis)
    };
    let place = |waits: &str, preempts: Option<Box<Diagnosis>>| {
        Outcome::Placed(Box::new(Place {
            id: NodeId::new(7),
            plans: vec![],
            waits: waits.to_owned(),
            preempts,
        }))
    };
    match letter {
        'F' => place("", None),
        'w' => place("later", None),
        'P' => place("", Some(diagnosis(None))),
        'p' => place("later", Some(diagnosis(None))),
        'u' => Outcome::Refused { diagnosis: diagnosis(None), nominated: None },
        'e' => Outcome::Refused { diagnosis: diagnosis(Some("broken")), nominated: None },
        other => panic!("no pod is {other}"),
    }
}

/// Returns the outcomes of the pods of a group, with the end.
fn tried(letters: &str) -> (Vec<Outcome>, Ended) {
    let mut progress = Progress::default();
    let outcomes = letters.chars().map(|letter| {
        let outcome = match progress.ended {
            Ended::Failed(_) => Outcome::Untried,
            _ => outcome(letter),
        };
        progress.note(&outcome);
        outcome
    });
    (outcomes.collect(), progress.ended)
}

#[test]
fn group_ends_as_its_pods_do() {
    let failed = || Ended::Failed(ERROR.to_owned());
    for (letters, expected) in [
        ("FFF", Ended::Scheduled),
        ("wwF", Ended::Scheduled),
        ("www", Ended::Unschedulable),
        ("FFw", Ended::Scheduled),
        ("wuF", Ended::Scheduled),
        ("PPP", Ended::Preempting),
        ("ppp", Ended::Unschedulable),
        ("pFF", Ended::Preempting),
        ("uPF", Ended::Preempting),
        ("FPw", Ended::Preempting),
        ("uuu", Ended::Unschedulable),
        ("FeF", failed()),
        ("wwe", failed()),
        ("Peu", failed()),
        ("PPe", failed()),
    ] {
        assert_eq!(tried(letters).1, expected, "{letters}");
    }
}

#[test]
fn each_pod_is_bound_or_told_what_keeps_it() {
    const BOUND: &str = "bound";
    const WAITS: &str = "pod group is unschedulable, later";
    const FIT: &str = "0/1 nodes are available: 1 no room.";
    for (letters, expected) in [
        ("FFF", [BOUND; 3]),
        ("www", [WAITS; 3]),
        ("FFw", [BOUND; 3]),
        ("wuF", [BOUND, FIT, BOUND]),
        ("PPP", ["0/1 nodes are available: 1 no room. on 7"; 3]),
        ("ppp", [WAITS; 3]),
        (
            "pFF",
            [
                "0/1 nodes are available: 1 no room. on 7",
                "pod group is unschedulable, pod group is waiting for preemption to complete on 7",
                "pod group is unschedulable, pod group is waiting for preemption to complete on 7",
            ],
        ),
        (
            "uPF",
            [
                FIT,
                "0/1 nodes are available: 1 no room. on 7",
                "pod group is unschedulable, pod group is waiting for preemption to complete on 7",
            ],
        ),
        ("uuu", [FIT; 3]),
        ("FeF", [ERROR, "broken", ERROR]),
        ("PeF", [ERROR, "broken", ERROR]),
        ("Fpw", [BOUND, WAITS, BOUND]),
    ] {
        let (outcomes, ended) = tried(letters);
        let told: Vec<String> = outcomes
            .into_iter()
            .map(|outcome| match settled(outcome, &ended, |id| id.index().to_string().into()) {
                Settled::Bind(_) => BOUND.to_owned(),
                Settled::Return(refused) => {
                    let is_error = matches!(ended, Ended::Failed(_));
                    assert_eq!(
                        (refused.reason == "SchedulerError", refused.failure.is_error),
                        (is_error, is_error)
                    );
                    let node = refused.nominated.map_or_else(String::new, |node| format!(" on {node}"));
                    format!("{}{node}", refused.message)
                }
            })
            .collect();
        assert_eq!(told, expected, "{letters}");
    }
}
