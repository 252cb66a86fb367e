//! The writes that bind a claim to a volume, one after the other: the volume and its phase, then the claim and its
//! status. Each follows from the two objects alone, so that whoever finds a binding half done finishes it.

use apiserver_meta::volumes::{
    self, BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, STORAGE_PROVISIONER,
};
use controllers_runtime::{Error, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::meta::{annotation, name};

/// Number of writes that a binding takes at most.
pub(super) const WRITES: usize = 4;

/// A write of a binding, with the object as it is to be.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Write {
    Volume(Box<PersistentVolume>),
    VolumeStatus(Box<PersistentVolume>),
    Claim(Box<PersistentVolumeClaim>),
    ClaimStatus(Box<PersistentVolumeClaim>),
}

/// Returns the next write that binds the two to each other; `None` if they are bound.
pub(super) fn next(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<Option<Write>> {
    if let Some(new) = volumes::bound_to(volume, claim) {
        return Ok(Some(Write::Volume(Box::new(new))));
    }
    if let Some(new) = with_volume_phase(volume, "Bound", "") {
        return Ok(Some(Write::VolumeStatus(Box::new(new))));
    }
    if let Some(new) = claim_bound_to(claim, volume) {
        return Ok(Some(Write::Claim(Box::new(new))));
    }
    let status = with_claim_phase(claim, "Bound", Some(volume))?;
    Ok(status.map(|new| Write::ClaimStatus(Box::new(new))))
}

/// Returns the claim with the name of the volume and the marks of a binding; `None` if it has them.
fn claim_bound_to(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<PersistentVolumeClaim> {
    let mut new = claim.clone();
    let annotations = new.metadata.annotations.get_or_insert_default();
    let yes = || "yes".to_owned();
    if volumes::volume_name(claim) != name(&volume.metadata) {
        new.spec.get_or_insert_default().volume_name = volume.metadata.name.clone();
        annotations.entry(BOUND_BY_CONTROLLER.to_owned()).or_insert_with(yes);
    }
    annotations.entry(BIND_COMPLETED.to_owned()).or_insert_with(yes);
    (new != *claim).then_some(new)
}

/// Returns the claim with this phase, and with size, access modes and attributes of its volume; `None` if it has them.
///
/// # Errors
///
/// Fails if the volume has no size.
pub(super) fn with_claim_phase(
    claim: &PersistentVolumeClaim,
    phase: &str,
    volume: Option<&PersistentVolume>,
) -> Result<Option<PersistentVolumeClaim>> {
    let mut new = claim.clone();
    let (before, status) = (volumes::claim_phase(claim), new.status.get_or_insert_default());
    status.phase = Some(phase.to_owned());
    match volume.map(|volume| (volume, volume.spec.clone().unwrap_or_default())) {
        None => {
            status.access_modes = None;
            status.capacity = None;
            status.current_volume_attributes_class_name = None;
        }
        Some((volume, spec)) => {
            status.access_modes = spec.access_modes;
            // Later changes of the size are for those who resize the file system to report.
            if before != phase {
                if volumes::capacity(volume).is_none() {
                    return Err(Error::Unusable {
                        object: format!("PersistentVolume {:?}", name(&volume.metadata)),
                        problem: "is without a storage capacity".to_owned(),
                    });
                }
                status.capacity = spec.capacity;
            }
            if before == "Pending" && phase == "Bound" {
                status.current_volume_attributes_class_name = spec.volume_attributes_class_name;
            }
        }
    }
    Ok((new != *claim).then_some(new))
}

/// Returns the volume with this phase; `None` if it has it.
pub(super) fn with_volume_phase(
    volume: &PersistentVolume,
    phase: &str,
    message: &str,
) -> Option<PersistentVolume> {
    if volumes::volume_phase(volume) == phase {
        return None;
    }
    let mut new = volume.clone();
    let status = new.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.message = (!message.is_empty()).then(|| message.to_owned());
    Some(new)
}

/// Returns the volume without its claim if the binder has set that, or else reserved for the claim's name.
pub(super) fn unbound(volume: &PersistentVolume) -> PersistentVolume {
    let mut new = volume.clone();
    let Some(spec) = &mut new.spec else { return new };
    if volumes::is_annotated(&volume.metadata, BOUND_BY_CONTROLLER) {
        spec.claim_ref = None;
        if let Some(annotations) = &mut new.metadata.annotations {
            annotations.remove(BOUND_BY_CONTROLLER);
        }
    } else if let Some(reference) = &mut spec.claim_ref {
        reference.uid = None;
    }
    new
}

/// Returns the claim with the annotations that ask a provisioner for a volume; `None` if it has them.
pub(super) fn asking(claim: &PersistentVolumeClaim, provisioner: &str) -> Option<PersistentVolumeClaim> {
    if annotation(&claim.metadata, STORAGE_PROVISIONER) == Some(provisioner) {
        return None;
    }
    let mut new = claim.clone();
    let annotations = new.metadata.annotations.get_or_insert_default();
    for key in [STORAGE_PROVISIONER, BETA_STORAGE_PROVISIONER] {
        annotations.insert(key.to_owned(), provisioner.to_owned());
    }
    Some(new)
}
