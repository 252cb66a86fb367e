//! `PodTopologySpread`: pods that a selector matches are spread evenly over the domains of a topology key.

use std::sync::Arc;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use crate::cluster::Cluster;
use crate::cluster::terms::{CountKey, PartitionKey};
use crate::framework::{Actions, Change, Event, Feasible, Hint, Plugin, PreFilter, Resource, Scores};
use crate::pod::{PodInfo, SpreadConstraint};
use crate::selector::Selector;

mod filter;
mod hint;
mod score;
#[cfg(test)]
mod tests;

/// Topology key of which each node has its own value.
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Arguments of the plugin (`PodTopologySpreadArgs`).
#[derive(Clone, Debug, Default)]
pub enum PodTopologySpreadArgs {
    /// Pods without constraints are spread over nodes and zones (`defaultingType: System`).
    #[default]
    System,
    /// Pods without constraints have these (`defaultingType: List`).
    List(Vec<TopologySpreadConstraint>),
}

/// The plugin `PodTopologySpread`.
pub struct PodTopologySpread {
    defaults: Vec<SpreadConstraint>,
    /// The default constraints are not configured.
    is_system: bool,
}

/// A constraint of a pod, with the selector that it has for it.
struct Chosen<'a> {
    constraint: &'a SpreadConstraint,
    selector: Arc<Selector>,
}

/// Kind of constraints of a pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// `DoNotSchedule`.
    Hard,
    /// `ScheduleAnyway`.
    Soft,
}

impl Default for PodTopologySpread {
    fn default() -> Self {
        Self::new(&PodTopologySpreadArgs::System)
    }
}

impl PodTopologySpread {
    pub fn new(args: &PodTopologySpreadArgs) -> Self {
        let system = |key: &str, max_skew| TopologySpreadConstraint {
            topology_key: key.to_owned(),
            max_skew,
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            ..TopologySpreadConstraint::default()
        };
        let (defaults, is_system) = match args {
            PodTopologySpreadArgs::System => (vec![system(HOSTNAME, 3), system(ZONE, 5)], true),
            PodTopologySpreadArgs::List(list) => (list.clone(), false),
        };
        Self { defaults: defaults.iter().map(SpreadConstraint::parse).collect(), is_system }
    }

    /// Returns the constraints of a pod, or the default ones if it has none at all.
    fn constraints<'a>(&'a self, pod: &'a PodInfo, cluster: &Cluster, which: Which) -> Vec<Chosen<'a>> {
        let wanted = |constraint: &&SpreadConstraint| constraint.is_hard == (which == Which::Hard);
        let own = &pod.spec.spread;
        if !own.is_empty() {
            let chosen = own.iter().filter(wanted);
            let choose = |constraint: &'a SpreadConstraint| Chosen {
                constraint,
                selector: constraint.selector_for(pod.labels()),
            };
            return chosen.map(choose).collect();
        }
        let mut defaults = self.defaults.iter().filter(wanted).peekable();
        if defaults.peek().is_none() {
            return Vec::new();
        }
        let Some(selector) = cluster.terms.default_selector(pod) else { return Vec::new() };
        defaults.map(|constraint| Chosen { constraint, selector: Arc::clone(&selector) }).collect()
    }

    /// Returns `true` if nodes are left out that lack one of the topology keys. With the default constraints of the system
    /// nodes without a zone are spread over, too.
    fn requires_all_keys(&self, pod: &PodInfo, which: Which) -> bool {
        which == Which::Hard || !pod.spec.spread.is_empty() || !self.is_system
    }

    /// Returns the topology keys without which a node is left out.
    fn required_keys(&self, pod: &PodInfo, chosen: &[Chosen<'_>], which: Which) -> Vec<Arc<str>> {
        let required = if self.requires_all_keys(pod, which) { chosen } else { &[] };
        required.iter().map(|chosen| Arc::clone(&chosen.constraint.key)).collect()
    }
}

impl Chosen<'_> {
    fn count_key(&self, pod: &PodInfo) -> CountKey {
        CountKey::spread(pod.shared_namespace(), Arc::clone(&self.selector))
    }

    fn partition_key(&self, pod: &PodInfo, required: &[Arc<str>]) -> PartitionKey {
        let constraint = self.constraint;
        PartitionKey::new(
            &pod.spec,
            &constraint.key,
            required,
            constraint.honors_affinity,
            constraint.honors_taints,
        )
    }

    /// Returns `true` if scores count the pods on the node itself.
    fn is_by_node(&self) -> bool {
        &*self.constraint.key == HOSTNAME
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn register(&self, pod: &PodInfo, cluster: &mut Cluster) {
        if pod.spec.spread.is_empty() && !self.defaults.is_empty() {
            cluster.terms.register_default_selector(pod);
        }
        for which in [Which::Hard, Which::Soft] {
            let all = self.constraints(pod, cluster, which);
            let required = self.required_keys(pod, &all, which);
            for chosen in &all {
                cluster.terms.register_key(&chosen.constraint.key);
            }
            for chosen in &all {
                cluster.terms.register_count(&chosen.count_key(pod));
                if which == Which::Hard || !chosen.is_by_node() {
                    let key = chosen.partition_key(pod, &required);
                    cluster.terms.register_partition(&key, &pod.spec);
                }
            }
        }
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, cluster: &'a Cluster) -> PreFilter<'a> {
        let all = self.constraints(pod, cluster, Which::Hard);
        if all.is_empty() {
            return PreFilter::Skip;
        }
        let required = self.required_keys(pod, &all, Which::Hard);
        let filter = filter::Spread::prepare(pod, cluster, &all, &required);
        PreFilter::Filter { only: None, filter: Box::new(filter) }
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, feasible: &Feasible) -> Option<Scores> {
        let all = self.constraints(pod, cluster, Which::Soft);
        if all.is_empty() {
            return None;
        }
        let required = self.required_keys(pod, &all, Which::Soft);
        Some(Scores::Each(score::score(pod, cluster, &all, &required, feasible.list())))
    }

    fn events(&self) -> Vec<Event> {
        let pod = Actions::ADD | Actions::POD_LABEL | Actions::POD_TOLERATION | Actions::DELETE;
        let node = Actions::ADD | Actions::DELETE | Actions::NODE_LABEL | Actions::NODE_TAINT;
        vec![
            Event::new(Resource::AssignedPod, pod),
            Event::new(Resource::UnscheduledPod, pod),
            Event::new(Resource::Node, node),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, cluster: &Cluster) -> Hint {
        let constraints = self.constraints(pod, cluster, Which::Hard);
        match change {
            Change::Pod(versions) => hint::pod(pod, *versions, &constraints),
            Change::Node(versions) => hint::node(*versions, &constraints),
            _ => Hint::Queue,
        }
    }
}
