//! The work that groups with many pods are, by what the loop does in each of its steps.

use apiserver_client::Informers;
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use serde_json::from_value;
use tokio_util::sync::CancellationToken;

use super::super::super::follow::{Fact, Update, Updates};
use super::super::super::tests::{metric, silent_client, with};
use super::*;
use crate::cluster::groups::Groups;
use crate::limits;
use crate::queue::Pool;
use crate::testing::sized;

/// A scheduler whose loop is run by hand, on a cluster of one large node.
pub(super) struct Loop {
    pub(super) scheduler: Scheduler,
}

/// Returns a pod that asks for a core, of a group if there is one.
pub(super) fn pod(name: &str, group: Option<&str>, fields: Value) -> v1::Pod {
    let group = group.map(|group| json!({"podGroupName": group}));
    let mut object = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
        "spec": {"schedulingGroup": group,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    });
    crate::testing::merge(&mut object, fields);
    from_value(object).unwrap()
}

impl Loop {
    pub(super) fn new() -> Self {
        let config =
            Config { profiles: vec![default_profile_with(ON)].into(), gates: ON, ..Config::default() };
        let (ambient, stop) = (Ambient::system(), CancellationToken::new());
        let informers = Informers::new(silent_client(), ambient.clone(), stop);
        let mut scheduler = with(config, &informers, ambient, Updates::new());
        scheduler.cluster.groups = Groups::new(true);
        scheduler.apply(Update::Node(sized("n", json!({"cpu": "1000", "pods": "1000"}))));
        Self { scheduler }
    }

    pub(super) fn add_group(&mut self, name: &str, needed: usize) {
        let group = json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "generation": 1},
            "spec": {"schedulingPolicy": {"gang": {"minCount": needed}}}});
        let group: Arc<PodGroup> = Arc::new(from_value(group).unwrap());
        self.scheduler.apply(Update::Fact(Fact::PodGroup(ObjectKey::new("ns", name), Some(group))));
    }

    pub(super) fn apply(&mut self, pod: v1::Pod) {
        self.scheduler.pods.apply(pod.clone());
        self.scheduler.apply(Update::Pod(Arc::new(PodInfo::parse(pod))));
    }

    fn add(&mut self, name: &str, group: Option<&str>) {
        self.apply(pod(name, group, json!({})));
    }

    /// Does what the loop does next, some times.
    fn steps(&mut self, number: usize) {
        for _ in 0..number {
            assert!(self.scheduler.step(Instant::now()), "there is something to do");
        }
    }

    /// Does what there is to do; returns the number of steps.
    pub(super) fn finish(&mut self) -> usize {
        (0..).take_while(|_| self.scheduler.step(Instant::now())).count()
    }

    /// Returns the node that a pod is counted on.
    pub(super) fn node_of(&self, name: &str) -> Option<String> {
        let id = self.scheduler.cluster.place_of(&PodInfo::parse(pod(name, None, json!({}))))?;
        Some(self.scheduler.cluster.node(id).name.to_string())
    }

    pub(super) fn is_bound(&self, name: &str) -> bool {
        self.scheduler.binding.contains_key(&name.into())
    }

    pub(super) fn delete(&mut self, name: &str) {
        self.scheduler.pods.delete(&ObjectKey::new("ns", name));
        self.scheduler.apply(Update::PodGone(Arc::new(PodInfo::parse(pod(name, Some("g"), json!({}))))));
    }

    /// Returns how many attempts of groups have ended so.
    fn ended(&self, result: &str) -> Option<f64> {
        let name = "scheduler_podgroup_schedule_attempts_total";
        metric(&self.scheduler, name, &[result, "default-scheduler"])
    }

    /// Returns how many pods have come into a pool.
    fn incoming(&self, pool: Pool) -> u64 {
        let incoming = self.scheduler.queue.incoming().iter();
        incoming.filter(|(into, ..)| *into == pool).map(|(_, _, number)| number).sum()
    }

    /// Returns how many hints `GangScheduling` was asked for.
    async fn hints(&mut self) -> f64 {
        tokio::time::advance(limits::COUNTS_SHOWN).await;
        self.scheduler.counts_changed(Instant::now());
        self.scheduler.show_counts(Instant::now());
        let name = "scheduler_queueing_hint_execution_duration_seconds";
        let events = ["AssignedPodAdd", "UnschedulablePodAdd", "scheduling.k8s.io/PodGroupAdd"];
        let hints = events.into_iter().flat_map(|event| {
            ["Queue", "QueueSkip"].map(|hint| metric(&self.scheduler, name, &["GangScheduling", event, hint]))
        });
        hints.flatten().sum()
    }
}

