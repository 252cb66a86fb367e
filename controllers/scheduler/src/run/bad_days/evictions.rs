//! The writes of a preemption: victims that are there, gone or replaced, and requests that fail.

use tokio::sync::Semaphore;

use super::*;
use crate::run::conditions::Conditions;
use crate::run::evict::{Eviction, spawn};
use crate::run::follow::{Update, Updates};

const GONE: Failure = Failure::Refused(404, "NotFound", "");
const REPLACED: Failure = Failure::Refused(409, "Conflict", "");
const FAILS: Failure = Failure::Refused(500, "InternalError", "");

/// Purpose, the number of victims, the verb and the victim whose request fails, and how; the requests, and whether all victims
/// are being deleted.
type Row<'a> =
    (&'a str, usize, Option<(&'static [&'static str], &'static str, Failure)>, &'a [&'a str], bool);

/// Lets the pod `urgent` evict some of the pods `a`, `b` and `c`, beside `low` that was nominated for the node; returns the
/// requests about them, and whether all victims are being deleted.
async fn evicted(victims: usize, faults: Vec<Fault>) -> (Vec<String>, bool, FakeApi) {
    let api = FakeApi::new();
    add_pod(&api, "urgent", "1", json!({"spec": {"priority": 10}})).await;
    add_pod(&api, "low", "1", json!({"status": {"nominatedNodeName": "n"}})).await;
    for name in ["a", "b", "c"] {
        add_pod(&api, name, "1", json!({"spec": {"nodeName": "n"}})).await;
    }
    let pod = |name: &str| {
        let found = api.all("pods").into_iter().find(|pod| pod["metadata"]["name"] == name).unwrap();
        Arc::new(PodInfo::parse(serde_json::from_value(found).unwrap()))
    };
    let (line, updates, lanes) = (Line::new(&api, faults), Updates::new(), Arc::new(Semaphore::new(1)));
    let metrics = Config::default().metrics;
    let eviction = Eviction {
        preemptor: pod("urgent"),
        node: "n".into(),
        victims: ["a", "b", "c"][..victims].iter().map(|name| pod(name)).collect(),
        outdone: vec![pod("low")],
        conditions: Conditions::new(line.client(), Arc::clone(&lanes), metrics.clone()),
        recorder: None,
        lanes,
        metrics,
    };
    spawn(eviction, line.client(), ambient(), updates.clone());
    let Update::Preempted { all_deleted, .. } = updates.take().await else { panic!("not the end") };
    let asked = line.asked(0..1000).into_iter().map(|one| format!("{} {}", one.verb, one.name)).collect();
    (asked, all_deleted, api)
}

#[tokio::test(start_paused = true)]
async fn victims_are_told_and_deleted_until_a_request_fails() {
    let (all, patch, delete): (&[&str], &[&str], &[&str]) = (&[], &["patch"], &["delete"]);
    let one = &["patch low", "patch a", "delete a"];
    let two = &["patch low", "patch a", "delete a", "patch b"];
    let three = &["patch low", "patch a", "delete a", "patch b", "delete b", "patch c", "delete c"];
    let rows: &[Row<'_>] = &[
        ("one", 1, None, one, true),
        ("three", 3, None, three, true),
        ("gone before", 1, Some((all, "a", GONE)), &one[..2], true),
        ("gone between", 1, Some((delete, "a", GONE)), one, true),
        ("replaced", 1, Some((all, "a", REPLACED)), &one[..2], true),
        ("the condition fails", 1, Some((patch, "a", FAILS)), &one[..2], false),
        ("the deletion fails", 1, Some((delete, "a", FAILS)), one, false),
        ("that of the first of three", 3, Some((delete, "a", FAILS)), one, false),
        ("the second of three", 3, Some((patch, "b", FAILS)), two, false),
        ("the last of three", 3, Some((delete, "c", FAILS)), three, false),
        (
            "the first of three is gone",
            3,
            Some((all, "a", GONE)),
            &["patch low", "patch a", "patch b", "delete b", "patch c", "delete c"],
            true,
        ),
        ("the nomination stays", 1, Some((patch, "low", FAILS)), one, true),
    ];
    for (what, victims, fault, requests, deleted) in rows {
        let fault = fault.iter().map(|(verbs, names, failure)| Fault {
            verbs,
            names,
            ..Fault::of(*failure, 0..1000)
        });
        let (asked, all_deleted, _) = evicted(*victims, fault.collect()).await;
        assert_eq!(
            (asked.iter().map(String::as_str).collect::<Vec<_>>(), all_deleted),
            (requests.to_vec(), *deleted),
            "{what}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_outdone_lose_their_nomination_and_victims_know_why_they_go() {
    let fails = Fault { verbs: &["delete"], ..Fault::of(FAILS, 0..1000) };
    let (_, _, api) = evicted(1, vec![fails]).await;
    let status = |name: &str| {
        api.all("pods").into_iter().find(|pod| pod["metadata"]["name"] == name).unwrap()["status"].clone()
    };
    assert_eq!(status("low")["nominatedNodeName"], Value::Null);
    let condition = &status("a")["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("DisruptionTarget"), &json!("PreemptionByScheduler"))
    );
    assert_eq!(condition["message"], "default-scheduler: preempting to accommodate a higher priority pod");
}
