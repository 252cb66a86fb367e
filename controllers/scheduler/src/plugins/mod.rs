//! The plugins, each at the extension points that it has in Kubernetes.

mod inter_pod_affinity;
mod node_name;
mod node_unschedulable;
mod pod_topology_spread;

pub use self::inter_pod_affinity::{InterPodAffinity, InterPodAffinityArgs};
pub use self::node_name::NodeName;
pub use self::node_unschedulable::NodeUnschedulable;
pub use self::pod_topology_spread::{PodTopologySpread, PodTopologySpreadArgs};
use crate::framework::{Plugin, Profile, Sampling};

/// Returns the default profile, with the order and the weights of kube-scheduler.
pub fn default_profile() -> Profile {
    let plugins: Vec<(Box<dyn Plugin>, i64)> = vec![
        (Box::new(NodeUnschedulable), 0),
        (Box::new(NodeName), 0),
        (Box::new(PodTopologySpread::default()), 2),
        (Box::new(InterPodAffinity::default()), 2),
    ];
    let all: Vec<usize> = (0..plugins.len()).collect();
    let score = plugins.iter().enumerate().filter(|(_, (_, weight))| *weight > 0);
    Profile {
        name: "default-scheduler".to_owned(),
        pre_enqueue: all.clone(),
        pre_filter: all.clone(),
        filter: all.clone(),
        post_filter: all.clone(),
        score: score.map(|(index, (_, weight))| (index, *weight)).collect(),
        reserve: all.clone(),
        pre_bind: all,
        sampling: Sampling::All,
        plugins: plugins.into_iter().map(|(plugin, _)| plugin).collect(),
    }
}
