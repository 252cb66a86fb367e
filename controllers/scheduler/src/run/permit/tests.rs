use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use apiserver_client::{Informers, ObjectKey};
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1;
use serde_json::{Value, from_value, json};
use tokio_util::sync::CancellationToken;

use super::super::Config;
use super::super::follow::{Update, Updates};
use super::super::tests::{metric, silent_client, with};
use super::*;
use crate::cluster::Cluster;
use crate::framework::{Permission, Permit, Plugin};
use crate::plugins::{DefaultPreemption, NodeResourcesFit, profile};
use crate::queue::Pool;
use crate::testing::{merge, sized};

/// The answers of a plugin about the pods with these names.
type Script = Arc<Mutex<BTreeMap<String, Permission>>>;

/// Answers as its script says, and writes down which pods were bound.
struct Scripted {
    name: &'static str,
    script: Script,
    bound: Arc<Mutex<Vec<(String, String)>>>,
}

impl Plugin for Scripted {
    fn name(&self) -> &'static str {
        self.name
    }

    fn permit(&self, pod: &PodInfo, _: NodeId, _: &Cluster) -> Permission {
        self.script.lock().unwrap().get(pod.name()).cloned().unwrap_or_default()
    }

    fn post_bind(&self, pod: &PodInfo, node: &str) {
        self.bound.lock().unwrap().push((pod.name().to_owned(), node.to_owned()));
    }
}

/// A scheduler of one node of two cores, with two plugins that answer by their scripts.
struct World {
    scheduler: Scheduler,
    scripts: [Script; 2],
}

fn pod(name: &str, fields: Value) -> v1::Pod {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    });
    merge(&mut object, fields);
    from_value(object).unwrap()
}

fn info(pod: v1::Pod) -> Arc<PodInfo> {
    Arc::new(PodInfo::parse(pod))
}

fn wait(seconds: u64) -> Permission {
    let answer = Permit::Wait { reason: "not yet".to_owned(), timeout: Duration::from_secs(seconds) };
    Permission { answer, ..Permission::default() }
}

impl World {
    fn new() -> Self {
        let scripts = [Script::default(), Script::default()];
        let plugin = |(name, script): (&'static str, &Script)| -> (Box<dyn Plugin>, i64) {
            (Box::new(Scripted { name, script: Arc::clone(script), bound: Arc::default() }), 0)
        };
        let mut plugins: Vec<_> = ["A", "B"].into_iter().zip(&scripts).map(plugin).collect();
        plugins.push((Box::new(NodeResourcesFit::default()), 1));
        plugins.push((Box::new(DefaultPreemption::default()), 0));
        let config =
            Config { profiles: vec![profile("default-scheduler", plugins)].into(), ..Config::default() };
        let (ambient, stop) = (Ambient::system(), CancellationToken::new());
        let informers = Informers::new(silent_client(), ambient.clone(), stop);
        let mut scheduler = with(config, &informers, ambient, Updates::new());
        scheduler.apply(Update::Node(sized("n", json!({"cpu": "2"}))));
        Self { scheduler, scripts }
    }

    /// Has a plugin answer so about a pod.
    fn script(&self, plugin: usize, pod: &str, permission: Permission) {
        self.scripts[plugin].lock().unwrap().insert(pod.to_owned(), permission);
    }

    /// Creates a pod.
    fn add(&mut self, name: &str, fields: Value) {
        let pod = pod(name, fields);
        self.scheduler.pods.apply(pod.clone());
        self.scheduler.apply(Update::Pod(info(pod)));
    }

    /// Attempts the next pod, which is this one.
    fn attempt(&mut self, name: &str) {
        let attempting = self.scheduler.queue.pop(Instant::now()).expect("a pod waits");
        assert_eq!(attempting.pod.name(), name);
        self.scheduler.attempt(&attempting);
    }

    /// Creates and attempts a pod.
    fn try_pod(&mut self, name: &str) {
        self.add(name, json!({}));
        self.attempt(name);
    }

    fn waits(&self, name: &str) -> bool {
        self.scheduler.waiting.contains(&name.into())
    }

    fn pool(&self, name: &str) -> Option<Pool> {
        self.scheduler.queue.pool_of(&name.into())
    }

    /// Returns the number of pods that are counted on the node.
    fn placed(&self) -> usize {
        self.scheduler.cluster.named("n").map_or(0, |node| node.pods.len())
    }

