//! Device claims, slices and classes, with what was allocated and is not written yet.

use super::NodeId;
use crate::pod::PodInfo;

/// Device claims, slices and classes, with what was allocated and is not written yet.
#[derive(Debug, Default)]
pub struct Devices {}

impl Devices {
    /// Hears of a pod that counts on a node from now on.
    pub(super) fn placed(&mut self, _pod: &PodInfo, _node: NodeId) {}

    /// Hears of a pod that no longer counts on a node.
    pub(super) fn removed(&mut self, _pod: &PodInfo, _node: NodeId) {}
}
