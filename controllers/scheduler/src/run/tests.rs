use std::collections::BTreeMap;

use apiserver_client::{Informers, ObjectKey};
use k8s_openapi::api::core::v1;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, from_value, json};
use tokio_util::sync::CancellationToken;

use super::bind::Outcome;
use super::follow::{Fact, Update};
use super::*;
use crate::queue::Pool;
use crate::testing::sized;

/// Returns a client whose requests are never answered, so that bindings stay under way.
pub(super) fn silent_client() -> Client {
    let service = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, std::convert::Infallible>>()
    });
    Client::new(service, "default")
}

/// Returns a scheduler of an empty cluster, whose requests are never answered.
pub(super) fn unanswered() -> Scheduler {
    let (client, ambient, stop) = (silent_client(), Ambient::system(), CancellationToken::new());
    let informers = Informers::new(client, ambient.clone(), stop);
    on(&informers, ambient, Updates::new())
}

/// Returns a scheduler of an empty cluster with the caches of a process.
pub(super) fn on(informers: &Informers, ambient: Ambient, updates: Updates) -> Scheduler {
    with(Config::default(), informers, ambient, updates)
}

/// Returns a scheduler of an empty cluster with this configuration.
pub(super) fn with(config: Config, informers: &Informers, ambient: Ambient, updates: Updates) -> Scheduler {
    let client = informers.client().clone();
    config.metrics.begin(&config.profiles, informers.cache());
    Scheduler {
        queue: measure::queue(&config),
        turn: None,
        binder: Binder::new(
            client.clone(),
            updates.clone(),
            informers,
            ambient.clone(),
            Arc::clone(&config.profiles),
            config.metrics.clone(),
        ),
        desk: Desk::default(),
        meter: Meter::new(Instant::now),
        measured: Measured::new(config.metrics.clone()),
        profiles: config.profiles,
        cluster: Cluster::default(),
        views: Views::default(),
        start: 0,
        binding: BTreeMap::new(),
        waiting: Waiting::default(),
        victims: BTreeMap::new(),
        namespaces: BTreeMap::new(),
        pods: informers.cache(),
        client,
        ambient,
        recorders: BTreeMap::new(),
        updates,
    }
}

/// Returns a scheduler of one node with eight cores, which has tried to place this pod.
fn with_binding_under_way(pod: &v1::Pod) -> Scheduler {
    let mut scheduler = unanswered();
    scheduler.apply(Update::Node(sized("n", json!({"cpu": "8"}))));
    scheduler.pods.apply(pod.clone());
    scheduler.apply(Update::Pod(info(pod)));
    let attempting = scheduler.queue.pop(Instant::now()).expect("the pod waits");
    scheduler.attempt(&attempting);
    assert_eq!(scheduler.cluster.named("n").map(|node| node.pods.len()), Some(1));
    scheduler
}

fn pod(fields: Value) -> v1::Pod {
    let mut object = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
    crate::testing::merge(&mut object, fields);
    from_value(object).unwrap()
}

fn info(pod: &v1::Pod) -> Arc<PodInfo> {
    Arc::new(PodInfo::parse(pod.clone()))
}

#[tokio::test(start_paused = true)]
async fn pod_whose_binding_fails_leaves_its_node_and_is_tried_again_after_a_pause() {
    let pod = pod(json!({}));
    let mut scheduler = with_binding_under_way(&pod);
    scheduler.apply(Update::Binding(info(&pod), Outcome::Failed("refused".to_owned())));
    assert_eq!(scheduler.cluster.named("n").map(|node| node.pods.len()), Some(0));
    assert_eq!(scheduler.queue.pool_of(&info(&pod).uid), Some(Pool::Backoff));
}