#[tokio::test(start_paused = true)]
async fn gang_is_looked_at_once_when_it_is_complete_and_not_for_each_of_its_pods_or_of_others() {
    const PODS: usize = 50;
    let mut one = Loop::new();
    one.add_group("g", PODS);
    for index in 0..PODS - 1 {
        one.add(&format!("g{index}"), Some("g"));
        one.add(&format!("h{index}"), Some("h"));
        one.apply(pod(&format!("bound{index}"), None, json!({"spec": {"nodeName": "n"}})));
    }
    let gated = 2 * (PODS as u64 - 1);
    assert_eq!(
        (one.incoming(Pool::Unschedulable), one.incoming(Pool::Active), one.hints().await),
        (gated, 0, 0.0)
    );
    one.add("last", Some("g"));
    assert_eq!((one.incoming(Pool::Unschedulable), one.incoming(Pool::Active)), (gated, PODS as u64));
    assert_eq!(one.hints().await, PODS as f64 - 1.0);
    // The other group comes late, and is complete at once.
    one.add_group("h", 1);
    assert_eq!(one.incoming(Pool::Active), 2 * PODS as u64 - 1);
    assert_eq!(one.hints().await, 2.0 * (PODS as f64 - 1.0));
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_being_deleted_can_be_the_last_that_a_gang_needs() {
    let mut one = Loop::new();
    one.add_group("g", 2);
    one.add("a", Some("g"));
    one.apply(pod("b", Some("g"), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    assert_eq!(one.incoming(Pool::Active), 1, "it counts, as in kube-scheduler");
}

/// Returns a loop with a gang of these pods, which are tried in this order.
fn with_gang(names: &[&str], needed: usize) -> Loop {
    let mut one = Loop::new();
    one.add_group("g", needed);
    for (index, name) in names.iter().enumerate() {
        one.apply(pod(name, Some("g"), json!({"spec": {"priority": 10_000 - index}})));
    }
    one
}

#[tokio::test(start_paused = true)]
async fn turn_takes_a_step_to_try_and_one_to_bind_each_pod() {
    const PODS: usize = 200;
    let names: Vec<String> = (0..PODS).map(|index| format!("p{index:03}")).collect();
    let mut one = with_gang(&names.iter().map(String::as_str).collect::<Vec<_>>(), PODS);
    // One to gather them, one to decide, and one to end.
    assert_eq!(one.finish(), 2 * PODS + 3);
    assert!(names.iter().all(|name| one.is_bound(name)));
    assert_eq!(one.incoming(Pool::Active), PODS as u64, "none was tried twice");
    assert_eq!(one.scheduler.waiting.len(), 0, "and none has waited for others");
    assert_eq!(one.ended("scheduled"), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn turn_goes_on_with_the_cluster_as_it_is_by_then() {
    let mut one = with_gang(&["a", "b"], 2);
    one.scheduler.apply(Update::Node(sized("n", json!({"cpu": "1"}))));
    one.steps(2);
    assert_eq!((one.node_of("a").as_deref(), one.node_of("b")), (Some("n"), None));
    one.scheduler.apply(Update::Node(sized("m", json!({"cpu": "1"}))));
    one.finish();
    assert_eq!(one.node_of("b").as_deref(), Some("m"));
    assert!(one.is_bound("a") && one.is_bound("b"));
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_gone_ending_or_bound_by_others_leave_the_turn() {
    for needed in [1, 9] {
        let mut one = with_gang(&["gone", "ending", "foreign", "late", "away", "stays"], 1);
        if needed > 1 {
            one.add_group("g", needed);
        }
        one.scheduler.apply(Update::Node(sized("m", json!({"cpu": "9"}))));
        one.steps(4);
        assert!(["gone", "ending", "foreign"].iter().all(|name| one.node_of(name).is_some()));
        one.delete("gone");
        let ending =
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "2"}});
        one.apply(pod("ending", Some("g"), ending.clone()));
        let bound = json!({"metadata": {"resourceVersion": "2"}, "spec": {"nodeName": "m"}});
        one.apply(pod("foreign", Some("g"), bound));
        // These were not tried yet.
        one.apply(pod("late", Some("g"), ending));
        one.delete("away");
        one.finish();
        assert_eq!(one.node_of("foreign").as_deref(), Some("m"));
        for name in ["gone", "ending", "foreign", "late", "away"] {
            assert!(!one.is_bound(name) && !one.scheduler.queue.knows(&name.into()), "{name}");
            assert!(name == "foreign" || one.node_of(name).is_none(), "{name}");
        }
        assert_eq!((one.is_bound("stays"), one.node_of("stays").is_some()), (needed == 1, needed == 1));
        assert!(one.scheduler.queue.knows(&"stays".into()));
    }
}

#[tokio::test(start_paused = true)]
async fn pod_that_leaves_the_turn_can_make_the_others_wait_for_another() {
    let mut one = with_gang(&["a", "b"], 2);
    one.steps(4);
    one.delete("a");
    one.finish();
    assert!(one.scheduler.waiting.contains(&"b".into()), "its gang is not complete any more");
    one.add("c", Some("g"));
    one.finish();
    assert_eq!(one.scheduler.waiting.len(), 0);
    assert!(one.is_bound("b") && one.is_bound("c"));
}

#[tokio::test(start_paused = true)]
async fn other_pods_and_answers_about_them_wait_for_the_end_of_a_turn() {
    let mut one = with_gang(&["a", "b"], 2);
    one.steps(2);
    one.apply(pod("urgent", None, json!({"spec": {"priority": 1000}})));
    one.scheduler.apply(Update::Consulted(7, Answer::Gone));
    one.steps(4);
    assert!(one.is_bound("a") && one.is_bound("b") && !one.is_bound("urgent"));
    assert_eq!(one.scheduler.turn.as_ref().map(|turn| turn.answers.len()), Some(1));
    one.steps(2);
    assert!(one.scheduler.turn.is_none() && one.is_bound("urgent"));
}

#[tokio::test(start_paused = true)]
async fn turn_without_a_pod_that_is_left_says_nothing() {
    let mut one = with_gang(&["a"], 1);
    one.steps(1);
    one.delete("a");
    one.finish();
    assert_eq!(one.ended("unschedulable"), None);
}
