//! Evicts pods from nodes with `NoExecute` taints, immediately or when their toleration ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, Index, Object, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Error, Ledger, Outcome, Reconcile, Result, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self, Node, ObjectReference, Taint};
use kube::api::DeleteParams;
use kube::{Api, Client};

use super::health::NO_EXECUTE;
use super::schedule::{Round, Schedule, Timed, round};
use crate::context::{Context, Tasks};
use crate::index::ByNode;
use crate::limits::STALE;
use crate::meta::{is_deleted, name, namespace, only_this};
use crate::metrics::{Metrics, POD_DELETION_DELAY, POD_DELETIONS};
use crate::patch;
use crate::pods::{Pod, put_disruption, until};

const REASON: &str = "TaintManagerEviction";

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("taint-eviction");
    let nodes = context.informers.cache::<Node>();
    let pods = context.informers.cache::<Pod>();
    context.feed(tasks, &nodes, &queue);
    let deleted = Arc::new(Ledger::default());
    let (tainted, bound, shown) = (nodes.clone(), queue.clone(), Arc::clone(&deleted));
    pods.on_change(move |change| {
        if is_deleted(&change.object().metadata) || matches!(change, Change::Deleted(_)) {
            shown.forget(&change.key());
        }
        let node = ObjectKey::new("", change.object().node_name());
        let is_tainted = || tainted.get(&node).is_some_and(|node| driving(&node).next().is_some());
        if !node.name.is_empty() && is_tainted() {
            bound.add(node);
        }
    });
    let controller = Evictions {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("taint-eviction-controller"),
        nodes: nodes.clone(),
        pods: pods.clone(),
        by_node: pods.index(),
        deleted,
        known: Mutex::default(),
        metrics: context.config.metrics.clone(),
    };
    context.start(tasks, queue, controller, async move {
        nodes.synced().await;
        pods.synced().await;
    });
}

fn driving(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|taint| taint.effect == NO_EXECUTE)
}

/// The memory of one node.
#[derive(Default)]
struct Known {
    /// Times at which taints without a time were first seen.
    first_seen: BTreeMap<String, Timestamp>,
    schedule: Schedule,
}

struct Evictions {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    by_node: Index<Pod, ByNode>,
    /// Deletions of pods that the cache does not show yet.
    deleted: Arc<Ledger<ObjectKey>>,
    /// The nodes with taints or scheduled deletions.
    known: Mutex<BTreeMap<String, Known>>,
    metrics: Metrics,
}

impl Reconcile for Evictions {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let now = self.ambient.now();
        let Round { evicted, cancelled, next, schedule } = self.decide(&key.name, now);
        for (pod, uid) in cancelled {
            let message = format!("Cancelling deletion of Pod {pod}");
            self.recorder.normal(pod_reference(pod, uid), REASON, message);
        }
        let (mut results, mut behind) = (Vec::new(), false);
        for pod in evicted {
            let pod_key = ObjectKey::of(pod.as_ref());
            if self.deleted.is_shown(&pod_key, &self.pods) {
                let due = schedule.get(&pod_key).map_or(now, |scheduled| scheduled.at);
                results.push(self.evict(pod_key, &pod, now, due).await);
            } else {
                behind = true;
            }
        }
        Error::collect(results)?;
        let next = next.map(|at| until(at, now)).into_iter().chain(behind.then_some(STALE)).min();
        Ok(next.map_or(Outcome::Done, Outcome::After))
    }
}

impl Evictions {
    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about the pods of a node and takes note of their scheduled deletions.
    fn decide(&self, node_name: &str, now: Timestamp) -> Round {
        let node = self.nodes.get(&ObjectKey::new("", node_name));
        let Known { mut first_seen, schedule } = self.known().remove(node_name).unwrap_or_default();
        let taints = node.as_deref().map(|node| timed(node, &mut first_seen, now));
        let is_tainted = taints.as_ref().is_some_and(|taints| !taints.is_empty());
        if !is_tainted && schedule.is_empty() {
            return Round::default();
        }
        let round = round(taints.as_deref(), &self.by_node.get(&node_name.to_owned()), schedule, now);
        if !first_seen.is_empty() || !round.schedule.is_empty() {
            let known = Known { first_seen, schedule: round.schedule.clone() };
            self.known().insert(node_name.to_owned(), known);
        }
        round
    }

