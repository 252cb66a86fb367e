//! Changes in the cluster that may make pods schedulable.

use std::ops::BitOr;
use std::sync::Arc;

use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use crate::cluster::NodeFacts;
use crate::pod::PodInfo;

/// The subject of an event (`EventResource`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// A pod that is bound to a node.
    AssignedPod,
    /// A pod that waits for a node.
    UnscheduledPod,
    Node,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CsiNode,
    CsiDriver,
    CsiStorageCapacity,
    VolumeAttachment,
    ResourceClaim,
    ResourceSlice,
    DeviceClass,
    PodGroup,
    /// Anything; for events that wake all pods.
    Any,
}

/// The pods that a change can help, of those that a plugin has refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    All,
    /// Those of one PodGroup.
    Group(ObjectKey),
    None,
}

/// A set of things that have happened (`ActionType`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Actions(u32);

impl Actions {
    pub const ADD: Self = Self(1);
    pub const DELETE: Self = Self(1 << 1);
    pub const NODE_ALLOCATABLE: Self = Self(1 << 2);
    pub const NODE_LABEL: Self = Self(1 << 3);
    /// A taint, or `spec.unschedulable`.
    pub const NODE_TAINT: Self = Self(1 << 4);
    pub const NODE_CONDITION: Self = Self(1 << 5);
    pub const NODE_ANNOTATION: Self = Self(1 << 6);
    pub const NODE_DECLARED_FEATURE: Self = Self(1 << 7);
    pub const POD_LABEL: Self = Self(1 << 8);
    pub const POD_SCALE_DOWN: Self = Self(1 << 9);
    pub const POD_TOLERATION: Self = Self(1 << 10);
    pub const POD_GATES_ELIMINATED: Self = Self(1 << 11);
    pub const POD_GENERATED_CLAIM: Self = Self(1 << 12);
    /// A change that is none of the others.
    pub const OTHER_UPDATE: Self = Self(1 << 13);
    pub const UPDATE: Self = Self(((1 << 14) - 1) & !0b11);
    pub const ALL: Self = Self((1 << 14) - 1);

    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Actions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A kind of change (`ClusterEvent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    pub resource: Resource,
    pub actions: Actions,
}

impl Event {
    /// Wakes all pods that a plugin has refused.
    pub const WILDCARD: Self = Self::new(Resource::Any, Actions::ALL);

    pub const fn new(resource: Resource, actions: Actions) -> Self {
        Self { resource, actions }
    }

    /// Returns `true` if `happened` is one of these events.
    pub fn includes(self, happened: Self) -> bool {
        (self.resource == happened.resource
            || self.resource == Resource::Any
            || happened.resource == Resource::Any)
            && self.actions.intersects(happened.actions)
    }
}

/// A plugin's opinion on a change that may help a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    Queue,
    Skip,
}

/// An object before and after a change; `None` if it did not exist, or does not any more.
#[derive(Debug)]
pub struct Versions<'a, T> {
    pub old: Option<&'a Arc<T>>,
    pub new: Option<&'a Arc<T>>,
}

impl<T> Clone for Versions<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Versions<'_, T> {}

/// A change with the object that has changed.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    Pod(Versions<'a, PodInfo>),
    Node(Versions<'a, NodeFacts>),
    Namespace(Versions<'a, Namespace>),
    PersistentVolume(Versions<'a, PersistentVolume>),
    PersistentVolumeClaim(Versions<'a, PersistentVolumeClaim>),
    StorageClass(Versions<'a, StorageClass>),
    CsiNode(Versions<'a, CSINode>),
    CsiDriver(Versions<'a, CSIDriver>),
    CsiStorageCapacity(Versions<'a, CSIStorageCapacity>),
    VolumeAttachment(Versions<'a, VolumeAttachment>),
    ResourceClaim(Versions<'a, ResourceClaim>),
    ResourceSlice(Versions<'a, ResourceSlice>),
    DeviceClass(Versions<'a, DeviceClass>),
    PodGroup(Versions<'a, PodGroup>),
    /// Time has passed, or a plugin asks for it.
    Other,
}
