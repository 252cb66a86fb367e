//! Plays the scenarios of claims and volumes. The claims are decided before the volumes.

use std::sync::Arc;

use apiserver_meta::volumes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::bind::{self, Write};
use super::plan::{self, ClaimStep, Note, View, VolumeStep, claim_of, reclaim};
use crate::meta::{annotation, name, uid};
use crate::testing::scenario::{Scene, changes, check, headed};

fn shown(note: &Note) -> String {
    format!("event {}: {}", note.reason, note.message)
}

/// Returns the writes that bind a claim, each with what it changes.
fn binding(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Vec<String> {
    let (mut volume, mut claim, mut lines) = (volume.clone(), claim.clone(), Vec::new());
    while let Some(write) = bind::next(&volume, &claim).unwrap() {
        match write {
            Write::Volume(new) | Write::VolumeStatus(new) => {
                lines.extend(headed(format!("write {}", name(&new.metadata)), changes(&volume, &new)));
                volume = *new;
            }
            Write::Claim(new) | Write::ClaimStatus(new) => {
                lines.extend(headed(format!("write {}", name(&new.metadata)), changes(&claim, &new)));
                claim = *new;
            }
        }
    }
    lines
}

fn of_claim(scene: &Scene, claim: &PersistentVolumeClaim) -> Vec<String> {
    let (all, classes) =
        (scene.all::<PersistentVolume>("PersistentVolume"), scene.all::<StorageClass>("StorageClass"));
    let own = name(&claim.metadata);
    let of = |is: &dyn Fn(&PersistentVolume) -> bool| -> Vec<Arc<PersistentVolume>> {
        all.iter().filter(|volume| is(volume)).cloned().collect()
    };
    let class = classes.iter().find(|class| name(&class.metadata) == volumes::claim_class(claim));
    let default = classes.iter().find(|class| {
        annotation(&class.metadata, "storageclass.kubernetes.io/is-default-class") == Some("true")
    });
    let free = |volume: &PersistentVolume| {
        let in_class = volume.spec.as_ref().unwrap().storage_class_name.clone().unwrap_or_default();
        volumes::claim_ref(volume).is_none() && in_class == volumes::claim_class(claim)
    };
    let view = View {
        named: of(&|volume| name(&volume.metadata) == volumes::volume_name(claim)).pop(),
        referring: of(&|volume| claim_of(volume).is_some_and(|(_, of)| of == own)),
        free: of(&free),
        class: class.map(AsRef::as_ref),
        default_class: default.map(|class| name(&class.metadata)),
        waiting_pods: scene.pods().iter().map(|pod| name(&pod.metadata).to_owned()).collect(),
    };
    match plan::claim(claim, &view) {
        ClaimStep::Bind(volume) => {
            let mut lines = vec![format!("bind {own} to {}", name(&volume.metadata))];
            lines.extend(binding(&volume, claim));
            lines
        }
        ClaimStep::Phase(phase, note) => {
            std::iter::once(format!("{own} is {phase}")).chain(note.as_ref().map(shown)).collect()
        }
        ClaimStep::AssignClass(class) => vec![format!("give {own} the class {class}")],
        ClaimStep::Provision(provisioner) => vec![format!("have {provisioner} provision a volume for {own}")],
        ClaimStep::Report(note) => vec![shown(&note)],
    }
}

fn of_volume(scene: &Scene, volume: &PersistentVolume) -> Vec<String> {
    let own = name(&volume.metadata);
    let wanted = volumes::claim_ref(volume).and_then(|reference| reference.uid.clone());
    let claims = scene.all::<PersistentVolumeClaim>("PersistentVolumeClaim");
    let claim = claims.iter().find(|claim| Some(uid(&claim.metadata)) == wanted.as_deref());
    let line = match plan::volume(volume, claim.map(AsRef::as_ref)) {
        VolumeStep::Phase(phase) => format!("{own} is {phase}"),
        VolumeStep::Release => {
            let policy = volumes::reclaim_policy(volume);
            let note = reclaim(volume).as_ref().map(shown);
            return std::iter::once(format!("release {own}, to be reclaimed by {policy}"))
                .chain(note)
                .collect();
        }
        VolumeStep::Unbind => format!("take back the claim of {own}"),
        VolumeStep::Claim => format!("{own} waits for its claim to be bound"),
        VolumeStep::Mismatch => format!("{own} and its claim differ in mode"),
    };
    vec![line]
}

fn planned(scene: &Scene) -> Vec<String> {
    let claims = scene.all::<PersistentVolumeClaim>("PersistentVolumeClaim").into_iter();
    let volumes = scene.all::<PersistentVolume>("PersistentVolume").into_iter();
    let of_claims = claims.flat_map(|claim| of_claim(scene, &claim));
    of_claims.chain(volumes.flat_map(|volume| of_volume(scene, &volume))).collect()
}

#[test]
fn scenarios_of_claims_and_volumes_have_their_plans() {
    check("persistentvolume/scenarios", || planned);
}
