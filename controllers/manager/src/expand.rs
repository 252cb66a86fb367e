//! Hands claims whose request has grown over to an external resizer, which alone expands volumes: of a CSI driver that
//! serves a built-in one by an annotation, of any other by saying that it waits.

use std::collections::BTreeMap;

use apiserver_client::{Cache, Change, ObjectKey, Recorder, events};
use apiserver_meta::quantity::{self, Quantity};
use apiserver_meta::volumes;
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::context::{Context, Tasks};
use crate::meta::{annotation, is_segment, name, namespace, uid};

/// Annotation of a claim that names who expands its volume.
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";
/// Annotation of a volume that was expanded, until its file system is.
const PRE_RESIZE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
const EXPANDING: &str = "ExternalExpanding";

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("volume_expand");
    let claims = context.informers.cache::<PersistentVolumeClaim>();
    let grown = queue.clone();
    claims.on_change(move |change| {
        if let Change::Applied { old, new } = change
            && volumes::claim_phase(new) == "Bound"
            && old.as_deref().is_none_or(|old| has_grown(old, new))
        {
            grown.add(change.key());
        }
    });
    let controller = Expander {
        client: context.client.clone(),
        recorder: context.recorder.named("volume_expand"),
        claims: claims.clone(),
    };
    context.start(tasks, queue, controller, async move { claims.synced().await });
}

struct Expander {
    client: Client,
    recorder: Recorder,
    claims: Cache<PersistentVolumeClaim>,
}

impl Reconcile for Expander {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(claim) = self.claims.get(key) else { return Ok(Outcome::Done) };
        let volume = volumes::volume_name(&claim);
        if volume.is_empty() {
            return Err(unusable(key, "the claim is bound, but names no volume".to_owned()));
        }
        // A tenant may write the status of a claim, and so have any name looked up.
        if !is_segment(volume) {
            return Err(unusable(key, format!("no volume can be named {volume:?}")));
        }
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let found = api.get(volume).await.attempt(|| format!("get PV {volume:?} of claim {key}"))?;
        match step(&claim, &found)? {
            Step::Nothing => {}
            Step::Wait => {
                let words = "waiting for an external controller to expand this PVC";
                self.recorder.normal(events::reference(claim.as_ref()), EXPANDING, words);
            }
            Step::HandOver { plugin, driver } => {
                let words = format!(
                    "CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc"
                );
                self.recorder.normal(events::reference(claim.as_ref()), EXPANDING, words);
                if let Err(error) = self.set_resizer(&claim, driver).await {
                    let why = error.api_message();
                    let words = format!("error setting resizer annotation to pvc {key}, with error {why}");
                    self.recorder.warning(events::reference(claim.as_ref()), EXPANDING, words);
                    return Err(error);
                }
            }
        }
        Ok(Outcome::Done)
    }
}

impl Expander {
    /// Names the driver that is to expand the volume of a claim. It is written with the status, as no more is permitted
    /// to this controller.
    async fn set_resizer(&self, claim: &PersistentVolumeClaim, driver: &str) -> Result<()> {
        if annotation(&claim.metadata, RESIZER) == Some(driver) {
            return Ok(());
        }
        let (space, of) = (namespace(&claim.metadata), name(&claim.metadata));
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), space);
        let patch = json!({"metadata": {"uid": claim.metadata.uid, "annotations": {RESIZER: driver},
            "resourceVersion": claim.metadata.resource_version}});
        let written = api.patch_status(of, &PatchParams::default(), &Patch::Merge(patch)).await;
        written.attempt(|| format!("set the resizer of claim {space}/{of}")).map(drop)
    }
}

/// Returns an amount of storage; zero if there is none that can be read.
fn storage(amounts: Option<&BTreeMap<String, resource::Quantity>>) -> Quantity {
    let found = amounts.and_then(|amounts| amounts.get("storage")).and_then(quantity::read);
    found.unwrap_or(Quantity::from_value(0))
}

fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    storage(resources.and_then(|resources| resources.requests.as_ref()))
}

fn capacity(claim: &PersistentVolumeClaim) -> Quantity {
    storage(claim.status.as_ref().and_then(|status| status.capacity.as_ref()))
}

/// Returns `true` if the request or the capacity of a claim has grown.
fn has_grown(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    requested(new) > requested(old) || capacity(new) > capacity(old)
}

/// The step that is due for a claim.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    /// Say that something else is to expand the volume.
    Wait,
    /// Name the CSI driver that serves a built-in plugin.
    HandOver {
        plugin: &'static str,
        driver: &'static str,
    },
}

