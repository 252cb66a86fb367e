//! Decisions about claims that ask for a directory of a node, and about volumes that are one. Pure.

use std::path::Path;

use apiserver_meta::volumes::{
    self, BETA_STORAGE_PROVISIONER, LOCAL_PATH, LOCAL_PATH_DIRECTORY, LOCAL_PATH_NODE, PROVISIONED_BY,
    PROVISIONER_FINALIZER, SELECTED_NODE, STORAGE_PROVISIONER,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{from_value, json};

use crate::meta::{annotation, is_deleted, name, uid};

/// Label of a Node by which the affinity of its volumes names it.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Returns `true` if a claim asks for a volume of this provisioner, and has none yet.
pub(super) fn is_asking(claim: &PersistentVolumeClaim) -> bool {
    let asked = annotation(&claim.metadata, STORAGE_PROVISIONER)
        .or_else(|| annotation(&claim.metadata, BETA_STORAGE_PROVISIONER));
    asked == Some(LOCAL_PATH) && volumes::volume_name(claim).is_empty() && !is_deleted(&claim.metadata)
}

/// Next step for a claim that asks for a volume.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Provision {
    /// The class is of another provisioner, or the scheduler has not selected a node yet.
    Wait,
    /// The claim or its class asks for what directories do not have.
    Refuse(String),
    /// The selected node cannot have the volume: another one is to be selected.
    Reschedule(String),
    Create(Box<PersistentVolume>),
}

/// Decides what is next for a claim that [`is_asking`]. `node` is the selected one, if it exists.
pub(super) fn provision(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    node: Option<&Node>,
) -> Provision {
    let Some(class) = class.filter(|class| class.provisioner == LOCAL_PATH) else { return Provision::Wait };
    if let Some(why) = unsupported(claim, class) {
        return Provision::Refuse(why);
    }
    let Some(selected) = volumes::selected_node(claim) else {
        return if volumes::is_delayed(class) {
            Provision::Wait
        } else {
            Provision::Refuse("the class must have volumeBindingMode WaitForFirstConsumer".to_owned())
        };
    };
    let Some(node) = node else { return Provision::Reschedule(format!("node {selected:?} not found")) };
    let directory =
        annotation(&node.metadata, LOCAL_PATH_DIRECTORY).filter(|path| Path::new(path).is_absolute());
    let Some(directory) = directory else {
        let why = format!(
            "node {selected:?} has no annotation {LOCAL_PATH_DIRECTORY}: its kubelet makes no volumes"
        );
        return Provision::Reschedule(why);
    };
    match volume(claim, class, node, directory) {
        Some(volume) => Provision::Create(Box::new(volume)),
        None => Provision::Reschedule(format!("node {selected:?} has no label {HOSTNAME}")),
    }
}

/// Returns what a claim or its class asks for and a directory of a node does not have.
fn unsupported(claim: &PersistentVolumeClaim, class: &StorageClass) -> Option<String> {
    let spec = claim.spec.as_ref()?;
    let is_used = |list: Option<usize>| list.is_some_and(|length| length > 0);
    let local = ["ReadWriteOnce", "ReadWriteOncePod"];
    let mode = spec.access_modes.iter().flatten().find(|mode| !local.contains(&mode.as_str()));
    let why = if let Some(mode) = mode {
        format!("access mode {mode} is not supported: the volume is a directory of one node")
    } else if spec.volume_mode.as_deref().is_some_and(|mode| mode != "Filesystem") {
        "volumeMode Block is not supported".to_owned()
    } else if spec.selector.is_some() {
        "claim.spec.selector is not supported".to_owned()
    } else if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        "a data source is not supported".to_owned()
    } else if spec.volume_attributes_class_name.as_deref().is_some_and(|class| !class.is_empty()) {
        "volumeAttributesClassName is not supported".to_owned()
    } else if is_used(class.parameters.as_ref().map(std::collections::BTreeMap::len)) {
        "parameters of the class are not supported".to_owned()
    } else if is_used(class.mount_options.as_ref().map(Vec::len)) {
        "mountOptions of the class are not supported".to_owned()
    } else {
        return None;
    };
    Some(why)
}

