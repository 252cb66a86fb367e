//! Crowds of pods that never fit, and pods that are made to cost as much as possible.

use k8s_openapi::api::core::v1;
use tokio::time::Instant;

use super::super::Scheduler;
use super::super::bind::Outcome;
use super::super::follow::Update;
use super::super::tests::unanswered;
use super::*;
use crate::limits;
use crate::testing::sized;

/// Adds a pod of a namespace with these fields.
fn add(scheduler: &mut Scheduler, namespace: &str, name: &str, fields: Value) -> Arc<PodInfo> {
    let mut pod = json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}});
    merge(&mut pod, fields);
    let pod: v1::Pod = serde_json::from_value(pod).unwrap();
    scheduler.pods.apply(pod.clone());
    let pod = Arc::new(PodInfo::parse(pod));
    scheduler.apply(Update::Pod(Arc::clone(&pod)));
    pod
}

/// Attempts pods until none is active; returns the number of attempts.
fn attempt_all(scheduler: &mut Scheduler, most: usize) -> usize {
    for attempts in 0..most {
        let Some(attempting) = scheduler.queue.pop(Instant::now()) else { return attempts };
        scheduler.attempt(&attempting);
    }
    most
}

/// Returns the number of these pods that are placed.
fn placed(scheduler: &Scheduler, pods: &[Arc<PodInfo>]) -> usize {
    pods.iter().filter(|pod| scheduler.cluster.place_of(pod).is_some()).count()
}

#[tokio::test(start_paused = true)]
async fn pods_that_fit_are_placed_at_once_beside_ten_thousand_that_never_do() {
    let mut scheduler = unanswered();
    scheduler.apply(Update::Node(sized("n", json!({"cpu": "32"}))));
    let large =
        json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1000"}}}]}});
    for number in 0..10_000 {
        add(&mut scheduler, "tenant", &format!("large{number}"), large.clone());
    }
    assert_eq!(
        attempt_all(&mut scheduler, 20_000),
        10_000,
        "each is tried once, and then waits for an event"
    );
    let ten = |scheduler: &mut Scheduler, prefix: &str| -> Vec<_> {
        (0..10).map(|number| add(scheduler, "other", &format!("{prefix}{number}"), json!({}))).collect()
    };
    let pods = ten(&mut scheduler, "a");
    assert_eq!(attempt_all(&mut scheduler, 10), 10);
    assert_eq!(placed(&scheduler, &pods), 10);
    // A node that helps nobody of them, and one that has changed, wake nobody.
    scheduler.apply(Update::Node(sized("m", json!({"cpu": "16"}))));
    scheduler.apply(Update::Node(sized("n", json!({"cpu": "33"}))));
    let pods = ten(&mut scheduler, "b");
    assert_eq!(attempt_all(&mut scheduler, 10), 10);
    assert_eq!(placed(&scheduler, &pods), 10);
    assert!(scheduler.binder.conditions.len() <= 10_000, "one status is written for each at a time");
}

