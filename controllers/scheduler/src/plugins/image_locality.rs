//! `ImageLocality`: a pod runs rather where its images are, the more so the larger they are and the more nodes have them.

use crate::cluster::{Cluster, NodeId, NodeSet};
use crate::framework::{Feasible, MAX_SCORE, Plugin, Scores};
use crate::pod::PodInfo;

#[cfg(test)]
mod tests;

const MIB: i64 = 1 << 20;
/// Bytes of images up to which a node scores nothing.
const LEAST: i64 = 23 * MIB;
/// Bytes of images, for each container, beyond which a node scores no more.
const MOST: i64 = 1000 * MIB;

/// The plugin `ImageLocality`.
pub struct ImageLocality;

/// Returns the score of a node that has images worth so many bytes.
fn score(bytes: i64, containers: usize) -> i64 {
    let most = MOST * i64::try_from(containers).unwrap_or(i64::MAX / MOST);
    let bytes = if bytes < LEAST { LEAST } else { bytes.min(most) };
    MAX_SCORE * (bytes - LEAST) / (most - LEAST)
}

/// Returns what an image counts for on nodes that have it: less if few have it, so that these do not get all pods.
fn worth(size: i64, nodes: usize, all: usize) -> i64 {
    let spread = nodes as f64 / all as f64;
    (size as f64 * spread) as i64
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, feasible: &Feasible) -> Option<Scores> {
        let known = pod.images().filter_map(|name| cluster.images.get(&name));
        let images: Vec<(i64, &NodeSet)> =
            known.map(|image| (worth(image.size, image.nodes.len(), cluster.len()), &image.nodes)).collect();
        let most: i64 = images.iter().map(|(worth, _)| worth).sum();
        if most <= LEAST {
            return Some(Scores::Same(0));
        }
        let bytes =
            |id: NodeId| images.iter().filter(|(_, nodes)| nodes.contains(id)).map(|(worth, _)| worth).sum();
        let containers = pod.spec.images.len();
        Some(Scores::Each(feasible.list().iter().map(|id| score(bytes(*id), containers)).collect()))
    }
}
