//! Names of volumes and of their attachments, as kubelets and external attachers compute them too.

use ring::digest::{SHA256, digest};

/// The beginning of the names of CSI volumes in the status of nodes.
const PLUGIN: &str = "kubernetes.io/csi";

/// Returns the name of a volume in `volumesAttached` and `volumesInUse` of nodes.
pub(super) fn unique_name(driver: &str, handle: &str) -> String {
    format!("{PLUGIN}/{driver}^{handle}")
}

/// Returns driver and handle of a volume; `None` if the name is not one of a CSI volume. A driver's name contains no
/// circumflex, a handle may.
pub(super) fn split(unique: &str) -> Option<(&str, &str)> {
    unique.strip_prefix(PLUGIN)?.strip_prefix('/')?.split_once('^')
}

/// Returns the name of the VolumeAttachment of a volume to a node; `None` if it is not a CSI volume.
pub(super) fn attachment_name(unique: &str, node: &str) -> Option<String> {
    let (driver, handle) = split(unique)?;
    let hash = digest(&SHA256, format!("{handle}{driver}{node}").as_bytes());
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("csi-{hex}"))
}

/// Returns a message as the attacher of Kubernetes has it in its errors.
pub(super) fn logged(message: &str) -> String {
    format!("{PLUGIN}: {message}")
}
