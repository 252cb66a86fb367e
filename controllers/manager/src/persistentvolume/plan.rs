//! Decisions about claims and volumes. Pure: the caller collects what they depend on.

use std::sync::Arc;

use apiserver_meta::volumes::{self, BIND_COMPLETED, BOUND_BY_CONTROLLER, MIGRATED_TO, PROVISIONED_BY};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use crate::meta::{annotation, name, uid};

/// An event about the object that is reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub is_warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Note {
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { is_warning: false, reason, message: message.into() }
    }

    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { is_warning: true, reason, message: message.into() }
    }
}

/// Facts that a decision about a claim depends on.
#[derive(Default)]
pub(super) struct View<'a> {
    /// The volume that the claim names, if it exists.
    pub named: Option<Arc<PersistentVolume>>,
    /// Volumes that refer to the claim by name.
    pub referring: Vec<Arc<PersistentVolume>>,
    /// Volumes of the claim's class that may be free.
    pub free: Vec<Arc<PersistentVolume>>,
    /// The claim's class, if it exists.
    pub class: Option<&'a StorageClass>,
    /// Name of the default class, if there is one.
    pub default_class: Option<&'a str>,
    /// Names of the pods that wait for a node and use the claim.
    pub waiting_pods: Vec<String>,
}

/// Next step for a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ClaimStep {
    /// Bind it to this volume, or finish doing so.
    Bind(Arc<PersistentVolume>),
    /// Set its phase and report why.
    Phase(&'static str, Option<Note>),
    /// Give it the default class.
    AssignClass(String),
    /// Ask this provisioner for a volume.
    Provision(String),
    /// Report a problem, and wait for a change.
    Report(Note),
}

/// Decides what is next for a claim.
pub(super) fn claim(claim: &PersistentVolumeClaim, view: &View<'_>) -> ClaimStep {
    let is_named = !volumes::volume_name(claim).is_empty();
    match (volumes::is_annotated(&claim.metadata, BIND_COMPLETED), is_named) {
        (true, _) => bound(claim, view),
        (false, true) => wanting(claim, view),
        (false, false) => open(claim, view),
    }
}

/// Decides for a claim that was bound once.
fn bound(claim: &PersistentVolumeClaim, view: &View<'_>) -> ClaimStep {
    let lost = |reason, message: &str| ClaimStep::Phase("Lost", Some(Note::warning(reason, message)));
    if volumes::volume_name(claim).is_empty() {
        return lost(
            "ClaimLost",
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        );
    }
    let Some(volume) = &view.named else {
        return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
    };
    match volumes::claim_ref(volume) {
        Some(reference) if reference.uid.as_deref().unwrap_or_default() != uid(&claim.metadata) => {
            lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
        }
        _ => ClaimStep::Bind(Arc::clone(volume)),
    }
}

/// Decides for a claim that asks for a volume by name.
fn wanting(claim: &PersistentVolumeClaim, view: &View<'_>) -> ClaimStep {
    let Some(volume) = &view.named else { return ClaimStep::Phase("Pending", None) };
    let shown = name(&volume.metadata);
    if volumes::claim_ref(volume).is_none() {
        return match volumes::check(volume, claim) {
            Ok(()) => ClaimStep::Bind(Arc::clone(volume)),
            Err(problem) => {
                let message = format!("Cannot bind to requested volume {shown:?}: {problem}");
                ClaimStep::Phase("Pending", Some(Note::warning("VolumeMismatch", message)))
            }
        };
    }
    if volumes::is_bound_to(volume, claim) {
        return ClaimStep::Bind(Arc::clone(volume));
    }
    let message = format!("volume {shown:?} already bound to a different claim.");
    let note = Note::warning("FailedBinding", message);
    if volumes::is_annotated(&claim.metadata, BOUND_BY_CONTROLLER) {
        // Somebody has removed the mark of a finished binding; nothing that is written would be right.
        ClaimStep::Report(note)
    } else {
        ClaimStep::Phase("Pending", Some(note))
    }
}

/// Decides for a claim that takes any volume that suits it.
fn open(claim: &PersistentVolumeClaim, view: &View<'_>) -> ClaimStep {
    let is_delayed = view.class.is_some_and(volumes::is_delayed);
    if let Some(volume) = volumes::reserved(claim, &view.referring) {
        return ClaimStep::Bind(Arc::clone(volume));
    }
    // The scheduler chooses among the free volumes for a claim that waits for a pod.
    if !is_delayed && let Some(volume) = volumes::best(claim, &view.free, |_| true) {
        return ClaimStep::Bind(Arc::clone(volume));
    }
    if let Some(class) = view.default_class.filter(|_| !volumes::has_class(claim)) {
        return ClaimStep::AssignClass(class.to_owned());
    }
    if is_delayed && volumes::selected_node(claim).is_none() {
        return ClaimStep::Phase("Pending", Some(waiting(&view.waiting_pods)));
    }
    let class = volumes::claim_class(claim);
    if class.is_empty() {
        let message = "no persistent volumes available for this claim and no storage class is set";
        return ClaimStep::Phase("Pending", Some(Note::normal("FailedBinding", message)));
    }
    provision(class, view)
}

