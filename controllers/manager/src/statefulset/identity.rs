//! Names, labels and volumes that bind a pod to its ordinal.

use apiserver_client::Object;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{self, PersistentVolumeClaimVolumeSource, PodTemplateSpec, Volume};

use super::claims::{claim_name, templates};
use crate::meta::{Labels, label, name};
use crate::pods::{self, Pod, of_template};

/// Label with the name of the pod, by which a Service selects a single one.
pub(super) const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label with the ordinal of the pod.
pub(super) const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// Label with the name of the revision that the pod was made from.
pub(super) const REVISION: &str = "controller-revision-hash";

/// Returns the name of the pod with this ordinal.
pub(super) fn pod_name(set: &StatefulSet, ordinal: i64) -> String {
    format!("{}-{ordinal}", name(&set.metadata))
}

/// Returns the ordinal of a pod of the set; `None` if the name is not one that the set gives.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i64> {
    let digits = name(&pod.metadata).strip_prefix(name(&set.metadata))?.strip_prefix('-')?;
    let ordinal = digits.parse().ok()?;
    // A second spelling of a number, such as `01`, would be a second pod of one ordinal.
    (digits == i64::to_string(&ordinal) && ordinal >= 0).then_some(ordinal)
}

/// Returns the name of the revision that a pod was made from; empty if it has none.
pub(super) fn revision(pod: &Pod) -> &str {
    label(&pod.metadata, REVISION).unwrap_or_default()
}

/// Returns a pod with this ordinal, made from the template of the named revision.
pub(super) fn new_pod(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    revision: &str,
    ordinal: i64,
) -> v1::Pod {
    let own_name = pod_name(set, ordinal);
    let mut pod = of_template(set, template.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    identify(labels, &own_name, ordinal);
    labels.insert(REVISION.to_owned(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(own_name.clone());
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    spec.volumes = volumes(set, ordinal, spec.volumes.take());
    pod.metadata.name = Some(own_name);
    pod
}

fn identify(labels: &mut Labels, own_name: &str, ordinal: i64) {
    labels.insert(POD_NAME.to_owned(), own_name.to_owned());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
}

/// Returns volumes for the claims of an ordinal, followed by the `others` whose names no claim has.
fn volumes(set: &StatefulSet, ordinal: i64, others: Option<Vec<Volume>>) -> Option<Vec<Volume>> {
    let claims = templates(set).iter().map(|template| Volume {
        name: name(&template.metadata).to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(set, template, ordinal),
            read_only: None,
        }),
        ..Volume::default()
    });
    let is_claim = |volume: &Volume| templates(set).iter().any(|claim| name(&claim.metadata) == volume.name);
    let others = others.unwrap_or_default().into_iter().filter(|volume| !is_claim(volume));
    let all: Vec<_> = claims.chain(others).collect();
    (!all.is_empty()).then_some(all)
}

/// Returns the pod with the labels and volumes of its ordinal; `None` if it has them.
pub(super) fn corrected(set: &StatefulSet, pod: &Pod, ordinal: i64) -> Option<v1::Pod> {
    let identified = label(&pod.metadata, POD_NAME) == Some(name(&pod.metadata));
    let stored = stores(set, pod, ordinal);
    if identified && stored {
        return None;
    }
    let mut new = pod.to_api();
    if !identified {
        let labels = new.metadata.labels.get_or_insert_default();
        identify(labels, name(&pod.metadata), ordinal);
    }
    if !stored {
        let spec = new.spec.get_or_insert_default();
        spec.volumes = volumes(set, ordinal, spec.volumes.take());
    }
    Some(new)
}

/// Returns `true` if the pod has a volume for each claim of its ordinal.
fn stores(set: &StatefulSet, pod: &Pod, ordinal: i64) -> bool {
    let volumes = pods::volumes(pod);
    templates(set).iter().all(|template| {
        let volume = volumes.iter().find(|volume| volume.name == name(&template.metadata));
        let claim = volume.and_then(|volume| volume.persistent_volume_claim.as_ref());
        claim.is_some_and(|claim| claim.claim_name == claim_name(set, template, ordinal))
    })
}
