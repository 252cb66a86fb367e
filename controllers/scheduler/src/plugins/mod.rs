//! The plugins, each at the extension points that it has in Kubernetes.

mod node_name;
mod node_unschedulable;

pub use self::node_name::NodeName;
pub use self::node_unschedulable::NodeUnschedulable;
use crate::framework::{Plugin, Profile, Sampling};

/// Returns the default profile, with the order and the weights of kube-scheduler.
pub fn default_profile() -> Profile {
    profile("default-scheduler", vec![(Box::new(NodeUnschedulable), 0), (Box::new(NodeName), 0)])
}

/// Returns a profile with these plugins and their weights at all extension points.
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
        pre_bind: all,
        sampling: Sampling::All,
        plugins: plugins.into_iter().map(|(plugin, _)| plugin).collect(),
    }
}
