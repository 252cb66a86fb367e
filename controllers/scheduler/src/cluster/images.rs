//! The images of the nodes, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{NodeId, NodeSet};

/// The images that nodes have, by name.
#[derive(Debug, Default)]
pub struct Images {
    by_name: BTreeMap<Arc<str>, Image>,
}

/// An image that nodes have.
#[derive(Debug, Default)]
pub struct Image {
    /// Size in bytes, as the node reported it that had the image first.
    pub size: i64,
    pub nodes: NodeSet,
}

impl Images {
    /// Returns the image with a name, if a node has it.
    pub fn get(&self, name: &str) -> Option<&Image> {
        self.by_name.get(name)
    }

    /// Counts the images of a node in place of those that it had, both with their sizes.
    pub(super) fn replace(
        &mut self,
        node: NodeId,
        had: &BTreeMap<Arc<str>, i64>,
        has: &BTreeMap<Arc<str>, i64>,
    ) {
        if had == has {
            return;
        }
        for name in had.keys() {
            if let Some(image) = self.by_name.get_mut(name) {
                image.nodes.remove(node);
                if image.nodes.is_empty() {
                    self.by_name.remove(name);
                }
            }
        }
        for (name, size) in has {
            let image = self.by_name.entry(Arc::clone(name));
            image.or_insert_with(|| Image { size: *size, ..Image::default() }).nodes.insert(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_the_size_that_their_first_node_reports_until_no_node_has_them() {
        let mut images = Images::default();
        let list = |size: i64| BTreeMap::from([(Arc::from("a:1"), size)]);
        let (first, second) = (NodeId::new(0), NodeId::new(70));
        images.replace(first, &BTreeMap::new(), &list(10));
        images.replace(second, &BTreeMap::new(), &list(20));
        let known = |images: &Images| images.get("a:1").map(|image| (image.size, image.nodes.len()));
        assert_eq!(known(&images), Some((10, 2)));
        images.replace(first, &list(10), &BTreeMap::new());
        assert_eq!(known(&images), Some((10, 1)));
        images.replace(second, &list(20), &list(30));
        assert_eq!(known(&images), Some((30, 1)));
        images.replace(second, &list(30), &BTreeMap::new());
        assert!(images.get("a:1").is_none() && images.by_name.is_empty());
    }
}
