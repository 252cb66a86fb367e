//! PersistentVolume, PersistentVolumeClaim, StorageClass, CSIDriver.

use serde_json::{Value, json};

use super::{fill, object, with_spec};

/// Defaults of a PersistentVolume.
pub fn volume(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "persistentVolumeReclaimPolicy", "Retain");
        fill(spec, "volumeMode", "Filesystem");
        if let Some(path) = object(spec, "hostPath")
            && !path.contains_key("type")
        {
            path.insert("type".into(), "".into());
        }
        if let Some(iscsi) = object(spec, "iscsi") {
            fill(iscsi, "iscsiInterface", "default");
        }
    });
}

/// Defaults of a PersistentVolumeClaim.
pub fn claim(value: &mut Value) {
    with_spec(value, |spec| fill(spec, "volumeMode", "Filesystem"));
}

/// A new volume or claim waits for the other.
pub fn prepare_create_pending(value: &mut Value) {
    if let Value::Object(map) = value {
        map.insert("status".into(), json!({"phase": "Pending"}));
    }
}

/// Defaults of a StorageClass.
pub fn class(value: &mut Value) {
    if let Value::Object(map) = value {
        fill(map, "reclaimPolicy", "Delete");
        fill(map, "volumeBindingMode", "Immediate");
    }
}

/// Defaults of a CSIDriver.
pub fn csi_driver(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "attachRequired", true);
        for key in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            fill(spec, key, false);
        }
        fill(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if super::is_empty(spec, "volumeLifecycleModes") {
            spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
        }
    });
}
