//! Applies changes to the cluster, and wakes the pods that they may help.

use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::time::Instant;

use super::Scheduler;
use super::bind::Outcome;
use super::follow::{Fact, StorageFact, Update};
use super::report::Nomination;
use crate::cluster::NodeFacts;
use crate::cluster::terms::Owner;
use crate::events;
use crate::framework::{Actions, Change, Event, Resource, Versions};
use crate::pod::PodInfo;
use crate::queue::{Failure, POD_REMOVED};
use crate::selecting::{Selecting, Selects};

/// A pod that uses a node is there from now on.
const POD_ADDED: Event = Event::new(Resource::AssignedPod, Actions::ADD);
/// A pod waits for a node from now on.
const UNSCHEDULED_ADDED: Event = Event::new(Resource::UnscheduledPod, Actions::ADD);

impl Scheduler {
    pub(super) fn apply(&mut self, update: Update) {
        self.counts_changed(Instant::now());
        match update {
            Update::Pod(pod) => self.apply_pod(pod),
            Update::PodGone(pod) => self.forget(&pod),
            Update::Node(node) => self.apply_node(node),
            Update::NodeGone(name) => self.remove_node(&name),
            Update::Fact(fact) => self.apply_fact(fact),
            Update::Storage(fact) => self.apply_storage(fact),
            Update::Binding(pod, outcome) => self.bound(&pod, outcome),
            Update::Consulted(number, answer) => {
                if let Some(answer) = self.hold(number, answer) {
                    self.consulted(number, answer);
                }
            }
            Update::Preempted { uid, all_deleted } => self.preempted(&uid, all_deleted),
            Update::Written(claim) => self.claim_written(claim),
            Update::Retry(uid) => self.queue.activate([&uid], &self.cluster, Instant::now()),
            Update::DevicesListed => {
                self.cluster.devices.are_awaited = false;
                self.wake(Event::new(Resource::ResourceSlice, Actions::ADD), &Change::Other);
            }
        }
    }

    fn wake(&mut self, event: Event, change: &Change<'_>) {
        let now = Instant::now();
        self.queue.happened(event, change, &self.cluster, now);
        self.applied(event, now);
    }

    fn apply_pod(&mut self, pod: Arc<PodInfo>) {
        if pod.is_finished {
            self.forget(&pod);
        } else if let Some(node) = pod.node.clone() {
            self.apply_assigned(&pod, &node);
        } else if self.profile_of(&pod).is_some() {
            self.apply_waiting(&pod);
        }
    }

    /// Applies a pod that is bound.
    fn apply_assigned(&mut self, pod: &Arc<PodInfo>, node: &Arc<str>) {
        self.leave_turn(pod);
        let before = self.cluster.placed(pod).cloned();
        self.stop_waiting(&pod.uid);
        let was_assumed = self.binding.remove(&pod.uid).is_some();
        self.queue.remove(&pod.uid);
        self.cluster.nominated.remove(pod);
        self.binder.conditions.forget(&pod.uid);
        self.cluster.place(pod, node);
        let change = Change::Pod(Versions { old: before.as_ref(), new: Some(pod) });
        match &before {
            Some(old) if !was_assumed => {
                for event in events::pod_changes(old, pod) {
                    self.wake(event, &change);
                }
            }
            _ => self.wake(POD_ADDED, &Change::Pod(Versions { old: None, new: Some(pod) })),
        }
    }

    /// Applies a pod that has no node yet.
    fn apply_waiting(&mut self, pod: &Arc<PodInfo>) {
        let now = Instant::now();
        self.binder.conditions.seen(pod);
        let is_new_member = self.cluster.groups.waits(pod);
        if pod.is_terminating() {
            self.leave_turn(pod);
        }
        if let Some(assumed) = self.cluster.placed(pod).cloned() {
            // Its binding is under way, and will find it gone.
            if pod.is_terminating() && !assumed.is_terminating() && !self.reject_deleted(&pod.uid) {
                self.release(&assumed);
            }
            return;
        }
        let lost = self.cluster.nominated.node_of(pod).cloned();
        match &pod.nominated {
            Some(node) => self.cluster.nominated.set(pod, node),
            None => self.cluster.nominated.remove(pod),
        }
        if !pod.is_terminating() || self.queue.pool_of(&pod.uid).is_some() {
            self.queue.add(Arc::clone(pod), &self.cluster, now);
        }
        if is_new_member {
            // The rest of its group may wait for it.
            self.wake(UNSCHEDULED_ADDED, &Change::Pod(Versions { old: None, new: Some(pod) }));
        }
        if lost.is_some() && lost != pod.nominated {
            self.queue.nomination_ended(pod, &self.cluster, now);
        }
    }

