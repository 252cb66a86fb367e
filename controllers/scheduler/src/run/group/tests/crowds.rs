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
use crate::limits;
use crate::queue::Pool;
use crate::testing::sized;

/// A scheduler whose loop is run by hand, on a cluster of one large node.
struct Loop {
    scheduler: Scheduler,
}

/// Returns a pod that asks for a core, of a group if there is one.
fn pod(name: &str, group: Option<&str>, fields: Value) -> v1::Pod {
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
    fn new() -> Self {
        let config =
            Config { profiles: vec![default_profile_with(ON)].into(), gates: ON, ..Config::default() };
        let config = Config { queue: QueueConfig { has_groups: true, ..QueueConfig::default() }, ..config };
        let (ambient, stop) = (Ambient::system(), CancellationToken::new());
        let informers = Informers::new(silent_client(), ambient.clone(), stop);
        let mut scheduler = with(config, &informers, ambient, Updates::new());
        scheduler.cluster.groups.are_scheduled = true;
        scheduler.apply(Update::Node(sized("n", json!({"cpu": "1000", "pods": "1000"}))));
        Self { scheduler }
    }

    fn add_group(&mut self, name: &str, needed: usize) {
        let group = json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "generation": 1},
            "spec": {"schedulingPolicy": {"gang": {"minCount": needed}}}});
        let group: Arc<PodGroup> = Arc::new(from_value(group).unwrap());
        self.scheduler.apply(Update::Fact(Fact::PodGroup(ObjectKey::new("ns", name), Some(group))));
    }

    fn apply(&mut self, pod: v1::Pod) {
        self.scheduler.pods.apply(pod.clone());
        self.scheduler.apply(Update::Pod(Arc::new(PodInfo::parse(pod))));
    }

    fn add(&mut self, name: &str, group: Option<&str>) {
        self.apply(pod(name, group, json!({})));
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
