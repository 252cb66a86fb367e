//! Covers 24 of the 31 cases that kube-scheduler's tests of `SchedulerAsyncAPICalls` name. The other ones are about an empty or a
//! closed queue (3), goroutines (3), and the version of a pod that its dispatcher returns and nobody reads (1).

use std::convert::Infallible;
use std::time::Duration;

use controllers_runtime::metrics::Value as Counted;
use http::{Request, Response};
use kube::client::Body;
use tests_fake::ambient;
use tests_fake::api::FakeApi;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::config::{Gates, default_profile};
use crate::run::Config;
use crate::run::bad_days::{Life, add_node, add_pod};
use crate::testing::pod;

/// A request, and the way to answer it with a code.
struct Asked {
    path: String,
    status: Value,
    answer: oneshot::Sender<u16>,
}

/// The conditions, and the requests that they make.
struct World {
    conditions: Conditions,
    asked: mpsc::UnboundedReceiver<Asked>,
}

impl World {
    fn new(lanes: usize) -> Self {
        let (sender, asked) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let sender = sender.clone();
            async move {
                let (head, body) = request.into_parts();
                let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                let (answer, code) = oneshot::channel();
                let (path, status) = (head.uri.path().to_owned(), body["status"].clone());
                sender.send(Asked { path, status, answer }).ok().unwrap();
                let code = code.await.unwrap();
                let body = match code {
                    200 => json!({"metadata": {}}),
                    code => json!({"kind": "Status", "status": "Failure", "code": code, "reason": "X"}),
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let metrics = Metrics::default();
        metrics.begin(&[default_profile()], Default::default());
        metrics.count_calls();
        let lanes = Arc::new(Semaphore::new(lanes));
        Self { conditions: Conditions::new(Client::new(service, "default"), lanes, metrics), asked }
    }

    /// Returns the request that is made once all tasks wait.
    async fn asked(&mut self) -> Option<Asked> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.asked.try_recv().ok()
    }

    /// Returns the status that is sent once all tasks wait, and answers with this code.
    async fn sent(&mut self, code: u16) -> Option<(Value, Value)> {
        let asked = self.asked().await?;
        asked.answer.send(code).unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        Some(parts(&asked.status))
    }

    fn pending(&self) -> f64 {
        let name = "scheduler_pending_async_api_calls";
        metric(&self.conditions.metrics, name, &["pod_status_patch"]).unwrap_or_default()
    }

    fn write(&self, pod: &Arc<PodInfo>, status: PodStatus) {
        self.conditions.write_pod(pod, status, true);
    }
}

/// Returns a number of the metrics with these labels.
fn metric(metrics: &Metrics, name: &str, labels: &[&str]) -> Option<f64> {
    let series = metrics.series().into_iter().find(|one| one.measure.name == name)?;
    let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
    match series.values.get(&labels)? {
        Counted::Number(number) => Some(*number),
        Counted::Histogram { .. } => None,
    }
}

/// Returns the message of the condition and the nominated node in a status; `"-"` for a part that is not there.
fn parts(status: &Value) -> (Value, Value) {
    let part = |part: Option<&Value>| part.cloned().unwrap_or_else(|| json!("-"));
    (part(status["conditions"][0].get("message")), part(status.get("nominatedNodeName")))
}

fn refused(message: &str) -> PodStatus {
    let at = Timestamp::UNIX_EPOCH;
    let refusal = Refusal { reason: "Unschedulable", message: message.to_owned(), generation: Some(1), at };
    PodStatus { refusal: Some(refusal), nomination: None }
}

fn nominated(node: Option<&str>) -> PodStatus {
    PodStatus { refusal: None, nomination: Some(node.map(Arc::from)) }
}

/// Returns a pod that shows this condition and nomination.
fn showing(message: &str, node: Option<&str>) -> Arc<PodInfo> {
    pod(
        "p",
        json!({"status": {"nominatedNodeName": node, "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}}),
    )
}

#[test]
fn change_is_needed_unless_the_pod_shows_all_of_it() {
    let pod = showing("a", Some("n"));
    let both = |message, node| nominated(node).over(refused(message));
    for (change, is_shown) in [
        (both("a", Some("n")), true),
        (both("b", Some("n")), false),
        (both("a", Some("m")), false),
        (both("a", None), false),
        (refused("a"), true),
        (refused("b"), false),
        (nominated(Some("n")), true),
        (nominated(Some("m")), false),
        (nominated(None), false),
        (PodStatus::default(), true),
    ] {
        assert_eq!(change.is_shown_by(&pod), is_shown, "{change:?}");
    }
    assert!(!refused("a").is_shown_by(&crate::testing::pod("p", json!({}))));
}

#[test]
fn patch_has_what_changes_and_a_time_only_if_the_pod_was_not_refused_before() {
    let new = pod("p", json!({"metadata": {"generation": 1}}));
    let patch = nominated(None).over(refused("a")).patch(&new, true);
    assert_eq!(
        patch,
        json!({"metadata": {"uid": "p"}, "status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "a",
            "observedGeneration": 1, "lastTransitionTime": "1970-01-01T00:00:00Z"}]}})
    );
    let patch = nominated(None).over(refused("b")).patch(&showing("a", Some("n")), true);
    assert!(patch["status"]["conditions"][0].get("lastTransitionTime").is_none());
    assert_eq!(patch["status"].get("nominatedNodeName"), Some(&Value::Null));
    let patch = nominated(None).patch(&new, false);
    assert_eq!(patch["status"], json!({"nominatedNodeName": null}), "one may have been written before");
}

#[tokio::test(start_paused = true)]
async fn status_that_waits_is_replaced_in_the_parts_that_a_newer_one_has() {
    let (both, n, none) = (nominated(Some("n")).over(refused("a")), nominated(Some("n")), json!("-"));
    for (first, second, expected) in [
        (refused("a"), n.clone(), (json!("a"), json!("n"))),
        (n, refused("b"), (json!("b"), json!("n"))),
        (both.clone(), refused("b"), (json!("b"), json!("n"))),
        (both.clone(), nominated(Some("m")), (json!("a"), json!("m"))),
        (both, nominated(None), (json!("a"), none)),
    ] {
        let mut world = World::new(0);
        let pod = pod("p", json!({}));
        world.write(&pod, first);
        world.write(&pod, second);
        assert_eq!((world.asked().await.is_some(), world.pending()), (false, 1.0));
        world.conditions.lanes.add_permits(1);
        assert_eq!(world.sent(200).await, Some(expected));
        assert!(world.asked().await.is_none(), "both are one request");
        assert_eq!((world.conditions.len(), world.pending()), (0, 0.0));
    }
}

#[tokio::test(start_paused = true)]
async fn objects_have_a_request_in_flight_each_and_one_has_no_more_than_one() {
    let mut world = World::new(8);
    world.write(&pod("p", json!({})), refused("a"));
    world.write(&pod("q", json!({})), refused("b"));
    let group = ObjectKey::new("default", "g");
    world.conditions.write_group(&"g".into(), group, json!({"status": {"conditions": [{"message": "c"}]}}));
    let (p, q, g) =
        (world.asked().await.unwrap(), world.asked().await.unwrap(), world.asked().await.unwrap());
    let ends = ["pods/p/status", "pods/q/status", "podgroups/g/status"];
    assert!([&p, &q, &g].iter().zip(ends).all(|(one, end)| one.path.ends_with(end)));
    world.write(&pod("p", json!({})), refused("d"));
    assert!(world.asked().await.is_none());
    assert_eq!(world.pending(), 0.0, "what waits for a request of its own pod is not counted");
    for (asked, code) in [(p, 200), (q, 404), (g, 200)] {
        asked.answer.send(code).unwrap();
    }
    assert_eq!(world.sent(200).await, Some((json!("d"), json!("-"))));
    let name = "scheduler_async_api_call_execution_total";
    let count = |result| metric(&world.conditions.metrics, name, &["pod_status_patch", result]);
    assert_eq!((count("success"), count("error")), (Some(2.0), Some(1.0)), "those of groups do not count");
    assert_eq!((world.conditions.len(), world.pending()), (0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_that_the_pod_shows() {
    let mut world = World::new(0);
    let (shown, old) = (showing("a", None), pod("p", json!({})));
    world.write(&shown, refused("a"));
    assert_eq!((world.conditions.len(), world.pending()), (0, 0.0));
    // The newer one takes the place of the older one, and is what the pod shows.
    world.write(&shown, refused("b"));
    world.write(&shown, refused("a"));
    assert_eq!(world.pending(), 0.0);
    // The pod is seen to show what waits.
    world.write(&old, refused("a"));
    world.conditions.seen(&pod("other", json!({})));
    assert_eq!(world.pending(), 1.0);
    world.conditions.seen(&shown);
    assert_eq!(world.pending(), 0.0);
    world.conditions.lanes.add_permits(1);
    assert!(world.asked().await.is_none());
    assert_eq!(world.conditions.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn status_behind_another_is_sent_though_the_pod_still_shows_it() {
    let mut world = World::new(8);
    let shown = showing("a", None);
    world.write(&shown, nominated(Some("n")).over(refused("b")));
    let first = world.asked().await.unwrap();
    world.write(&shown, nominated(None).over(refused("a")));
    // A version of the pod from before the first request.
    world.conditions.seen(&shown);
    first.answer.send(200).unwrap();
    assert_eq!(world.sent(200).await, Some((json!("a"), Value::Null)));
}

#[tokio::test(start_paused = true)]
async fn request_that_fails_is_repeated_together_with_what_is_newer() {
    let mut world = World::new(8);
    let p = pod("p", json!({}));
    world.write(&p, nominated(Some("n")).over(refused("a")));
    assert_eq!(world.sent(500).await, Some((json!("a"), json!("n"))));
    assert_eq!(world.pending(), 1.0);
    world.write(&p, refused("b"));
    tokio::time::sleep(limits::RESOLVE_PAUSE).await;
    let second = world.asked().await.unwrap();
    assert_eq!(parts(&second.status), (json!("b"), json!("n")));
    world.write(&p, nominated(Some("m")));
    second.answer.send(500).unwrap();
    tokio::time::sleep(2 * limits::RESOLVE_PAUSE).await;
    assert_eq!(world.sent(403).await, Some((json!("b"), json!("m"))));
    tokio::time::sleep(10 * limits::RESOLVE_PAUSE_MAX).await;
    assert!(world.asked().await.is_none(), "a refusal is not repeated");
    assert_eq!(world.conditions.len(), 0);
    world.write(&p, refused("a"));
    let third = world.asked().await.unwrap();
    world.conditions.forget(&p.uid);
    third.answer.send(500).unwrap();
    tokio::time::sleep(10 * limits::RESOLVE_PAUSE_MAX).await;
    assert!(world.asked().await.is_none(), "the pod has a node");
    assert_eq!((world.conditions.len(), world.pending()), (0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn binding_drops_the_status_that_waits_and_begins_after_the_one_in_flight() {
    let mut world = World::new(8);
    let p = pod("p", json!({}));
    world.write(&p, refused("a"));
    let first = world.asked().await.unwrap();
    world.write(&p, refused("b"));
    let (conditions, uid) = (world.conditions.clone(), p.uid.clone());
    let binding = tokio::spawn(async move { conditions.bind(&uid).await });
    assert!(world.asked().await.is_none());
    assert!(!binding.is_finished(), "the request in flight could come after it");
    first.answer.send(500).unwrap();
    assert!(world.asked().await.is_none(), "it is neither repeated nor followed by what has waited");
    let binding = binding.await.unwrap();
    world.write(&p, nominated(Some("n")));
    assert!(world.asked().await.is_none(), "a pod that is being bound gets no status");
    drop(binding);
    tokio::time::sleep(10 * limits::RESOLVE_PAUSE_MAX).await;
    assert_eq!(world.conditions.len(), 0);
    world.write(&p, refused("c"));
    assert_eq!(world.sent(200).await, Some((json!("c"), json!("-"))), "its binding may have failed");
}

#[tokio::test(start_paused = true)]
async fn binding_overtakes_a_status_that_waits_for_a_lane() {
    let mut world = World::new(0);
    let p = pod("p", json!({}));
    world.write(&p, refused("a"));
    assert_eq!(world.pending(), 1.0);
    let binding = world.conditions.bind(&p.uid).await;
    assert_eq!(world.pending(), 0.0);
    world.conditions.lanes.add_permits(1);
    assert!(world.asked().await.is_none());
    drop(binding);
    assert_eq!(world.conditions.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_scheduler_are_counted_if_the_gate_is_on() {
    for async_api_calls in [false, true] {
        let api = FakeApi::new();
        add_node(&api, "n", json!({"cpu": "4"})).await;
        add_pod(&api, "small", "1", json!({})).await;
        add_pod(&api, "large", "8", json!({})).await;
        let gates = Gates { async_api_calls, ..Gates::default() };
        let config = Config { gates, ..Config::default() };
        let metrics = config.metrics.clone();
        let _life = Life::begin(api.client(), ambient(), config);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let of = |name, labels: &[&str]| metric(&metrics, name, labels);
        let (total, pending) =
            ("scheduler_async_api_call_execution_total", "scheduler_pending_async_api_calls");
        let counts = [
            of(total, &["pod_binding", "success"]),
            of(total, &["pod_status_patch", "success"]),
            of(pending, &["pod_binding"]),
            of(pending, &["pod_status_patch"]),
        ];
        let expected = [Some(1.0), Some(1.0), Some(0.0), Some(0.0)];
        assert_eq!(counts, if async_api_calls { expected } else { [None; 4] });
    }
}
