//! Finalizers that protect storage objects while they are in use.

/// The finalizer of PersistentVolumeClaims that pods use.
pub const CLAIM: &str = "kubernetes.io/pvc-protection";
/// The finalizer of PersistentVolumes that are bound to a claim.
pub const VOLUME: &str = "kubernetes.io/pv-protection";
/// The finalizer of VolumeAttributesClasses that claims or volumes refer to.
pub const ATTRIBUTES_CLASS: &str = "kubernetes.io/vac-protection";

/// Returns the finalizer that new objects of a kind get, if any.
pub fn finalizer(group: &str, plural: &str) -> Option<&'static str> {
    match (group, plural) {
        ("", "persistentvolumeclaims") => Some(CLAIM),
        ("", "persistentvolumes") => Some(VOLUME),
        ("storage.k8s.io", "volumeattributesclasses") => Some(ATTRIBUTES_CLASS),
        _ => None,
    }
}
