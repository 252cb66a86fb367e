use serde_json::json;

use crate::storage::storage_class;
use crate::testing::{apply_defaults, cells, errors};

#[test]
fn storage_classes_get_their_policies() {
    let class = apply_defaults(storage_class::default, json!({"provisioner": "p"}));
    assert_eq!(
        class,
        json!({"provisioner": "p", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})
    );
}

#[test]
fn objects_of_drivers_with_wrong_fields_are_refused() {
    assert_eq!(
        errors(
            "storage.k8s.io",
            "csinodes",
            &json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": ""}, {"name": "d", "nodeID": "x"}]}})
        ),
        ["spec.drivers[0].nodeID: Required value", "spec.drivers[1].name: Duplicate value: \"d\""]
    );
    assert_eq!(
        errors(
            "storage.k8s.io",
            "volumeattachments",
            &json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n", "source": {}}})
        ),
        [
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"
        ]
    );
}

#[test]
fn rows_of_classes_mark_the_default() {
    let class = |plural: &str, key: &str| {
        let object = json!({"metadata": {"name": "c", "annotations": {key: "true"}}});
        cells("storage.k8s.io", plural, &object)[0].1.clone()
    };
    assert_eq!(class("storageclasses", "storageclass.kubernetes.io/is-default-class"), "c (default)");
    let alpha = "volumeattributesclass.alpha.kubernetes.io/is-default-class";
    assert_eq!(class("volumeattributesclasses", alpha), "c (default)");
    assert_eq!(class("volumeattributesclasses", "other"), "c");
}

#[test]
fn rows_of_drivers_show_no_modes_if_there_are_none() {
    let driver = json!({"metadata": {"name": "d"}, "spec": {"attachRequired": true}});
    assert_eq!(cells("storage.k8s.io", "csidrivers", &driver)[6].1, "<none>");
}
