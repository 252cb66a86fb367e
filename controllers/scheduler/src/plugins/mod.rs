//! The plugins, each at the extension points that it has in Kubernetes.

mod affinity;
mod fit;
mod images;
mod node;
mod ports;
mod spread;
mod taints;
mod volumes;

pub use affinity::NodeAffinity;
pub use fit::{BalancedAllocation, Fit};
pub use images::ImageLocality;
pub use node::{NodeName, NodeUnschedulable};
pub use ports::NodePorts;
pub use spread::TopologySpread;
pub use taints::TaintToleration;
pub use volumes::VolumeBinding;

use crate::framework::Profile;

/// The default profile, with the weights of kube-scheduler.
pub fn default_profile() -> Profile {
    Profile {
        filters: vec![
            Box::new(NodeUnschedulable),
            Box::new(NodeName),
            Box::new(TaintToleration),
            Box::new(NodeAffinity),
            Box::new(NodePorts),
            Box::new(Fit),
            Box::new(VolumeBinding),
            Box::new(TopologySpread),
        ],
        scores: vec![
            (Box::new(TaintToleration), 3),
            (Box::new(NodeAffinity), 2),
            (Box::new(Fit), 1),
            (Box::new(BalancedAllocation), 1),
            (Box::new(TopologySpread), 2),
            (Box::new(ImageLocality), 1),
        ],
    }
}
