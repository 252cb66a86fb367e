//! The volumes behind the claims of a pod. A claim leads to a volume that is bound to this very claim and that can be
//! used on this node; a tenant chooses the name of a volume in its claims, but not whom the volume is bound to.

use std::collections::BTreeMap;
use std::path::Path;

use apiserver_meta::volumes::{self, LOCAL_PATH, LOCAL_PATH_NODE, PROVISIONED_BY};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, Client};

/// The volume behind a claim cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("error processing PVC {claim}: failed to fetch PVC from API server")]
    Claim {
        claim: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("error processing PVC {claim}: PVC is being deleted")]
    Deleted { claim: String },
    #[error(
        "error processing PVC {claim}: PVC {claim} has non-bound phase ({phase:?}) or empty pvc.Spec.VolumeName \
         ({volume:?})"
    )]
    Unbound { claim: String, phase: String, volume: String },
    #[error("error processing PVC {claim}: failed to fetch PV {volume} from API server")]
    Volume {
        claim: String,
        volume: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("error processing PVC {claim}: PV {volume} is not bound to it")]
    Misbound { claim: String, volume: String },
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    Foreign { claim: String, pod: String },
    #[error("volume {volume} has volumeMode Block, but is specified in volumeMounts")]
    Block { volume: String },
    #[error("MountVolume.NodeAffinity check failed for volume \"{volume}\" : no matching NodeSelectorTerms")]
    Elsewhere { volume: String },
    #[error("volume {volume} was made for {node:?}, or is not in this node's directory of volumes")]
    NotOurs { volume: String, node: String },
    #[error("error processing PVC {claim}: timed out waiting for the API server")]
    Timeout { claim: String },
}

/// The node that a volume is to be used on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub node: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    /// The directory in which the node makes volumes.
    pub local_volumes: Option<&'a Path>,
    /// True for a pod that runs already: that its claim is being deleted does not end it.
    pub is_running: bool,
}

/// Reads a claim of a pod and the volume behind it.
pub(crate) async fn read(
    client: &Client,
    pod: &Pod,
    name: &str,
    place: Place<'_>,
) -> Result<PersistentVolume, ClaimError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let shown = format!("{namespace}/{name}");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = claims.get(name).await.map_err(|source| {
        let claim = shown.clone();
        ClaimError::Claim { claim, source: Box::new(source) }
    })?;
    let volume = volume_of(pod, &claim, place.is_running)?.to_owned();
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let found = api.get(&volume).await.map_err(|source| {
        let (claim, volume) = (shown, volume.clone());
        ClaimError::Volume { claim, volume, source: Box::new(source) }
    })?;
    check(&claim, &found, place)?;
    Ok(found)
}

fn shown(claim: &PersistentVolumeClaim) -> String {
    let meta = &claim.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// Returns the name of the volume that a claim of the pod says to be bound to.
fn volume_of<'a>(
    pod: &Pod,
    claim: &'a PersistentVolumeClaim,
    is_running: bool,
) -> Result<&'a str, ClaimError> {
    if claim.metadata.deletion_timestamp.is_some() && !is_running {
        return Err(ClaimError::Deleted { claim: shown(claim) });
    }
    if is_ephemeral(pod, claim) && !is_owner(pod, claim) {
        let pod = pod.metadata.name.clone().unwrap_or_default();
        return Err(ClaimError::Foreign { claim: shown(claim), pod });
    }
    let (phase, volume) = (volumes::claim_phase(claim), volumes::volume_name(claim));
    if phase != "Bound" || volume.is_empty() {
        let (phase, volume) = (phase.to_owned(), volume.to_owned());
        return Err(ClaimError::Unbound { claim: shown(claim), phase, volume });
    }
    Ok(volume)
}

/// Returns `true` if the claim is of an ephemeral volume of the pod, and must have been made for this pod.
fn is_ephemeral(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let ephemeral: Vec<&str> =
        volumes.filter(|volume| volume.ephemeral.is_some()).map(|volume| volume.name.as_str()).collect();
    let mut claims = volumes::claims_of(pod).filter(|(volume, _)| ephemeral.contains(volume));
    claims.any(|(_, name)| claim.metadata.name.as_deref() == Some(&name))
}

fn is_owner(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == pod.metadata.uid.as_ref())
}

/// Checks that a volume is bound to the claim and can be used on this node.
fn check(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    place: Place<'_>,
) -> Result<(), ClaimError> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let bound_to = volumes::claim_ref(volume).and_then(|reference| reference.uid.as_deref());
    let has_uid = bound_to.is_some_and(|uid| !uid.is_empty());
    if !has_uid || !volumes::is_bound_to(volume, claim) {
        return Err(ClaimError::Misbound { claim: shown(claim), volume: name });
    }
    if volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
        return Err(ClaimError::Block { volume: name });
    }
    if !volumes::fits_node(volume, place.node, place.labels) {
        return Err(ClaimError::Elsewhere { volume: name });
    }
    check_provisioned(volume, place)
}

