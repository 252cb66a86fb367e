//! Observes heartbeats of nodes and writes the consequences of missing ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver_client::cache::Selection;
use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, Index, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::nodes;
use controllers_runtime::{Error, Outcome, Reconcile, Result, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client};
use tokio::time::Instant;

use super::health::{self, Plan, View};
use crate::config::Config;
use crate::context::{Context, Tasks};
use crate::index::ByNode;
use crate::meta::{name, namespace};
use crate::patch;

const LEASES: &str = "kube-node-lease";

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("node-lifecycle");
    let nodes = context.informers.cache::<Node>();
    let pods = context.informers.cache::<Pod>();
    let leases = context.informers.select_in::<Lease>(LEASES, Selection::default());
    let heartbeats = Arc::new(Heartbeats::default());
    follow(&nodes, &leases, &heartbeats, &queue);
    context.feed(tasks, &nodes, &queue);
    let controller = Lifecycle {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("node-controller"),
        config: Arc::clone(&context.config),
        nodes: nodes.clone(),
        pods: pods.index(),
        heartbeats,
    };
    context.start(tasks, queue, controller, async move {
        nodes.synced().await;
        pods.synced().await;
        leases.synced().await;
    });
}

/// Times of the last heartbeats. Timestamps in objects come from other machines' clocks, so only their
/// changes count, timed by our own clock.
#[derive(Default)]
struct Heartbeats(Mutex<Observed>);

#[derive(Default)]
struct Observed {
    nodes: BTreeMap<String, NodeHeartbeat>,
    /// Nodes that are ready according to their objects.
    ready: BTreeSet<String>,
    known: BTreeSet<String>,
}

#[derive(Default)]
struct NodeHeartbeat {
    at: Option<Instant>,
    lease: Option<Timestamp>,
    heartbeat: Option<Timestamp>,
    /// True if the node was declared lost, so that its next heartbeat must be handled.
    lost: bool,
}

impl Heartbeats {
    fn lock(&self) -> MutexGuard<'_, Observed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a timestamp written by the node itself; returns whether this is the first heartbeat of a lost
    /// node.
    fn record(
        &self,
        node: &str,
        time: Option<Timestamp>,
        which: fn(&mut NodeHeartbeat) -> &mut Option<Timestamp>,
    ) -> bool {
        let mut observed = self.lock();
        let entry = observed.nodes.entry(node.to_owned()).or_default();
        if time.is_none() || *which(entry) == time {
            return false;
        }
        *which(entry) = time;
        entry.at = Some(Instant::now());
        std::mem::take(&mut entry.lost)
    }

    /// Returns the time since the last heartbeat. For a node that never sent one it starts now.
    fn silence(&self, node: &str) -> Duration {
        let mut observed = self.lock();
        observed.nodes.entry(node.to_owned()).or_default().at.get_or_insert_with(Instant::now).elapsed()
    }

    fn mark_lost(&self, node: &str) {
        self.lock().nodes.entry(node.to_owned()).or_default().lost = true;
    }

    /// Records whether a node is ready. If it is the first to become ready, or the last to become unready,
    /// returns all nodes, because the decisions about all of them depend on that.
    fn set_ready(&self, node: &str, ready: bool) -> Vec<String> {
        let mut observed = self.lock();
        observed.known.insert(node.to_owned());
        let before = observed.ready.len();
        if ready {
            observed.ready.insert(node.to_owned());
        } else {
            observed.ready.remove(node);
        }
        if (before == 0) != observed.ready.is_empty() {
            observed.known.iter().cloned().collect()
        } else {
            Vec::new()
        }
    }

    fn any_ready_but(&self, node: &str) -> bool {
        self.lock().ready.iter().any(|ready| ready != node)
    }

    fn forget(&self, node: &str) {
        let mut observed = self.lock();
        observed.nodes.remove(node);
        observed.known.remove(node);
    }
}

fn follow(
    nodes: &Cache<Node>,
    leases: &Cache<Lease>,
    heartbeats: &Arc<Heartbeats>,
    queue: &WorkQueue<ObjectKey>,
) {
    let (observed, work) = (Arc::clone(heartbeats), queue.clone());
    leases.on_change(move |change| {
        let Change::Applied { new, .. } = change else { return };
        let renewed = new.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        let node = name(&new.metadata);
        if observed.record(node, renewed, |entry| &mut entry.lease) {
            work.add(ObjectKey::new("", node));
        }
    });
    let (observed, work) = (Arc::clone(heartbeats), queue.clone());
    nodes.on_change(move |change| {
        let node = change.object();
        let node_name = name(&node.metadata);
        let gone = matches!(change, Change::Deleted(_));
        for other in observed.set_ready(node_name, !gone && nodes::is_ready(node)) {
            work.add(ObjectKey::new("", &other));
        }
        if gone {
            return observed.forget(node_name);
        }
        let posted = nodes::condition(node, "Ready").and_then(|ready| ready.last_heartbeat_time.as_ref());
        if observed.record(node_name, posted.map(|time| time.0), |entry| &mut entry.heartbeat) {
            work.add(ObjectKey::new("", node_name));
        }
    });
}

