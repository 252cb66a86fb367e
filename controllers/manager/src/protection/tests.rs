use k8s_openapi::api::core::v1::{self, PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use super::*;
use crate::meta::controller_reference;
use crate::testing::{meta, running, time};

#[test]
fn finalizers_are_added_to_living_objects_and_removed_from_deleted_ones() {
    let object = |deleted: bool, finalizers: &[&str]| ObjectMeta {
        deletion_timestamp: deleted.then(|| time(1)).flatten(),
        finalizers: Some(finalizers.iter().map(ToString::to_string).collect()),
        ..meta("x")
    };
    for (deleted, finalizers, wanted) in [
        (false, &[][..], Step::Add),
        (false, &["other"], Step::Add),
        (false, &["ours"], Step::Keep),
        (true, &["ours", "other"], Step::RemoveIfUnused),
        (true, &["other"], Step::Keep),
    ] {
        assert_eq!(step(&object(deleted, finalizers), "ours"), wanted, "{deleted} {finalizers:?}");
    }
}

fn pod(volumes: Value) -> v1::Pod {
    let mut pod = running("p", "n", "10.0.0.1");
    pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volumes).unwrap();
    pod
}

fn claim(name: &str) -> PersistentVolumeClaim {
    PersistentVolumeClaim { metadata: meta(name), ..PersistentVolumeClaim::default() }
}

fn uses(pod: &v1::Pod, claim: &PersistentVolumeClaim) -> bool {
    claims::uses(&pod.clone().into(), claim)
}

#[test]
fn pods_use_claims_once_they_have_a_node() {
    let mut pod = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]));
    assert!(uses(&pod, &claim("c")));
    assert!(!uses(&pod, &claim("other")));
    pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    assert!(uses(&pod, &claim("c")), "its volumes may still be mounted");
    pod.spec.as_mut().unwrap().node_name = None;
    assert!(!uses(&pod, &claim("c")));
}

#[test]
fn claims_of_ephemeral_volumes_wait_for_their_own_pod_until_it_is_shut_down() {
    let mut pod = pod(json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]));
    let stranger = claim("p-scratch");
    assert!(!uses(&pod, &stranger), "somebody else's claim of that name");
    let mut own = claim("p-scratch");
    own.metadata.owner_references = Some(vec![controller_reference(&pod)]);
    assert!(uses(&pod, &own));
    pod.metadata.deletion_timestamp = time(1);
    pod.metadata.deletion_grace_period_seconds = Some(30);
    assert!(uses(&pod, &own));
    pod.metadata.deletion_grace_period_seconds = Some(0);
    assert!(!uses(&pod, &own));
}

#[test]
fn volumes_are_used_while_they_are_bound() {
    for (phase, bound) in [("Bound", true), ("Released", false), ("Available", false), ("Failed", false)] {
        let volume: PersistentVolume = serde_json::from_value(json!({"metadata": {"name": "v"},
            "status": {"phase": phase}}))
        .unwrap();
        assert_eq!(volumes::is_bound(&volume), bound, "{phase}");
    }
}

#[test]
fn claims_name_the_class_they_want_have_and_change_to() {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": "c"},
        "spec": {"volumeAttributesClassName": "gold"},
        "status": {"currentVolumeAttributesClassName": "silver",
            "modifyVolumeStatus": {"status": "Pending", "targetVolumeAttributesClassName": "bronze"}}}))
    .unwrap();
    assert_eq!(
        attributes::named_by_claim(&claim).into_iter().collect::<Vec<_>>(),
        ["bronze", "gold", "silver"]
    );
    let volume: PersistentVolume =
        serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": {"volumeAttributesClassName": ""}}))
            .unwrap();
    assert!(attributes::named_by_volume(&volume).is_empty());
}
