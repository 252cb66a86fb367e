//! Attempts with extenders over HTTP on loopback, from the queue to the binding.
//!
//! Real sockets need the real clock; nothing here depends on how long anything takes.

mod groups;
mod measured;
mod preempt;

use std::time::Duration;

use apiserver_client::Informers;
use apiserver_meta::ambient::Ambient;
use http::Method;
use k8s_openapi::api::core::v1;
use serde_json::{Value, from_value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cluster::Cluster;
use crate::cluster::groups::Groups;
use crate::config::{Configuration, Gates};
use crate::extenders::Extenders;
use crate::extenders::tests::{Api, Reply, Server};
use crate::framework::{Meter, Views};
use crate::metrics::Metrics;
use crate::queue::{Pool, Queue};
use crate::run::bind::Binder;
use crate::run::extend::Desk;
use crate::run::follow::Updates;
use crate::run::measure::Measured;
use crate::testing::{merge, sized};

/// A scheduler whose API is in memory.
struct World {
    scheduler: Scheduler,
    api: Api,
}

impl World {
    /// Returns a scheduler with these extenders and a node of eight cores for each name.
    async fn new(extenders: Value, nodes: &[&str]) -> Self {
        Self::with_gates(extenders, nodes, Gates::default()).await
    }

    async fn with_gates(extenders: Value, nodes: &[&str], gates: Gates) -> Self {
        let document = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "extenders": extenders});
        let configuration = Configuration::with_gates(document, gates).unwrap();
        let extenders = Extenders::connect(configuration.extenders).await.unwrap();
        let (api, ambient, stop) = (Api::default(), Ambient::system(), CancellationToken::new());
        let (client, updates) = (api.client(), Updates::new());
        let informers = Informers::new(client.clone(), ambient.clone(), stop);
        let profiles: Arc<[Profile]> = configuration.profiles.into();
        let metrics = Metrics::default();
        metrics.begin(&profiles, informers.cache());
        let mut scheduler = Scheduler {
            queue: Queue::new(configuration.queue, Arc::clone(&profiles)),
            binder: Binder::new(
                client.clone(),
                updates.clone(),
                &informers,
                Ambient::system(),
                Arc::clone(&profiles),
                metrics.clone(),
            ),
            meter: Meter::new(Instant::now),
            measured: Measured::new(metrics),
            desk: Desk::for_tests(extenders, api.objects()),
            profiles,
            cluster: Cluster::default(),
            turn: None,
            views: Views::default(),
            start: 0,
            binding: Default::default(),
            waiting: Default::default(),
            victims: Default::default(),
            namespaces: Default::default(),
            pods: informers.cache(),
            client,
            ambient,
            recorders: Default::default(),
            updates,
        };
        scheduler.cluster.groups = Groups::new(gates.generic_workload);
        for name in nodes {
            scheduler.apply(Update::Node(sized(name, json!({"cpu": "8"}))));
        }
        Self { scheduler, api }
    }

    /// Creates a pod in the cache and tells the loop.
    fn create(&mut self, name: &str, fields: Value) {
        let pod = pod(name, fields);
        self.scheduler.pods.apply(pod.clone());
        self.scheduler.apply(Update::Pod(Arc::new(PodInfo::parse(pod))));
    }

    fn delete(&mut self, name: &str) {
        let gone = Arc::new(PodInfo::parse(pod(name, json!({}))));
        self.scheduler.pods.delete(&gone.key());
        self.scheduler.apply(Update::PodGone(gone));
    }

    /// Runs the loop until a condition holds.
    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done(self) {
            assert!(Instant::now() < end, "{what}: {:?}", self.api);
            let updates = self.scheduler.updates.clone();
            while let Some(update) = updates.try_take() {
                self.scheduler.apply(update);
            }
            let served = self.scheduler.serve();
            let popped = self.scheduler.queue.pop(Instant::now());
            if let Some(attempting) = &popped {
                self.scheduler.attempt(attempting);
            }
            if !served && popped.is_none() {
                let short = Duration::from_millis(2);
                if let Ok(update) = timeout(short, updates.take()).await {
                    self.scheduler.apply(update);
                }
            }
        }
    }

    /// Returns the nodes that pods with this name were bound to by the scheduler.
    fn bound(&self, name: &str) -> Vec<String> {
        let bindings = self.api.sent(&Method::POST, &format!("/{name}/binding"));
        bindings.iter().map(|binding| binding["target"]["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn until_bound(&mut self, name: &str) -> String {
        self.until(name, |world| !world.bound(name).is_empty()).await;
        self.bound(name).remove(0)
    }

    /// Returns reason and message of the condition that was written last for a pod.
    fn told(&self, name: &str) -> Option<(String, String)> {
        let patches = self.api.sent(&Method::PATCH, &format!("/{name}/status"));
        let conditions = patches.iter().flat_map(|patch| patch["status"]["conditions"].as_array().cloned());
        let scheduled = conditions.flatten().rfind(|condition| condition["type"] == "PodScheduled")?;
        let text = |field: &str| scheduled[field].as_str().unwrap().to_owned();
        Some((text("reason"), text("message")))
    }

    async fn until_told(&mut self, name: &str) -> (String, String) {
        self.until(name, |world| world.told(name).is_some()).await;
        self.told(name).unwrap()
    }

    fn pool(&self, name: &str) -> Option<Pool> {
        self.scheduler.queue.pool_of(&name.into())
    }
}

fn pod(name: &str, fields: Value) -> v1::Pod {
    let mut object = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
    merge(&mut object, fields);
    from_value(object).unwrap()
}

/// Returns the fields of a pod that requests a resource, and so many cores.
fn using(resource: &str, cores: &str) -> Value {
    let requests = json!({"cpu": cores, resource: "1"});
    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

/// Returns an extender that lets no nodes pass but these.
async fn passing(nodes: &'static [&'static str]) -> Server {
    Server::start(move |_, request| {
        let asked: Vec<String> = from_value(request["NodeNames"].clone()).unwrap();
        let (left, failed): (Vec<_>, Vec<_>) =
            asked.into_iter().partition(|name| nodes.contains(&name.as_str()));
        let failed: std::collections::BTreeMap<_, _> =
            failed.into_iter().map(|name| (name, "no room in the rack")).collect();
        Reply::Json(json!({"NodeNames": left, "FailedNodes": failed}))
    })
    .await
}

fn filter(server: &Server) -> Value {
    json!({"urlPrefix": server.url, "filterVerb": "filter", "nodeCacheCapable": true})
}

/// Returns settings of a filter for pods that use `example.com/gpu`, which nodes do not have.
fn of_gpus(server: &Server) -> Value {
    let mut settings = filter(server);
    let managed = json!([{"name": "example.com/gpu", "ignoredByScheduler": true}]);
    merge(&mut settings, json!({"managedResources": managed}));
    settings
}

#[tokio::test]
async fn pod_is_bound_to_a_node_that_the_extender_lets_pass() {
    let server = passing(&["b"]).await;
    let mut world = World::new(json!([filter(&server)]), &["a", "b", "c"]).await;
    world.create("p", json!({}));
    assert_eq!(world.until_bound("p").await, "b");
    let request = &server.requests("filter")[0];
    assert_eq!(request["NodeNames"], json!(["a", "b", "c"]));
    let metadata = &request["Pod"]["metadata"];
    assert_eq!(metadata["annotations"]["whole"], "yes", "the pod is sent whole, not as it is cached");
    assert_eq!(metadata["managedFields"], Value::Null);
    world.until("the lane is free", |world| world.scheduler.desk.counts() == (0, 0)).await;
}

#[tokio::test]
async fn resource_that_the_scheduler_ignores_is_the_extenders_alone() {
    let server = passing(&["b"]).await;
    let mut world = World::new(json!([of_gpus(&server)]), &["a", "b"]).await;
    world.create("p", using("example.com/gpu", "1"));
    assert_eq!(world.until_bound("p").await, "b");
    world.create("q", using("example.com/other", "1"));
    let (_, text) = world.until_told("q").await;
    assert!(text.starts_with("0/2 nodes are available: 2 Insufficient example.com/other."), "{text}");
}

#[tokio::test]
async fn scores_of_extenders_are_added_to_those_of_plugins() {
    // Plugins prefer the empty node, by less than the extender the other one.
    let server = Server::start(|_, _| Reply::Json(json!([{"Host": "a", "Score": 10}]))).await;
    let scoring =
        json!({"urlPrefix": server.url, "prioritizeVerb": "score", "nodeCacheCapable": true, "weight": 5});
    let mut world = World::new(json!([scoring]), &["a", "b"]).await;
    world.create("old", json!({"spec": {"nodeName": "a"}}));
    world.create("p", json!({}));
    assert_eq!(world.until_bound("p").await, "a");
    let none = Server::start(|_, _| Reply::Raw(500, "")).await;
    let scoring =
        json!({"urlPrefix": none.url, "prioritizeVerb": "score", "nodeCacheCapable": true, "weight": 5});
    let mut world = World::new(json!([scoring]), &["a", "b"]).await;
    world.create("old", json!({"spec": {"nodeName": "a"}}));
    world.create("p", json!({}));
    assert_eq!(world.until_bound("p").await, "b", "an extender that fails gives no scores");
}

#[tokio::test]
async fn pod_that_the_extender_refuses_everywhere_waits_for_any_event() {
    let server = passing(&[]).await;
    let mut world = World::new(json!([filter(&server)]), &["a", "b"]).await;
    world.scheduler.apply(Update::Node(crate::testing::node("c", json!({"spec": {"unschedulable": true}}))));
    world.create("p", json!({}));
    let (reason, text) = world.until_told("p").await;
    assert_eq!(reason, "Unschedulable");
    let expected = "0/3 nodes are available: 1 node(s) were unschedulable, 2 no room in the rack. no new claims to \
         deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption \
         victims found for incoming pod.";
    assert_eq!(text, expected);
    assert_eq!(world.pool("p"), Some(Pool::Unschedulable));
    // No plugin waits for this.
    let labeled = crate::testing::node("a", json!({"metadata": {"labels": {"some": "label"}}}));
    world.scheduler.apply(Update::Node(labeled));
    assert_ne!(world.pool("p"), Some(Pool::Unschedulable));
}

#[tokio::test]
async fn extender_that_fails_ends_the_attempt_by_an_error_unless_it_may_be_ignored() {
    let server = Server::start(|_, _| Reply::Json(json!({"Error": "the rack is on fire"}))).await;
    let mut world = World::new(json!([filter(&server)]), &["a"]).await;
    world.create("p", json!({}));
    let expected = ("SchedulerError".to_owned(), "the rack is on fire".to_owned());
    assert_eq!(world.until_told("p").await, expected);
    assert_eq!(world.pool("p"), Some(Pool::Backoff));
    let mut ignorable = filter(&server);
    merge(&mut ignorable, json!({"ignorable": true}));
    let mut world = World::new(json!([ignorable]), &["a"]).await;
    world.create("p", json!({}));
    assert_eq!(world.until_bound("p").await, "a");
}

#[tokio::test]
async fn extender_that_hangs_holds_up_no_other_pods() {
    let (hanging, quick) = (Server::start(|_, _| Reply::Hang).await, passing(&["b"]).await);
    let mut of_others = filter(&quick);
    merge(
        &mut of_others,
        json!({"managedResources": [{"name": "example.com/fpga", "ignoredByScheduler": true}]}),
    );
    let mut slow = of_gpus(&hanging);
    merge(&mut slow, json!({"httpTimeout": "1h"}));
    let mut world = World::new(json!([slow, of_others]), &["a", "b"]).await;
    let all = limits::CONSULTATIONS + 4;
    for index in 0..all {
        world.create(&format!("gpu{index}"), using("example.com/gpu", "100m"));
    }
    let is_full = |world: &World| world.scheduler.desk.counts() == (limits::CONSULTATIONS, 4);
    world.until("no more attempts wait for the extender than may", is_full).await;
    world.create("plain", json!({}));
    world.until_bound("plain").await;
    world.create("fpga", using("example.com/fpga", "1"));
    assert_eq!(world.until_bound("fpga").await, "b");
    let waiting = |index| world.pool(&format!("gpu{index}")).is_none();
    assert!((0..all).all(waiting), "for the queue they are all being attempted");
    assert_eq!(world.scheduler.desk.counts(), (limits::CONSULTATIONS, 4));
}

#[tokio::test]
async fn attempts_that_wait_get_their_turn_by_priority() {
    let server = Server::start(|_, _| Reply::Hang).await;
    let mut desk = World::new(json!([filter(&server)]), &[]).await.scheduler.desk;
    let info = |name: &str, priority: i32| Attempting {
        pod: Arc::new(PodInfo::parse(pod(name, json!({"spec": {"priority": priority}})))),
        attempts: 1,
        first_attempt: Instant::now(),
        was_flushed: false,
    };
    let mut running = Vec::new();
    for index in 0..limits::CONSULTATIONS {
        let Entered::Now(inquiry) = desk.enter(&info(&format!("p{index}"), 0)) else {
            panic!("there is room")
        };
        running.push(inquiry);
    }
    for (name, priority) in [("low", 1), ("high", 9), ("middle", 5), ("high-too", 9)] {
        assert!(matches!(desk.enter(&info(name, priority)), Entered::Later));
    }
    assert!(desk.next().is_none(), "there is no room");
    for expected in ["high", "high-too", "middle", "low"] {
        desk.leave(&running.pop().unwrap());
        assert_eq!(desk.next().unwrap().pod.name(), expected);
        assert!(desk.next().is_none());
    }
}

#[tokio::test]
async fn answer_about_a_node_without_room_begins_the_attempt_anew() {
    let server = passing(&["a", "b"]).await;
    let mut world = World::new(json!([of_gpus(&server)]), &["a"]).await;
    world.create("p", using("example.com/gpu", "6"));
    let attempting = world.scheduler.queue.pop(Instant::now()).unwrap();
    world.scheduler.attempt(&attempting);
    world.create(
        "thief",
        json!({"spec": {"nodeName": "a",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "6"}}}]}}),
    );
    world.scheduler.apply(Update::Node(sized("b", json!({"cpu": "8"}))));
    assert_eq!(world.until_bound("p").await, "b");
    let asked: Vec<Value> = server.requests("filter").iter().map(|one| one["NodeNames"].clone()).collect();
    assert_eq!(asked, [json!(["a"]), json!(["b"])]);
}

