//! Pods that are to run on a node once its preempted pods are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_meta::uid::Uid;

use crate::pod::PodInfo;

/// Nominated pods that are not bound yet.
#[derive(Debug, Default)]
pub struct Nominated {
    by_node: BTreeMap<Arc<str>, Vec<Arc<PodInfo>>>,
    nodes: BTreeMap<Uid, Arc<str>>,
    /// Pods whose victims are being removed. They make no attempt until that has ended.
    preempting: BTreeSet<Uid>,
}

impl Nominated {
    /// Nominates a pod for a node, and for no other.
    pub fn set(&mut self, pod: &Arc<PodInfo>, node: &Arc<str>) {
        self.remove(pod);
        self.by_node.entry(Arc::clone(node)).or_default().push(Arc::clone(pod));
        self.nodes.insert(pod.uid.clone(), Arc::clone(node));
    }

    pub fn remove(&mut self, pod: &PodInfo) {
        let Some(node) = self.nodes.remove(&pod.uid) else { return };
        let Some(pods) = self.by_node.get_mut(&node) else { return };
        pods.retain(|other| other.uid != pod.uid);
        if pods.is_empty() {
            self.by_node.remove(&node);
        }
    }

    /// Returns the node that a pod is nominated for.
    pub fn node_of(&self, pod: &PodInfo) -> Option<&Arc<str>> {
        self.nodes.get(&pod.uid)
    }

    /// Returns the pods that are nominated for a node.
    pub fn on(&self, node: &str) -> &[Arc<PodInfo>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    /// Returns the nodes for which pods are nominated, with these.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &[Arc<PodInfo>])> {
        self.by_node.iter().map(|(node, pods)| (node, pods.as_slice()))
    }

    /// Records that the victims of a pod are being removed, or no longer are.
    pub fn set_preempting(&mut self, uid: &Uid, preempting: bool) {
        if preempting {
            self.preempting.insert(uid.clone());
        } else {
            self.preempting.remove(uid);
        }
    }

    pub fn is_preempting(&self, pod: &PodInfo) -> bool {
        self.preempting.contains(&pod.uid)
    }

    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }
}