fn waiting(pods: &[String]) -> Note {
    match pods {
        [] => Note::normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        [pod] => Note::normal("WaitForPodScheduled", format!("waiting for pod {pod} to be scheduled")),
        pods => {
            let message = format!("waiting for pods {} to be scheduled", pods.join(","));
            Note::normal("WaitForPodScheduled", message)
        }
    }
}

fn provision(class: &str, view: &View<'_>) -> ClaimStep {
    let failed = |message: String| ClaimStep::Report(Note::warning("ProvisioningFailed", message));
    let Some(found) = view.class else {
        return failed(format!("storageclass.storage.k8s.io {class:?} not found"));
    };
    // Names with this prefix are of drivers that were built into Kubernetes.
    if found.provisioner.starts_with("kubernetes.io/") {
        return failed(format!("no volume plugin matched name: {}", found.provisioner));
    }
    ClaimStep::Provision(found.provisioner.clone())
}

/// Next step for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VolumeStep {
    /// Set its phase.
    Phase(&'static str),
    /// Set its phase to Released, unless it is or failed to be reclaimed, and then act on its policy.
    Release,
    /// Take back the reference to a claim that is bound to another volume.
    Unbind,
    /// Let the claim be reconciled, which finishes the binding.
    Claim,
    /// Report to volume and claim that they do not fit.
    Mismatch,
}

/// Decides what is next for a volume. `claim` is the one that it refers to, if that exists and has the same uid.
pub(super) fn volume(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> VolumeStep {
    let Some(reference) = volumes::claim_ref(volume) else { return VolumeStep::Phase("Available") };
    if reference.uid.as_deref().unwrap_or_default().is_empty() {
        return VolumeStep::Phase("Available");
    }
    let Some(claim) = claim else { return VolumeStep::Release };
    let bound = volumes::volume_name(claim);
    if bound.is_empty() {
        let fits = volumes::has_same_mode(volume, claim);
        return if fits { VolumeStep::Claim } else { VolumeStep::Mismatch };
    }
    if bound == name(&volume.metadata) {
        return VolumeStep::Phase("Bound");
    }
    let was_made = volumes::is_annotated(&volume.metadata, PROVISIONED_BY);
    if was_made && volumes::reclaim_policy(volume) == "Delete" {
        VolumeStep::Release
    } else {
        VolumeStep::Unbind
    }
}

/// Returns the events about a volume and a claim that are a file system and a device.
pub(super) fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> (Note, Note) {
    let (of_volume, of_claim) = (name(&volume.metadata), name(&claim.metadata));
    let about = |first: &str, second: &str| {
        Note::warning(
            "VolumeMismatch",
            format!("Cannot bind {first} to requested {second} due to incompatible volumeMode."),
        )
    };
    (
        about("PersistentVolume", &format!("PersistentVolumeClaim {of_claim:?}")),
        about(&format!("PersistentVolume {of_volume:?}"), "PersistentVolumeClaim"),
    )
}

/// Returns why a released volume cannot be reclaimed; `None` if nothing is to be done, or if its provisioner does it.
pub(super) fn reclaim(volume: &PersistentVolume) -> Option<Note> {
    let meta = &volume.metadata;
    if annotation(meta, MIGRATED_TO).is_some_and(|driver| !driver.is_empty()) {
        return None;
    }
    match volumes::reclaim_policy(volume) {
        "Retain" => None,
        "Recycle" => Some(Note::warning("VolumeFailedRecycle", "No recycler plugin found for the volume!")),
        "Delete" => {
            let message = match annotation(meta, PROVISIONED_BY).filter(|made_by| !made_by.is_empty()) {
                Some(made_by) if made_by.starts_with("kubernetes.io/") => {
                    format!("no volume plugin matched name: {made_by}")
                }
                Some(_) => return None,
                None if volume.spec.as_ref().is_some_and(|spec| spec.csi.is_some()) => return None,
                None => {
                    let shown = name(meta);
                    format!(
                        "error getting deleter volume plugin for volume {shown:?}: no deletable volume plugin matched"
                    )
                }
            };
            Some(Note::warning("VolumeFailedDelete", message))
        }
        _ => Some(Note::warning(
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy",
        )),
    }
}

/// Returns the event about a claim that waits for a provisioner outside of the controllers.
pub(super) fn external(provisioner: &str) -> Note {
    Note::normal(
        "ExternalProvisioning",
        format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by \
             the system administrator. If volume creation is delayed, please verify that the provisioner is running \
             and correctly registered."
        ),
    )
}

/// Returns the namespace and the name of the claim that a volume refers to.
pub(super) fn claim_of(volume: &PersistentVolume) -> Option<(String, String)> {
    let reference = volumes::claim_ref(volume)?;
    Some((reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default()))
}
