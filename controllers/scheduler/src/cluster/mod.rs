//! The scheduler's view of the cluster, updated pod by pod and node by node and never rebuilt. A pod that was
//! just placed counts on its node before the API server confirms it.

mod budgets;
mod change_log;
mod device_classes;
pub mod devices;
pub mod groups;
mod images;
mod node;
mod node_set;
mod nominated;
pub mod storage;
pub mod terms;
mod trial;

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_meta::uid::Uid;

pub use self::budgets::Budgets;
pub use self::change_log::{ChangeLog, Position};
pub use self::device_classes::{CLASS_PREFIX, DeviceClasses};
use self::devices::Devices;
use self::groups::Groups;
pub use self::images::Images;
pub use self::node::{Node, NodeFacts};
pub use self::node_set::NodeSet;
pub use self::nominated::Nominated;
use self::storage::Storage;
use self::terms::Terms;
pub use self::trial::Trial;
use crate::pod::PodInfo;

/// Index of a node in the [`Cluster`]. It is given to another node only after the first one is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// Returns the id with an index.
    ///
    /// # Panics
    ///
    /// Panics beyond 2³² nodes.
    pub fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("a cluster has fewer than 2^32 nodes"))
    }

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Nodes with their pods, and what else decides where a pod can run.
#[derive(Debug, Default)]
pub struct Cluster {
    nodes: Vec<Node>,
    by_name: BTreeMap<Arc<str>, NodeId>,
    /// Nodes whose object exists.
    known: NodeSet,
    /// Entries of `nodes` that no node has.
    free: Vec<NodeId>,
    /// Node that each pod is counted on.
    places: BTreeMap<Uid, NodeId>,
    log: ChangeLog,
    pub images: Images,
    pub nominated: Nominated,
    pub budgets: Budgets,
    pub groups: Groups,
    pub terms: Terms,
    pub storage: Storage,
    pub devices: Devices,
    pub device_classes: DeviceClasses,
}

impl Cluster {
    /// Returns the nodes that exist, ordered by id.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.known.iter().map(|id| &self.nodes[id.index()])
    }

    /// Returns the ids of the nodes that exist.
    pub fn known(&self) -> &NodeSet {
        &self.known
    }

    /// Returns the number of nodes that exist.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns a number that is greater than the index of each node.
    pub fn capacity(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of pods that are counted on nodes.
    pub fn pods(&self) -> usize {
        self.places.len()
    }

    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Returns the node with this name, if its object exists.
    pub fn named(&self, name: &str) -> Option<&Node> {
        self.by_name.get(name).map(|id| self.node(*id)).filter(|node| node.is_known)
    }

    pub fn log(&self) -> &ChangeLog {
        &self.log
    }

    /// Adds a node, or updates its own fields and keeps the pods.
    pub fn set_node(&mut self, facts: Arc<NodeFacts>) {
        let id = self.slot(&facts.name);
        let node = &mut self.nodes[id.index()];
        self.images.replace(id, &node.facts.images, &facts.images);
        node.facts = facts;
        node.is_known = true;
        self.known.insert(id);
        self.terms.node_changed(id, Some(&node.facts), &node.pods);
        self.log.push(id);
    }

    /// Removes a node. Its pods are counted on it until they are gone.
    pub fn remove_node(&mut self, name: &str) {
        let Some(&id) = self.by_name.get(name) else { return };
        let node = &mut self.nodes[id.index()];
        self.images.replace(id, &node.facts.images, &BTreeMap::new());
        let name = Arc::clone(&node.facts.name);
        node.facts = Arc::new(NodeFacts { name, ..NodeFacts::default() });
        node.is_known = false;
        self.known.remove(id);
        self.terms.node_changed(id, None, &node.pods);
        self.log.push(id);
        self.release(id);
    }

    /// Counts the pod on `node` and no longer on any other node, nor as it was before.
    pub fn place(&mut self, pod: &Arc<PodInfo>, node: &Arc<str>) {
        self.remove_pod(pod);
        let id = self.slot(node);
        self.put(pod, id);
    }

    /// Removes a pod that is gone, finished, or was not bound after all; returns it as it was counted.
    pub fn remove_pod(&mut self, pod: &PodInfo) -> Option<(Arc<PodInfo>, NodeId)> {
        let &id = self.places.get(&pod.uid)?;
        let pod = self.take(pod, id)?;
        self.release(id);
        Some((pod, id))
    }

    /// Returns the node that the pod is counted on.
    pub fn place_of(&self, pod: &PodInfo) -> Option<NodeId> {
        self.places.get(&pod.uid).copied()
    }

    /// Returns the pod as it is counted on its node.
    pub fn placed(&self, pod: &PodInfo) -> Option<&Arc<PodInfo>> {
        let node = self.node(self.place_of(pod)?);
        node.pods.iter().rfind(|other| other.uid == pod.uid)
    }

    /// Returns a view for trying out placements, which are undone when it is dropped.
    pub fn trial(&mut self) -> Trial<'_> {
        Trial::new(self)
    }

    /// Counts a pod on a node.
    fn put(&mut self, pod: &Arc<PodInfo>, id: NodeId) {
        self.nodes[id.index()].add_pod(pod);
        self.terms.placed(pod, id);
        self.storage.placed(pod, id);
        self.groups.placed(pod);
        self.places.insert(pod.uid.clone(), id);
        self.log.push(id);
    }

    /// Undoes [`Self::put`].
    fn take(&mut self, pod: &PodInfo, id: NodeId) -> Option<Arc<PodInfo>> {
        self.places.remove(&pod.uid);
        self.log.push(id);
        let pod = self.nodes[id.index()].remove_pod(pod)?;
        self.terms.removed(&pod, id);
        self.storage.removed(&pod, id);
        self.groups.removed(&pod);
        Some(pod)
    }

    /// Returns the entry of a node, which is made if there is none.
    fn slot(&mut self, name: &Arc<str>) -> NodeId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let id = self.free.pop().unwrap_or_else(|| NodeId::new(self.nodes.len()));
        let node = Node::new(id, name);
        if id.index() == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[id.index()] = node;
        }
        self.by_name.insert(Arc::clone(name), id);
        self.storage.enter(name, id);
        id
    }

    /// Frees the entry of a node that is gone with all its pods.
    fn release(&mut self, id: NodeId) {
        let node = &self.nodes[id.index()];
        if !node.is_known && node.pods.is_empty() {
            self.by_name.remove(&node.facts.name);
            self.storage.leave(&node.facts.name, id);
            self.free.push(id);
        }
    }
}