    /// Removes a pod that no longer waits or uses resources.
    fn forget(&mut self, pod: &Arc<PodInfo>) {
        self.leave_turn(pod);
        self.queue.remove(&pod.uid);
        self.stop_waiting(&pod.uid);
        let was_nominated = self.cluster.nominated.node_of(pod).is_some();
        self.cluster.nominated.remove(pod);
        self.cluster.nominated.set_preempting(&pod.uid, false);
        let placed = self.cluster.placed(pod).cloned();
        match placed {
            Some(placed) => self.release(&placed),
            None if was_nominated => self.queue.nomination_ended(pod, &self.cluster, Instant::now()),
            None => {}
        }
        self.cluster.groups.gone(pod);
        // Only now: what is reserved for a binding under way is released with it.
        self.binding.remove(&pod.uid);
    }

    /// Removes a pod from its node, with all that was reserved for it.
    fn release(&mut self, pod: &Arc<PodInfo>) {
        if let Some(index) = self.profile_of(pod).filter(|_| self.binding.contains_key(&pod.uid)) {
            self.unreserve(index, pod);
        }
        let placed = self.as_placed(pod);
        self.cluster.remove_pod(pod);
        self.wake(POD_REMOVED, &Change::Pod(Versions { old: Some(&placed), new: None }));
    }

    /// Returns a pod with the node that it is counted on, so that plugins see that it has used one.
    pub(super) fn as_placed(&self, pod: &Arc<PodInfo>) -> Arc<PodInfo> {
        match self.cluster.place_of(pod).filter(|_| pod.node.is_none()) {
            Some(id) => Arc::new(pod.on(&self.cluster.node(id).name)),
            None => Arc::clone(pod),
        }
    }

    fn apply_node(&mut self, node: Arc<NodeFacts>) {
        let old = self.cluster.named(&node.name).map(|old| Arc::clone(&old.facts));
        self.cluster.set_node(Arc::clone(&node));
        let change = Change::Node(Versions { old: old.as_ref(), new: Some(&node) });
        match &old {
            Some(old) => {
                for event in events::node_changes(old, &node) {
                    self.wake(event, &change);
                }
            }
            None => self.wake(Event::new(Resource::Node, Actions::ADD), &change),
        }
    }

    fn remove_node(&mut self, name: &str) {
        let Some(old) = self.cluster.named(name).map(|old| Arc::clone(&old.facts)) else { return };
        self.cluster.remove_node(name);
        let change = Change::Node(Versions { old: Some(&old), new: None });
        self.wake(Event::new(Resource::Node, Actions::DELETE), &change);
    }

    /// Applies the outcome of a binding.
    fn bound(&mut self, pod: &Arc<PodInfo>, outcome: Outcome) {
        self.binder.ended(&pod.uid);
        self.cluster.devices.settle(pod);
        // Without an entry, the cache has shown the pod bound or gone meanwhile.
        if !self.binding.contains_key(&pod.uid) {
            return;
        }
        if outcome == Outcome::Bound {
            self.queue.done(&pod.uid);
            return;
        }
        self.release(pod);
        self.binding.remove(&pod.uid);
        let current = self.pods.get(&pod.key()).filter(|current| current.uid == pod.uid);
        let current = current.filter(|current| current.node.is_none());
        let (Some(current), Outcome::Failed(message)) = (current, outcome) else {
            self.queue.done(&pod.uid);
            return;
        };
        let now = Instant::now();
        // Updates during the binding have not reached the queue.
        self.queue.add(Arc::clone(&current), &self.cluster, now);
        let failure = Failure { is_error: true, ..Failure::default() };
        self.queue.failed(&current, failure, &self.cluster, now);
        self.warn(&current, "FailedScheduling", message.clone());
        self.write_condition(&current, "SchedulerError", message, Nomination::Cleared);
    }

    /// Applies the end of the removal of victims. The pod tries again when they are gone, which takes them a while; if a
    /// removal has failed, at once.
    fn preempted(&mut self, uid: &Uid, all_deleted: bool) {
        self.cluster.nominated.set_preempting(uid, false);
        let victims = self.victims.remove(uid).unwrap_or_default();
        let is_there = |victim: &Arc<PodInfo>| self.cluster.placed(victim).is_some();
        let are_there = !victims.is_empty() && victims.iter().all(is_there);
        if !all_deleted || !are_there {
            self.queue.activate([uid], &self.cluster, Instant::now());
        }
    }

    /// Applies a claim that this process has written, unless something newer is known of it.
    fn claim_written(&mut self, claim: Arc<ResourceClaim>) {
        let key = ObjectKey::of(claim.as_ref());
        let known = self.cluster.devices.claim(&key);
        if known.is_some_and(|known| known.metadata.uid == claim.metadata.uid) {
            self.apply_fact(Fact::DeviceClaim(key, Some(claim)));
        }
    }

