//! The plugins, each at the extension points that it has in Kubernetes.

mod node_name;
mod node_unschedulable;
mod node_volume_limits;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

pub use self::node_name::NodeName;
pub use self::node_unschedulable::NodeUnschedulable;
pub use self::node_volume_limits::NodeVolumeLimits;
pub use self::volume_binding::VolumeBinding;
pub use self::volume_restrictions::VolumeRestrictions;
pub use self::volume_zone::VolumeZone;
use crate::framework::{Plugin, Profile, Sampling};

/// Returns the default profile, with the order and the weights of kube-scheduler.
pub fn default_profile() -> Profile {
    let plugins: Vec<(Box<dyn Plugin>, i64)> = vec![
        (Box::new(NodeUnschedulable), 0),
        (Box::new(NodeName), 0),
        (Box::new(VolumeRestrictions), 0),
        (Box::new(NodeVolumeLimits), 0),
        (Box::new(VolumeBinding), 0),
        (Box::new(VolumeZone), 0),
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
