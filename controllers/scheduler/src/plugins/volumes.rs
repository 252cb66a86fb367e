//! Volumes of the pod that exclude nodes.

use crate::framework::{Filter, NodeFilter};
use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// `VolumeBinding`: excludes nodes on which a volume of the pod cannot be used or made.
pub struct VolumeBinding;

impl Filter for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn prepare<'a>(&self, pod: &'a PodInfo, snapshot: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>> {
        if pod.claims.is_empty() {
            return None;
        }
        let claims = snapshot.storage.claims_of(pod);
        Some(Box::new(move |node: &NodeInfo| match &claims {
            Ok(claims) => snapshot.storage.plan_for(claims, node).err().unwrap_or_default(),
            Err(reason) => vec![reason.clone()],
        }))
    }
}