/// Returns this many preferred terms, each of which names this many namespaces.
fn terms(key: &str, count: usize, namespaces: usize) -> Value {
    let names: Vec<String> = (0..namespaces).map(|number| format!("ns{number}")).collect();
    let term = |number: usize| {
        json!({"weight": 1, "podAffinityTerm": {"topologyKey": format!("{key}-{number}"), "namespaces": names,
            "labelSelector": {"matchLabels": {"app": format!("{key}-{number}")}}}})
    };
    let all: Vec<Value> = (0..count).map(term).collect();
    json!({"spec": {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": all}}}})
}

#[tokio::test(start_paused = true)]
async fn pod_with_more_terms_than_an_attempt_may_cost_is_refused_with_an_event() {
    let api = FakeApi::new();
    add_node(&api, "n", json!({"cpu": "100"})).await;
    let line = Line::new(&api, Vec::new());
    let _life = Life::begin(line.client(), ambient(), Config::default());
    add_pod(&api, "exploding", "1", terms("key", 100, 1000)).await;
    let constraint = |number: usize| {
        json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": number.to_string()}}})
    };
    let constraints: Vec<Value> = (0..300).map(constraint).collect();
    add_pod(&api, "spreading", "1", json!({"spec": {"topologySpreadConstraints": constraints}})).await;
    add_pod(&api, "ordinary", "1", json!({})).await;
    line.until(60).await;
    assert_eq!(waiting(&api), ["exploding", "spreading"]);
    let expected =
        [("exploding", "100 terms", "100000 namespaces"), ("spreading", "300 terms", "0 namespaces")];
    for (name, terms, namespaces) in expected {
        let pod = api.all("pods").into_iter().find(|pod| pod["metadata"]["name"] == name).unwrap();
        let condition = &pod["status"]["conditions"][0];
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains(terms) && message.contains(namespaces), "{message}");
        assert_eq!(condition["reason"], "Unschedulable");
        let events = api.all("events");
        let told = |event: &&Value| event["note"] == message && event["regarding"]["name"] == name;
        assert_eq!(events.iter().filter(told).count(), 1, "{events:?}");
    }
    // Its own changes do not make it a burden.
    for number in 0..20 {
        api.change("pods", "exploding", |pod| pod["metadata"]["labels"] = json!({"n": number.to_string()}));
    }
    line.until(120).await;
    assert_eq!(line.asked(60..120).into_iter().filter(tests_fake::faults::Asked::writes).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn thousand_exploding_templates_cost_bounded_memory_which_goes_with_their_pods() {
    let mut scheduler = unanswered();
    for number in 0..4 {
        scheduler.apply(Update::Node(sized(&format!("n{number}"), json!({"cpu": "10k", "pods": "10k"}))));
    }
    let mut pods = Vec::new();
    for number in 0..1000 {
        let mut fields = terms(&format!("t{number}"), 20, 3);
        fields["spec"]["nodeName"] = json!(format!("n{}", number % 4));
        pods.push(add(&mut scheduler, "tenant", &format!("p{number}"), fields));
    }
    assert_eq!(placed(&scheduler, &pods), 1000);
    let [_, holders, terms, keys, matched] = scheduler.cluster.terms.sizes();
    assert_eq!((holders, terms), (1000, 20_000), "what placed pods have is known");
    assert!(keys >= 20_000 && matched <= limits::MATCHED_IDS);
    assert_eq!(scheduler.cluster.terms.columns(), 0, "a topology key that no node has takes no column");
    let other = add(&mut scheduler, "ns1", "other", json!({"metadata": {"labels": {"app": "t7-3"}}}));
    assert_eq!(attempt_all(&mut scheduler, 2), 1);
    assert_eq!(placed(&scheduler, &[Arc::clone(&other)]), 1);
    scheduler.apply(Update::Binding(other, Outcome::Bound));
    let specs: Vec<_> = pods.iter().map(|pod| Arc::downgrade(&pod.spec)).collect();
    for pod in pods.drain(..) {
        scheduler.pods.delete(&pod.key());
        scheduler.apply(Update::PodGone(Arc::clone(&pod)));
    }
    // Pods of others go on, and with their attempts what is unused goes.
    for number in 0..200 {
        let fields = json!({"spec": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": format!("z{number}"),
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"a": "b"}}}]}});
        add(&mut scheduler, "other", &format!("q{number}"), fields);
    }
    attempt_all(&mut scheduler, 400);
    let [_, holders, terms, keys, matched] = scheduler.cluster.terms.sizes();
    assert_eq!(holders, 0);
    assert!(terms <= 1024 && matched <= 1024, "{terms} terms and {matched} matches are left");
    assert!(keys <= terms + 256, "{keys} keys are left for {terms} terms");
    assert!(specs.iter().all(|spec| spec.strong_count() == 0), "nobody has the templates any more");
}
