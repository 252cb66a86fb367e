//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

use serde_json::{Value, json};

use super::*;
use crate::cluster::storage::tests::{
    add_claims, add_class, add_node, add_volumes, bound, claim, claiming, class, cluster, said, volume,
};

const CONFLICT: &str = "Unresolvable: node(s) had no available volume zone";

fn labeled(name: &str, labels: &Value) -> std::sync::Arc<PersistentVolume> {
    volume(name, json!({"metadata": {"labels": labels}}))
}

#[test]
fn zones_and_regions_of_volumes_and_nodes_agree_under_old_and_new_names() {
    for (of_volume, of_node, wanted) in [
        (json!({}), json!({ZONE: "a"}), "skip"),
        (json!({ZONE: "a"}), json!({}), "ok"),
        (json!({BETA_ZONE: "a"}), json!({BETA_ZONE: "a"}), "ok"),
        (json!({BETA_ZONE: "a"}), json!({BETA_ZONE: "b"}), CONFLICT),
        (json!({BETA_REGION: "r"}), json!({BETA_REGION: "r"}), "ok"),
        (json!({BETA_REGION: "r"}), json!({BETA_REGION: "s"}), CONFLICT),
        (json!({ZONE: "a"}), json!({ZONE: "a"}), "ok"),
        (json!({ZONE: "a"}), json!({ZONE: "b"}), CONFLICT),
        (json!({REGION: "r"}), json!({REGION: "r", "x": "y"}), "ok"),
        (json!({REGION: "r"}), json!({REGION: "s"}), CONFLICT),
        (json!({ZONE: "a", REGION: "r"}), json!({ZONE: "a"}), CONFLICT),
        (json!({ZONE: "a"}), json!({BETA_ZONE: "a"}), CONFLICT),
        (json!({BETA_ZONE: "a"}), json!({ZONE: "a"}), "ok"),
        (json!({BETA_ZONE: "a"}), json!({ZONE: "b"}), CONFLICT),
        (json!({BETA_ZONE: "a__b"}), json!({BETA_ZONE: "b"}), "ok"),
        (json!({BETA_ZONE: "a__b"}), json!({BETA_ZONE: "c"}), CONFLICT),
        (json!({ZONE: "a__ b"}), json!({ZONE: "b"}), "ok"),
        (json!({ZONE: "a__b"}), json!({ZONE: "c"}), CONFLICT),
        (json!({ZONE: "a__b"}), json!({}), "ok"),
        (json!({ZONE: "a__"}), json!({ZONE: "c"}), "skip"),
    ] {
        let mut cluster = Cluster::default();
        add_node(&mut cluster, "n", of_node.clone());
        add_volumes(&mut cluster, [labeled("v", &of_volume)]);
        add_claims(&mut cluster, [bound("c", "v")]);
        let said = said(&VolumeZone, &claiming("p", &["c"]), &cluster).texts();
        assert_eq!(said, [wanted], "{of_volume} {of_node}");
    }
}

#[test]
fn claims_without_a_volume_wait_for_the_pod_or_exclude_all_nodes() {
    let mut cluster = cluster();
    add_class(&mut cluster, class("modeless", json!({"volumeBindingMode": null})));
    let of_class = |name: &str, class: &str| claim(name, json!({"spec": {"storageClassName": class}}));
    add_claims(
        &mut cluster,
        [
            of_class("empty", ""),
            of_class("unknown", "unknown"),
            of_class("now", "now"),
            of_class("late", "late"),
            of_class("modeless", "modeless"),
            bound("lost", "gone"),
        ],
    );
    for (claim, wanted) in [
        ("empty", "Unresolvable: PersistentVolumeClaim had no pv name and storageClass name"),
        ("unknown", "Unresolvable: storageclass.storage.k8s.io \"unknown\" not found"),
        ("now", "Unresolvable: PersistentVolume had no name"),
        ("late", "skip"),
        ("modeless", "Unresolvable: VolumeBindingMode not set for StorageClass \"modeless\""),
        ("lost", "Unresolvable: persistentvolume \"gone\" not found"),
        ("none", "Unresolvable: persistentvolumeclaim \"none\" not found"),
        ("", "Unresolvable: PersistentVolumeClaim had no name"),
    ] {
        assert_eq!(said(&VolumeZone, &claiming("p", &[claim]), &cluster).texts(), [wanted], "{claim}");
    }
    assert_eq!(said(&VolumeZone, &claiming("p", &[]), &cluster).texts(), ["skip"]);
}

#[test]
fn pods_wait_for_their_claims_for_classes_that_wait_and_for_volumes_elsewhere() {
    let hint =
        |pod: &PodInfo, change: &Change<'_>| VolumeZone.hint(pod, change, &Cluster::default()) == Hint::Queue;
    let pod = claiming("p", &["c"]);
    let changed = |pod: &PodInfo, namespace: &str, name: &str| {
        let new = claim(name, json!({"metadata": {"namespace": namespace}}));
        let added = hint(pod, &Change::PersistentVolumeClaim(Versions { old: None, new: Some(&new) }));
        let updated =
            hint(pod, &Change::PersistentVolumeClaim(Versions { old: Some(&new), new: Some(&new) }));
        assert_eq!(added, updated);
        added
    };
    assert!(changed(&pod, "ns", "c") && !changed(&pod, "ns", "d") && !changed(&pod, "other", "c"));
    assert!(!changed(&claiming("p", &[]), "ns", "c"));
    let added = |mode: Value| {
        let new = class("s", json!({"volumeBindingMode": mode}));
        hint(&pod, &Change::StorageClass(Versions { old: None, new: Some(&new) }))
    };
    assert!(added(json!("WaitForFirstConsumer")) && !added(json!("Immediate")) && !added(Value::Null));
    let moved = |old: Value, new: Value| {
        let (old, new) = (labeled("v", &old), labeled("v", &new));
        hint(&pod, &Change::PersistentVolume(Versions { old: Some(&old), new: Some(&new) }))
    };
    assert!(moved(json!({ZONE: "a"}), json!({ZONE: "b"})) && moved(json!({}), json!({ZONE: "a"})));
    assert!(!moved(json!({ZONE: "a"}), json!({ZONE: "a", "x": "y"})));
    let new = labeled("v", &json!({}));
    assert!(hint(&pod, &Change::PersistentVolume(Versions { old: None, new: Some(&new) })));
}
