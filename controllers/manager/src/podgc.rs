//! The pod garbage collector: deletes finished pods beyond a limit, pods of nodes that no longer exist, and pods that are being
//! deleted on nodes that are out of service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::{Cache, Object, ObjectKey};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::nodes::{is_out_of_service, is_ready};
use controllers_runtime::{Attempt, Result, parallel};
use k8s_openapi::api::core::v1::{self, Node};
use kube::api::DeleteParams;
use kube::{Api, Client};
use tokio::time::Instant;
use tracing::warn;

use crate::context::{Context, Tasks};
use crate::limits::{NODE_QUARANTINE, POD_GC_PERIOD};
use crate::meta::{created, is_deleted, name, namespace};
use crate::metrics::{Metrics, POD_GC_DELETIONS, POD_GC_ERRORS};
use crate::patch;
use crate::pods::{Pod, Writes, put_disruption};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let deleter = Deleter { client: context.client.clone(), ambient: context.ambient.clone() };
    let mut collector = Collector {
        client: context.client.clone(),
        deleter: Arc::new(deleter),
        pods: context.informers.cache::<Pod>(),
        nodes: context.informers.cache::<Node>(),
        metrics: context.config.metrics.clone(),
        threshold: context.config.terminated_pods,
        missing: BTreeMap::new(),
    };
    context.spawn(tasks, async move {
        collector.pods.synced().await;
        collector.nodes.synced().await;
        loop {
            collector.round().await;
            tokio::time::sleep(POD_GC_PERIOD).await;
        }
    });
}

struct Collector {
    client: Client,
    deleter: Arc<Deleter>,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    metrics: Metrics,
    threshold: usize,
    /// Missing nodes that have pods, each with the time since when it is missing.
    missing: BTreeMap<String, Instant>,
}

/// Reason for deleting a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Finished, beyond the number of finished pods that are kept.
    Surplus,
    /// Deleted before it was bound to a node.
    Unbound,
    /// Being deleted on a node that is out of service, whose kubelet will not finish the deletion.
    OutOfService,
    /// Its node no longer exists.
    Orphaned,
}

impl Reason {
    /// Returns the name in metrics.
    fn label(self) -> &'static str {
        match self {
            Self::Surplus => "terminated",
            Self::Unbound => "unscheduled",
            Self::OutOfService => "out-of-service",
            Self::Orphaned => "orphaned",
        }
    }
}

impl Collector {
    async fn round(&mut self) {
        let pods = self.pods.list();
        let nodes = LostNodes {
            gone: self.gone_nodes(&pods).await,
            out_of_service: self.out_of_service(&pods).await,
        };
        let doomed = plan(&pods, self.threshold, &nodes);
        let delete = |(pod, reason): (Arc<Pod>, Reason)| {
            let deleter = Arc::clone(&self.deleter);
            async move {
                let deleted = deleter.delete(&pod, reason).await;
                (pod, reason, deleted)
            }
        };
        for (pod, reason, deleted) in parallel::all(doomed, delete).await {
            let labels = [namespace(&pod.metadata), reason.label()];
            self.metrics.count(if deleted.is_ok() { &POD_GC_DELETIONS } else { &POD_GC_ERRORS }, &labels);
            if let Err(error) = deleted {
                let cause = &error as &dyn std::error::Error;
                warn!(pod = %ObjectKey::of(pod.as_ref()), ?reason, error = cause, "cannot delete a pod");
            }
        }
    }

    /// Returns the nodes that have been missing for the quarantine time and that the server does not have
    /// either.
    async fn gone_nodes(&mut self, pods: &[Arc<Pod>]) -> BTreeSet<String> {
        let bound: BTreeSet<&str> =
            pods.iter().map(|pod| pod.node_name()).filter(|node| !node.is_empty()).collect();
        let nodes = self.nodes.clone();
        let present = |node: &str| nodes.get(&ObjectKey::new("", node)).is_some();
        self.missing.retain(|node, _| bound.contains(node.as_str()) && !present(node));
        for node in bound.iter().filter(|node| !present(node)) {
            self.missing.entry((*node).to_owned()).or_insert_with(Instant::now);
        }
        let api: Api<Node> = Api::all(self.client.clone());
        let mut gone = BTreeSet::new();
        for (node, since) in &self.missing {
            if since.elapsed() >= NODE_QUARANTINE && matches!(api.get_metadata_opt(node).await, Ok(None)) {
                gone.insert(node.clone());
            }
        }
        gone
    }

    /// Returns the nodes with pods that are being deleted which are not ready and have the taint of nodes that are out
    /// of service, in the cache and at the server: a taint that was taken away does not end the pods of a working node.
    async fn out_of_service(&self, pods: &[Arc<Pod>]) -> BTreeSet<String> {
        let lost = |node: &Node| is_out_of_service(node) && !is_ready(node);
        let deleted = pods.iter().filter(|pod| is_deleted(&pod.metadata));
        let nodes: BTreeSet<&str> = deleted.map(|pod| pod.node_name()).collect();
        let api: Api<Node> = Api::all(self.client.clone());
        let mut found = BTreeSet::new();
        for node in nodes {
            let cached = self.nodes.get(&ObjectKey::new("", node));
            if cached.is_some_and(|node| lost(&node))
                && matches!(api.get_opt(node).await, Ok(Some(live)) if lost(&live))
            {
                found.insert(node.to_owned());
            }
        }
        found
    }
}

