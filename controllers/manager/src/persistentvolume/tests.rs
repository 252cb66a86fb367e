//! Tables of what is next for claims and volumes.

use std::sync::Arc;

use apiserver_meta::volumes::{BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONED_BY, SELECTED_NODE};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, from_value, json};

use super::bind::{self, Write};
use super::plan::{self, ClaimStep, Note, View, VolumeStep};

/// Returns a claim `ns/c` of class `s`, with these fields of its specification and these annotations.
fn claim(spec: Value, annotations: &[&str]) -> PersistentVolumeClaim {
    let mut object = json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": "u", "annotations": marks(annotations)},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "s", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    });
    overlay(&mut object["spec"], spec);
    from_value(object).unwrap()
}

fn volume(name: &str, spec: Value, annotations: &[&str]) -> PersistentVolume {
    let mut object = json!({
        "metadata": {"name": name, "annotations": marks(annotations)},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "s", "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain"},
        "status": {"phase": "Available"},
    });
    overlay(&mut object["spec"], spec);
    from_value(object).unwrap()
}

fn marks(annotations: &[&str]) -> Value {
    annotations.iter().map(|key| ((*key).to_owned(), json!("yes"))).collect::<serde_json::Map<_, _>>().into()
}

fn overlay(into: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else { panic!("{fields}") };
    fields.into_iter().for_each(|(key, value)| into[key] = value);
}

fn to(uid: &str) -> Value {
    json!({"claimRef": {"namespace": "ns", "name": "c", "uid": uid}})
}

fn class(provisioner: &str, mode: &str) -> StorageClass {
    from_value(json!({"metadata": {"name": "s"}, "provisioner": provisioner, "volumeBindingMode": mode}))
        .unwrap()
}

fn pending(note: Option<Note>) -> ClaimStep {
    ClaimStep::Phase("Pending", note)
}

#[test]
fn open_claim_takes_a_reserved_volume_before_a_free_one() {
    let (free, reserved) = (Arc::new(volume("free", json!({}), &[])), Arc::new(volume("mine", to(""), &[])));
    let all = || vec![Arc::clone(&free)];
    let view = View { free: all(), referring: vec![Arc::clone(&reserved)], ..View::default() };
    assert_eq!(plan::claim(&claim(json!({}), &[]), &view), ClaimStep::Bind(reserved));
    let stranger = Arc::new(volume("other", to("another"), &[]));
    let view = View { free: all(), referring: vec![stranger], ..View::default() };
    assert_eq!(plan::claim(&claim(json!({}), &[]), &view), ClaimStep::Bind(free));
}

#[test]
fn open_claim_without_a_volume_waits_asks_or_gets_a_class() {
    let (external, wait) =
        (class("example.com/p", "Immediate"), class("example.com/p", "WaitForFirstConsumer"));
    let in_tree = class("kubernetes.io/no-provisioner", "Immediate");
    let classless = json!({"storageClassName": null});
    let first =
        Note::normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding");
    let no_class = "no persistent volumes available for this claim and no storage class is set";
    let failed = |text: &str| ClaimStep::Report(Note::warning("ProvisioningFailed", text));
    let asked = || ClaimStep::Provision("example.com/p".to_owned());
    for (spec, marks, class, default, step) in [
        (json!({}), &[][..], Some(&external), None, asked()),
        (json!({}), &[], Some(&wait), None, pending(Some(first))),
        (json!({}), &[SELECTED_NODE], Some(&wait), None, asked()),
        (json!({}), &[], None, None, failed("storageclass.storage.k8s.io \"s\" not found")),
        (
            json!({}),
            &[],
            Some(&in_tree),
            None,
            failed("no volume plugin matched name: kubernetes.io/no-provisioner"),
        ),
        (classless.clone(), &[], None, None, pending(Some(Note::normal("FailedBinding", no_class)))),
        (classless, &[], None, Some("d"), ClaimStep::AssignClass("d".to_owned())),
        (
            json!({"storageClassName": ""}),
            &[],
            None,
            Some("d"),
            pending(Some(Note::normal("FailedBinding", no_class))),
        ),
    ] {
        let view = View { class, default_class: default, ..View::default() };
        assert_eq!(plan::claim(&claim(spec.clone(), marks), &view), step, "{spec} {marks:?}");
    }
    // Free volumes are for the scheduler to choose.
    let view =
        View { class: Some(&wait), free: vec![Arc::new(volume("v", json!({}), &[]))], ..View::default() };
    assert!(matches!(plan::claim(&claim(json!({}), &[]), &view), ClaimStep::Phase("Pending", Some(_))));
    for (pods, message) in [
        (&["a"][..], "waiting for pod a to be scheduled"),
        (&["a", "b"], "waiting for pods a,b to be scheduled"),
    ] {
        let waiting_pods = pods.iter().map(ToString::to_string).collect();
        let view = View { class: Some(&wait), waiting_pods, ..View::default() };
        let note = Note::normal("WaitForPodScheduled", message);
        assert_eq!(plan::claim(&claim(json!({}), &[]), &view), pending(Some(note)));
    }
}

