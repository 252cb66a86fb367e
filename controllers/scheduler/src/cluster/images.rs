//! How many nodes have each image.

use std::collections::BTreeMap;

/// Number of nodes that have each image, by name.
#[derive(Debug, Default)]
pub struct Images {
    nodes: BTreeMap<String, usize>,
    version: u64,
}

impl Images {
    /// Returns the number of nodes that have the image.
    pub fn nodes_with(&self, image: &str) -> usize {
        self.nodes.get(image).copied().unwrap_or_default()
    }

    /// Returns a number that changes with each change of an image's number of nodes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Counts the images of a node in place of those that it had.
    pub(super) fn replace(&mut self, had: &BTreeMap<String, i64>, has: &BTreeMap<String, i64>) {
        if had.keys().eq(has.keys()) {
            return;
        }
        self.version += 1;
        for image in had.keys() {
            if let Some(count) = self.nodes.get_mut(image) {
                *count -= 1;
                if *count == 0 {
                    self.nodes.remove(image);
                }
            }
        }
        for image in has.keys() {
            *self.nodes.entry(image.clone()).or_default() += 1;
        }
    }
}