struct Lifecycle {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    config: Arc<Config>,
    nodes: Cache<Node>,
    pods: Index<Pod, ByNode>,
    heartbeats: Arc<Heartbeats>,
}

impl Reconcile for Lifecycle {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(node) = self.nodes.get(key) else { return Ok(Outcome::Done) };
        let reported =
            nodes::condition(&node, "Ready").is_some_and(|ready| ready.last_heartbeat_time.is_some());
        let view = View {
            silent: self.heartbeats.silence(&key.name),
            grace: if reported { self.config.node_grace } else { self.config.node_startup_grace },
            others_well: self.heartbeats.any_ready_but(&key.name),
            now: self.ambient.now(),
        };
        let plan = health::plan(&node, &view);
        if plan.pods_unready {
            self.heartbeats.mark_lost(&key.name);
        }
        self.write(&node, &plan).await?;
        if plan.pods_unready {
            self.mark_pods(&key.name, view.now).await?;
        }
        Ok(plan.again.map_or(Outcome::Done, Outcome::After))
    }
}

impl Lifecycle {
    async fn write(&self, node: &Node, plan: &Plan) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        if let Some(conditions) = &plan.conditions {
            let mut new = node.clone();
            new.status.get_or_insert_default().conditions = Some(conditions.clone());
            patch::update_status(&api, node, &new).await?;
            let message = format!("Node {} status is now: NodeNotReady", name(&node.metadata));
            self.recorder.normal(reference(node), "NodeNotReady", message);
        }
        if let Some(taints) = &plan.taints {
            let mut old = node.clone();
            if plan.conditions.is_some() {
                // Our own write has increased the version.
                old.metadata.resource_version = None;
            }
            let mut new = old.clone();
            new.spec.get_or_insert_default().taints = Some(taints.clone());
            patch::update(&api, &old, &new).await?;
        }
        Ok(())
    }

    /// Marks the pods of a lost node as not ready, which removes them from their Services. If the kubelet is
    /// alive, it restores their status once it can.
    async fn mark_pods(&self, node: &String, now: Timestamp) -> Result<()> {
        let mut results = Vec::new();
        for pod in self.pods.get(node) {
            let Some(new) = unready(&pod, now) else { continue };
            let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace(&pod.metadata));
            let written = patch::update_status(&api, pod.as_ref(), &new).await.map(drop);
            if written.is_ok() {
                self.recorder.warning(reference(pod.as_ref()), "NodeNotReady", "Node is not ready");
            }
            let absent = written.as_ref().is_err_and(Error::is_not_found);
            results.push(if absent { Ok(()) } else { written });
        }
        Error::collect(results)
    }
}

/// Returns the pod with its Ready condition set to False; `None` if it is not True.
fn unready(pod: &Pod, now: Timestamp) -> Option<Pod> {
    let mut new = pod.clone();
    let conditions = new.status.as_mut()?.conditions.as_mut()?;
    let ready =
        conditions.iter_mut().find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    ready.status = "False".to_owned();
    ready.reason = Some("NodeUnreachable".to_owned());
    ready.last_transition_time = Some(Time(now));
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, running};

    #[tokio::test(start_paused = true)]
    async fn silence_is_measured_on_our_own_clock() {
        let heartbeats = Heartbeats::default();
        assert_eq!(heartbeats.silence("n"), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(heartbeats.silence("n"), Duration::from_secs(30));
        // The node's clock may be far off; a changed timestamp is a heartbeat all the same.
        heartbeats.record("n", Some(at(-1_000_000)), |entry| &mut entry.lease);
        assert_eq!(heartbeats.silence("n"), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(9)).await;
        heartbeats.record("n", Some(at(-1_000_000)), |entry| &mut entry.lease);
        assert_eq!(heartbeats.silence("n"), Duration::from_secs(9));
    }

    #[tokio::test(start_paused = true)]
    async fn only_heartbeats_of_lost_nodes_and_the_first_ready_node_trigger_work() {
        let heartbeats = Heartbeats::default();
        assert!(!heartbeats.record("n", Some(at(1)), |entry| &mut entry.lease));
        heartbeats.mark_lost("n");
        assert!(heartbeats.record("n", Some(at(2)), |entry| &mut entry.lease));
        assert!(!heartbeats.record("n", Some(at(3)), |entry| &mut entry.lease));
        assert!(heartbeats.set_ready("a", false).is_empty());
        assert_eq!(heartbeats.set_ready("b", true), ["a", "b"]);
        assert!(heartbeats.set_ready("a", true).is_empty());
        assert!(heartbeats.any_ready_but("b"));
    }

    #[test]
    fn a_ready_pod_is_made_unready_once() {
        let pod = running("p", "n", "10.0.0.1");
        let new = unready(&pod, at(9)).unwrap();
        assert!(!apiserver_meta::pods::is_ready(&new));
        assert_eq!(unready(&new, at(10)), None);
    }
}
