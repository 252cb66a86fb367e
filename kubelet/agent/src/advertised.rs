//! Resources that others write to `status.capacity` of the own Node, such as extended resources that no device plugin
//! manages. Each is allocatable in full, for as long as it is in the capacity.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::{Cache, Change};
use apiserver_meta::{quantity, resources::is_extended};
use arc_swap::ArcSwap;
use k8s_openapi::{
    api::core::v1::{Node, NodeStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use tokio::sync::Notify;

/// Resources that this kubelet reports, beside huge pages, of which it has none.
const OWN: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pods"];

/// The resources of others that the own Node has, as its cache last showed them.
#[derive(Default)]
pub(crate) struct Advertised {
    seen: ArcSwap<Resources>,
    changed: Notify,
}

/// Resources of others, and those of `status.allocatable` that differ from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Resources {
    /// Resources in the capacity, with the amounts that are to be allocatable.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Extended resources that are allocatable, but no longer in the capacity.
    pub removed: Vec<String>,
    /// True if the API server has all of `allocatable`, and nothing that was removed.
    pub is_reported: bool,
}

impl Advertised {
    /// Returns the resources of others of the Node that a cache holds, which follow its changes.
    pub(crate) fn of(nodes: &Cache<Node>) -> Arc<Self> {
        let advertised = Arc::new(Self::default());
        let seen = Arc::clone(&advertised);
        nodes.on_change(move |change| {
            seen.see(match change {
                Change::Applied { new, .. } => Resources::of(new),
                Change::Deleted(_) => Resources { is_reported: true, ..Resources::default() },
            });
        });
        advertised
    }

    /// Returns the resources that were last seen.
    pub(crate) fn get(&self) -> Arc<Resources> {
        self.seen.load_full()
    }

    /// Waits until there are resources that have not been reported. What a report did not change, because others
    /// overwrite it, is not announced again.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn see(&self, resources: Resources) {
        if *self.seen.load_full() == resources {
            return;
        }
        let is_reported = resources.is_reported;
        self.seen.store(Arc::new(resources));
        if !is_reported {
            self.changed.notify_one();
        }
    }
}

impl Resources {
    /// Returns the resources of others that a Node has.
    pub(crate) fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let list = |list: fn(&NodeStatus) -> Option<&BTreeMap<String, Quantity>>| {
            status.and_then(list).into_iter().flatten()
        };
        let allocatable: BTreeMap<_, _> = list(|status| status.capacity.as_ref())
            .filter(|(name, _)| !is_own(name))
            .map(|(name, amount)| (name.clone(), amount.clone()))
            .collect();
        let told: BTreeMap<_, _> = list(|status| status.allocatable.as_ref()).collect();
        let gone = told.keys().filter(|name| is_extended(name) && !allocatable.contains_key(**name));
        let removed: Vec<String> = gone.map(|name| (*name).clone()).collect();
        let is_told = |(name, amount)| told.get(name).is_some_and(|told| are_equal(told, amount));
        let is_reported = removed.is_empty() && allocatable.iter().all(is_told);
        Self { allocatable, removed, is_reported }
    }
}

fn is_own(name: &str) -> bool {
    OWN.contains(&name) || name.starts_with("hugepages-")
}

fn are_equal(one: &Quantity, other: &Quantity) -> bool {
    one == other || quantity::read(one).is_some_and(|amount| quantity::read(other) == Some(amount))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn resources(capacity: Value, allocatable: Value) -> Resources {
        let status = json!({"capacity": capacity, "allocatable": allocatable});
        Resources::of(&serde_json::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap())
    }

    #[test]
    fn only_resources_of_others_are_copied_from_the_capacity() {
        let capacity = json!({
            "cpu": "4", "memory": "1Gi", "ephemeral-storage": "1Gi", "pods": "110", "hugepages-2Mi": "4Mi",
            "example.com/gpu": "2", "example.kubernetes.io/slot": "3",
        });
        let seen = resources(capacity, json!({"cpu": "4"}));
        let copied = seen.allocatable.iter().map(|(name, amount)| format!("{name}={}", amount.0));
        assert_eq!(copied.collect::<Vec<_>>(), ["example.com/gpu=2", "example.kubernetes.io/slot=3"]);
        assert!(!seen.is_reported);
        assert_eq!(Resources::of(&Node::default()), Resources { is_reported: true, ..Resources::default() });
    }

    #[test]
    fn resources_are_reported_once_their_amounts_are_equal() {
        let gpus = |amount: &str| json!({"example.com/gpu": amount});
        for (capacity, allocatable, is_reported) in [
            (gpus("1000"), gpus("1k"), true),
            (gpus("2"), gpus("1"), false),
            (gpus("0"), gpus("1"), false),
            (gpus("0"), json!({}), false),
            (json!({}), gpus("0"), false),
            (json!({}), json!({"cpu": "4", "example.kubernetes.io/slot": "3"}), true),
        ] {
            let seen = resources(capacity.clone(), allocatable.clone());
            assert_eq!(seen.is_reported, is_reported, "{capacity} beside {allocatable}");
        }
        assert_eq!(resources(json!({}), gpus("1")).removed, ["example.com/gpu"]);
    }

    #[tokio::test]
    async fn unreported_resources_are_announced_once_for_each_change() {
        let advertised = Advertised::default();
        let is_announced = || tokio::time::timeout(std::time::Duration::ZERO, advertised.changed());
        let gpus = |amount: &str| json!({"example.com/gpu": amount});
        advertised.see(resources(gpus("1"), json!({})));
        assert!(is_announced().await.is_ok());
        advertised.see(resources(gpus("1"), json!({})));
        assert!(is_announced().await.is_err(), "nothing has changed");
        advertised.see(resources(gpus("1"), gpus("1")));
        assert!(is_announced().await.is_err(), "it is reported");
        advertised.see(resources(gpus("2"), gpus("1")));
        assert!(is_announced().await.is_ok());
    }
}