/// Returns the step that is due for a claim with this volume.
fn step(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<Step> {
    let key = ObjectKey::of(claim);
    let reference = volumes::claim_ref(volume);
    let is_bound = reference.is_some_and(|reference| {
        reference.namespace.as_deref() == Some(namespace(&claim.metadata))
            && reference.uid.as_deref() == Some(uid(&claim.metadata))
    });
    if !is_bound {
        return Err(unusable(&key, format!("persistent Volume is not bound to PVC being updated : {key}")));
    }
    let is_marked = annotation(&volume.metadata, PRE_RESIZE).is_some();
    if requested(claim) <= capacity(claim) && !is_marked {
        return Ok(Step::Nothing);
    }
    if let Some((plugin, driver)) = successor(volume) {
        return Ok(Step::HandOver { plugin, driver });
    }
    // Kubernetes has the kubelet expand volumes of FlexVolume, which there are none of here.
    let is_flex = volume.spec.as_ref().is_some_and(|spec| spec.flex_volume.is_some());
    Ok(if is_flex { Step::Nothing } else { Step::Wait })
}

/// Returns the built-in plugin of a volume, and the CSI driver that serves it now.
fn successor(volume: &PersistentVolume) -> Option<(&'static str, &'static str)> {
    let spec = volume.spec.as_ref()?;
    let served = [
        (spec.aws_elastic_block_store.is_some(), "kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
        (spec.gce_persistent_disk.is_some(), "kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
        (spec.azure_disk.is_some(), "kubernetes.io/azure-disk", "disk.csi.azure.com"),
        (spec.azure_file.is_some(), "kubernetes.io/azure-file", "file.csi.azure.com"),
        (spec.cinder.is_some(), "kubernetes.io/cinder", "cinder.csi.openstack.org"),
        (spec.vsphere_volume.is_some(), "kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
        (spec.portworx_volume.is_some(), "kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ];
    served.into_iter().find(|(is_this, ..)| *is_this).map(|(_, plugin, driver)| (plugin, driver))
}

fn unusable(key: &ObjectKey, problem: String) -> Error {
    Error::Unusable { object: format!("claim {key}"), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value};

    fn claim(requested: &str, capacity: &str) -> PersistentVolumeClaim {
        let claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {"volumeName": "v",
            "resources": {"requests": {"storage": requested}}}, "status": {"phase": "Bound",
            "capacity": {"storage": capacity}}});
        from_value(claim).unwrap()
    }

    fn volume(source: &str, uid: &str, annotations: Value) -> PersistentVolume {
        let mut volume = json!({"metadata": {"name": "v", "annotations": annotations},
            "spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": uid}}});
        volume["spec"][source] = match source {
            "csi" => json!({"driver": "d", "volumeHandle": "h"}),
            "awsElasticBlockStore" => json!({"volumeID": "h"}),
            "flexVolume" => json!({"driver": "d"}),
            _ => json!({"path": "/x"}),
        };
        from_value(volume).unwrap()
    }

    #[test]
    fn claim_that_has_grown_is_handed_over_by_the_kind_of_its_volume() {
        let ebs = Step::HandOver { plugin: "kubernetes.io/aws-ebs", driver: "ebs.csi.aws.com" };
        for (requested, capacity, source, annotations, expected) in [
            ("2Gi", "1Gi", "csi", json!({}), Step::Wait),
            ("2Gi", "1Gi", "hostPath", json!({}), Step::Wait),
            ("2Gi", "1Gi", "flexVolume", json!({}), Step::Nothing),
            ("2Gi", "1Gi", "awsElasticBlockStore", json!({}), ebs),
            ("1Gi", "1Gi", "awsElasticBlockStore", json!({}), Step::Nothing),
            ("1Gi", "2Gi", "csi", json!({}), Step::Nothing),
            ("1Gi", "1Gi", "csi", json!({PRE_RESIZE: "1Gi"}), Step::Wait),
        ] {
            let found = volume(source, "u", annotations);
            assert_eq!(step(&claim(requested, capacity), &found).unwrap(), expected, "{requested} {source}");
        }
        let error = step(&claim("2Gi", "1Gi"), &volume("csi", "other", json!({}))).unwrap_err().to_string();
        assert_eq!(error, "claim ns/c: persistent Volume is not bound to PVC being updated : ns/c");
    }

    #[test]
    fn claim_is_looked_at_when_request_or_capacity_grow() {
        let before = claim("1Gi", "1Gi");
        assert!(has_grown(&before, &claim("2Gi", "1Gi")) && has_grown(&before, &claim("1Gi", "2Gi")));
        assert!(!has_grown(&before, &before) && !has_grown(&claim("2Gi", "2Gi"), &before));
    }
}
