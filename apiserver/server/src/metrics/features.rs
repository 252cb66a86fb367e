//! Feature gates of Kubernetes that are on: those that this server has, or would be asked for, with the stage
//! that 1.36 gives them.

use userspace_daemon::metrics::Exposition;

/// Name, stage (nothing for those that are done), whether it is on.
const FEATURES: &[(&str, &str, bool)] = &[
    ("APIResponseCompression", "BETA", true),
    ("APIServerIdentity", "BETA", true),
    ("AllowUnsafeMalformedObjectDeletion", "ALPHA", false),
    ("CBORServingAndStorage", "ALPHA", false),
    ("ConsistentListFromCache", "", true),
    ("CRDValidationRatcheting", "", true),
    ("CustomResourceFieldSelectors", "", true),
    ("MultiCIDRServiceAllocator", "", true),
    ("StorageVersionAPI", "ALPHA", false),
    ("UnknownVersionInteroperabilityProxy", "ALPHA", false),
    ("WatchList", "BETA", true),
];

/// Adds `kubernetes_feature_enabled`.
pub fn add(page: &mut Exposition) {
    page.family(
        "kubernetes_feature_enabled",
        "gauge",
        "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
        |samples| {
            for (name, stage, on) in FEATURES {
                samples.value(&[("name", name), ("stage", stage)], f64::from(u8::from(*on)));
            }
        },
    );
}
