//! The plugins, each at the extension points that it has in Kubernetes.

mod allocation;
mod default_preemption;
mod dynamic_resources;
mod gang_scheduling;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_declared_features;
mod node_name;
mod node_ports;
mod node_resources_balanced_allocation;
mod node_resources_fit;
mod node_unschedulable;
mod node_volume_limits;
mod pod_topology_spread;
mod scheduling_gates;
#[cfg(test)]
mod sketch;
mod taint_toleration;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

pub use self::allocation::{ResourceWeight, default_resources};
pub use self::default_preemption::DefaultPreemption;
pub use self::dynamic_resources::{DynamicResources, DynamicResourcesArgs};
pub use self::gang_scheduling::GangScheduling;
pub use self::image_locality::ImageLocality;
pub use self::inter_pod_affinity::{InterPodAffinity, InterPodAffinityArgs};
pub use self::node_affinity::{NodeAffinity, NodeAffinityArgs};
pub use self::node_declared_features::NodeDeclaredFeatures;
pub use self::node_name::NodeName;
pub use self::node_ports::NodePorts;
pub use self::node_resources_balanced_allocation::{BalancedAllocationArgs, NodeResourcesBalancedAllocation};
pub use self::node_resources_fit::strategy::{ShapePoint, Strategy};
pub use self::node_resources_fit::{FitArgs, NodeResourcesFit};
pub use self::node_unschedulable::NodeUnschedulable;
pub use self::node_volume_limits::NodeVolumeLimits;
pub use self::pod_topology_spread::{PodTopologySpread, PodTopologySpreadArgs};
pub use self::scheduling_gates::SchedulingGates;
pub use self::taint_toleration::TaintToleration;
pub use self::volume_binding::VolumeBinding;
pub use self::volume_restrictions::VolumeRestrictions;
pub use self::volume_zone::VolumeZone;
#[cfg(test)]
use crate::framework::{Plugin, Profile, Sampling};

/// Returns a profile with these plugins and their weights at all extension points.
#[cfg(test)]
pub fn profile(name: &str, plugins: Vec<(Box<dyn Plugin>, i64)>) -> Profile {
    let all: Vec<usize> = (0..plugins.len()).collect();
    let score = plugins.iter().enumerate().filter(|(_, (_, weight))| *weight > 0);
    Profile {
        name: name.to_owned(),
        pre_enqueue: all.clone(),
        pre_filter: all.clone(),
        filter: all.clone(),
        post_filter: all.clone(),
        score: score.map(|(index, (_, weight))| (index, *weight)).collect(),
        reserve: all.clone(),
        permit: all.clone(),
        pre_bind: all.clone(),
        post_bind: all,
        sampling: Sampling::All,
        plugins: plugins.into_iter().map(|(plugin, _)| plugin).collect(),
    }
}