#[tokio::test(start_paused = true)]
async fn room_of_a_pod_whose_binding_fails_is_free_for_pods_that_wait_for_room() {
    let first =
        pod(json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "8"}}}]}}));
    let mut scheduler = with_binding_under_way(&first);
    let second = pod(json!({"metadata": {"name": "q", "uid": "v"}}));
    scheduler.pods.apply(second.clone());
    scheduler.apply(Update::Pod(info(&second)));
    let attempting = scheduler.queue.pop(Instant::now()).expect("the pod waits");
    scheduler.attempt(&attempting);
    assert_eq!(scheduler.queue.pool_of(&info(&second).uid), Some(Pool::Unschedulable));
    scheduler.apply(Update::Binding(info(&first), Outcome::Failed("refused".to_owned())));
    assert_eq!(scheduler.queue.pool_of(&info(&second).uid), Some(Pool::Backoff));
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_bound_is_forgotten_by_the_queue_and_keeps_its_node() {
    let pod = pod(json!({}));
    let mut scheduler = with_binding_under_way(&pod);
    scheduler.apply(Update::Binding(info(&pod), Outcome::Bound));
    // An update from before the binding does not bring it back.
    scheduler.apply(Update::Pod(info(&pod)));
    assert_eq!(scheduler.queue.pool_of(&info(&pod).uid), None);
    assert!(scheduler.queue.pop(Instant::now()).is_none());
    assert_eq!(scheduler.cluster.named("n").map(|node| node.pods.len()), Some(1));
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_deleted_while_it_is_bound_leaves_its_node() {
    let pod = pod(json!({}));
    let mut scheduler = with_binding_under_way(&pod);
    scheduler.apply(Update::PodGone(info(&pod)));
    scheduler.apply(Update::Binding(info(&pod), Outcome::Gone));
    assert_eq!(scheduler.cluster.named("n").map(|node| node.pods.len()), Some(0));
    assert!(scheduler.binding.is_empty() && scheduler.queue.pop(Instant::now()).is_none());
}

/// Returns a claim for a device of the class `c`, with these fields over it.
fn claim(fields: Value) -> Update {
    let exactly = json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1});
    let mut object = json!({"metadata": {"name": "x", "namespace": "ns", "uid": "x", "resourceVersion": "5"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}});
    crate::testing::merge(&mut object, fields);
    let claim = Arc::new(from_value(object).unwrap());
    Update::Fact(Fact::DeviceClaim(ObjectKey::new("ns", "x"), Some(claim)))
}

#[tokio::test(start_paused = true)]
async fn devices_under_way_to_a_claim_are_free_again_only_after_the_binding_has_failed() {
    let mut scheduler = with_binding_under_way(&pod(json!({})));
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "a"}]}});
    let slice = Fact::DeviceSlice(ObjectKey::new("", "s"), Some(Arc::new(from_value(slice).unwrap())));
    let class = Arc::new(from_value(json!({"metadata": {"name": "c"}, "spec": {}})).unwrap());
    scheduler.apply(Update::Fact(slice));
    scheduler.apply(Update::Fact(Fact::DeviceClass(ObjectKey::new("", "c"), Some(class))));
    scheduler.apply(claim(json!({})));
    let user = pod(json!({"metadata": {"name": "q", "uid": "q"},
        "spec": {"resourceClaims": [{"name": "x", "resourceClaimName": "x"}]}}));
    scheduler.pods.apply(user.clone());
    scheduler.apply(Update::Pod(info(&user)));
    let attempting = scheduler.queue.pop(Instant::now()).expect("the pod waits");
    scheduler.attempt(&attempting);
    let open = scheduler.cluster.devices.claim(&ObjectKey::new("ns", "x")).cloned().unwrap();
    assert!(scheduler.cluster.devices.is_in_flight(&open));
    scheduler.apply(Update::PodGone(info(&user)));
    assert!(scheduler.cluster.devices.is_in_flight(&open), "the write may still arrive");
    scheduler.apply(Update::Binding(info(&user), Outcome::Failed(String::new())));
    assert!(!scheduler.cluster.devices.is_in_flight(&open));
}

#[tokio::test(start_paused = true)]
async fn claims_that_were_written_count_before_they_are_seen_and_older_ones_do_not() {
    let mut scheduler = with_binding_under_way(&pod(json!({})));
    let written = |version: &str| {
        let update = claim(json!({"metadata": {"resourceVersion": version}}));
        let Update::Fact(Fact::DeviceClaim(_, Some(claim))) = update else { panic!("it is a claim") };
        Update::Written(claim)
    };
    let known = |scheduler: &Scheduler| {
        let claim = scheduler.cluster.devices.claim(&ObjectKey::new("ns", "x"))?;
        claim.metadata.resource_version.clone()
    };
    scheduler.apply(written("6"));
    assert_eq!(known(&scheduler), None, "it may be gone by now");
    scheduler.apply(claim(json!({})));
    scheduler.apply(written("6"));
    assert_eq!(known(&scheduler).as_deref(), Some("6"));
    scheduler.apply(claim(json!({})));
    assert_eq!(known(&scheduler).as_deref(), Some("6"));
    scheduler.apply(claim(json!({"metadata": {"uid": "another", "resourceVersion": "5"}})));
    assert_eq!(known(&scheduler).as_deref(), Some("5"));
}