/// Returns the volume for a claim. Its name follows from the claim's uid, so that there is one however often it is made;
/// nothing of the claim that a user chooses becomes a part of the path.
fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &Node,
    directory: &str,
) -> Option<PersistentVolume> {
    let hostname = node.metadata.labels.as_ref()?.get(HOSTNAME)?;
    let spec = claim.spec.as_ref()?;
    let requested = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
    let volume = format!("pvc-{}", uid(&claim.metadata));
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": volume,
            "annotations": {PROVISIONED_BY: LOCAL_PATH, LOCAL_PATH_NODE: name(&node.metadata)},
            "finalizers": [PROVISIONER_FINALIZER],
        },
        "spec": {
            "accessModes": spec.access_modes, "capacity": {"storage": requested},
            "claimRef": volumes::reference(claim),
            "local": {"path": Path::new(directory).join(&volume)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": HOSTNAME, "operator": "In", "values": [hostname]}]}]}},
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": volumes::claim_class(claim), "volumeMode": "Filesystem",
        },
    });
    from_value(object).ok()
}

/// Returns the claim without the node that was selected for it; `None` if there is none.
pub(super) fn without_node(claim: &PersistentVolumeClaim) -> Option<PersistentVolumeClaim> {
    let mut new = claim.clone();
    new.metadata.annotations.as_mut()?.remove(SELECTED_NODE)?;
    Some(new)
}

/// Next step for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Nothing,
    /// Its policy and its finalizer contradict each other: write the finalizer or remove it.
    Finalizer(bool),
    /// Its claim is gone: delete the object, which the finalizer holds.
    Delete,
    /// It is being deleted, and its directory has to go first.
    Directory,
}

/// Decides what is next for a volume. That its claim is gone is for the caller to check.
pub(super) fn removal(volume: &PersistentVolume) -> Removal {
    let meta = &volume.metadata;
    if annotation(meta, PROVISIONED_BY) != Some(LOCAL_PATH) {
        return Removal::Nothing;
    }
    let is_held = meta.finalizers.iter().flatten().any(|name| name == PROVISIONER_FINALIZER);
    let is_wanted = volumes::reclaim_policy(volume) == "Delete";
    match (is_wanted, is_held, is_deleted(meta)) {
        (false, true, _) => Removal::Finalizer(false),
        // Nothing can be added to an object that is being deleted.
        (true, false, false) => Removal::Finalizer(true),
        (true, true, true) if volumes::volume_phase(volume) != "Bound" => Removal::Directory,
        (true, true, false) if volumes::volume_phase(volume) == "Released" => Removal::Delete,
        _ => Removal::Nothing,
    }
}

/// Returns the volume with or without the finalizer.
pub(super) fn with_finalizer(volume: &PersistentVolume, present: bool) -> PersistentVolume {
    let mut new = volume.clone();
    let mut all = new.metadata.finalizers.take().unwrap_or_default();
    all.retain(|name| name != PROVISIONER_FINALIZER);
    if present {
        all.push(PROVISIONER_FINALIZER.to_owned());
    }
    new.metadata.finalizers = (!all.is_empty()).then_some(all);
    new
}

/// Returns the path at which the API server leads to the door of the volume's node; `None` if node or volume have names
/// that no object has.
pub(super) fn door(volume: &PersistentVolume) -> Option<String> {
    let is_name = |text: &&str| {
        !text.is_empty()
            && !text.starts_with('.')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
    };
    let node = annotation(&volume.metadata, LOCAL_PATH_NODE).filter(is_name)?;
    let volume = Some(name(&volume.metadata)).filter(is_name)?;
    Some(format!("/api/v1/nodes/{node}/proxy/{}/{volume}", volumes::LOCAL_PATH_DOOR))
}
