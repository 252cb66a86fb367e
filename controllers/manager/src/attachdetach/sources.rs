//! The caches from which views of volumes are made, and the changes that ask for a new decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_client::{Cache, Change, Index, IndexBy, ObjectKey};
use apiserver_meta::{nodes, volumes};
use controllers_runtime::WorkQueue;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};

use super::names::{attachment_name, split, unique_name};
use super::plan::{Attachment, Facts, Place, View};
use crate::context::Context;
use crate::index::{ByClaim, ByNode};
use crate::meta::{annotation, is_controlled_by, is_deleted, name, namespace, uid};
use crate::pods::{Pod, claim_of, claims_of, is_terminated};

/// Annotation of nodes whose volumes the control plane attaches.
const CONTROLLER_MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Index of PersistentVolumes by their names in the status of nodes.
struct ByUnique;

impl IndexBy<PersistentVolume> for ByUnique {
    type Value = String;

    fn values(volume: &PersistentVolume) -> Vec<String> {
        unique_of(volume).into_iter().collect()
    }
}

/// Index of PersistentVolumes by the claim that they are for.
struct ForClaim;

impl IndexBy<PersistentVolume> for ForClaim {
    type Value = ObjectKey;

    fn values(volume: &PersistentVolume) -> Vec<ObjectKey> {
        claim_key(volume).into_iter().collect()
    }
}

/// Index of VolumeAttachments by the name of the PersistentVolume.
struct OfVolume;

impl IndexBy<VolumeAttachment> for OfVolume {
    type Value = String;

    fn values(attachment: &VolumeAttachment) -> Vec<String> {
        attachment.spec.source.persistent_volume_name.iter().cloned().collect()
    }
}

/// Index of VolumeAttachments by the name of the node.
struct OnNode;

impl IndexBy<VolumeAttachment> for OnNode {
    type Value = String;

    fn values(attachment: &VolumeAttachment) -> Vec<String> {
        vec![attachment.spec.node_name.clone()]
    }
}

/// Index of nodes by the volumes that their status says are attached.
struct ByReported;

impl IndexBy<Node> for ByReported {
    type Value = String;

    fn values(node: &Node) -> Vec<String> {
        reported(node).map(str::to_owned).collect()
    }
}

fn unique_of(volume: &PersistentVolume) -> Option<String> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some(unique_name(&source.driver, &source.volume_handle))
}

fn claim_key(volume: &PersistentVolume) -> Option<ObjectKey> {
    let reference = volumes::claim_ref(volume)?;
    Some(ObjectKey::new(reference.namespace.as_deref()?, reference.name.as_deref()?))
}

/// Returns the CSI volumes that the status of a node says are attached.
fn reported(node: &Node) -> impl Iterator<Item = &str> {
    let attached = node.status.iter().flat_map(|status| status.volumes_attached.iter().flatten());
    attached.map(|volume| volume.name.as_str()).filter(|name| split(name).is_some())
}

/// Returns the volumes that a node says are in use.
fn in_use(node: &Node) -> impl Iterator<Item = &String> {
    node.status.iter().flat_map(|status| status.volumes_in_use.iter().flatten())
}

/// Returns `true` if a node says that a volume is in use.
pub(super) fn is_in_use(node: &Node, unique: &str) -> bool {
    in_use(node).any(|used| used == unique)
}

fn facts(node: &Node) -> Facts {
    Facts {
        is_managed: annotation(&node.metadata, CONTROLLER_MANAGED).is_some(),
        is_healthy: nodes::is_ready(node),
        is_out_of_service: nodes::is_out_of_service(node),
    }
}

/// Returns `true` if a node may not be able to say that a volume is no longer in use.
pub(super) fn is_lost(node: &Node) -> bool {
    let facts = facts(node);
    facts.is_out_of_service || !facts.is_healthy
}