#[tokio::test]
async fn attempt_ends_if_its_pod_is_deleted_meanwhile() {
    let server = passing(&["a"]).await;
    let mut world = World::new(json!([filter(&server)]), &["a"]).await;
    world.create("p", json!({}));
    let attempting = world.scheduler.queue.pop(Instant::now()).unwrap();
    world.scheduler.attempt(&attempting);
    world.delete("p");
    world.until("the attempt has ended", |world| world.scheduler.desk.counts() == (0, 0)).await;
    assert!(world.bound("p").is_empty() && world.scheduler.queue.pop(Instant::now()).is_none());
    assert!(world.scheduler.cluster.named("a").unwrap().pods.is_empty());
}

#[tokio::test]
async fn event_during_the_attempt_is_not_missed() {
    let server = passing(&[]).await;
    let mut world = World::new(json!([filter(&server)]), &["a"]).await;
    world.create("p", json!({}));
    let attempting = world.scheduler.queue.pop(Instant::now()).unwrap();
    world.scheduler.attempt(&attempting);
    let labeled = crate::testing::node("a", json!({"metadata": {"labels": {"some": "label"}}}));
    world.scheduler.apply(Update::Node(labeled));
    let answered = |world: &World| world.scheduler.desk.counts() == (0, 0);
    let update = world.scheduler.updates.take().await;
    world.scheduler.apply(update);
    assert!(answered(&world));
    assert_eq!(world.pool("p"), Some(Pool::Backoff), "the event may have helped");
}

