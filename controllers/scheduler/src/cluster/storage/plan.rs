//! Writes for the claims of a pod.

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

/// The writes for the claims of a pod, after which their binding is waited for before the pod is bound.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumePlan {
    pub pod: ObjectKey,
    pub uid: Uid,
    pub node: Arc<str>,
    /// Claims with the volumes that they get; each volume refers to its claim already.
    pub take: Vec<(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)>,
    /// Claims for which a volume is to be made; the node is annotated already.
    pub make: Vec<Arc<PersistentVolumeClaim>>,
    /// Longest wait until all claims are bound.
    pub timeout: Duration,
}
