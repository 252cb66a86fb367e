use std::collections::BTreeMap;

use apiserver_client::Informers;
use k8s_openapi::api::core::v1;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, from_value, json};
use tokio_util::sync::CancellationToken;

use super::bind::Outcome;
use super::follow::Update;
use super::*;
use crate::queue::Pool;
use crate::testing::sized;

/// Returns a client whose requests are never answered, so that bindings stay under way.
fn silent_client() -> Client {
    let service = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, std::convert::Infallible>>()
    });
    Client::new(service, "default")
}

/// Returns a scheduler of one node with eight cores, which has tried to place this pod.
fn with_binding_under_way(pod: &v1::Pod) -> Scheduler {
    let (client, ambient, stop) = (silent_client(), Ambient::system(), CancellationToken::new());
    let informers = Informers::new(client.clone(), ambient.clone(), stop);
    let (config, updates) = (Config::default(), Updates::new());
    let mut scheduler = Scheduler {
        queue: Queue::new(config.queue, Arc::clone(&config.profiles)),
        binder: Binder::new(client.clone(), updates.clone(), &informers, ambient.clone()),
        profiles: config.profiles,
        cluster: Cluster::default(),
        views: Views::default(),
        start: 0,
        binding: BTreeMap::new(),
        victims: BTreeMap::new(),
        namespaces: BTreeMap::new(),
        pods: informers.cache(),
        client,
        ambient,
        recorders: BTreeMap::new(),
        updates,
    };
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
    scheduler.apply(Update::Binding(info(&pod), Outcome::Failed));
    assert_eq!(scheduler.cluster.named("n").map(|node| node.pods.len()), Some(0));
    assert_eq!(scheduler.queue.pool_of(&info(&pod).uid), Some(Pool::Backoff));
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
