//! Kinds whose deletion is answered with the object that was deleted; that of others with a `Status`. The
//! build script reads this file too.

/// Returns `true` if the answer to a deletion that leaves nothing is the object's last state.
pub fn answers_with_object(group: &str, plural: &str) -> bool {
    match group {
        "" => matches!(
            plural,
            "namespaces"
                | "persistentvolumeclaims"
                | "persistentvolumes"
                | "pods"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
                | "services"
        ),
        "resource.k8s.io" => true,
        "storage.k8s.io" => matches!(
            plural,
            "csidrivers" | "csinodes" | "storageclasses" | "volumeattachments" | "volumeattributesclasses"
        ),
        _ => false,
    }
}