    /// Returns the number of pods whose binding is being written.
    fn bindings(&mut self) -> f64 {
        self.scheduler.counts_changed(Instant::now());
        metric(&self.scheduler, "scheduler_goroutines", &["binding"]).unwrap_or_default()
    }

    fn waited(&self, result: &str) -> Option<f64> {
        metric(&self.scheduler, "scheduler_permit_wait_duration_seconds", &[result])
    }
}

#[tokio::test(start_paused = true)]
async fn pod_that_plugins_permit_is_bound_at_once() {
    let mut world = World::new();
    world.try_pod("p");
    assert_eq!((world.waits("p"), world.placed(), world.bindings()), (false, 1, 1.0));
    let point = "scheduler_framework_extension_point_duration_seconds";
    let labels = ["Permit", "Success", "default-scheduler"];
    assert_eq!(metric(&world.scheduler, point, &labels), Some(1.0));
    assert_eq!(world.waited("Success"), None);
}

#[tokio::test(start_paused = true)]
async fn waiting_pod_keeps_its_place_while_others_are_decided_and_is_bound_when_all_allow_it() {
    let mut world = World::new();
    world.script(0, "p", wait(60));
    world.script(1, "p", wait(60));
    world.try_pod("p");
    assert_eq!((world.waits("p"), world.placed(), world.bindings()), (true, 1, 0.0));
    let allows = Permission { allows: vec!["p".into()], ..Permission::default() };
    world.script(0, "q", allows.clone());
    world.script(1, "r", allows);
    world.try_pod("q");
    assert_eq!((world.waits("p"), world.bindings()), (true, 1.0), "one plugin has not allowed it");
    // The node is full: the last one is placed on another.
    world.scheduler.apply(Update::Node(sized("m", json!({"cpu": "1"}))));
    world.try_pod("r");
    assert_eq!((world.waits("p"), world.placed(), world.bindings()), (false, 2, 3.0));
    assert_eq!(world.waited("Success"), Some(1.0));
    let point = "scheduler_framework_extension_point_duration_seconds";
    assert_eq!(metric(&world.scheduler, point, &["Permit", "Wait", "default-scheduler"]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn refused_pod_loses_its_place() {
    for (refusal, pool) in [
        (Refusal::unschedulable("no"), Pool::Unschedulable),
        (Refusal::new(Code::Error, "no"), Pool::Backoff),
    ] {
        let mut world = World::new();
        world.script(0, "p", wait(60));
        world.script(1, "p", Permission::refuse(refusal));
        world.try_pod("p");
        assert_eq!((world.waits("p"), world.placed(), world.bindings()), (false, 0, 0.0));
        assert_eq!(world.pool("p"), Some(pool));
    }
}

#[tokio::test(start_paused = true)]
async fn pod_that_waits_for_too_long_loses_its_place_and_others_may_have_it() {
    let mut world = World::new();
    world.script(0, "p", wait(60));
    world.script(1, "p", wait(20));
    world.try_pod("p");
    world.try_pod("other");
    world.add("parked", json!({}));
    world.attempt("parked");
    assert_eq!(world.pool("parked"), Some(Pool::Unschedulable));
    assert_eq!(world.scheduler.waiting.deadline(), Some(Instant::now() + Duration::from_secs(20)));
    tokio::time::advance(Duration::from_secs(19)).await;
    world.scheduler.expire(Instant::now());
    assert!(world.waits("p"));
    tokio::time::advance(Duration::from_secs(1)).await;
    world.scheduler.expire(Instant::now());
    assert_eq!((world.waits("p"), world.placed()), (false, 1));
    assert_eq!(world.pool("p"), Some(Pool::Unschedulable), "it is not woken by its own removal");
    assert_eq!(world.pool("parked"), Some(Pool::Active));
    assert_eq!(world.waited("Unschedulable"), Some(1.0));
    assert_eq!(world.scheduler.waiting.deadline(), None);
}

#[tokio::test(start_paused = true)]
async fn plugin_rejects_waiting_pods_and_has_others_tried() {
    let mut world = World::new();
    world.script(0, "p", wait(60));
    world.try_pod("p");
    world.add(
        "parked",
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}}),
    );
    world.attempt("parked");
    let decided = Permission {
        rejects: vec![("p".into(), "the group has failed".to_owned()), ("unknown".into(), String::new())],
        activates: vec!["parked".into()],
        ..Permission::refuse(Refusal::unschedulable("no"))
    };
    world.script(1, "q", decided);
    world.try_pod("q");
    assert_eq!((world.waits("p"), world.placed(), world.bindings()), (false, 0, 0.0));
    assert_eq!(world.pool("p"), Some(Pool::Unschedulable));
    assert_eq!(world.pool("parked"), Some(Pool::Active));
}

