use k8s_openapi::api::core::v1;

use super::*;
use crate::meta::name;
use crate::testing::dice::Dice;
use crate::testing::{at, running, slim, time};

fn taint(key: &str, since: i64) -> Timed {
    (Taint { key: key.to_owned(), effect: "NoExecute".to_owned(), ..Taint::default() }, at(since))
}

fn tolerating(key: &str, seconds: Option<i64>) -> Toleration {
    Toleration {
        key: (!key.is_empty()).then(|| key.to_owned()),
        operator: Some("Exists".to_owned()),
        toleration_seconds: seconds,
        ..Toleration::default()
    }
}

fn on_node(name: &str, tolerations: &[Toleration]) -> v1::Pod {
    let mut pod = running(name, "n", "10.0.0.1");
    pod.spec.as_mut().unwrap().tolerations = Some(tolerations.to_vec());
    pod
}

fn pod(name: &str, tolerations: &[Toleration]) -> Arc<Pod> {
    Arc::new(on_node(name, tolerations).into())
}

fn waits(second: i64, seconds: i64) -> Decision {
    Decision::Waits { at: at(second), seconds }
}

fn tainted(taints: &[Timed], pods: &[Arc<Pod>], before: Schedule, now: Timestamp) -> Round {
    round(Some(taints), pods, before, now)
}

fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
    pods.iter().map(|pod| name(&pod.metadata)).collect()
}

fn cancelled(round: &Round) -> Vec<&str> {
    round.cancelled.iter().map(|(key, _)| key.name.as_str()).collect()
}

#[test]
fn all_taints_must_be_tolerated_and_the_shortest_toleration_counts() {
    let taints = [taint("a", 0), taint("b", 100)];
    let (a, b) = (|seconds| tolerating("a", seconds), |seconds| tolerating("b", seconds));
    for (tolerations, expected) in [
        (vec![], Decision::Goes),
        (vec![tolerating("", None)], Decision::Stays),
        (vec![a(None), b(None)], Decision::Stays),
        (vec![a(Some(300))], Decision::Goes),
        (vec![a(Some(300)), b(Some(50))], waits(150, 50)),
        (vec![a(Some(120)), b(Some(50))], waits(120, 50)),
        (vec![a(None), b(Some(50))], waits(150, 50)),
        (vec![a(None), b(Some(0))], waits(100, 0)),
        (vec![a(None), b(Some(-5))], waits(100, 0)),
        (vec![a(Some(i64::MAX)), b(None)], Decision::Stays),
        // The first toleration that matches is the one that counts.
        (vec![tolerating("", Some(30)), a(None), b(None)], waits(30, 30)),
        (vec![tolerating("", None), a(Some(1))], Decision::Stays),
    ] {
        assert_eq!(decide(&taints, &tolerations, at(-10)), expected, "{tolerations:?}");
    }
    assert_eq!(decide(&[], &[], at(0)), Decision::Stays);
}

