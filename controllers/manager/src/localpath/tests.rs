//! Tables of what is next for claims that ask for directories, and for volumes that are some.

use apiserver_meta::volumes::{
    LOCAL_PATH, LOCAL_PATH_DIRECTORY, LOCAL_PATH_NODE, PROVISIONED_BY, PROVISIONER_FINALIZER, SELECTED_NODE,
    STORAGE_PROVISIONER,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, from_value, json};

use super::plan::{self, Provision, Removal};

fn claim(spec: Value) -> PersistentVolumeClaim {
    let mut object = json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": "u",
            "annotations": {STORAGE_PROVISIONER: LOCAL_PATH, SELECTED_NODE: "n1"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "s",
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    let Value::Object(fields) = spec else { panic!("{spec}") };
    fields.into_iter().for_each(|(key, value)| object["spec"][key] = value);
    from_value(object).unwrap()
}

fn class(more: Value) -> StorageClass {
    let mut object = json!({"metadata": {"name": "s"}, "provisioner": LOCAL_PATH,
        "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"});
    let Value::Object(fields) = more else { panic!("{more}") };
    fields.into_iter().for_each(|(key, value)| object[key] = value);
    from_value(object).unwrap()
}

fn node(annotations: Value) -> Node {
    from_value(json!({"metadata": {"name": "n1", "annotations": annotations,
        "labels": {"kubernetes.io/hostname": "host-1"}}}))
    .unwrap()
}

fn usual() -> Node {
    node(json!({LOCAL_PATH_DIRECTORY: "/var/lib/hawser/volumes"}))
}

#[test]
fn volume_is_a_directory_of_the_selected_node() {
    let step = plan::provision(&claim(json!({})), Some(&class(json!({}))), Some(&usual()));
    let Provision::Create(volume) = step else { panic!("{step:?}") };
    assert_eq!(volume.metadata.name.as_deref(), Some("pvc-u"));
    assert_eq!(volume.metadata.finalizers.as_deref().unwrap(), [PROVISIONER_FINALIZER]);
    let spec = serde_json::to_value(volume.spec.as_ref().unwrap()).unwrap();
    assert_eq!(spec["local"]["path"], "/var/lib/hawser/volumes/pvc-u");
    assert_eq!(spec["capacity"]["storage"], "1Gi");
    assert_eq!((&spec["claimRef"]["name"], &spec["claimRef"]["uid"]), (&json!("c"), &json!("u")));
    assert_eq!(
        (&spec["persistentVolumeReclaimPolicy"], &spec["storageClassName"]),
        (&json!("Delete"), &json!("s"))
    );
    let labels = [("kubernetes.io/hostname".to_owned(), "host-1".to_owned())].into();
    assert!(apiserver_meta::volumes::fits_node(&volume, "n1", &labels));
    assert!(!apiserver_meta::volumes::fits_node(&volume, "n1", &std::collections::BTreeMap::new()));
    assert_eq!(plan::door(&volume).as_deref(), Some("/api/v1/nodes/n1/proxy/localVolumes/pvc-u"));
    assert_eq!(plan::removal(&volume), Removal::Nothing);
}

#[test]
fn claims_of_others_wait_and_impossible_ones_are_refused() {
    let with = |spec: Value, more: Value| plan::provision(&claim(spec), Some(&class(more)), Some(&usual()));
    assert_eq!(with(json!({}), json!({"provisioner": "example.com/p"})), Provision::Wait);
    assert_eq!(plan::provision(&claim(json!({})), None, Some(&usual())), Provision::Wait);
    for (spec, more) in [
        (json!({"accessModes": ["ReadWriteMany"]}), json!({})),
        (json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}), json!({})),
        (json!({"volumeMode": "Block"}), json!({})),
        (json!({"selector": {}}), json!({})),
        (json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "d"}}), json!({})),
        (json!({"volumeAttributesClassName": "gold"}), json!({})),
        (json!({}), json!({"parameters": {"path": "/etc"}})),
        (json!({}), json!({"mountOptions": ["suid"]})),
    ] {
        let step = with(spec.clone(), more.clone());
        assert!(matches!(step, Provision::Refuse(_)), "{spec} {more}: {step:?}");
    }
    let mut open = claim(json!({}));
    open.metadata.annotations.as_mut().unwrap().remove(SELECTED_NODE);
    assert_eq!(plan::provision(&open, Some(&class(json!({}))), None), Provision::Wait);
    let immediate = class(json!({"volumeBindingMode": "Immediate"}));
    assert!(matches!(plan::provision(&open, Some(&immediate), None), Provision::Refuse(_)));
}

