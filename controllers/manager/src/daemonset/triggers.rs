//! Finds the DaemonSets that a change of another object concerns.

use apiserver_client::{Cache, Change, ObjectKey};
use controllers_runtime::WorkQueue;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;

use super::placement::{Fit, Placement};

/// Enqueues the DaemonSets for which a node has become another one than it was. Kubelets write the status of their
/// nodes often, which changes nothing here.
pub(super) fn follow_nodes(nodes: &Cache<Node>, sets: &Cache<DaemonSet>, queue: &WorkQueue<ObjectKey>) {
    let (sets, queue) = (sets.clone(), queue.clone());
    nodes.on_change(move |change| {
        if is_of_no_concern(change) {
            return;
        }
        let concerned = sets.list().into_iter().filter(|set| differs(set, change));
        concerned.for_each(|set| queue.add(ObjectKey::of(set.as_ref())));
    });
}

fn is_of_no_concern(change: &Change<Node>) -> bool {
    let Change::Applied { old: Some(old), new } = change else { return false };
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    old.metadata.labels == new.metadata.labels && taints(old) == taints(new)
}

/// Returns `true` if the relation of the changed node to the DaemonSet is another one than before. That of a node that
/// did not exist or exists no longer differs from all others.
fn differs(set: &DaemonSet, change: &Change<Node>) -> bool {
    let placement = Placement::new(set);
    let (before, after) = match change {
        Change::Applied { old, new } => {
            (old.as_deref().map(|old| placement.fit(old)), Some(placement.fit(new)))
        }
        Change::Deleted(old) => (Some(placement.fit(old)), None),
    };
    before != after && [before, after] != [None, Some(Fit::default())]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::daemonset::tests::daemon_set;
    use crate::testing::{labels, node};
    use k8s_openapi::api::core::v1::{NodeSpec, Taint};

    fn tainted(effect: &str) -> Node {
        let mut node = node("n");
        let taint = Taint { key: "k".to_owned(), effect: effect.to_owned(), ..Taint::default() };
        node.spec = Some(NodeSpec { taints: Some(vec![taint]), ..NodeSpec::default() });
        node
    }

    fn concerns(change: &Change<Node>) -> bool {
        !is_of_no_concern(change) && differs(&daemon_set("ds"), change)
    }

    #[test]
    fn node_changes_concern_a_set_when_its_pods_fit_differently() {
        let changed = |old: Option<Node>, new: Node| {
            concerns(&Change::Applied { old: old.map(Arc::new), new: Arc::new(new) })
        };
        assert!(changed(None, node("n")));
        assert!(changed(None, tainted("NoSchedule")), "pods may be there already");
        assert!(!changed(None, tainted("NoExecute")));
        assert!(changed(Some(node("n")), tainted("NoSchedule")));
        assert!(changed(Some(tainted("NoSchedule")), tainted("NoExecute")));
        assert!(!changed(Some(node("n")), tainted("PreferNoSchedule")));
        let mut reported = node("n");
        reported.status = Some(k8s_openapi::api::core::v1::NodeStatus::default());
        assert!(!changed(Some(node("n")), reported));
        let mut labelled = node("n");
        labelled.metadata.labels = Some(labels(&[("disk", "ssd")]));
        assert!(!changed(Some(node("n")), labelled), "the set does not ask for it");
        assert!(concerns(&Change::Deleted(Arc::new(node("n")))));
    }
}
