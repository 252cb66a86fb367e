//! Prefers nodes that already have the pod's images.

use crate::framework::{MAX_SCORE, Score};
use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// Image sizes in bytes below which the score is zero, and above which it no longer grows (per container);
/// the thresholds of kube-scheduler.
const MIN_BYTES: i64 = 23 << 20;
const MAX_BYTES: i64 = 1000 << 20;

/// `ImageLocality`: scores by the size of the pod's images that the node has.
pub struct ImageLocality;

impl Score for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo], snapshot: &Snapshot) -> Vec<i64> {
        let all = i64::try_from(snapshot.len()).unwrap_or(i64::MAX).max(1);
        let most = MAX_BYTES * i64::try_from(pod.images.len()).unwrap_or(1).max(1);
        nodes
            .iter()
            .map(|node| {
                let bytes: i64 = pod
                    .images
                    .iter()
                    .filter_map(|image| {
                        // An image that few nodes have counts less, so that these nodes are not flooded.
                        let having = i64::try_from(snapshot.nodes_with_image(image)).unwrap_or_default();
                        node.images.get(image).map(|size| size.saturating_mul(having) / all)
                    })
                    .sum();
                (bytes.clamp(MIN_BYTES, most) - MIN_BYTES) * MAX_SCORE / (most - MIN_BYTES)
            })
            .collect()
    }
}