#[test]
fn nodes_that_make_no_volumes_are_given_up() {
    let on = |node: Option<&Node>| plan::provision(&claim(json!({})), Some(&class(json!({}))), node);
    let mut nameless = usual();
    nameless.metadata.labels = None;
    for node in [
        None,
        Some(&node(json!({}))),
        Some(&node(json!({LOCAL_PATH_DIRECTORY: "relative"}))),
        Some(&nameless),
    ] {
        assert!(matches!(on(node), Provision::Reschedule(_)), "{node:?}");
    }
    let without = plan::without_node(&claim(json!({}))).unwrap();
    assert!(apiserver_meta::volumes::selected_node(&without).is_none());
    assert!(plan::without_node(&without).is_none());
}

#[test]
fn only_claims_that_ask_and_stay_are_served() {
    assert!(plan::is_asking(&claim(json!({}))));
    assert!(!plan::is_asking(&claim(json!({"volumeName": "v"}))));
    let mut other = claim(json!({}));
    let annotations = other.metadata.annotations.as_mut().unwrap();
    annotations.insert(STORAGE_PROVISIONER.to_owned(), "example.com/p".to_owned());
    assert!(!plan::is_asking(&other));
    let mut going = claim(json!({}));
    going.metadata.deletion_timestamp = from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert!(!plan::is_asking(&going));
}

fn volume(policy: &str, phase: &str, is_held: bool, is_deleted: bool) -> PersistentVolume {
    let finalizers: &[&str] = if is_held { &[PROVISIONER_FINALIZER] } else { &[] };
    let deleted = is_deleted.then_some("2026-01-01T00:00:00Z");
    from_value(json!({
        "metadata": {"name": "pvc-u", "finalizers": finalizers, "deletionTimestamp": deleted,
            "annotations": {PROVISIONED_BY: LOCAL_PATH, LOCAL_PATH_NODE: "n1"}},
        "spec": {"persistentVolumeReclaimPolicy": policy, "claimRef": {"namespace": "ns", "name": "c", "uid": "u"}},
        "status": {"phase": phase},
    }))
    .unwrap()
}

#[test]
fn only_released_volumes_with_the_policy_delete_are_removed() {
    for (policy, phase, is_held, is_deleted, step) in [
        ("Delete", "Bound", true, false, Removal::Nothing),
        ("Delete", "Released", true, false, Removal::Delete),
        ("Delete", "Failed", true, false, Removal::Nothing),
        ("Delete", "Bound", true, true, Removal::Nothing),
        ("Delete", "Pending", true, true, Removal::Directory),
        ("Delete", "Available", true, false, Removal::Nothing),
        ("Delete", "Released", true, true, Removal::Directory),
        ("Delete", "Failed", true, true, Removal::Directory),
        ("Delete", "Released", false, false, Removal::Finalizer(true)),
        ("Delete", "Released", false, true, Removal::Nothing),
        ("Retain", "Released", true, false, Removal::Finalizer(false)),
        ("Retain", "Released", true, true, Removal::Finalizer(false)),
        ("Retain", "Released", false, false, Removal::Nothing),
        ("Retain", "Released", false, true, Removal::Nothing),
    ] {
        let volume = volume(policy, phase, is_held, is_deleted);
        assert_eq!(plan::removal(&volume), step, "{policy} {phase} {is_held} {is_deleted}");
    }
    let mut foreign = volume("Delete", "Released", true, true);
    foreign
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert(PROVISIONED_BY.to_owned(), "example.com/p".to_owned());
    assert_eq!(plan::removal(&foreign), Removal::Nothing);
    let mut unclaimed = volume("Delete", "Available", true, true);
    unclaimed.spec.as_mut().unwrap().claim_ref = None;
    assert_eq!(plan::removal(&unclaimed), Removal::Directory);
}

#[test]
fn names_that_lead_elsewhere_open_no_door() {
    for (node, name) in [
        ("n1/proxy/..", "pvc-u"),
        ("", "pvc-u"),
        ("n1", ""),
        ("n1", ".."),
        ("n1", "a/b"),
        ("n1", "%2e%2e"),
        ("n1?x", "pvc-u"),
    ] {
        let mut volume = volume("Delete", "Released", true, true);
        volume.metadata.name = Some(name.to_owned());
        volume.metadata.annotations.as_mut().unwrap().insert(LOCAL_PATH_NODE.to_owned(), node.to_owned());
        assert_eq!(plan::door(&volume), None, "{node:?} {name:?}");
    }
}