    fn apply_fact(&mut self, fact: Fact) {
        match fact {
            Fact::Budget(key, budget) => self.cluster.budgets.set(key, budget),
            Fact::Namespace(key, new) => self.set_namespace(key.name, new),
            Fact::Service(key, new) => {
                self.cluster.set_service(&key.namespace, &key.name, selector(new));
            }
            Fact::ReplicationController(key, new) => {
                self.cluster.set_replication_controller(&key.namespace, &key.name, selector(new));
            }
            Fact::ReplicaSet(key, new) => {
                self.cluster.set_controller(Owner::ReplicaSet, &key.namespace, &key.name, selector(new));
            }
            Fact::StatefulSet(key, new) => {
                self.cluster.set_controller(Owner::StatefulSet, &key.namespace, &key.name, selector(new));
            }
            Fact::DeviceClaim(_, Some(new)) if self.cluster.devices.is_outdated(&new) => {}
            Fact::DeviceClaim(key, new) => {
                let old = self.cluster.devices.set_claim(&key, new.clone());
                self.changed(Resource::ResourceClaim, old.as_ref(), new.as_ref(), Change::ResourceClaim);
            }
            Fact::DeviceClass(key, new) => {
                let old = self.cluster.device_classes.named(&key.name).cloned();
                match &new {
                    Some(class) => self.cluster.device_classes.set(Arc::clone(class)),
                    None => self.cluster.device_classes.remove(&key.name),
                }
                self.changed(Resource::DeviceClass, old.as_ref(), new.as_ref(), Change::DeviceClass);
            }
            Fact::DeviceSlice(key, new) => {
                let old = self.cluster.devices.set_slice(&key.name, new.clone());
                self.changed(Resource::ResourceSlice, old.as_ref(), new.as_ref(), Change::ResourceSlice);
            }
            Fact::PodGroup(key, new) => {
                let old = self.cluster.groups.set_object(&key, new.clone());
                self.changed(Resource::PodGroup, old.as_ref(), new.as_ref(), Change::PodGroup);
            }
        }
    }

    /// Applies a change of volumes and of what decides about them.
    fn apply_storage(&mut self, fact: StorageFact) {
        let storage = &mut self.cluster.storage;
        match fact {
            StorageFact::Claim(key, new) => {
                let old = storage.set_claim(&key, new.clone());
                let resource = Resource::PersistentVolumeClaim;
                self.changed(resource, old.as_ref(), new.as_ref(), Change::PersistentVolumeClaim);
            }
            StorageFact::Volume(key, new) => {
                let old = storage.set_volume(&key.name, new.clone());
                let resource = Resource::PersistentVolume;
                self.changed(resource, old.as_ref(), new.as_ref(), Change::PersistentVolume);
            }
            StorageFact::Class(key, new) => {
                let old = storage.set_class(&key.name, new.clone());
                self.changed(Resource::StorageClass, old.as_ref(), new.as_ref(), Change::StorageClass);
            }
            StorageFact::CsiNode(key, new) => {
                let old = storage.set_csi_node(&key.name, new.clone());
                self.changed(Resource::CsiNode, old.as_ref(), new.as_ref(), Change::CsiNode);
            }
            StorageFact::CsiDriver(key, new) => {
                let old = storage.set_driver(&key.name, new.clone());
                self.changed(Resource::CsiDriver, old.as_ref(), new.as_ref(), Change::CsiDriver);
            }
            StorageFact::Capacity(key, new) => {
                let old = storage.set_capacity(&key, new.clone());
                let resource = Resource::CsiStorageCapacity;
                self.changed(resource, old.as_ref(), new.as_ref(), Change::CsiStorageCapacity);
            }
            StorageFact::Attachment(key, new) => {
                let old = storage.set_attachment(&key.name, new.clone());
                let resource = Resource::VolumeAttachment;
                self.changed(resource, old.as_ref(), new.as_ref(), Change::VolumeAttachment);
            }
        }
    }

    fn set_namespace(&mut self, name: String, new: Option<Arc<Namespace>>) {
        let labels = new.as_ref().map(|namespace| namespace.metadata.labels.clone().unwrap_or_default());
        self.cluster.set_namespace(&name, labels);
        let old = match &new {
            Some(new) => self.namespaces.insert(name, Arc::clone(new)),
            None => self.namespaces.remove(&name),
        };
        self.changed(Resource::Namespace, old.as_ref(), new.as_ref(), Change::Namespace);
    }

    /// Wakes the pods that the change of an object may help.
    fn changed<'a, T>(
        &mut self,
        resource: Resource,
        old: Option<&'a Arc<T>>,
        new: Option<&'a Arc<T>>,
        change: fn(Versions<'a, T>) -> Change<'a>,
    ) {
        let actions = match (old, new) {
            (None, Some(_)) => Actions::ADD,
            (Some(_), Some(_)) => Actions::OTHER_UPDATE,
            (Some(_), None) => Actions::DELETE,
            (None, None) => return,
        };
        self.wake(Event::new(resource, actions), &change(Versions { old, new }));
    }
}

/// Returns the selector of an object; `None` if it has none, or is gone.
fn selector<K: Selects<Selector: Clone>>(object: Option<Arc<Selecting<K>>>) -> Option<K::Selector> {
    object?.selector.clone()
}
