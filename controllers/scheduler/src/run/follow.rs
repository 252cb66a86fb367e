//! From the caches to the loop: the latest state of each object that has changed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use apiserver_client::{Cache, Change, Informers, Latest, ObjectKey, Projection};
use apiserver_meta::uid::Uid;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use super::bind::Outcome;
use super::extend::Answer;
use crate::cluster::NodeFacts;
use crate::config::Gates;
use crate::pod::PodInfo;
use crate::selecting::Selecting;

/// Updates that the loop has not applied yet: at most one for each object, and one for each binding under way.
pub(super) type Updates = Latest<Subject, Update>;

/// The subject of an update. A newer update about the same subject replaces it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Pod(Uid),
    /// By name.
    Node(ObjectKey),
    /// An object of another kind.
    Fact(u8, ObjectKey),
    /// The binding of a pod.
    Binding(Uid),
    /// The removal of the victims of a pod.
    Preemption(Uid),
    /// A claim of devices that this process has written.
    Written(ObjectKey),
    /// Another attempt for a pod.
    Retry(Uid),
    /// The first lists of claims, slices and classes of devices.
    Devices,
    /// The attempt with this number, which waits for extenders.
    Consultation(u64),
}

/// A change that handlers and tasks report to the loop.
pub(super) enum Update {
    Pod(Arc<PodInfo>),
    PodGone(Arc<PodInfo>),
    Node(Arc<NodeFacts>),
    NodeGone(String),
    Fact(Fact),
    Storage(StorageFact),
    Binding(Arc<PodInfo>, Outcome),
    /// The victims of the pod with this uid are being deleted, all of them or until a request has failed.
    Preempted {
        uid: Uid,
        all_deleted: bool,
    },
    Written(Arc<ResourceClaim>),
    /// The way of a pod is free of an old claim.
    Retry(Uid),
    DevicesListed,
    /// The answer of extenders in the attempt with this number.
    Consulted(u64, Answer),
}

/// The newest state of an object; `None` if it is gone.
pub(super) enum Fact {
    Namespace(ObjectKey, Option<Arc<Namespace>>),
    Service(ObjectKey, Option<Arc<Selecting<Service>>>),
    ReplicationController(ObjectKey, Option<Arc<Selecting<ReplicationController>>>),
    ReplicaSet(ObjectKey, Option<Arc<Selecting<ReplicaSet>>>),
    StatefulSet(ObjectKey, Option<Arc<Selecting<StatefulSet>>>),
    Budget(ObjectKey, Option<Arc<PodDisruptionBudget>>),
    DeviceClaim(ObjectKey, Option<Arc<ResourceClaim>>),
    DeviceClass(ObjectKey, Option<Arc<DeviceClass>>),
    DeviceSlice(ObjectKey, Option<Arc<ResourceSlice>>),
    PodGroup(ObjectKey, Option<Arc<PodGroup>>),
}

/// The newest state of a volume, or of what decides about volumes; `None` if it is gone.
pub(super) enum StorageFact {
    Claim(ObjectKey, Option<Arc<PersistentVolumeClaim>>),
    Volume(ObjectKey, Option<Arc<PersistentVolume>>),
    Class(ObjectKey, Option<Arc<StorageClass>>),
    CsiNode(ObjectKey, Option<Arc<CSINode>>),
    CsiDriver(ObjectKey, Option<Arc<CSIDriver>>),
    Capacity(ObjectKey, Option<Arc<CSIStorageCapacity>>),
    Attachment(ObjectKey, Option<Arc<VolumeAttachment>>),
}

impl From<Fact> for Update {
    fn from(fact: Fact) -> Self {
        Self::Fact(fact)
    }
}

impl From<StorageFact> for Update {
    fn from(fact: StorageFact) -> Self {
        Self::Storage(fact)
    }
}

type Synced = Vec<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Caches without whose first list decisions are not made.
pub(super) struct Followed {
    needed: Synced,
    devices: Synced,
}

