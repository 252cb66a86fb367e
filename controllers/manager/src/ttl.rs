//! Tells kubelets for how long they may use a cached Secret or ConfigMap: an annotation of each Node that grows with
//! the number of Nodes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::{Cache, Change, ObjectKey};
use controllers_runtime::{Attempt, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::context::{Context, Tasks};
use crate::meta::{annotation, uid};

const TTL: &str = "node.alpha.kubernetes.io/ttl";

/// A range of cluster sizes. The ranges overlap, so that a cluster at a boundary does not go back and forth.
struct Step {
    min_nodes: usize,
    max_nodes: usize,
    seconds: u32,
}

const STEPS: [Step; 5] = [
    Step { min_nodes: 0, max_nodes: 100, seconds: 0 },
    Step { min_nodes: 90, max_nodes: 500, seconds: 15 },
    Step { min_nodes: 450, max_nodes: 1000, seconds: 30 },
    Step { min_nodes: 900, max_nodes: 2000, seconds: 60 },
    Step { min_nodes: 1800, max_nodes: usize::MAX, seconds: 300 },
];

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("ttlcontroller");
    let nodes = context.informers.cache::<Node>();
    let size = Arc::new(Mutex::new(Size::default()));
    let (counted, changed) = (Arc::clone(&size), queue.clone());
    nodes.on_change(move |change| {
        let mut size = counted.lock().unwrap_or_else(PoisonError::into_inner);
        for name in size.observe(change) {
            changed.add(ObjectKey::new("", &name));
        }
    });
    context.feed(tasks, &nodes, &queue);
    let controller = Annotations { client: context.client.clone(), nodes: nodes.clone(), size };
    context.start(tasks, queue, controller, async move { nodes.synced().await });
}

/// The size of the cluster.
#[derive(Default)]
struct Size {
    nodes: BTreeSet<String>,
    /// Index of the step that the cluster is on.
    step: usize,
}

impl Size {
    /// Counts a change; returns the Nodes whose annotations change with it.
    fn observe(&mut self, change: &Change<Node>) -> Vec<String> {
        let name = change.key().name;
        let changed = match change {
            Change::Applied { .. } => self.nodes.insert(name),
            Change::Deleted(_) => self.nodes.remove(&name),
        };
        let step = if changed { next_step(self.step, self.nodes.len()) } else { self.step };
        if step == self.step {
            return Vec::new();
        }
        self.step = step;
        self.nodes.iter().cloned().collect()
    }

    fn seconds(&self) -> u32 {
        STEPS[self.step].seconds
    }
}

/// Returns the step of a cluster of `nodes` Nodes that was on `step` before.
fn next_step(step: usize, nodes: usize) -> usize {
    let mut step = step;
    while nodes > STEPS[step].max_nodes {
        step += 1;
    }
    while nodes < STEPS[step].min_nodes {
        step -= 1;
    }
    step
}

/// Returns `true` if a Node has another annotation than that for `seconds`.
fn is_stale(node: &Node, seconds: u32) -> bool {
    annotation(&node.metadata, TTL).and_then(|text| text.parse().ok()) != Some(seconds)
}

struct Annotations {
    client: Client,
    nodes: Cache<Node>,
    size: Arc<Mutex<Size>>,
}

impl Reconcile for Annotations {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(node) = self.nodes.get(key) else { return Ok(Outcome::Done) };
        let seconds = self.size.lock().unwrap_or_else(PoisonError::into_inner).seconds();
        if !is_stale(&node, seconds) {
            return Ok(Outcome::Done);
        }
        // Without the version that was read: a Node changes all the time, and no one else writes the annotation.
        let patch =
            json!({"metadata": {"uid": uid(&node.metadata), "annotations": {TTL: seconds.to_string()}}});
        let api: Api<Node> = Api::all(self.client.clone());
        let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match written.attempt(|| format!("annotate node {key}")) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(Outcome::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{labels, node};

    #[test]
    fn steps_are_left_only_beyond_their_boundaries() {
        for (step, nodes, expected) in [
            (0, 0, 0),
            (0, 100, 0),
            (0, 101, 1),
            (1, 90, 1),
            (1, 89, 0),
            (1, 500, 1),
            (1, 501, 2),
            (2, 450, 2),
            (2, 449, 1),
            (2, 1001, 3),
            (3, 899, 2),
            (3, 2000, 3),
            (3, 2001, 4),
            (4, 1800, 4),
            (4, 1799, 3),
            // A whole list at once, and a cluster that was taken down.
            (0, 5000, 4),
            (4, 1, 0),
        ] {
            assert_eq!(next_step(step, nodes), expected, "{step} {nodes}");
        }
    }

    #[test]
    fn annotations_of_all_nodes_change_with_the_step() {
        let mut size = Size::default();
        let added =
            |number: usize| Change::Applied { old: None, new: Arc::new(node(&format!("n{number:03}"))) };
        for number in 0..100 {
            assert!(size.observe(&added(number)).is_empty());
        }
        assert!(size.observe(&added(7)).is_empty(), "a change of a known one is no growth");
        assert_eq!((size.seconds(), size.observe(&added(100)).len(), size.seconds()), (0, 101, 15));
        for number in 0..11 {
            assert!(size.observe(&Change::Deleted(Arc::new(node(&format!("n{number:03}"))))).is_empty());
        }
        let gone = Change::Deleted(Arc::new(node("n011")));
        assert_eq!((size.seconds(), size.observe(&gone).len(), size.seconds()), (15, 89, 0));
    }

    #[test]
    fn missing_other_and_invalid_annotations_are_stale() {
        let mut one = node("n");
        assert!(is_stale(&one, 0));
        for (value, stale) in [("0", true), ("15", false), ("300", true), ("soon", true)] {
            one.metadata.annotations = Some(labels(&[(TTL, value)]));
            assert_eq!(is_stale(&one, 15), stale, "{value}");
        }
    }
}
