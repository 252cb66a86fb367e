//! Observes heartbeats of nodes and writes the consequences of missing ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver_client::cache::Selection;
use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, Index, Object, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::nodes;
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{self, Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client};
use tokio::time::Instant;
use tracing::debug;

use super::health::{self, Eviction, NO_EXECUTE, Plan, View};
use super::zones::{Member, Turn, Zones, zone_of};
use crate::config::Config;
use crate::context::{Context, Tasks};
use crate::index::ByNode;
use crate::limits::HEARTBEAT_RETRY;
use crate::meta::{name, namespace};
use crate::metrics::{NODE_EVICTIONS, ZONE_HEALTH, ZONE_SIZE, ZONE_UNHEALTHY};
use crate::patch;
use crate::pods::Pod;

const LEASES: &str = "kube-node-lease";

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("node-lifecycle");
    let nodes = context.informers.cache::<Node>();
    let pods = context.informers.cache::<Pod>();
    let leases = context.informers.select_in::<Lease>(LEASES, Selection::default());
    let heartbeats = Arc::new(Heartbeats::default());
    let zones = Arc::new(Mutex::new(Zones::new(context.config.eviction)));
    follow_leases(&leases, &heartbeats, &queue);
    follow_nodes(&nodes, &heartbeats, &zones, &queue);
    report_nodes(&nodes, context.recorder.named("node-controller"));
    context.feed(tasks, &nodes, &queue);
    let (size, health, unhealthy) = (Arc::clone(&zones), Arc::clone(&zones), Arc::clone(&zones));
    let metrics = &context.config.metrics;
    metrics.add_gauge(&ZONE_SIZE, move || of_zones(&size, |ready, unready| (ready + unready) as f64));
    metrics.add_gauge(&ZONE_HEALTH, move || {
        of_zones(&health, |ready, unready| 100.0 * ready as f64 / (ready + unready) as f64)
    });
    metrics.add_gauge(&ZONE_UNHEALTHY, move || of_zones(&unhealthy, |_, unready| unready as f64));
    let controller = Lifecycle {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("node-controller"),
        config: Arc::clone(&context.config),
        nodes: nodes.clone(),
        pods: pods.index(),
        heartbeats,
        zones: Arc::clone(&zones),
    };
    context.start(tasks, queue, controller, async move {
        nodes.synced().await;
        pods.synced().await;
        leases.synced().await;
        lock(&zones).start(Instant::now());
    });
}

/// Returns a number of each zone, from those of nodes that are ready and that are not.
fn of_zones(zones: &Mutex<Zones>, value: impl Fn(usize, usize) -> f64) -> Vec<(Vec<String>, f64)> {
    let sizes = lock(zones).sizes().into_iter();
    sizes.map(|(zone, ready, unready)| (vec![zone], value(ready, unready))).collect()
}

/// Returns `true` if taints drive pods away.
fn drives(taints: Option<&Vec<Taint>>) -> bool {
    taints.into_iter().flatten().any(|taint| taint.effect == NO_EXECUTE)
}

/// Times of the last heartbeats. Timestamps in objects come from other machines' clocks, so only their
/// changes count, timed by our own clock.
#[derive(Default)]
struct Heartbeats(Mutex<BTreeMap<String, NodeHeartbeat>>);

