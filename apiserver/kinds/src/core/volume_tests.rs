//! PersistentVolumes and PersistentVolumeClaims.

use serde_json::{Value, json};

use crate::core::{persistent_volume, persistent_volume_claim};
use crate::testing::{
    NONE, apply_defaults, cells, edited, errors, row, stored, update_errors, warnings, with,
};

#[test]
fn sources_of_volumes_get_their_defaults() {
    let volume = apply_defaults(persistent_volume::default, json!({"spec": {"rbd": {"image": "i"}}}));
    assert_eq!(
        volume["spec"]["rbd"],
        json!({"image": "i", "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"})
    );
}

#[test]
fn the_two_data_sources_of_a_claim_follow_each_other() {
    let created = |spec: Value| {
        let mut claim = json!({"spec": spec});
        persistent_volume_claim::prepare_create(&mut claim);
        assert_eq!(claim["status"], json!({"phase": "Pending"}));
        claim["spec"].clone()
    };
    let source = json!({"kind": "PersistentVolumeClaim", "name": "a"});
    let both = json!({"dataSource": source, "dataSourceRef": source});
    assert_eq!(created(json!({"dataSource": source})), both);
    assert_eq!(created(json!({"dataSourceRef": source})), both);
    let foreign = json!({"dataSourceRef": {"kind": "K", "name": "a", "namespace": "n"}});
    assert_eq!(created(foreign.clone()), foreign);
}

#[test]
fn a_volume_records_the_time_of_its_phase() {
    let (created, earlier, now) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z");
    let mut volume = json!({"metadata": {"creationTimestamp": created}, "status": {"phase": "Bound"}});
    persistent_volume::prepare_create(&mut volume);
    assert_eq!(volume["status"], json!({"phase": "Pending", "lastPhaseTransitionTime": created}));
    for (phase, given, expected) in [
        ("Pending", json!(created), json!(created)),
        ("Available", json!(created), json!(now)),
        ("Available", json!(null), json!(now)),
        ("Available", json!(earlier), json!(earlier)),
    ] {
        let mut new = volume.clone();
        new["status"] = json!({"phase": phase, "lastPhaseTransitionTime": given});
        persistent_volume::record_phase_time(&mut new, &volume, now);
        assert_eq!(new["status"]["lastPhaseTransitionTime"], expected, "{phase} {given}");
    }
}

#[test]
fn persistent_volumes_with_wrong_fields_are_refused() {
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "csi": {"driver": "d", "volumeHandle": "h"}}});
    let check = |edits: &[(&str, Value)], wanted: &[&str]| {
        assert_eq!(errors("", "persistentvolumes", &edited(&volume, edits)), wanted, "{edits:?}");
    };
    check(&[], &[]);
    check(
        &[
            ("/spec/accessModes", json!(["ReadWriteOncePod", "ReadWriteOnce", "Never"])),
            ("/spec/capacity", json!({"cpu": "1"})),
        ],
        &[
            "spec.accessModes: Unsupported value: \"Never\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
            "spec.capacity: Unsupported value: {\"cpu\":\"1\"}: supported values: \"storage\"",
        ],
    );
    let local = with(
        volume.clone(),
        "/spec",
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "0"}, "local": {"path": "/a/.."}}),
    );
    assert_eq!(
        errors("", "persistentvolumes", &local),
        [
            "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
            "spec.local.path: Invalid value: \"/a/..\": must not contain '..'",
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
        ]
    );
    let old = stored("", "persistentvolumes", volume);
    let update = |edits: &[(&str, Value)]| update_errors("", "persistentvolumes", &edited(&old, edits), &old);
    assert_eq!(
        update(&[("/spec/csi/controllerExpandSecretRef", json!({"name": "a", "namespace": "b"}))]),
        NONE
    );
    assert_eq!(
        update(&[("/spec/csi/volumeHandle", json!("x")), ("/spec/volumeMode", json!("Block"))]),
        [
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation (changed: csi.volumeHandle)",
            "volumeMode: Invalid value: \"Block\": field is immutable",
        ]
    );
}

#[test]
fn claims_with_wrong_fields_are_refused() {
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}});
    assert_eq!(
        errors(
            "",
            "persistentvolumeclaims",
            &edited(
                &claim,
                &[
                    ("/spec/dataSource", json!({"kind": "Pod", "name": "p"})),
                    ("/spec/dataSourceRef", json!({"kind": "PersistentVolumeClaim", "name": "q"}))
                ]
            )
        ),
        [
            "spec.dataSource: Invalid value: \"Pod\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            "spec: Invalid value: {}: must match dataSourceRef",
        ]
    );
    let old = stored("", "persistentvolumeclaims", claim);
    let bound = edited(
        &old,
        &[
            ("/spec/volumeName", json!("v")),
            ("/status", json!({"phase": "Bound", "capacity": {"storage": "1Gi"}})),
        ],
    );
    let size = |old: &Value, size: &str| {
        update_errors(
            "",
            "persistentvolumeclaims",
            &with(old.clone(), "/spec/resources/requests/storage", json!(size)),
            old,
        )
    };
    assert_eq!(size(&bound, "3Gi"), NONE);
    assert_eq!(size(&bound, "1500Mi"), NONE, "what was not reached may be taken back");
    assert_eq!(
        size(&bound, "1Gi"),
        ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"]
    );
    assert_eq!(size(&old, "3Gi").len(), 1, "only bound claims grow");
}

#[test]
fn claims_refuse_another_volume_and_a_smaller_size() {
    let claim = json!({"metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    assert_eq!(errors("", "persistentvolumeclaims", &claim), NONE);
    let bound = with(claim.clone(), "/spec/volumeName", json!("v"));
    assert_eq!(update_errors("", "persistentvolumeclaims", &bound, &claim), NONE);
    let rebound = with(claim.clone(), "/spec/volumeName", json!("w"));
    assert_eq!(update_errors("", "persistentvolumeclaims", &rebound, &bound).len(), 1);
    let smaller = with(claim.clone(), "/spec/resources/requests/storage", json!("1Mi"));
    assert_eq!(update_errors("", "persistentvolumeclaims", &smaller, &claim).len(), 1);
}

#[test]
fn volumes_without_a_source_are_refused() {
    let volume = json!({"metadata": {"name": "v"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}});
    assert_eq!(
        errors("", "persistentvolumes", &volume),
        ["spec: Required value: must specify a volume type"]
    );
}

#[test]
fn rows_of_claims_show_volume_capacity_and_modes() {
    let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeName": "v", "storageClassName": "fast", "volumeMode": "Filesystem"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}});
    assert_eq!(
        row("", "persistentvolumeclaims", &claim),
        "c | Bound | v | 1Gi | RWO,ROX | fast | <unset> | <unknown> | Filesystem"
    );
}

#[test]
fn rows_of_claims_of_unknown_volumes_show_no_capacity() {
    // A claim that names a volume of which nothing is known yet.
    let claim =
        json!({"metadata": {"name": "c"}, "spec": {"volumeName": "v"}, "status": {"phase": "Pending"}});
    assert_eq!(cells("", "persistentvolumeclaims", &claim)[3].1, "0");
}

#[test]
fn persistent_volumes_with_deprecated_fields_raise_warnings() {
    let volume = json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle", "capacity": {"storage": "1500m"}, "rbd": {}}});
    assert_eq!(
        warnings("", "persistentvolumes", &volume),
        [
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
            "spec.rbd: deprecated in v1.28, non-functional in v1.31+",
            "spec.capacity[storage]: fractional byte value \"1500m\" is invalid, must be an integer",
        ]
    );
}