#[test]
fn claim_that_names_a_volume_gets_that_one_or_waits() {
    let named = |marks: &[&str]| claim(json!({"volumeName": "v"}), marks);
    let mismatch = |why: &str| {
        pending(Some(Note::warning(
            "VolumeMismatch",
            format!("Cannot bind to requested volume \"v\": {why}"),
        )))
    };
    let taken = Note::warning("FailedBinding", "volume \"v\" already bound to a different claim.");
    assert_eq!(plan::claim(&named(&[]), &View::default()), pending(None));
    for (spec, step) in [
        (json!({}), None),
        (to(""), None),
        (to("u"), None),
        (to("older"), Some(pending(Some(taken.clone())))),
        (json!({"capacity": {"storage": "1Mi"}}), Some(mismatch("requested PV is too small"))),
        (json!({"storageClassName": "t"}), Some(mismatch("storageClassName does not match"))),
        (json!({"volumeMode": "Block"}), Some(mismatch("incompatible volumeMode"))),
        (json!({"accessModes": ["ReadOnlyMany"]}), Some(mismatch("incompatible accessMode"))),
        (
            json!({"volumeAttributesClassName": "gold"}),
            Some(mismatch("volumeAttributesClassName does not match")),
        ),
    ] {
        let found = Arc::new(volume("v", spec.clone(), &[]));
        let view = View { named: Some(Arc::clone(&found)), ..View::default() };
        assert_eq!(plan::claim(&named(&[]), &view), step.unwrap_or(ClaimStep::Bind(found)), "{spec}");
    }
    let view = View { named: Some(Arc::new(volume("v", to("older"), &[]))), ..View::default() };
    assert_eq!(plan::claim(&named(&[BOUND_BY_CONTROLLER]), &view), ClaimStep::Report(taken));
    let mut going = volume("v", json!({}), &[]);
    going.metadata.deletion_timestamp = from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let view = View { named: Some(Arc::new(going)), ..View::default() };
    assert_eq!(plan::claim(&named(&[]), &view), mismatch("the volume is marked for deletion \"v\""));
}

#[test]
fn bound_claim_stays_or_is_lost() {
    let lost = |reason, text: &str| ClaimStep::Phase("Lost", Some(Note::warning(reason, text)));
    let bound = claim(json!({"volumeName": "v"}), &[BIND_COMPLETED]);
    let view = |volume: Option<PersistentVolume>| View { named: volume.map(Arc::new), ..View::default() };
    let nowhere = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
    assert_eq!(plan::claim(&claim(json!({}), &[BIND_COMPLETED]), &view(None)), lost("ClaimLost", nowhere));
    let gone = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    assert_eq!(plan::claim(&bound, &view(None)), lost("ClaimLost", gone));
    let misbound = "Two claims are bound to the same volume, this one is bound incorrectly";
    assert_eq!(
        plan::claim(&bound, &view(Some(volume("v", to("other"), &[])))),
        lost("ClaimMisbound", misbound)
    );
    for spec in [json!({}), to("u")] {
        let found = volume("v", spec, &[]);
        assert_eq!(plan::claim(&bound, &view(Some(found.clone()))), ClaimStep::Bind(Arc::new(found)));
    }
}

#[test]
fn volume_follows_its_claim() {
    let wanting = claim(json!({}), &[]);
    let here = claim(json!({"volumeName": "v"}), &[]);
    let elsewhere = claim(json!({"volumeName": "w"}), &[]);
    let device = claim(json!({"volumeMode": "Block"}), &[]);
    let mut made = to("u");
    made["persistentVolumeReclaimPolicy"] = json!("Delete");
    for (spec, marks, claim, step) in [
        (json!({}), &[][..], None, VolumeStep::Phase("Available")),
        (to(""), &[], Some(&wanting), VolumeStep::Phase("Available")),
        (to("u"), &[], None, VolumeStep::Release),
        (to("u"), &[], Some(&wanting), VolumeStep::Claim),
        (to("u"), &[], Some(&device), VolumeStep::Mismatch),
        (to("u"), &[], Some(&here), VolumeStep::Phase("Bound")),
        (to("u"), &[], Some(&elsewhere), VolumeStep::Unbind),
        (to("u"), &[PROVISIONED_BY], Some(&elsewhere), VolumeStep::Unbind),
        (made.clone(), &[], Some(&elsewhere), VolumeStep::Unbind),
        (made, &[PROVISIONED_BY], Some(&elsewhere), VolumeStep::Release),
    ] {
        assert_eq!(plan::volume(&volume("v", spec.clone(), marks), claim), step, "{spec} {marks:?}");
    }
}

