//! Counts of pods by selector and of the terms that pods hold, for spreading and inter-pod affinity.

use super::NodeId;
use crate::pod::PodInfo;

/// Counts of pods by selector and of the terms that pods hold, for spreading and inter-pod affinity.
#[derive(Debug, Default)]
pub struct Terms {}

impl Terms {
    /// Hears of a pod that counts on a node from now on.
    pub(super) fn placed(&mut self, _pod: &PodInfo, _node: NodeId) {}

    /// Hears of a pod that no longer counts on a node.
    pub(super) fn removed(&mut self, _pod: &PodInfo, _node: NodeId) {}
}