/// Deletes pods.
struct Deleter {
    client: Client,
    ambient: Ambient,
}

impl Deleter {
    async fn delete(&self, pod: &Pod, reason: Reason) -> Result<()> {
        let api: Api<v1::Pod> = Api::namespaced(self.client.clone(), namespace(&pod.metadata));
        let name = name(&pod.metadata);
        if !pod.is_finished() {
            // No kubelet will ever report how the pod ended.
            let old = pod.to_api();
            let mut new = old.clone();
            new.status.get_or_insert_default().phase = Some("Failed".to_owned());
            if reason == Reason::Orphaned {
                let message = "PodGC: node no longer exists";
                put_disruption(&mut new, "DeletionByPodGC", message, self.ambient.now());
            }
            patch::update_status(&api, &old, &new).await?;
        }
        let options = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::background() };
        let writes = Writes::new(&self.client, namespace(&pod.metadata));
        match writes.delete(pod, options).await.attempt(|| format!("delete pod {name}")) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Nodes whose kubelets report nothing any more.
#[derive(Default)]
struct LostNodes {
    gone: BTreeSet<String>,
    out_of_service: BTreeSet<String>,
}

fn plan(pods: &[Arc<Pod>], threshold: usize, nodes: &LostNodes) -> Vec<(Arc<Pod>, Reason)> {
    let mut doomed: Vec<(Arc<Pod>, Reason)> = Vec::new();
    let mut finished = Vec::new();
    for pod in pods {
        let node = pod.node_name();
        if nodes.gone.contains(node) {
            doomed.push((Arc::clone(pod), Reason::Orphaned));
        } else if node.is_empty() && is_deleted(&pod.metadata) {
            doomed.push((Arc::clone(pod), Reason::Unbound));
        } else if is_deleted(&pod.metadata) && nodes.out_of_service.contains(node) {
            doomed.push((Arc::clone(pod), Reason::OutOfService));
        } else if pod.is_finished() && !is_deleted(&pod.metadata) {
            finished.push(pod);
        }
    }
    // Evicted pods first, which nobody waits for.
    finished.sort_by_key(|pod| (!is_evicted(pod), created(&pod.metadata), name(&pod.metadata).to_owned()));
    let surplus = if threshold == 0 { 0 } else { finished.len().saturating_sub(threshold) };
    doomed.extend(finished.into_iter().take(surplus).map(|pod| (Arc::clone(pod), Reason::Surplus)));
    doomed
}

fn is_evicted(pod: &Pod) -> bool {
    pod.phase() == "Failed" && pod.reason() == Some("Evicted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{pod, running, slim, time};

    #[test]
    fn surplus_unbound_and_orphaned_pods_are_collected() {
        let finished = |name: &str, created: i64| {
            let mut pod = running(name, "n", "10.0.0.1");
            pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
            pod.metadata.creation_timestamp = time(created);
            pod
        };
        let mut evicted = finished("evicted", 5);
        let status = evicted.status.as_mut().unwrap();
        (status.phase, status.reason) = (Some("Failed".to_owned()), Some("Evicted".to_owned()));
        let deleted = |name: &str, node: &str| {
            let mut pod = running(name, node, "10.0.0.4");
            pod.metadata.deletion_timestamp = time(1);
            pod
        };
        let mut unbound = pod("unbound");
        unbound.metadata.deletion_timestamp = time(1);
        let pods = slim([
            finished("young", 9),
            finished("old", 1),
            evicted,
            deleted("stuck", "broken"),
            deleted("stopping", "n"),
            running("unaware", "broken", "10.0.0.5"),
            running("orphan", "lost", "10.0.0.2"),
            running("good", "n", "10.0.0.3"),
            unbound,
        ]);
        let nodes = LostNodes {
            gone: BTreeSet::from(["lost".to_owned()]),
            out_of_service: BTreeSet::from(["broken".to_owned()]),
        };
        let named: Vec<_> = plan(&pods, 1, &nodes)
            .into_iter()
            .map(|(pod, reason)| (name(&pod.metadata).to_owned(), reason))
            .collect();
        let expected = [
            ("stuck", Reason::OutOfService),
            ("orphan", Reason::Orphaned),
            ("unbound", Reason::Unbound),
            ("evicted", Reason::Surplus),
            ("old", Reason::Surplus),
        ];
        assert_eq!(named, expected.map(|(name, reason)| (name.to_owned(), reason)));
        // 0 disables the threshold.
        assert!(plan(&pods, 0, &LostNodes::default()).iter().all(|(_, reason)| *reason != Reason::Surplus));
    }
}