#[test]
fn mismatch_is_told_to_both() {
    let (of_volume, of_claim) = plan::mismatch(&volume("v", to("u"), &[]), &claim(json!({}), &[]));
    let tail = "due to incompatible volumeMode.";
    assert_eq!(
        of_volume.message,
        format!("Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" {tail}")
    );
    assert_eq!(
        of_claim.message,
        format!("Cannot bind PersistentVolume \"v\" to requested PersistentVolumeClaim {tail}")
    );
}

#[test]
fn released_volume_is_left_to_its_provisioner_or_has_failed() {
    let policy = |policy: &str, more: Value| {
        let mut spec = json!({"persistentVolumeReclaimPolicy": policy});
        overlay(&mut spec, more);
        volume("v", spec, &[])
    };
    let made_by = |provisioner: &str| {
        let mut volume = policy("Delete", json!({}));
        let annotations = volume.metadata.annotations.get_or_insert_default();
        annotations.insert(PROVISIONED_BY.to_owned(), provisioner.to_owned());
        volume
    };
    let csi = policy("Delete", json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
    for volume in [policy("Retain", json!({})), made_by("example.com/p"), csi] {
        assert_eq!(plan::reclaim(&volume), None);
    }
    let unknown = "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched";
    for (volume, reason, message) in [
        (policy("Delete", json!({"hostPath": {"path": "/etc"}})), "VolumeFailedDelete", unknown),
        (made_by("kubernetes.io/x"), "VolumeFailedDelete", "no volume plugin matched name: kubernetes.io/x"),
        (policy("Recycle", json!({})), "VolumeFailedRecycle", "No recycler plugin found for the volume!"),
        (
            policy("Burn", json!({})),
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy",
        ),
    ] {
        assert_eq!(plan::reclaim(&volume), Some(Note::warning(reason, message)));
    }
}

/// Returns the kinds of the writes that bind the two, and both as they are then.
fn all_writes(
    mut volume: PersistentVolume,
    mut claim: PersistentVolumeClaim,
) -> (Vec<&'static str>, PersistentVolume, PersistentVolumeClaim) {
    let mut writes = Vec::new();
    while let Some(write) = bind::next(&volume, &claim).unwrap() {
        match write {
            Write::Volume(new) => (volume, writes) = (*new, [writes, vec!["volume"]].concat()),
            Write::VolumeStatus(new) => (volume, writes) = (*new, [writes, vec!["phase"]].concat()),
            Write::Claim(new) => (claim, writes) = (*new, [writes, vec!["claim"]].concat()),
            Write::ClaimStatus(new) => (claim, writes) = (*new, [writes, vec!["status"]].concat()),
        }
        assert!(writes.len() < 9, "{writes:?}");
    }
    (writes, volume, claim)
}

#[test]
fn binding_writes_the_volume_first_and_the_claim_s_status_last() {
    let (writes, bound_volume, bound_claim) = all_writes(volume("v", json!({}), &[]), claim(json!({}), &[]));
    assert_eq!(writes, ["volume", "phase", "claim", "status"]);
    let annotations = |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| -> Vec<String> {
        meta.annotations.iter().flatten().map(|(key, _)| key.clone()).collect()
    };
    assert_eq!(annotations(&bound_volume.metadata), [BOUND_BY_CONTROLLER]);
    assert_eq!(annotations(&bound_claim.metadata), [BIND_COMPLETED, BOUND_BY_CONTROLLER]);
    let status = bound_claim.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Bound"));
    assert_eq!(status.capacity.unwrap()["storage"].0, "1Gi");
    assert_eq!(status.access_modes.unwrap(), ["ReadWriteOnce"]);
    assert_eq!(all_writes(bound_volume, bound_claim).0, [""; 0], "nothing is left");

    // What a user has chosen is not marked as the binder's.
    let (_, bound_volume, bound_claim) =
        all_writes(volume("v", to(""), &[]), claim(json!({"volumeName": "v"}), &[]));
    assert_eq!(annotations(&bound_volume.metadata), [""; 0]);
    assert_eq!(annotations(&bound_claim.metadata), [BIND_COMPLETED]);
    let sizeless = volume("v", json!({"capacity": {}}), &[]);
    let error = all_or_error(sizeless, claim(json!({}), &[]));
    assert_eq!(error, "PersistentVolume \"v\": is without a storage capacity");
}

fn all_or_error(mut volume: PersistentVolume, mut claim: PersistentVolumeClaim) -> String {
    loop {
        match bind::next(&volume, &claim) {
            Ok(Some(Write::Volume(new) | Write::VolumeStatus(new))) => volume = *new,
            Ok(Some(Write::Claim(new) | Write::ClaimStatus(new))) => claim = *new,
            Ok(None) => panic!("it is bound"),
            Err(error) => return error.to_string(),
        }
    }
}

#[test]
fn unbinding_takes_back_what_the_binder_wrote_and_no_more() {
    let ours = bind::unbound(&volume("v", to("u"), &[BOUND_BY_CONTROLLER, "other"]));
    assert_eq!(ours.spec.unwrap().claim_ref, None);
    assert_eq!(ours.metadata.annotations.unwrap().len(), 1);
    let theirs = bind::unbound(&volume("v", to("u"), &[])).spec.unwrap().claim_ref.unwrap();
    assert_eq!((theirs.name.as_deref(), theirs.uid), (Some("c"), None));
}