/// Returns the value of a metric of the scheduler with these labels; of a histogram, the number of its observations.
pub(super) fn metric(scheduler: &Scheduler, name: &str, labels: &[&str]) -> Option<f64> {
    use controllers_runtime::metrics::Value;
    let series = scheduler.measured.metrics.series();
    let of_name = series.into_iter().find(|series| series.measure.name == name)?;
    let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
    of_name.values.get(&labels).map(|value| match value {
        Value::Number(number) => *number,
        Value::Histogram { counts, .. } => counts.iter().sum::<u64>() as f64,
    })
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_with_what_they_have_run() {
    let first = pod(json!({}));
    let mut scheduler = with_binding_under_way(&first);
    let second = pod(json!({"metadata": {"name": "q", "uid": "v"}, "spec": {"nodeSelector": {"a": "b"}}}));
    scheduler.pods.apply(second.clone());
    scheduler.apply(Update::Pod(info(&second)));
    let attempting = scheduler.queue.pop(Instant::now()).expect("the pod waits");
    scheduler.attempt(&attempting);
    scheduler.show_counts(Instant::now());
    let profile = "default-scheduler";
    for (name, labels, expected) in [
        ("scheduler_schedule_attempts_total", &["unschedulable", profile][..], 1.0),
        ("scheduler_scheduling_algorithm_duration_seconds", &[], 2.0),
        ("scheduler_framework_extension_point_duration_seconds", &["PreFilter", "Success", profile], 2.0),
        ("scheduler_framework_extension_point_duration_seconds", &["Filter", "Success", profile], 2.0),
        ("scheduler_framework_extension_point_duration_seconds", &["Reserve", "Success", profile], 1.0),
        (
            "scheduler_framework_extension_point_duration_seconds",
            &["PostFilter", "Unschedulable", profile],
            1.0,
        ),
        ("scheduler_framework_extension_point_duration_seconds", &["PreEnqueue", "Success", profile], 2.0),
        ("scheduler_plugin_evaluation_total", &["NodeResourcesFit", "Filter", profile], 2.0),
        ("scheduler_plugin_evaluation_total", &["NodeAffinity", "Filter", profile], 1.0),
        ("scheduler_preemption_attempts_total", &[], 1.0),
        ("scheduler_pending_pods", &["unschedulable"], 1.0),
        ("scheduler_queue_incoming_pods_total", &["active", "UnschedulablePodAdd"], 2.0),
        ("scheduler_unschedulable_pods", &["NodeAffinity", profile], 1.0),
        ("scheduler_event_handling_duration_seconds", &["NodeAdd"], 1.0),
        ("scheduler_inflight_events", &["PodPopped"], 1.0),
        ("scheduler_cache_size", &["assumed_pods"], 1.0),
        ("scheduler_cache_size", &["nodes"], 1.0),
        ("scheduler_goroutines", &["binding"], 1.0),
    ] {
        assert_eq!(metric(&scheduler, name, labels), Some(expected), "{name} {labels:?}");
    }
    // The plugin is asked for its hint.
    scheduler.apply(Update::Node(crate::testing::node("n", json!({"metadata": {"labels": {"a": "b"}}}))));
    tokio::time::advance(limits::COUNTS_SHOWN).await;
    scheduler.show_counts(Instant::now());
    let hints = "scheduler_queueing_hint_execution_duration_seconds";
    assert_eq!(metric(&scheduler, hints, &["NodeAffinity", "NodeUpdateNodeLabel", "Queue"]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn counts_are_shown_at_once_and_then_once_a_second_while_they_change() {
    let mut scheduler = with_binding_under_way(&pod(json!({})));
    let nodes = |scheduler: &Scheduler| metric(scheduler, "scheduler_cache_size", &["nodes"]);
    scheduler.show_counts(Instant::now());
    assert_eq!((nodes(&scheduler), scheduler.measured.due()), (Some(1.0), None));
    scheduler.apply(Update::Node(sized("m", json!({"cpu": "8"}))));
    scheduler.show_counts(Instant::now());
    assert_eq!(nodes(&scheduler), Some(1.0));
    assert_eq!(scheduler.measured.due(), Some(Instant::now() + limits::COUNTS_SHOWN));
    tokio::time::advance(limits::COUNTS_SHOWN).await;
    scheduler.show_counts(Instant::now());
    assert_eq!((nodes(&scheduler), scheduler.measured.due()), (Some(2.0), None));
}