#[tokio::test]
async fn nominated_node_that_the_extender_refuses_is_not_the_only_one() {
    let server = passing(&["b"]).await;
    let mut world = World::new(json!([filter(&server)]), &["a", "b"]).await;
    world.create("p", json!({"status": {"nominatedNodeName": "a"}}));
    assert_eq!(world.until_bound("p").await, "b");
    let asked: Vec<Value> = server.requests("filter").iter().map(|one| one["NodeNames"].clone()).collect();
    assert_eq!(asked, [json!(["a"]), json!(["a", "b"])]);
}

/// Returns settings of an extender that binds pods with `example.com/gpu`.
fn binder(server: &Server, ignorable: bool) -> Value {
    let managed = json!([{"name": "example.com/gpu", "ignoredByScheduler": true}]);
    json!({"urlPrefix": server.url, "bindVerb": "bind", "ignorable": ignorable, "managedResources": managed})
}

#[tokio::test]
async fn extender_binds_the_pods_that_interest_it() {
    let server = Server::start(|_, _| Reply::Json(json!({}))).await;
    let mut world = World::new(json!([binder(&server, false)]), &["a"]).await;
    world.create("gpu", using("example.com/gpu", "1"));
    world.create("plain", json!({}));
    assert_eq!(world.until_bound("plain").await, "a");
    world.until("the extender binds", |_| !server.requests("bind").is_empty()).await;
    let expected = json!({"PodName": "gpu", "PodNamespace": "default", "PodUID": "gpu", "Node": "a"});
    assert_eq!(server.requests("bind"), [expected]);
    let placed = |world: &World| world.scheduler.cluster.named("a").unwrap().pods.len() == 2;
    world.until("both count on the node", placed).await;
    assert!(world.bound("gpu").is_empty());
}

