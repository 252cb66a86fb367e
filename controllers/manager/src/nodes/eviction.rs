//! Evicts pods from nodes with `NoExecute` taints, immediately or when their toleration ends.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, Index, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::DeleteParams;
use kube::{Api, Client};

use super::health::NO_EXECUTE;
use crate::context::{Context, Tasks};
use crate::index::ByNode;
use crate::meta::{is_deleted, name, namespace, only_this};
use crate::patch;
use crate::pods::{node_name, until};
use apiserver_meta::pods::{is_finished, tolerates};

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("taint-eviction");
    let nodes = context.informers.cache::<Node>();
    let pods = context.informers.cache::<Pod>();
    context.feed(tasks, &nodes, &queue);
    let (tainted, bound) = (nodes.clone(), queue.clone());
    pods.on_change(move |change| {
        let Change::Applied { new, .. } = change else { return };
        let node = ObjectKey::new("", node_name(new));
        let needs_look = !node.name.is_empty()
            && !is_deleted(&new.metadata)
            && tainted.get(&node).is_some_and(|node| driving(&node).next().is_some());
        if needs_look {
            bound.add(node);
        }
    });
    let controller = Evictions {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        recorder: context.recorder.named("taint-eviction-controller"),
        nodes: nodes.clone(),
        pods: pods.index(),
        first_seen: Mutex::default(),
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

/// Returns when a pod must be evicted; `None` if it may stay. Each taint comes with the time since which it
/// applies.
fn eviction_time(taints: &[(Taint, Timestamp)], tolerations: &[Toleration]) -> Option<Timestamp> {
    let times = taints.iter().map(|(taint, since)| {
        let Some(toleration) = tolerations.iter().find(|toleration| tolerates(toleration, taint)) else {
            return Some(*since);
        };
        let seconds = toleration.toleration_seconds?;
        let tolerated = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        // A time beyond the calendar never comes.
        since.checked_add(tolerated).ok()
    });
    times.flatten().min()
}

struct Evictions {
    client: Client,
    ambient: Ambient,
    recorder: Recorder,
    nodes: Cache<Node>,
    pods: Index<Pod, ByNode>,
    /// Times at which taints without a time were first seen, by node.
    first_seen: Mutex<BTreeMap<String, BTreeMap<String, Timestamp>>>,
}

impl Reconcile for Evictions {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let now = self.ambient.now();
        let node = self.nodes.get(key);
        let taints = self.timed(&key.name, node.as_deref(), now);
        if taints.is_empty() {
            return Ok(Outcome::Done);
        }
        let mut next: Option<Timestamp> = None;
        let mut results = Vec::new();
        for pod in self.pods.get(&key.name) {
            if is_deleted(&pod.metadata) || is_finished(&pod) {
                continue;
            }
            let tolerations =
                pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
            match eviction_time(&taints, tolerations) {
                None => {}
                Some(at) if at > now => next = Some(next.map_or(at, |next| next.min(at))),
                Some(_) => results.push(self.evict(&pod, now).await),
            }
        }
        Error::collect(results)?;
        Ok(next.map_or(Outcome::Done, |at| Outcome::After(until(at, now))))
    }
}

impl Evictions {
    fn timed(&self, node_name: &str, node: Option<&Node>, now: Timestamp) -> Vec<(Taint, Timestamp)> {
        let mut all = self.first_seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = all.remove(node_name).unwrap_or_default();
        let mut keep = BTreeMap::new();
        let mut taints = Vec::new();
        for taint in node.into_iter().flat_map(driving) {
            let since = match &taint.time_added {
                Some(time) => time.0,
                None => {
                    let id = format!("{}={}", taint.key, taint.value.as_deref().unwrap_or_default());
                    let since = seen.remove(&id).unwrap_or(now);
                    keep.insert(id, since);
                    since
                }
            };
            taints.push((taint.clone(), since));
        }
        if !keep.is_empty() {
            all.insert(node_name.to_owned(), keep);
        }
        taints
    }

    async fn evict(&self, pod: &Pod, now: Timestamp) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace(&pod.metadata));
        let name = name(&pod.metadata);
        let message = format!("Marking for deletion Pod {}/{name}", namespace(&pod.metadata));
        self.recorder.normal(reference(pod), "TaintManagerEviction", message);
        let mut new = pod.clone();
        put_disruption(
            &mut new,
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
            now,
        );
        match patch::update_status(&api, pod, &new).await {
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let options = only_this(&pod.metadata, DeleteParams::default());
        let deleted = api.delete(name, &options).await.attempt(|| format!("delete pod {name}")).map(drop);
        if deleted.as_ref().is_err_and(Error::is_not_found) { Ok(()) } else { deleted }
    }
}

/// Sets the condition that says who ended a pod, so that the pod is not counted as failed.
pub(crate) fn put_disruption(pod: &mut Pod, reason: &str, message: &str, now: Timestamp) {
    let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != "DisruptionTarget");
    conditions.push(PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn taint(key: &str, since: i64) -> (Taint, Timestamp) {
        (Taint { key: key.to_owned(), effect: NO_EXECUTE.to_owned(), ..Taint::default() }, at(since))
    }

    fn tolerating(key: &str, seconds: Option<i64>) -> Toleration {
        Toleration {
            key: (!key.is_empty()).then(|| key.to_owned()),
            operator: Some("Exists".to_owned()),
            toleration_seconds: seconds,
            ..Toleration::default()
        }
    }

    #[test]
    fn toleration_seconds_count_from_the_taint_and_the_shortest_wins() {
        let taints = [taint("a", 0), taint("b", 100)];
        assert_eq!(eviction_time(&taints, &[]), Some(at(0)));
        assert_eq!(eviction_time(&taints, &[tolerating("", None)]), None);
        assert_eq!(
            eviction_time(&taints, &[tolerating("a", Some(300)), tolerating("b", Some(50))]),
            Some(at(150))
        );
        assert_eq!(eviction_time(&taints, &[tolerating("a", Some(300))]), Some(at(100)));
        assert_eq!(
            eviction_time(&taints, &[tolerating("a", None), tolerating("b", Some(-5))]),
            Some(at(100))
        );
        assert_eq!(eviction_time(&taints, &[tolerating("a", Some(i64::MAX)), tolerating("b", None)]), None);
    }

    #[test]
    fn a_toleration_matches_key_value_and_effect() {
        let mut of = taint("a", 0).0;
        of.value = Some("x".to_owned());
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