/// Returns `true` if a volume may be attached to several nodes. One that does not say is left to its driver.
fn allows_many(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    modes.is_empty() || modes.iter().any(|mode| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany"))
}

fn state(attachment: &VolumeAttachment) -> Attachment {
    let status = attachment.status.as_ref();
    let message =
        |error: &k8s_openapi::api::storage::v1::VolumeError| error.message.clone().unwrap_or_default();
    Attachment {
        is_attached: status.is_some_and(|status| status.attached),
        is_deleted: is_deleted(&attachment.metadata),
        attach_error: status.and_then(|status| status.attach_error.as_ref()).map(message),
        detach_error: status.and_then(|status| status.detach_error.as_ref()).map(message),
    }
}

/// The caches with their indexes.
pub(super) struct Sources {
    volumes: Cache<PersistentVolume>,
    claims: Cache<PersistentVolumeClaim>,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    pub attachments: Cache<VolumeAttachment>,
    drivers: Cache<CSIDriver>,
    by_unique: Index<PersistentVolume, ByUnique>,
    for_claim: Index<PersistentVolume, ForClaim>,
    by_claim: Index<Pod, ByClaim>,
    pods_on: Index<Pod, ByNode>,
    of_volume: Index<VolumeAttachment, OfVolume>,
    on_node: Index<VolumeAttachment, OnNode>,
    by_reported: Index<Node, ByReported>,
    /// Volumes that deleted nodes with attachments had in use last.
    gone: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

impl Sources {
    pub fn new(context: &Context) -> Self {
        let volumes = context.informers.cache::<PersistentVolume>();
        let nodes = context.informers.cache::<Node>();
        let pods = context.informers.cache::<Pod>();
        let attachments = context.informers.cache::<VolumeAttachment>();
        Self {
            claims: context.informers.cache(),
            drivers: context.informers.cache(),
            by_unique: volumes.index(),
            for_claim: volumes.index(),
            by_claim: pods.index(),
            pods_on: pods.index(),
            of_volume: attachments.index(),
            on_node: attachments.index(),
            by_reported: nodes.index(),
            gone: Mutex::default(),
            volumes,
            nodes,
            pods,
            attachments,
        }
    }

    /// Waits until all caches are complete.
    pub async fn synced(&self) {
        self.volumes.synced().await;
        self.claims.synced().await;
        self.nodes.synced().await;
        self.pods.synced().await;
        self.attachments.synced().await;
        self.drivers.synced().await;
    }

    /// Returns the names of all volumes.
    pub fn all(&self) -> BTreeSet<String> {
        let nodes = self.nodes.list();
        let reported = nodes.iter().flat_map(|node| reported(node)).map(str::to_owned);
        let volumes = self.volumes.list();
        volumes.iter().filter_map(|volume| unique_of(volume)).chain(reported).collect()
    }

    /// Returns a volume with all nodes that have to do with it. The times of the places are not set.
    pub fn view(&self, unique: &str) -> View {
        let found = self.by_unique.get(&unique.to_owned());
        let mut places: BTreeMap<String, Place> = BTreeMap::new();
        for volume in &found {
            let of = name(&volume.metadata);
            for pod in self.users(volume) {
                let place = places.entry(pod.node_name().to_owned()).or_default();
                if place.volume.is_empty() {
                    of.clone_into(&mut place.volume);
                }
                place.pods.push(pod);
            }
            for attachment in self.of_volume.get(&of.to_owned()) {
                places.entry(attachment.spec.node_name.clone()).or_default();
            }
        }
        for node in self.by_reported.get(&unique.to_owned()) {
            places.entry(name(&node.metadata).to_owned()).or_default().is_reported = true;
        }
        for (node, place) in &mut places {
            self.complete(unique, node, place);
        }
        places.retain(|_, place| place.is_taken() || place.is_reported || !place.pods.is_empty());
        let driver = split(unique).map_or("", |(driver, _)| driver);
        let driver = self.drivers.get(&ObjectKey::new("", driver));
        View {
            unique: unique.to_owned(),
            is_exclusive: found.iter().any(|volume| !allows_many(volume)),
            is_attachable: driver.is_none_or(|driver| driver.spec.attach_required != Some(false)),
            places,
        }
    }

    fn complete(&self, unique: &str, name: &str, place: &mut Place) {
        place.attachment = self.attachment(unique, name).as_deref().map(state);
        let node = self.nodes.get(&ObjectKey::new("", name));
        place.node = node.as_deref().map(facts);
        place.is_in_use = match &node {
            Some(node) => is_in_use(node, unique),
            None => self.gone().get(name).is_none_or(|used| used.contains(unique)),
        };
    }

    /// Returns the attachment of a volume to a node.
    pub fn attachment(&self, unique: &str, node: &str) -> Option<Arc<VolumeAttachment>> {
        let name = attachment_name(unique, node)?;
        self.attachments.get(&ObjectKey::new("", &name))
    }

    /// Returns `true` if the cache shows that a node says that a volume is attached.
    pub fn is_reported(&self, unique: &str, node: &str) -> bool {
        let node = self.nodes.get(&ObjectKey::new("", node));
        node.is_some_and(|node| reported(&node).any(|one| one == unique))
    }

    /// Returns the pods on nodes that use a volume and have not ended.
    fn users(&self, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
        let Some(key) = claim_key(volume) else { return Vec::new() };
        let Some(claim) = self.claims.get(&key) else { return Vec::new() };
        let wanted = volumes::claim_ref(volume).and_then(|reference| reference.uid.as_deref());
        let is_bound = wanted == Some(uid(&claim.metadata))
            && volumes::claim_phase(&claim) == "Bound"
            && volumes::volume_name(&claim) == name(&volume.metadata);
        if !is_bound {
            return Vec::new();
        }
        let mut pods = self.by_claim.get(&key);
        pods.retain(|pod| !pod.node_name().is_empty() && !is_terminated(pod) && may_use(pod, &claim));
        pods
    }

    fn gone(&self) -> MutexGuard<'_, BTreeMap<String, BTreeSet<String>>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the volumes of a claim to the queue.
    fn add_claim(&self, claim: &ObjectKey, queue: &WorkQueue<String>) {
        let volumes = self.for_claim.get(claim);
        volumes.iter().filter_map(|volume| unique_of(volume)).for_each(|unique| queue.add(unique));
    }

    fn add_pod(&self, pod: &Pod, queue: &WorkQueue<String>) {
        let space = namespace(&pod.metadata);
        for claim in claims_of(pod) {
            self.add_claim(&ObjectKey::new(space, &claim), queue);
        }
    }

    /// Adds the volume of an attachment to the queue, and returns `true`, if the volume exists.
    fn add_volume(&self, attachment: &VolumeAttachment, queue: &WorkQueue<String>) -> bool {
        let name = attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
        let volume = self.volumes.get(&ObjectKey::new("", name));
        volume.iter().filter_map(|volume| unique_of(volume)).for_each(|unique| queue.add(unique));
        volume.is_some()
    }

    /// Adds the volume of an attachment to the queue. If the volume is gone, its node may still name it.
    fn add_attachment(&self, attachment: &VolumeAttachment, queue: &WorkQueue<String>) {
        if self.add_volume(attachment, queue) {
            return;
        }
        let node_name = &attachment.spec.node_name;
        if let Some(node) = self.nodes.get(&ObjectKey::new("", node_name)) {
            let of = Some(name(&attachment.metadata));
            let named = reported(&node).filter(|one| attachment_name(one, node_name).as_deref() == of);
            named.for_each(|unique| queue.add(unique.to_owned()));
        }
    }

    fn add_node(&self, node: &Node, queue: &WorkQueue<String>) {
        reported(node).for_each(|unique| queue.add(unique.to_owned()));
        let name = name(&node.metadata).to_owned();
        for attachment in self.on_node.get(&name) {
            self.add_volume(&attachment, queue);
        }
        self.pods_on.get(&name).iter().for_each(|pod| self.add_pod(pod, queue));
    }
}

/// Returns `true` if a claim is not of an ephemeral volume of another pod.
fn may_use(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    crate::pods::volumes(pod).iter().any(|volume| {
        claim_of(pod, volume).as_deref() == Some(name(&claim.metadata))
            && (volume.ephemeral.is_none() || is_controlled_by(&claim.metadata, &pod.metadata))
    })
}

/// Everything of a node that decisions depend on.
fn relevant(node: &Node) -> ([bool; 3], BTreeSet<&str>, BTreeSet<&String>) {
    let Facts { is_managed, is_healthy, is_out_of_service } = facts(node);
    ([is_managed, is_healthy, is_out_of_service], reported(node).collect(), in_use(node).collect())
}

/// Adds volumes to the queue when something changes on which a decision about them depends.
pub(super) fn follow(sources: &Arc<Sources>, queue: &WorkQueue<String>) {
    let (of, to) = (Arc::clone(sources), queue.clone());
    sources.volumes.on_change(move |change| {
        let before = if let Change::Applied { old, .. } = change { old.as_ref() } else { None };
        let versions = before.into_iter().chain([change.object()]);
        versions.filter_map(|volume| unique_of(volume)).for_each(|unique| to.add(unique));
    });
    let to = queue.clone();
    sources.claims.on_change(move |change| of.add_claim(&change.key(), &to));
    let (of, to) = (Arc::clone(sources), queue.clone());
    sources.pods.on_change(move |change| {
        let relevant =
            |pod: &Pod| (pod.node_name().to_owned(), is_terminated(pod), uid(&pod.metadata).to_owned());
        let is_same = match change {
            Change::Applied { old: Some(old), new } => relevant(old) == relevant(new),
            _ => false,
        };
        if !is_same && !change.object().node_name().is_empty() {
            of.add_pod(change.object(), &to);
        }
    });
    let (of, to) = (Arc::clone(sources), queue.clone());
    sources.attachments.on_change(move |change| {
        let attachment = change.object();
        if matches!(change, Change::Deleted(_)) && of.on_node.count(&attachment.spec.node_name) == 0 {
            of.gone().remove(&attachment.spec.node_name);
        }
        of.add_attachment(attachment, &to);
    });
    let (of, to) = (Arc::clone(sources), queue.clone());
    sources.nodes.on_change(move |change| {
        let node = change.object();
        let name = name(&node.metadata);
        let is_same = match change {
            Change::Applied { old, new } => {
                of.gone().remove(name);
                old.as_ref().is_some_and(|old| relevant(old) == relevant(new))
            }
            Change::Deleted(_) => {
                if of.on_node.count(&name.to_owned()) > 0 {
                    of.gone().insert(name.to_owned(), in_use(node).cloned().collect());
                }
                false
            }
        };
        if !is_same {
            of.add_node(node, &to);
        }
    });
    let (of, to) = (Arc::clone(sources), queue.clone());
    sources.drivers.on_change(move |change| {
        let before = if let Change::Applied { old: Some(old), .. } = change { Some(old) } else { None };
        if before.is_some_and(|before| before.spec.attach_required == change.object().spec.attach_required) {
            return;
        }
        let driver = name(&change.object().metadata);
        let is_own = |unique: &String| split(unique).is_some_and(|(of, _)| of == driver);
        of.all().into_iter().filter(is_own).for_each(|unique| to.add(unique));
    });
}
