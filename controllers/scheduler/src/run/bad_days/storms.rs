//! An API that refuses writes for a minute, or loses its answers: nobody asks in a hot loop, and all pods are placed soon
//! after, with nobody's place leaked.

use std::ops::Range;

use super::*;

const STORM: Range<u64> = 5..65;
const PODS: usize = 60;
/// Attempts of a pod in a minute: its pauses are 1, 2, 4, 8 and then 10 s, and windows of a second are added.
const ATTEMPTS: usize = 10;

/// One row: what fails, and how often a binding may be sent in the minute.
async fn weather(name: &str, faults: Vec<Fault>) {
    let api = FakeApi::new();
    // There is room for exactly the pods: a place that leaked would be missed.
    for node in 0..6 {
        add_node(&api, &format!("n{node}"), json!({"cpu": "10"})).await;
    }
    let line = Line::new(&api, faults);
    let life = Life::begin(line.client(), ambient(), Config::default());
    line.until(STORM.start).await;
    for pod in 0..PODS {
        add_pod(&api, &format!("p{pod:02}"), "1", json!({})).await;
    }
    line.until(STORM.end).await;
    let asked = line.asked(STORM);
    let mut bindings: BTreeMap<String, usize> = BTreeMap::new();
    for one in asked.iter().filter(|one| one.resource == "pods/binding") {
        *bindings.entry(one.name.clone()).or_default() += 1;
    }
    let most = bindings.values().max().copied().unwrap_or_default();
    assert!((1..=ATTEMPTS).contains(&most), "{name}: a binding was sent {most} times");
    // With each attempt a binding, the reading of the pod, its status, and an event.
    assert!(asked.len() <= 6 * ATTEMPTS * PODS, "{name}: {} requests", asked.len());
    line.until(STORM.end + 30).await;
    assert_eq!((waiting(&api), wrongs(&api)), (vec![], vec![]), "{name}");
    // One more finds no room, and room that comes is found.
    add_pod(&api, "more", "1", json!({})).await;
    line.until(STORM.end + 40).await;
    assert_eq!(waiting(&api), ["more"], "{name}");
    send(&api, "DELETE", "/api/v1/namespaces/ns/pods/p00", &json!({})).await;
    line.until(STORM.end + 55).await;
    assert_eq!((waiting(&api), wrongs(&api)), (vec![], vec![]), "{name}");
    assert!(!life.0.is_finished());
}

const WRITES: &[&str] = &["create", "patch", "delete"];
const WRITTEN: &[&str] = &["pods/binding", "pods/status", "events"];

#[tokio::test(start_paused = true)]
async fn writes_that_are_refused_for_a_minute_make_no_hot_loop_and_leak_no_place() {
    for (name, failure) in [
        ("409", Failure::Refused(409, "Conflict", "the object has been modified")),
        ("429", Failure::Busy(None)),
        ("429, Retry-After", Failure::Busy(Some(2))),
        ("500", Failure::Refused(500, "InternalError", "etcdserver: request timed out")),
        ("broken", Failure::Broken),
        ("hangs", Failure::Hangs(20)),
    ] {
        let fault = Fault { verbs: WRITES, resources: WRITTEN, ..Fault::of(failure, STORM) };
        weather(name, vec![fault]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_lost_are_looked_for_and_no_pod_is_placed_anew() {
    for (name, one_of) in [("all", 1), ("every second", 2)] {
        let lost =
            Fault { verbs: WRITES, one_of, resources: WRITTEN, ..Fault::of(Failure::AnswerLost, STORM) };
        weather(name, vec![lost]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_and_late_watches_together_overcommit_no_node() {
    let lost = Fault { resources: &["pods/binding"], ..Fault::of(Failure::AnswerLost, STORM) };
    let late = Fault { verbs: &["watch"], resources: &["pods"], ..Fault::of(Failure::Late, 10..60) };
    weather("lost and late", vec![lost, late]).await;
}

/// A server that reports an error may have bound the pod nevertheless: nobody else gets its place.
#[tokio::test(start_paused = true)]
async fn binding_that_was_carried_out_and_answered_with_an_error_keeps_its_place() {
    for code in [409, 500, 504] {
        let api = FakeApi::new();
        add_node(&api, "n", json!({"cpu": "1"})).await;
        // The watch tells nothing for a while.
        api.set_lag("pods", Duration::from_secs(20));
        let binds = api.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (client, path) = (binds.client(), request.uri().path().to_owned());
            async move {
                let answer = client.send(request).await?;
                if !path.ends_with("/binding") {
                    return Ok::<_, tower::BoxError>(answer);
                }
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                    "reason": "Unknown", "message": "request timed out"});
                let body = kube::client::Body::from(status.to_string().into_bytes());
                Ok(http::Response::builder().status(code).body(body)?)
            }
        });
        let _life = Life::begin(Client::new(service, "default"), ambient(), Config::default());
        tokio::time::sleep(Duration::from_secs(1)).await;
        add_pod(&api, "first", "1", json!({})).await;
        tokio::time::sleep(Duration::from_secs(21)).await;
        add_pod(&api, "second", "1", json!({})).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((waiting(&api), wrongs(&api)), (vec!["second".to_owned()], vec![]), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_of_a_binding_is_told_to_the_owner_of_the_pod() {
    let api = FakeApi::new();
    add_node(&api, "n", json!({"cpu": "1"})).await;
    let denied = Failure::Refused(403, "Forbidden", "admission webhook \"w\" denied the request");
    let fault = Fault { resources: &["pods/binding"], ..Fault::of(denied, 0..10) };
    let line = Line::new(&api, vec![fault]);
    let _life = Life::begin(line.client(), ambient(), Config::default());
    add_pod(&api, "p", "1", json!({})).await;
    line.until(9).await;
    let text = "running Bind plugin \"DefaultBinder\": admission webhook \"w\" denied the request";
    let condition = api.all("pods")[0]["status"]["conditions"][0].clone();
    assert_eq!((&condition["reason"], &condition["message"]), (&json!("SchedulerError"), &json!(text)));
    let events = api.all("events");
    assert!(
        events.iter().any(|event| event["reason"] == "FailedScheduling" && event["note"] == text),
        "{events:?}"
    );
    line.until(30).await;
    assert_eq!(waiting(&api), Vec::<String>::new());
}