    /// Deletes a pod that was to go at the time `due`.
    async fn evict(&self, key: ObjectKey, pod: &Pod, now: Timestamp, due: Timestamp) -> Result<()> {
        let api: Api<v1::Pod> = Api::namespaced(self.client.clone(), namespace(&pod.metadata));
        let name = name(&pod.metadata);
        self.recorder.normal(reference(pod), REASON, format!("Marking for deletion Pod {key}"));
        let old = pod.to_api();
        let mut new = old.clone();
        let message = "Taint manager: deleting due to NoExecute taint";
        put_disruption(&mut new, "DeletionByTaintManager", message, now);
        match patch::update_status(&api, &old, &new).await {
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let options = only_this(&pod.metadata, DeleteParams::default());
        match api.delete(name, &options).await.attempt(|| format!("delete pod {key}")) {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
            Ok(deleted) => {
                self.metrics.count(&POD_DELETIONS, &[]);
                let late = self.ambient.now().duration_since(due).as_secs_f64();
                self.metrics.observe(&POD_DELETION_DELAY, &[], late.max(0.0));
                if let Some(pod) = deleted.left() {
                    self.deleted.wrote(&key, &pod);
                    // The cache may have been faster than the answer.
                    self.deleted.is_shown(&key, &self.pods);
                }
                Ok(())
            }
        }
    }
}

/// Returns the taints of a node with their times. Those without a time count from when they were `first_seen`.
fn timed(node: &Node, first_seen: &mut BTreeMap<String, Timestamp>, now: Timestamp) -> Vec<Timed> {
    let mut seen = std::mem::take(first_seen);
    let mut taints = Vec::new();
    for taint in driving(node) {
        let since = if let Some(time) = &taint.time_added {
            time.0
        } else {
            let id = format!("{}={}", taint.key, taint.value.as_deref().unwrap_or_default());
            let since = seen.remove(&id).unwrap_or(now);
            first_seen.insert(id, since);
            since
        };
        taints.push((taint.clone(), since));
    }
    taints
}

/// Returns a reference to a pod that may be gone.
fn pod_reference(pod: ObjectKey, uid: String) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace),
        name: Some(pod.name),
        uid: Some(uid),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, node, time};
    use apiserver_meta::pods::tolerates;
    use k8s_openapi::api::core::v1::Toleration;

    fn taint(key: &str) -> Taint {
        Taint { key: key.to_owned(), effect: NO_EXECUTE.to_owned(), ..Taint::default() }
    }

    #[test]
    fn taints_without_a_time_count_from_when_they_were_first_seen() {
        let mut node = node("n");
        let other = Taint { effect: "NoSchedule".to_owned(), ..taint("c") };
        let dated = Taint { time_added: time(5), ..taint("b") };
        node.spec.get_or_insert_default().taints = Some(vec![taint("a"), dated, other]);
        let mut first_seen = BTreeMap::new();
        let times = |taints: Vec<Timed>| taints.into_iter().map(|(_, since)| since).collect::<Vec<_>>();
        assert_eq!(times(timed(&node, &mut first_seen, at(10))), [at(10), at(5)]);
        assert_eq!(times(timed(&node, &mut first_seen, at(20))), [at(10), at(5)]);
        node.spec.as_mut().unwrap().taints = None;
        assert_eq!(timed(&node, &mut first_seen, at(30)), []);
        assert!(first_seen.is_empty(), "a taint that comes back is a new one");
    }

    #[test]
    fn a_toleration_matches_key_value_and_effect() {
        let of = Taint { value: Some("x".to_owned()), ..taint("a") };
        let equal = |value: &str, effect: &str| Toleration {
            key: Some("a".to_owned()),
            value: Some(value.to_owned()),
            effect: (!effect.is_empty()).then(|| effect.to_owned()),
            ..Toleration::default()
        };
        assert!(tolerates(&equal("x", ""), &of));
        assert!(tolerates(&equal("x", NO_EXECUTE), &of));
        assert!(!tolerates(&equal("y", ""), &of));
        assert!(!tolerates(&equal("x", "NoSchedule"), &of));
        assert!(!tolerates(&Toleration::default(), &of));
    }
}
