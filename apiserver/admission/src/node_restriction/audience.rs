//! For whom the tokens of a pod may be: audiences that the pod's projected volumes name, or the CSI drivers of
//! its other volumes.

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;

use super::find;
use crate::AdmissionRequest;
use apiserver_auth::attributes::Attributes;

/// Volumes of drivers that were once a part of Kubernetes, and the CSI drivers that serve them now.
const MIGRATED: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

/// Returns `true` if the pod's specification names the audience.
///
/// # Errors
/// Fails if a volume or driver that the pod names cannot be read.
pub(super) async fn is_named(
    request: &AdmissionRequest<'_>,
    pod: &Value,
    audience: &str,
) -> Result<Result<bool, String>, ApiError> {
    if is_projected(pod, audience) {
        return Ok(Ok(true));
    }
    let mut faults = Vec::new();
    for volume in meta::list(pod, "/spec/volumes") {
        let driver = match claim_of(pod, volume) {
            Some(claim) => driver_of_claim(request, meta::namespace(pod), &claim).await?,
            None => Ok(driver_of(volume).to_owned()),
        };
        let driver = match driver {
            Ok(driver) if driver.is_empty() => continue,
            Ok(driver) => driver,
            Err(fault) => {
                faults.push(fault);
                continue;
            }
        };
        match find(request, ("storage.k8s.io", "csidrivers"), "", &driver).await? {
            Some(found) if requests_token(&found, audience) => return Ok(Ok(true)),
            Some(_) => {}
            None => faults.push(format!("csidriver.storage.k8s.io {driver:?} not found")),
        }
    }
    faults.dedup();
    Ok(match faults.as_slice() {
        [] => Ok(false),
        [one] => Err(one.clone()),
        more => Err(format!("[{}]", more.join(", "))),
    })
}

/// Returns `true` if a role gives the node the audience for the ServiceAccount of that namespace and name.
pub(super) fn is_granted(
    request: &AdmissionRequest<'_>,
    (namespace, name): (&str, &str),
    audience: &str,
) -> bool {
    const VERB: &str = "request-serviceaccounts-token-audience";
    request.cluster.authorizer().allows(&Attributes {
        namespace,
        name,
        version: "v1",
        ..Attributes::resource(request.identity, VERB, "", audience)
    })
}

/// Returns `true` if a projected volume of the pod has a token for the audience.
fn is_projected(pod: &Value, audience: &str) -> bool {
    let volumes = meta::list(pod, "/spec/volumes").iter();
    let sources = volumes.flat_map(|volume| meta::list(volume, "/projected/sources"));
    let tokens = sources.filter_map(|source| source.get("serviceAccountToken")).filter(|t| t.is_object());
    tokens.into_iter().any(|token| token["audience"].as_str().unwrap_or_default() == audience)
}

/// The claim behind a volume of the pod, if there is one.
fn claim_of(pod: &Value, volume: &Value) -> Option<String> {
    if volume["ephemeral"]["volumeClaimTemplate"].is_object() {
        return Some(format!("{}-{}", meta::name(pod), meta::text(volume, "/name")));
    }
    Some(volume["persistentVolumeClaim"].as_object()?.get("claimName")?.as_str()?.to_owned())
}

/// The CSI driver of a volume of a pod or of the specification of a PersistentVolume; empty if it has none.
fn driver_of(volume: &Value) -> &str {
    if volume["csi"].is_object() {
        return meta::text(volume, "/csi/driver");
    }
    let migrated = MIGRATED.iter().find(|(field, _)| volume[field].is_object());
    migrated.map(|(_, driver)| *driver).unwrap_or_default()
}

/// The CSI driver of the volume that a claim is bound to.
async fn driver_of_claim(
    request: &AdmissionRequest<'_>,
    namespace: &str,
    name: &str,
) -> Result<Result<String, String>, ApiError> {
    let Some(claim) = find(request, ("", "persistentvolumeclaims"), namespace, name).await? else {
        return Ok(Err(format!("persistentvolumeclaim {name:?} not found")));
    };
    let name = meta::text(&claim, "/spec/volumeName");
    let Some(volume) = find(request, ("", "persistentvolumes"), "", name).await? else {
        return Ok(Err(format!("persistentvolume {name:?} not found")));
    };
    Ok(Ok(driver_of(&volume["spec"]).to_owned()))
}

/// Returns `true` if a CSIDriver gets tokens for the audience.
fn requests_token(driver: &Value, audience: &str) -> bool {
    let requests = meta::list(driver, "/spec/tokenRequests");
    requests.iter().any(|request| request["audience"].as_str().unwrap_or_default() == audience)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn audiences_are_those_that_projected_volumes_name() {
        let source = |audience: Value| json!({"serviceAccountToken": {"path": "t", "audience": audience}});
        let pod = json!({"spec": {"volumes": [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "projected": {"sources": [{"secret": {"name": "audience"}}, source(json!("vault"))]}},
        ]}});
        assert!(is_projected(&pod, "vault"));
        for other in ["", "other", "audience", "Vault"] {
            assert!(!is_projected(&pod, other), "{other}");
        }
        let pod =
            json!({"spec": {"volumes": [{"name": "a", "projected": {"sources": [source(json!(null))]}}]}});
        assert!(is_projected(&pod, "") && !is_projected(&pod, "vault"));
    }

    #[test]
    fn volumes_lead_to_their_drivers() {
        let pod = json!({"metadata": {"name": "p"}});
        for (volume, claim, driver) in [
            (json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}), Some("c"), ""),
            (json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}), Some("p-v"), ""),
            (json!({"name": "v", "csi": {"driver": "d"}}), None, "d"),
            (json!({"name": "v", "gcePersistentDisk": {"pdName": "x"}}), None, "pd.csi.storage.gke.io"),
            (json!({"name": "v", "emptyDir": {}}), None, ""),
        ] {
            assert_eq!(claim_of(&pod, &volume).as_deref(), claim, "{volume}");
            assert_eq!(driver_of(&volume), driver, "{volume}");
        }
        let driver = json!({"spec": {"tokenRequests": [{"audience": "vault"}]}});
        assert!(requests_token(&driver, "vault") && !requests_token(&driver, ""));
        assert!(!requests_token(&json!({"spec": {}}), ""));
    }
}