impl Followed {
    /// Waits for the caches without which no decision is made. The future that it returns reports when those of devices are
    /// there too, which not every API server has.
    pub async fn synced(self, updates: &Updates) -> impl Future<Output = ()> + Send + 'static {
        for synced in self.needed {
            synced.await;
        }
        let updates = updates.clone();
        async move {
            for synced in self.devices {
                synced.await;
            }
            updates.put(Subject::Devices, Update::DevicesListed);
        }
    }
}

/// Reports changes of all kinds that scheduling depends on.
///
/// The loop waits for the kinds that every API server has. Others may be switched off; what depends on an object of theirs
/// waits for it.
pub(super) fn all(informers: &Informers, updates: &Updates, gates: Gates) -> Followed {
    let mut needed: Synced = Vec::new();
    let pods = informers.cache::<PodInfo>();
    let to = updates.clone();
    pods.on_change(move |change| {
        let (pod, update) = match change {
            Change::Applied { new, .. } => (new, Update::Pod(Arc::clone(new))),
            Change::Deleted(pod) => (pod, Update::PodGone(Arc::clone(pod))),
        };
        to.put(Subject::Pod(pod.uid.clone()), update);
    });
    needed.push(Box::pin(async move { pods.synced().await }));
    let nodes = informers.cache::<NodeFacts>();
    let to = updates.clone();
    nodes.on_change(move |change| {
        let update = match change {
            Change::Applied { new, .. } => Update::Node(Arc::clone(new)),
            Change::Deleted(node) => Update::NodeGone(node.name.to_string()),
        };
        to.put(Subject::Node(change.key()), update);
    });
    needed.push(Box::pin(async move { nodes.synced().await }));
    let devices = facts(informers, updates, &mut needed);
    if gates.generic_workload {
        drop(follow(16, &informers.cache(), updates, Fact::PodGroup));
    }
    Followed { needed, devices }
}

/// Reports changes of kinds that are not projected; returns those of devices.
fn facts(informers: &Informers, updates: &Updates, needed: &mut Synced) -> Synced {
    let waits = [
        follow(0, &informers.cache(), updates, Fact::Namespace),
        follow(1, &informers.cache(), updates, Fact::Service),
        follow(2, &informers.cache(), updates, Fact::ReplicationController),
        follow(3, &informers.cache(), updates, Fact::ReplicaSet),
        follow(4, &informers.cache(), updates, Fact::StatefulSet),
        follow(5, &informers.cache(), updates, Fact::Budget),
        follow(6, &informers.cache(), updates, StorageFact::Claim),
        follow(7, &informers.cache(), updates, StorageFact::Volume),
    ];
    needed.extend(waits);
    drop([
        follow(8, &informers.cache(), updates, StorageFact::Class),
        follow(9, &informers.cache(), updates, StorageFact::CsiNode),
        follow(10, &informers.cache(), updates, StorageFact::CsiDriver),
        follow(11, &informers.cache(), updates, StorageFact::Capacity),
        follow(12, &informers.cache(), updates, StorageFact::Attachment),
    ]);
    vec![
        follow(13, &informers.cache(), updates, Fact::DeviceClass),
        follow(14, &informers.cache(), updates, Fact::DeviceClaim),
        follow(15, &informers.cache(), updates, Fact::DeviceSlice),
    ]
}

/// Reports changes of a kind, and returns a future that ends with its first list.
fn follow<K: Projection + Send + Sync, F: Into<Update> + 'static>(
    number: u8,
    cache: &Cache<K>,
    updates: &Updates,
    fact: fn(ObjectKey, Option<Arc<K>>) -> F,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let to = updates.clone();
    cache.on_change(move |change| {
        let object = match change {
            Change::Applied { new, .. } => Some(Arc::clone(new)),
            Change::Deleted(_) => None,
        };
        let key = change.key();
        to.put(Subject::Fact(number, key.clone()), fact(key, object).into());
    });
    let cache = cache.clone();
    Box::pin(async move { cache.synced().await })
}