#[derive(Default)]
struct NodeHeartbeat {
    at: Option<Instant>,
    lease: Option<Timestamp>,
    heartbeat: Option<Timestamp>,
    /// True if the node was declared lost, so that its next heartbeat must be handled.
    lost: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heartbeats {
    /// Records a timestamp written by the node itself; returns whether this is the first heartbeat of a lost
    /// node.
    fn record(
        &self,
        node: &str,
        time: Option<Timestamp>,
        which: fn(&mut NodeHeartbeat) -> &mut Option<Timestamp>,
    ) -> bool {
        let mut nodes = lock(&self.0);
        let entry = nodes.entry(node.to_owned()).or_default();
        if time.is_none() || *which(entry) == time {
            return false;
        }
        *which(entry) = time;
        entry.at = Some(Instant::now());
        std::mem::take(&mut entry.lost)
    }

    /// Returns the time since the last heartbeat. For a node that never sent one it starts now.
    fn silence(&self, node: &str) -> Duration {
        let mut nodes = lock(&self.0);
        nodes.entry(node.to_owned()).or_default().at.get_or_insert_with(Instant::now).elapsed()
    }

    fn mark_lost(&self, node: &str) {
        lock(&self.0).entry(node.to_owned()).or_default().lost = true;
    }

    /// Counts a heartbeat of every node: those that it sent before may have been lost on our side.
    fn renew_all(&self) {
        let now = Instant::now();
        lock(&self.0).values_mut().for_each(|entry| entry.at = Some(now));
    }

    fn forget(&self, node: &str) {
        lock(&self.0).remove(node);
    }
}

fn follow_leases(leases: &Cache<Lease>, heartbeats: &Arc<Heartbeats>, queue: &WorkQueue<ObjectKey>) {
    let (heartbeats, work) = (Arc::clone(heartbeats), queue.clone());
    leases.on_change(move |change| {
        let Change::Applied { new, .. } = change else { return };
        let renewed = new.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        let node = name(&new.metadata);
        if heartbeats.record(node, renewed, |entry| &mut entry.lease) {
            work.add(ObjectKey::new("", node));
        }
    });
}

fn follow_nodes(
    nodes: &Cache<Node>,
    heartbeats: &Arc<Heartbeats>,
    zones: &Arc<Mutex<Zones>>,
    queue: &WorkQueue<ObjectKey>,
) {
    let (heartbeats, zones, work) = (Arc::clone(heartbeats), Arc::clone(zones), queue.clone());
    nodes.on_change(move |change| {
        let node = change.object();
        let node_name = name(&node.metadata);
        let gone = matches!(change, Change::Deleted(_));
        let member =
            (!gone).then(|| Member::of(node, nodes::is_ready(node), health::is_evicted(taints(node))));
        let effects = lock(&zones).observe(node_name, member, Instant::now());
        if effects.recovered {
            heartbeats.renew_all();
        }
        for other in effects.nodes {
            work.add(ObjectKey::new("", &other));
        }
        if gone {
            return heartbeats.forget(node_name);
        }
        let posted = nodes::condition(node, "Ready").and_then(|ready| ready.last_heartbeat_time.as_ref());
        if heartbeats.record(node_name, posted.map(|time| time.0), |entry| &mut entry.heartbeat) {
            work.add(ObjectKey::new("", node_name));
        }
    });
}

/// Records an event of each node that comes and goes. After a start all nodes come, as in Kubernetes.
fn report_nodes(nodes: &Cache<Node>, recorder: Recorder) {
    nodes.on_change(move |change| {
        let node = change.object();
        let name = name(&node.metadata);
        match change {
            Change::Applied { old: None, .. } => {
                let message = format!("Node {name} event: Registered Node {name} in Controller");
                recorder.normal(reference(node.as_ref()), "RegisteredNode", message);
            }
            Change::Deleted(_) => {
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                recorder.normal(reference(node.as_ref()), "RemovingNode", message);
            }
            Change::Applied { .. } => {}
        }
    });
}

fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

struct Lifecycle {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    config: Arc<Config>,
    nodes: Cache<Node>,
    pods: Index<Pod, ByNode>,
    heartbeats: Arc<Heartbeats>,
    zones: Arc<Mutex<Zones>>,
}

impl Reconcile for Lifecycle {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(node) = self.nodes.get(key) else { return Ok(Outcome::Done) };
        let reported =
            nodes::condition(&node, "Ready").is_some_and(|ready| ready.last_heartbeat_time.is_some());
        let grace = if reported { self.config.node_grace } else { self.config.node_startup_grace };
        let mut silent = self.heartbeats.silence(&key.name);
        if silent >= grace {
            match self.ask_for_heartbeat(&key.name).await {
                Ok(()) => {}
                // Kubernetes' own role of this controller has no Leases: then the caches decide, as there.
                Err(error) if error.code() == Some(403) => {
                    debug!(%error, "cannot read the Lease of a silent node")
                }
                // A growing back-off would find a node that is lost long after the API has come back.
                Err(error) => {
                    debug!(%error, "cannot read the Lease of a silent node");
                    return Ok(Outcome::After(HEARTBEAT_RETRY));
                }
            }
            silent = self.heartbeats.silence(&key.name);
        }
        let turn = self.turn(&node);
        let view = View {
            silent,
            grace,
            eviction: match turn {
                Turn::Now => Eviction::Allowed,
                Turn::Wait(_) => Eviction::Waits,
                Turn::Never => Eviction::Stopped,
            },
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
        let until_turn = if let Turn::Wait(wait) = turn { wait } else { None };
        let again = plan.again.into_iter().chain(until_turn).min();
        Ok(again.map_or(Outcome::Done, Outcome::After))
    }
}

impl Lifecycle {
    /// Records the last heartbeat that the API server has of a node. It is asked before a node is taken for lost: after a
    /// partition on our side, the caches show all nodes as they were before it.
    async fn ask_for_heartbeat(&self, node: &str) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASES);
        let live = leases.get_opt(node).await.attempt(|| format!("get the lease of node {node}"))?;
        let renewed = live.and_then(|lease| lease.spec?.renew_time).map(|time| time.0);
        self.heartbeats.record(node, renewed, |entry| &mut entry.lease);
        Ok(())
    }

    /// Asks whether the pods of a node may be evicted. Its object decides: the zones are judged by those of all nodes,
    /// and if several nodes are lost at once, each counts before the first is judged.
    fn turn(&self, node: &Node) -> Turn {
        let is_unready = nodes::condition(node, "Ready").is_some_and(|ready| ready.status != "True");
        if is_unready {
            lock(&self.zones).ask(name(&node.metadata), Instant::now())
        } else {
            Turn::Wait(None)
        }
    }

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
            let before = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            if drives(Some(taints)) && !drives(before) {
                self.config.metrics.count(&NODE_EVICTIONS, &[&zone_of(node)]);
            }
        }
        Ok(())
    }

    /// Marks the pods of a lost node as not ready, which removes them from their Services. If the kubelet is
    /// alive, it restores their status once it can.
    async fn mark_pods(&self, node: &String, now: Timestamp) -> Result<()> {
        let mut results = Vec::new();
        for pod in self.pods.get(node) {
            let old = pod.to_api();
            let Some(new) = unready(&old, now) else { continue };
            let api: Api<v1::Pod> = Api::namespaced(self.client.clone(), namespace(&pod.metadata));
            let written = patch::update_status(&api, &old, &new).await.map(drop);
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
fn unready(pod: &v1::Pod, now: Timestamp) -> Option<v1::Pod> {
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
    async fn only_heartbeats_of_lost_nodes_trigger_work() {
        let heartbeats = Heartbeats::default();
        assert!(!heartbeats.record("n", Some(at(1)), |entry| &mut entry.lease));
        heartbeats.mark_lost("n");
        assert!(heartbeats.record("n", Some(at(2)), |entry| &mut entry.lease));
        assert!(!heartbeats.record("n", Some(at(3)), |entry| &mut entry.lease));
    }

    #[tokio::test(start_paused = true)]
    async fn renewal_counts_as_a_heartbeat_of_every_known_node() {
        let heartbeats = Heartbeats::default();
        heartbeats.record("n", Some(at(1)), |entry| &mut entry.lease);
        tokio::time::advance(Duration::from_secs(39)).await;
        heartbeats.renew_all();
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(heartbeats.silence("n"), Duration::from_secs(2));
    }

    #[test]
    fn a_ready_pod_is_made_unready_once() {
        let pod = running("p", "n", "10.0.0.1");
        let new = unready(&pod, at(9)).unwrap();
        assert!(!apiserver_meta::pods::is_ready(&new));
        assert_eq!(unready(&new, at(10)), None);
    }
}
