//! The scheduler's view of the cluster, updated pod by pod and node by node and never rebuilt. A pod that was
//! just placed is assumed to be there before the API server confirms it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use crate::model::{NodeInfo, PodInfo};
use crate::storage::Storage;

/// Nodes by name, with their pods.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    nodes: BTreeMap<String, NodeInfo>,
    /// Node that each pod is counted on, by uid.
    places: BTreeMap<String, String>,
    /// Number of nodes that have each image, for image locality.
    image_spread: BTreeMap<String, usize>,
    /// Claims, volumes and classes.
    pub storage: Storage,
}

impl Snapshot {
    /// Returns the nodes that exist, ordered by name.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.nodes.values().filter(|node| node.known)
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name).filter(|node| node.known)
    }

    pub fn len(&self) -> usize {
        self.nodes().count()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes().next().is_none()
    }

    /// Returns the number of nodes that have the image.
    pub fn nodes_with_image(&self, image: &str) -> usize {
        self.image_spread.get(image).copied().unwrap_or_default()
    }

    pub fn set_node(&mut self, node: &Node) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let info = self.nodes.entry(name).or_default();
        let had: Vec<String> = info.images.keys().cloned().collect();
        info.update(node);
        let has: Vec<String> = info.images.keys().cloned().collect();
        self.count_images(&had, &has);
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let had: Vec<String> = std::mem::take(&mut node.images).into_keys().collect();
        node.known = false;
        if node.pods.is_empty() {
            self.nodes.remove(name);
        }
        self.count_images(&had, &[]);
    }

    fn count_images(&mut self, had: &[String], has: &[String]) {
        for image in had {
            if let Some(count) = self.image_spread.get_mut(image) {
                *count -= 1;
                if *count == 0 {
                    self.image_spread.remove(image);
                }
            }
        }
        for image in has {
            *self.image_spread.entry(image.clone()).or_default() += 1;
        }
    }

    /// Counts the pod on `node` and no longer on any other node.
    pub fn place(&mut self, pod: &Arc<PodInfo>, node: &str) {
        if self.places.get(&pod.uid).is_some_and(|place| place != node) {
            self.remove_pod(&pod.uid);
        }
        self.nodes.entry(node.to_owned()).or_default().add_pod(pod);
        self.places.insert(pod.uid.clone(), node.to_owned());
    }

    /// Removes a pod that is gone, finished, or was not bound after all.
    pub fn remove_pod(&mut self, uid: &str) {
        let Some(name) = self.places.remove(uid) else { return };
        let Some(node) = self.nodes.get_mut(&name) else { return };
        node.remove_pod(uid);
        if !node.known && node.pods.is_empty() {
            self.nodes.remove(&name);
        }
    }

    /// Returns the node that the pod is counted on.
    pub fn place_of(&self, uid: &str) -> Option<&str> {
        self.places.get(uid).map(String::as_str)
    }
}
