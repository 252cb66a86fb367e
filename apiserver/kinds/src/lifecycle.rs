//! Deprecation and removal of versions of built-in kinds that are still served, from the lifecycle comments
//! of `k8s.io/api` 1.36. Deprecations in a later minor version than the one served here are not included.

/// The deprecation of a version of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deprecation {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// Minor version of Kubernetes 1 in which it was deprecated.
    since: u32,
    /// And in which it is not served any more; 0 for not decided.
    removed: u32,
    /// apiVersion and kind to use instead; empty if the lifecycle names none.
    replacement: &'static str,
}

const fn row(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    since: u32,
    removed: u32,
    replacement: &'static str,
) -> Deprecation {
    Deprecation { group, version, kind, since, removed, replacement }
}

const ADMISSION: &str = "admissionregistration.k8s.io";
const DEVICES: &str = "resource.k8s.io";

static DEPRECATED: &[Deprecation] = &[
    row("", "v1", "ComponentStatus", 19, 0, ""),
    row("", "v1", "Endpoints", 33, 0, "discovery.k8s.io/v1 EndpointSlice"),
    row(ADMISSION, "v1alpha1", "MutatingAdmissionPolicy", 35, 38, ""),
    row(ADMISSION, "v1alpha1", "MutatingAdmissionPolicyBinding", 35, 38, ""),
    row("certificates.k8s.io", "v1alpha1", "ClusterTrustBundle", 34, 37, ""),
    row("coordination.k8s.io", "v1alpha2", "LeaseCandidate", 35, 38, ""),
    row("coordination.k8s.io", "v1beta1", "LeaseCandidate", 36, 39, ""),
    row("networking.k8s.io", "v1beta1", "IPAddress", 34, 37, ""),
    row("networking.k8s.io", "v1beta1", "ServiceCIDR", 34, 37, ""),
    row(DEVICES, "v1alpha3", "DeviceTaintRule", 36, 39, ""),
    row(DEVICES, "v1beta1", "DeviceClass", 35, 38, ""),
    row(DEVICES, "v1beta1", "ResourceClaim", 35, 38, ""),
    row(DEVICES, "v1beta1", "ResourceClaimTemplate", 35, 38, ""),
    row(DEVICES, "v1beta1", "ResourceSlice", 35, 38, ""),
    row(DEVICES, "v1beta2", "DeviceClass", 36, 39, ""),
    row(DEVICES, "v1beta2", "ResourceClaim", 36, 39, ""),
    row(DEVICES, "v1beta2", "ResourceClaimTemplate", 36, 39, ""),
    row(DEVICES, "v1beta2", "ResourceSlice", 36, 39, ""),
    row(
        "storage.k8s.io",
        "v1beta1",
        "VolumeAttributesClass",
        34,
        37,
        "storage.k8s.io/v1 VolumeAttributesClass",
    ),
];

impl Deprecation {
    /// The text of the `Warning` header.
    pub fn warning(&self) -> String {
        let Self { group, version, kind, since, removed, replacement } = self;
        let slash = if group.is_empty() { "" } else { "/" };
        let mut text = format!("{group}{slash}{version} {kind} is deprecated in v1.{since}+");
        if *removed > 0 {
            text.push_str(&format!(", unavailable in v1.{removed}+"));
        }
        if !replacement.is_empty() {
            text.push_str(&format!("; use {replacement}"));
        }
        text
    }

    /// The release that does not serve it any more: `1.38`, or nothing.
    pub fn removed_release(&self) -> String {
        if self.removed == 0 { String::new() } else { format!("1.{}", self.removed) }
    }
}

/// The deprecation of a version of a kind, if it is deprecated.
pub fn deprecation(group: &str, version: &str, kind: &str) -> Option<&'static Deprecation> {
    // Nearly everything is of a version that is not.
    if version == "v1" && !group.is_empty() {
        return None;
    }
    DEPRECATED.iter().find(|row| row.kind == kind && row.version == version && row.group == group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deprecation_is_in_force_and_still_served() {
        let registry = crate::registry();
        for row in DEPRECATED {
            let slash = if row.group.is_empty() { "" } else { "/" };
            let api_version = format!("{}{slash}{}", row.group, row.version);
            assert!(registry.by_kind(&api_version, row.kind).is_some(), "{row:?}");
            assert!(row.since <= 36 && (row.removed == 0 || row.removed > 36), "{row:?}");
            assert_eq!(deprecation(row.group, row.version, row.kind), Some(row));
        }
    }

    #[test]
    fn warnings_are_worded_as_in_kubernetes() {
        let warning = |group, version, kind| deprecation(group, version, kind).unwrap().warning();
        assert_eq!(warning("", "v1", "ComponentStatus"), "v1 ComponentStatus is deprecated in v1.19+");
        assert_eq!(
            warning("storage.k8s.io", "v1beta1", "VolumeAttributesClass"),
            "storage.k8s.io/v1beta1 VolumeAttributesClass is deprecated in v1.34+, unavailable in v1.37+; \
             use storage.k8s.io/v1 VolumeAttributesClass"
        );
        assert_eq!(
            warning("resource.k8s.io", "v1beta1", "DeviceClass"),
            "resource.k8s.io/v1beta1 DeviceClass is deprecated in v1.35+, unavailable in v1.38+"
        );
        assert_eq!(deprecation("apps", "v1", "Deployment"), None);
    }
}
