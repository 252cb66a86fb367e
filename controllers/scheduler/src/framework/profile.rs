//! Profiles: which plugins run at which extension point, in which order and with which weight.

use super::plugin::Plugin;

/// The share of the nodes that are scored (`percentageOfNodesToScore`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// All feasible nodes.
    #[default]
    All,
    /// Stops looking once so many percent of all nodes are feasible, but not below 100 nodes. 0 means the percentage that
    /// kube-scheduler chooses by the size of the cluster.
    Percent(u8),
}

/// The plugins of a `schedulerName`. Each list of an extension point has indices into `plugins`, in the order in which they
/// run.
pub struct Profile {
    /// The `schedulerName`.
    pub name: String,
    pub plugins: Vec<Box<dyn Plugin>>,
    pub pre_enqueue: Vec<usize>,
    pub pre_filter: Vec<usize>,
    pub filter: Vec<usize>,
    pub post_filter: Vec<usize>,
    /// With weights.
    pub score: Vec<(usize, i64)>,
    pub reserve: Vec<usize>,
    pub permit: Vec<usize>,
    pub pre_bind: Vec<usize>,
    pub post_bind: Vec<usize>,
    pub sampling: Sampling,
}

impl Profile {
    /// Returns the plugin with an index of this profile.
    pub fn plugin(&self, index: usize) -> &dyn Plugin {
        self.plugins[index].as_ref()
    }
}