/// Checks that a directory that was provisioned is one of this node. Its path and the label that leads here are those
/// that a node has told of itself; another one could have named a path here that a tenant can write to.
fn check_provisioned(volume: &PersistentVolume, place: Place<'_>) -> Result<(), ClaimError> {
    let annotation = |key: &str| volume.metadata.annotations.as_ref()?.get(key).map(String::as_str);
    if annotation(PROVISIONED_BY) != Some(LOCAL_PATH) {
        return Ok(());
    }
    let node = annotation(LOCAL_PATH_NODE).unwrap_or_default();
    let path = volume.spec.as_ref().and_then(|spec| spec.local.as_ref()).map(|local| Path::new(&local.path));
    let is_inside = place.local_volumes.is_some() && path.and_then(Path::parent) == place.local_volumes;
    if node == place.node && is_inside {
        return Ok(());
    }
    let volume = volume.metadata.name.clone().unwrap_or_default();
    Err(ClaimError::NotOurs { volume, node: node.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::pod::testing::pod;

    fn claim(more: Value) -> PersistentVolumeClaim {
        let mut object = json!({"metadata": {"name": "c", "namespace": "shop", "uid": "u"},
            "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        for (key, value) in more.as_object().unwrap() {
            object[key] = value.clone();
        }
        from_value(object).unwrap()
    }

    fn volume(spec: Value) -> PersistentVolume {
        from_value(json!({"metadata": {"name": "v"}, "spec": spec})).unwrap()
    }

    fn checked(spec: Value) -> Result<(), String> {
        let labels = BTreeMap::from([("kubernetes.io/hostname".to_owned(), "n1".to_owned())]);
        let place = Place { node: "n1", labels: &labels, local_volumes: None, is_running: false };
        check(&claim(json!({})), &volume(spec), place).map_err(|error| error.to_string())
    }

    /// A node may write its labels and annotations, from which the provisioner takes where a volume is.
    #[test]
    fn provisioned_directory_is_used_only_if_this_node_made_it() {
        let labels = BTreeMap::from([("kubernetes.io/hostname".to_owned(), "n1".to_owned())]);
        let place = Place {
            node: "n1",
            labels: &labels,
            local_volumes: Some(Path::new("/volumes")),
            is_running: false,
        };
        let checked = |by: &str, node: &str, path: &str| {
            let annotations = json!({PROVISIONED_BY: by, LOCAL_PATH_NODE: node});
            let reference = json!({"namespace": "shop", "name": "c", "uid": "u"});
            let volume = json!({"metadata": {"name": "v", "annotations": annotations},
                "spec": {"claimRef": reference, "local": {"path": path}}});
            check(&claim(json!({})), &from_value(volume).unwrap(), place).is_ok()
        };
        assert!(checked(LOCAL_PATH, "n1", "/volumes/pvc-1"));
        for (node, path) in [
            ("n2", "/volumes/pvc-1"),
            ("n1", "/pods/x/pvc-1"),
            ("n1", "/volumes/a/pvc-1"),
            ("n1", "/volumes"),
        ] {
            assert!(!checked(LOCAL_PATH, node, path), "{node} {path}");
        }
        assert!(
            checked("example.com/other", "n2", "/elsewhere"),
            "what an administrator made is used as it is"
        );
    }

    /// A tenant may write claims and their status as it likes, but no volumes.
    #[test]
    fn a_claim_that_names_the_volume_of_another_does_not_get_it() {
        for reference in [
            Value::Null,
            json!({"namespace": "shop", "name": "c"}),
            json!({"namespace": "shop", "name": "c", "uid": ""}),
            json!({"namespace": "shop", "name": "c", "uid": "older"}),
            json!({"namespace": "bank", "name": "c", "uid": "u"}),
            json!({"namespace": "shop", "name": "d", "uid": "u"}),
        ] {
            let error = checked(json!({"claimRef": reference})).unwrap_err();
            assert!(error.ends_with("PV v is not bound to it"), "{error}");
        }
        assert_eq!(checked(json!({"claimRef": {"namespace": "shop", "name": "c", "uid": "u"}})), Ok(()));
    }

    #[test]
    fn devices_and_volumes_of_other_nodes_are_refused() {
        let reference = json!({"namespace": "shop", "name": "c", "uid": "u"});
        let error = checked(json!({"claimRef": reference, "volumeMode": "Block"})).unwrap_err();
        assert_eq!(error, "volume v has volumeMode Block, but is specified in volumeMounts");
        let on = |node: &str| {
            let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
            json!({"claimRef": reference,
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}})
        };
        assert_eq!(checked(on("n1")), Ok(()));
        let error = checked(on("n2")).unwrap_err();
        let text = "MountVolume.NodeAffinity check failed for volume \"v\" : no matching NodeSelectorTerms";
        assert_eq!(error, text);
    }

    #[test]
    fn unbound_deleted_and_foreign_claims_are_refused() {
        let plain = pod(json!({"containers": [{"name": "a"}],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]}));
        assert_eq!(volume_of(&plain, &claim(json!({})), false).unwrap(), "v");
        for (more, text) in [
            (
                json!({"status": {}}),
                "PVC shop/c has non-bound phase (\"\") or empty pvc.Spec.VolumeName (\"v\")",
            ),
            (
                json!({"spec": {}}),
                "PVC shop/c has non-bound phase (\"Bound\") or empty pvc.Spec.VolumeName (\"\")",
            ),
        ] {
            let error = volume_of(&plain, &claim(more), false).unwrap_err().to_string();
            assert_eq!(error, format!("error processing PVC shop/c: {text}"));
        }
        let mut going = claim(json!({}));
        going.metadata.deletion_timestamp = from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(matches!(volume_of(&plain, &going, false), Err(ClaimError::Deleted { .. })));
        assert_eq!(volume_of(&plain, &going, true).unwrap(), "v");

        let mut ephemeral =
            pod(json!({"containers": [{"name": "a"}], "volumes": [{"name": "d", "ephemeral": {}}]}));
        ephemeral.metadata.name = Some("web".to_owned());
        ephemeral.metadata.uid = Some("pod-uid".to_owned());
        let mut made = claim(json!({}));
        made.metadata.name = Some("web-d".to_owned());
        assert!(matches!(volume_of(&ephemeral, &made, false), Err(ClaimError::Foreign { .. })));
        let owner =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "pod-uid", "controller": true}]);
        made.metadata.owner_references = from_value(owner).unwrap();
        assert_eq!(volume_of(&ephemeral, &made, false).unwrap(), "v");
    }
}