#[tokio::test(start_paused = true)]
async fn waiting_pod_that_is_deleted_leaves_its_node_and_is_not_tried_again() {
    let mut world = World::new();
    world.script(0, "p", wait(60));
    world.try_pod("p");
    let deleted =
        pod("p", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "2"}}));
    world.scheduler.pods.apply(deleted.clone());
    world.scheduler.apply(Update::Pod(info(deleted)));
    assert_eq!((world.waits("p"), world.placed(), world.pool("p")), (false, 0, None));
    world.script(0, "q", wait(60));
    world.try_pod("q");
    world.scheduler.pods.delete(&ObjectKey::new("ns", "q"));
    world.scheduler.apply(Update::PodGone(info(pod("q", json!({})))));
    assert_eq!((world.waits("q"), world.placed(), world.pool("q")), (false, 0, None));
    assert_eq!((world.waited("Unschedulable"), world.bindings()), (Some(2.0), 0.0));
    assert!(world.scheduler.binding.is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_pod_that_somebody_else_binds_waits_no_more() {
    let mut world = World::new();
    world.script(0, "p", wait(60));
    world.try_pod("p");
    let bound = pod("p", json!({"metadata": {"resourceVersion": "2"}, "spec": {"nodeName": "m"}}));
    world.scheduler.apply(Update::Pod(info(bound)));
    assert_eq!((world.waits("p"), world.placed(), world.bindings()), (false, 0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn waiting_victim_is_preempted_without_being_deleted() {
    let mut world = World::new();
    world.script(0, "p", wait(60));
    world.try_pod("p");
    world.add("q", json!({"spec": {"priority": 5}}));
    world.attempt("q");
    world.add("urgent", json!({"spec": {"priority": 10}}));
    world.attempt("urgent");
    assert!(!world.waits("p") && world.placed() == 1, "it is in the way, and is not bound");
    assert_eq!(world.pool("p"), Some(Pool::Backoff), "as after an error");
    assert_eq!(world.waited("Error"), Some(1.0));
    world.scheduler.apply(Update::Preempted { uid: "urgent".into(), all_deleted: true });
    world.attempt("urgent");
    assert_eq!(world.placed(), 2);
}

#[tokio::test(start_paused = true)]
async fn plugins_hear_of_bindings_only() {
    let bound = Arc::default();
    let plugin = Scripted { name: "A", script: Script::default(), bound: Arc::clone(&bound) };
    let profiles: Arc<[crate::framework::Profile]> =
        vec![profile("default-scheduler", vec![(Box::new(plugin), 0)])].into();
    let api = tests_fake::api::FakeApi::new();
    let stop = CancellationToken::new();
    let config = Config { profiles, ..Config::default() };
    let informers = Informers::new(api.client(), tests_fake::ambient(), stop);
    let mut scheduler = with(config, &informers, tests_fake::ambient(), Updates::new());
    scheduler.apply(Update::Node(sized("n", json!({"cpu": "8"}))));
    let path = "/api/v1/namespaces/ns/pods";
    super::super::bad_days::send(&api, "POST", path, &json!({"metadata": {"name": "p"}, "spec": {}})).await;
    let there = from_value::<v1::Pod>(api.all("pods").pop().unwrap()).unwrap();
    for pod in [there, pod("missing", json!({}))] {
        scheduler.pods.apply(pod.clone());
        scheduler.apply(Update::Pod(info(pod)));
        let attempting = scheduler.queue.pop(Instant::now()).expect("the pod waits");
        scheduler.attempt(&attempting);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(*bound.lock().unwrap(), [("p".to_owned(), "n".to_owned())]);
    let point = "scheduler_framework_extension_point_duration_seconds";
    assert_eq!(metric(&scheduler, point, &["PostBind", "Success", "default-scheduler"]), Some(1.0));
}