#[test]
fn toleration_of_an_old_taint_begins_when_the_pod_is_bound() {
    let taints = [taint("a", 0)];
    assert_eq!(decide(&taints, &[tolerating("a", Some(300))], at(1000)), waits(1300, 300));
    let mut pod = on_node("p", &[]);
    pod.metadata.creation_timestamp = time(7);
    assert_eq!(bound_since(&pod.clone().into()), at(7));
    pod.status = serde_json::from_value(serde_json::json!({"conditions": [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": time(9)}]}))
    .unwrap();
    assert_eq!(bound_since(&pod.into()), at(9));
}

#[test]
fn pods_go_at_once_or_in_time_and_their_deletion_is_cancelled_with_the_taint() {
    let pods = [
        pod("forever", &[tolerating("", None)]),
        pod("never", &[]),
        pod("short", &[tolerating("a", Some(10))]),
        pod("long", &[tolerating("a", Some(100))]),
    ];
    let taints = [taint("a", 0)];
    let first = tainted(&taints, &pods, Schedule::new(), at(1));
    assert_eq!((names(&first.evicted), first.next), (vec!["never"], Some(at(10))));
    assert_eq!(first.schedule.len(), 2);
    let due = tainted(&taints, &pods[2..], first.schedule, at(10));
    assert_eq!((names(&due.evicted), due.next), (vec!["short"], Some(at(100))));
    // A deletion that failed is repeated.
    let again = tainted(&taints, &pods[2..], due.schedule, at(11));
    assert_eq!(names(&again.evicted), ["short"]);
    let freed = tainted(&[], &pods[3..], again.schedule, at(12));
    assert_eq!((cancelled(&freed), names(&freed.evicted)), (vec!["long"], vec![]));
    assert!(freed.schedule.is_empty() && freed.next.is_none());
}

#[test]
fn finished_pods_go_and_deleted_ones_are_left_alone() {
    let (mut done, mut leaving) = (on_node("done", &[]), on_node("leaving", &[]));
    done.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    leaving.metadata.deletion_timestamp = time(1);
    let taints = [taint("a", 0)];
    let round = tainted(&taints, &slim([done, leaving]), Schedule::new(), at(1));
    assert_eq!(names(&round.evicted), ["done"]);
}

#[test]
fn time_goes_on_when_a_taint_takes_the_place_of_another() {
    let pods =
        [pod("p", &[tolerating("a", Some(300)), tolerating("b", Some(300)), tolerating("c", Some(400))])];
    let schedule = tainted(&[taint("a", 0)], &pods, Schedule::new(), at(1)).schedule;
    let swapped = tainted(&[taint("b", 40)], &pods, schedule.clone(), at(41));
    assert_eq!((swapped.next, cancelled(&swapped)), (Some(at(300)), vec![]));
    // One that is tolerated for longer gives the pod that time.
    let eased = tainted(&[taint("c", 40)], &pods, schedule, at(41));
    assert_eq!(eased.next, Some(at(440)));
}

#[test]
fn second_taint_shortens_the_time_and_gives_it_back() {
    let pods = [pod("p", &[tolerating("a", Some(300)), tolerating("b", Some(50))])];
    let schedule = tainted(&[taint("a", 0)], &pods, Schedule::new(), at(1)).schedule;
    let both = tainted(&[taint("a", 0), taint("b", 100)], &pods, schedule, at(101));
    assert_eq!(both.next, Some(at(150)));
    let one = tainted(&[taint("a", 0)], &pods, both.schedule, at(120));
    assert_eq!(one.next, Some(at(300)));
}

#[test]
fn deletions_of_pods_that_are_gone_replaced_or_no_longer_tolerant_are_cancelled() {
    let tolerant = [tolerating("a", Some(100))];
    let pods = [pod("gone", &tolerant), pod("replaced", &tolerant), pod("kept", &tolerant)];
    let taints = [taint("a", 0)];
    let schedule = tainted(&taints, &pods, Schedule::new(), at(1)).schedule;
    let mut other = on_node("replaced", &tolerant);
    other.metadata.uid = Some("uid-other".to_owned());
    let mut pods = vec![Arc::new(Pod::from(other)), Arc::clone(&pods[2])];
    let after = tainted(&taints, &pods, schedule, at(2));
    assert_eq!(cancelled(&after), ["replaced", "gone"]);
    assert_eq!(after.schedule[&ObjectKey::new("ns", "replaced")].uid, "uid-other");
    // A second taint that nobody tolerates does not wait.
    let worse = tainted(&[taint("a", 0), taint("b", 3)], &pods, after.schedule.clone(), at(3));
    assert_eq!((cancelled(&worse).len(), worse.evicted.len()), (2, 2));
    // Without the node the deletions take place all the same.
    let orphaned = round(None, &pods, after.schedule.clone(), at(4));
    assert_eq!((orphaned.schedule.len(), orphaned.next), (2, Some(at(100))));
    pods.push(pod("new", &[]));
    assert_eq!(names(&round(None, &pods, orphaned.schedule, at(100)).evicted), ["replaced", "kept"]);
}

/// No pod goes before the shortest of its tolerations has passed since one of the taints was there, and none that need
/// not go, over taints that come and go and starts of the controller.
#[test]
fn no_pod_goes_early_and_none_stays_that_must_go() {
    for seed in crate::seeded::seeds(30) {
        let mut dice = Dice::new(seed);
        let choices = [None, Some(0), Some(10), Some(40)];
        let mut pods = Vec::new();
        for number in 0..6 {
            let mut tolerations = Vec::new();
            for key in ["a", "b"] {
                if !dice.once_in(4) {
                    tolerations.push(tolerating(key, dice.pick(&choices)));
                }
            }
            pods.push(pod(&format!("p{number}"), &tolerations));
        }
        let (mut taints, mut schedule, mut tainted_since) = (Vec::<Timed>::new(), Schedule::new(), None);
        for second in 0..200 {
            if dice.once_in(10) {
                let key = dice.pick(&["a", "b"]);
                let there = taints.iter().position(|(taint, _)| taint.key == key);
                match there {
                    Some(position) => drop(taints.remove(position)),
                    None => taints.push(taint(key, second)),
                }
            }
            tainted_since = if taints.is_empty() { None } else { tainted_since.or(Some(second)) };
            if dice.once_in(20) {
                schedule.clear();
            }
            let round = tainted(&taints, &pods, schedule, at(second));
            for pod in &pods {
                let tolerations = pod.spec().tolerations.as_deref().unwrap();
                let evicted = names(&round.evicted).contains(&name(&pod.metadata));
                match decide(&taints, tolerations, at(0)) {
                    Decision::Goes => assert!(evicted, "{seed} {second}"),
                    Decision::Stays => assert!(!evicted, "{seed} {second}"),
                    Decision::Waits { at: latest, seconds } => {
                        assert!(evicted || latest > at(second), "{seed} {second}: it is late");
                        let earliest = at(tainted_since.unwrap() + seconds);
                        assert!(!evicted || earliest <= at(second), "{seed} {second}: it is early");
                    }
                }
            }
            schedule = round.schedule;
            pods.retain(|pod| !names(&round.evicted).contains(&name(&pod.metadata)));
        }
    }
}