#[tokio::test]
async fn pod_that_the_extender_does_not_bind_leaves_its_node_unless_it_may_be_ignored() {
    let server = Server::start(|_, _| Reply::Json(json!({"Error": "out of cables"}))).await;
    let mut world = World::new(json!([binder(&server, false)]), &["a"]).await;
    world.create("gpu", using("example.com/gpu", "1"));
    let expected = ("SchedulerError".to_owned(), "out of cables".to_owned());
    assert_eq!(world.until_told("gpu").await, expected);
    assert_eq!(world.pool("gpu"), Some(Pool::Backoff));
    assert!(world.scheduler.cluster.named("a").unwrap().pods.is_empty() && world.bound("gpu").is_empty());
    let mut world = World::new(json!([binder(&server, true)]), &["a"]).await;
    world.create("gpu", using("example.com/gpu", "1"));
    assert_eq!(world.until_bound("gpu").await, "a", "the scheduler binds it itself");
}

#[tokio::test]
async fn process_that_has_lost_its_lease_has_nothing_bound() {
    let server = Server::start(|_, _| Reply::Json(json!({}))).await;
    let mut world = World::new(json!([binder(&server, false)]), &["a"]).await;
    world.scheduler.desk.fence_for_tests().close();
    world.create("gpu", using("example.com/gpu", "1"));
    world.until("it is not bound", |world| world.pool("gpu") == Some(Pool::Backoff)).await;
    sleep(Duration::ZERO).await;
    assert!(server.requests("bind").is_empty());
}
