//! PersistentVolume, PersistentVolumeClaim, StorageClass, CSIDriver.

use serde_json::{Value, json};

use super::{Object, fill, fill_absent, object, with_spec};
use apiserver_schema::meta;
use apiserver_schema::validation::same;

/// Defaults of a PersistentVolume.
pub fn volume(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "persistentVolumeReclaimPolicy", "Retain");
        fill_absent(spec, "volumeMode", "Filesystem");
        source(spec);
    });
}

/// Defaults of the sources that pods and PersistentVolumes share.
pub(super) fn source(parent: &mut Object) {
    if let Some(path) = object(parent, "hostPath")
        && !path.contains_key("type")
    {
        path.insert("type".into(), "".into());
    }
    let defaults: [(&str, &[(&str, &str)]); 4] = [
        ("iscsi", &[("iscsiInterface", "default")]),
        ("rbd", &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")]),
        ("azureDisk", &[("cachingMode", "ReadWrite"), ("kind", "Shared"), ("fsType", "ext4")]),
        ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
    ];
    for (kind, fields) in defaults {
        if let Some(source) = object(parent, kind) {
            // The fields of Azure disks are pointers.
            let pointers = kind == "azureDisk";
            for (field, value) in fields {
                if pointers { fill_absent(source, field, *value) } else { fill(source, field, *value) }
            }
            if pointers {
                fill_absent(source, "readOnly", false);
            }
        }
    }
}

/// A new claim waits for a volume.
pub fn prepare_create_claim(value: &mut Value) {
    prepare_create_pending(value);
    sources_of_claim(value);
}

/// Completes an update of a claim that leaves out the second field of its data source. Arguments: new, old.
pub fn prepare_update_claim(new: &mut Value, old: &Value) {
    let said = |field: &str| !old["spec"][field].is_null();
    if said("dataSource") || said("dataSourceRef") {
        with_spec(new, both_sources);
    } else {
        sources_of_claim(new);
    }
}

/// Fills in both fields for the source of a claim. The older one knows claims and snapshots; other kinds are
/// ignored there, as they always were.
fn sources_of_claim(value: &mut Value) {
    with_spec(value, |spec| {
        let source = spec.get("dataSource").filter(|source| !source.is_null());
        let group = |source: &Value| source["apiGroup"].as_str().unwrap_or_default().to_owned();
        let known = source.is_some_and(|source| {
            matches!(
                (source["kind"].as_str(), group(source).as_str()),
                (Some("PersistentVolumeClaim"), "") | (Some("VolumeSnapshot"), "snapshot.storage.k8s.io")
            )
        });
        if !known && spec.get("dataSourceRef").is_none_or(Value::is_null) {
            spec.remove("dataSource");
        }
        both_sources(spec);
    });
}

/// Readers use either of the two fields.
fn both_sources(spec: &mut Object) {
    let set = |spec: &Object, key: &str| spec.get(key).is_some_and(|v| !v.is_null());
    let (source, reference) = (set(spec, "dataSource"), set(spec, "dataSourceRef"));
    if source && !reference {
        let copy = spec["dataSource"].clone();
        spec.insert("dataSourceRef".into(), copy);
    } else if reference && !source {
        let Value::Object(mut copy) = spec["dataSourceRef"].clone() else { return };
        // Nothing of another namespace fits the older field.
        let local = super::is_empty(&copy, "namespace");
        copy.remove("namespace");
        if local {
            spec.insert("dataSource".into(), copy.into());
        }
    }
}

/// Defaults of a PersistentVolumeClaim.
pub fn claim(value: &mut Value) {
    with_spec(value, |spec| fill_absent(spec, "volumeMode", "Filesystem"));
}

/// A new volume or claim waits for the other.
fn prepare_create_pending(value: &mut Value) {
    if let Value::Object(map) = value {
        map.insert("status".into(), json!({"phase": "Pending"}));
    }
}

/// The field with the time at which a PersistentVolume entered its phase (KEP-3762).
const PHASE_TIME: &str = "lastPhaseTransitionTime";

/// A new PersistentVolume waits since it was made.
pub fn prepare_create_volume(value: &mut Value) {
    prepare_create_pending(value);
    let created = meta::creation_timestamp(value).map(str::to_owned);
    if let (Some(created), Some(status)) = (created, value.get_mut("status")) {
        status[PHASE_TIME] = created.into();
    }
}

/// Sets the time at which a PersistentVolume changes its phase to `now`, unless the writer sets a time.
/// Arguments: new, old.
pub fn note_phase(new: &mut Value, old: &Value, now: &str) {
    let told = |field: &str| new["status"].get(field).filter(|value| !value.is_null());
    let was = |field: &str| old["status"].get(field);
    let unsaid = told(PHASE_TIME).is_none() || told(PHASE_TIME) == was(PHASE_TIME);
    if told("phase") != was("phase")
        && unsaid
        && let Some(Value::Object(status)) = new.get_mut("status")
    {
        status.insert(PHASE_TIME.to_owned(), now.into());
    }
}

/// Defaults of a StorageClass.
pub fn class(value: &mut Value) {
    if let Value::Object(map) = value {
        fill_absent(map, "reclaimPolicy", "Delete");
        fill_absent(map, "volumeBindingMode", "Immediate");
    }
}

/// A CSIDriver's spec is counted from its first change on. Arguments: new, old.
pub fn prepare_update_csi_driver(new: &mut Value, old: &Value) {
    if !same(new.get("spec"), old.get("spec")) {
        let generation = meta::generation(old) + 1;
        meta::set(new, "generation", generation);
    }
}

/// Defaults of a CSIDriver.
pub fn csi_driver(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "attachRequired", true);
        for key in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            fill(spec, key, false);
        }
        fill_absent(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if super::is_empty(spec, "volumeLifecycleModes") {
            spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
        }
    });
}
