//! Volumes of drivers that were once built in and are served by CSI drivers now.

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
    PersistentVolumeSpec, Volume, VolumeNodeAffinity,
};

/// Label of a node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Label of a node's region.
pub const REGION: &str = "topology.kubernetes.io/region";
/// The older name of [`ZONE`].
pub const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
/// The older name of [`REGION`].
pub const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Separates the zones in the label of a volume that is in several.
const ZONE_DELIMITER: &str = "__";
/// Part of a volume handle that only the cloud knows.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// A driver that was once built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltIn {
    AwsEbs,
    AzureDisk,
    AzureFile,
    Cinder,
    GcePd,
    Portworx,
    Vsphere,
}

impl BuiltIn {
    const ALL: [Self; 7] = [
        Self::AwsEbs,
        Self::AzureDisk,
        Self::AzureFile,
        Self::Cinder,
        Self::GcePd,
        Self::Portworx,
        Self::Vsphere,
    ];

    /// Returns the name of the built-in driver.
    pub fn plugin(self) -> &'static str {
        match self {
            Self::AwsEbs => "kubernetes.io/aws-ebs",
            Self::AzureDisk => "kubernetes.io/azure-disk",
            Self::AzureFile => "kubernetes.io/azure-file",
            Self::Cinder => "kubernetes.io/cinder",
            Self::GcePd => "kubernetes.io/gce-pd",
            Self::Portworx => "kubernetes.io/portworx-volume",
            Self::Vsphere => "kubernetes.io/vsphere-volume",
        }
    }

    /// Returns the CSI driver that serves its volumes.
    pub fn driver(self) -> &'static str {
        match self {
            Self::AwsEbs => "ebs.csi.aws.com",
            Self::AzureDisk => "disk.csi.azure.com",
            Self::AzureFile => "file.csi.azure.com",
            Self::Cinder => "cinder.csi.openstack.org",
            Self::GcePd => "pd.csi.storage.gke.io",
            Self::Portworx => "pxd.portworx.com",
            Self::Vsphere => "csi.vsphere.vmware.com",
        }
    }

    /// Returns the key by which the CSI driver names zones, if it has one.
    fn zone_key(self) -> Option<&'static str> {
        match self {
            Self::AwsEbs => Some("topology.ebs.csi.aws.com/zone"),
            Self::Cinder => Some("topology.cinder.csi.openstack.org/zone"),
            Self::GcePd => Some("topology.gke.io/zone"),
            Self::AzureDisk | Self::AzureFile | Self::Portworx | Self::Vsphere => None,
        }
    }

    /// Returns `true` if the scheduler counts its volumes as those of the CSI driver.
    pub fn is_migrated(self) -> bool {
        !matches!(self, Self::AzureFile | Self::Vsphere)
    }

    /// Returns the built-in driver with a name.
    pub fn named(plugin: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|driver| driver.plugin() == plugin)
    }

    /// Returns the built-in driver of a volume.
    pub fn of(spec: &PersistentVolumeSpec) -> Option<Self> {
        Self::ALL.into_iter().find(|driver| match driver {
            Self::AwsEbs => spec.aws_elastic_block_store.is_some(),
            Self::AzureDisk => spec.azure_disk.is_some(),
            Self::AzureFile => spec.azure_file.is_some(),
            Self::Cinder => spec.cinder.is_some(),
            Self::GcePd => spec.gce_persistent_disk.is_some(),
            Self::Portworx => spec.portworx_volume.is_some(),
            Self::Vsphere => spec.vsphere_volume.is_some(),
        })
    }

    /// Returns the built-in driver of a volume that is written in a pod.
    pub fn of_inline(volume: &Volume) -> Option<Self> {
        Self::ALL.into_iter().find(|driver| match driver {
            Self::AwsEbs => volume.aws_elastic_block_store.is_some(),
            Self::AzureDisk => volume.azure_disk.is_some(),
            Self::AzureFile => volume.azure_file.is_some(),
            Self::Cinder => volume.cinder.is_some(),
            Self::GcePd => volume.gce_persistent_disk.is_some(),
            Self::Portworx => volume.portworx_volume.is_some(),
            Self::Vsphere => volume.vsphere_volume.is_some(),
        })
    }
}

/// Returns driver and handle of a volume that is written in a pod, if a CSI driver serves it.
///
/// # Errors
///
/// Returns why the volume cannot be one of the CSI driver.
pub fn inline_handle(volume: &Volume) -> Result<Option<(&'static str, String)>, String> {
    let Some(driver) = BuiltIn::of_inline(volume).filter(|driver| driver.is_migrated()) else {
        return Ok(None);
    };
    let handle = if let Some(disk) = &volume.aws_elastic_block_store {
        ebs_handle(&disk.volume_id)?
    } else if let Some(disk) = &volume.gce_persistent_disk {
        format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{}", disk.pd_name)
    } else if let Some(disk) = &volume.azure_disk {
        azure_handle(disk)?
    } else if let Some(disk) = &volume.cinder {
        disk.volume_id.clone()
    } else if let Some(disk) = &volume.portworx_volume {
        disk.volume_id.clone()
    } else {
        return Ok(None);
    };
    Ok(Some((driver.driver(), handle)))
}

/// Returns driver and handle of a volume of a CSI driver, or of one that a CSI driver serves now if `has_csi`.
pub fn handle(volume: &PersistentVolume, has_csi: bool) -> Option<(&str, String)> {
    let spec = volume.spec.as_ref()?;
    if let Some(csi) = &spec.csi {
        return Some((&csi.driver, csi.volume_handle.clone()));
    }
    let driver = BuiltIn::of(spec).filter(|driver| has_csi && driver.is_migrated())?;
    Some((driver.driver(), migrated_handle(volume, spec).ok()?))
}

fn migrated_handle(volume: &PersistentVolume, spec: &PersistentVolumeSpec) -> Result<String, String> {
    if let Some(disk) = &spec.aws_elastic_block_store {
        ebs_handle(&disk.volume_id)
    } else if let Some(disk) = &spec.gce_persistent_disk {
        gce_handle(volume, &disk.pd_name)
    } else if let Some(disk) = &spec.azure_disk {
        azure_handle(disk)
    } else if let Some(disk) = &spec.cinder {
        Ok(disk.volume_id.clone())
    } else {
        Ok(spec.portworx_volume.as_ref().map(|disk| disk.volume_id.clone()).unwrap_or_default())
    }
}

/// Returns the identifier of a disk of EBS, which may be written with its zone as a URL.
fn ebs_handle(id: &str) -> Result<String, String> {
    let Some(rest) = id.strip_prefix("aws://") else { return Ok(id.to_owned()) };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let path = rest.split_once('/').map_or("", |(_, path)| path).trim_matches('/');
    if path.strip_prefix("vol-").is_none_or(|rest| rest.contains('/')) {
        let cause = format!("Invalid format for AWS volume ({id})");
        return Err(format!("failed to translate Kubernetes ID to EBS Volume ID {cause}"));
    }
    Ok(path.to_owned())
}

fn azure_handle(disk: &AzureDiskVolumeSource) -> Result<String, String> {
    match &disk.kind {
        Some(kind) if !kind.eq_ignore_ascii_case("Managed") => {
            Err(format!("kind({kind}) is not supported in csi migration"))
        }
        _ => Ok(disk.disk_uri.clone()),
    }
}

fn gce_handle(volume: &PersistentVolume, disk: &str) -> Result<String, String> {
    let label = |key: &str| volume.metadata.labels.as_ref()?.get(key).filter(|zones| !zones.is_empty());
    let zones: Vec<&str> = label(BETA_ZONE)
        .or_else(|| label(ZONE))
        .map(|zones| zones.split(ZONE_DELIMITER).collect())
        .unwrap_or_default();
    match zones.as_slice() {
        [] => Ok(format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{disk}")),
        [zone] => Ok(format!("projects/{UNSPECIFIED}/zones/{zone}/disks/{disk}")),
        zones => {
            let region =
                gce_region(zones).map_err(|cause| format!("failed to get region from zones: {cause}"))?;
            Ok(format!("projects/{UNSPECIFIED}/regions/{region}/disks/{disk}"))
        }
    }
}

/// Returns the region of zones, which are named after it.
fn gce_region(zones: &[&str]) -> Result<String, String> {
    let mut regions = Vec::new();
    for zone in zones {
        let parts: Vec<&str> = zone.split('-').collect();
        let [place, region, _] = parts.as_slice() else {
            let expected = "zone in unexpected format, expected: {locale}-{region}-{zone}";
            return Err(format!("{expected}, got: {zone}"));
        };
        let region = format!("{place}-{region}");
        if !regions.contains(&region) {
            regions.push(region);
        }
    }
    match regions.as_slice() {
        [region] => Ok(region.clone()),
        others => Err(format!("multiple or no regions gotten from zones, got: {}", others.join(" "))),
    }
}

/// Returns what a migrated volume requires of nodes, in the terms of the CSI driver.
///
/// # Errors
///
/// Returns why the volume cannot be one of the CSI driver.
pub fn csi_affinity(volume: &PersistentVolume, driver: BuiltIn) -> Result<Option<NodeSelector>, String> {
    let Some(spec) = &volume.spec else { return Ok(None) };
    let cannot = |cause: String| format!("could not translate pv: {cause}");
    migrated_handle(volume, spec).map_err(cannot)?;
    let mut required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.clone());
    let Some(key) = driver.zone_key() else { return Ok(required) };
    let (zone, region) = topology_labels(volume);
    if has_values(required.as_ref(), zone) {
        rename(required.as_mut(), zone, key);
    } else if let Some(zones) = volume.metadata.labels.as_ref().and_then(|labels| labels.get(zone)) {
        add_zones(&mut required, key, zones);
    }
    if region == BETA_REGION {
        rename(required.as_mut(), BETA_REGION, REGION);
    }
    Ok(required)
}

/// Returns the labels that a volume uses for zone and region.
fn topology_labels(volume: &PersistentVolume) -> (&'static str, &'static str) {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let in_affinity = |key: &str| affinity.is_some_and(|affinity| is_required(affinity, key));
    let in_labels =
        |key: &str| volume.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(key));
    let is_beta = if in_affinity(ZONE) {
        false
    } else {
        in_affinity(BETA_ZONE) || (!in_labels(ZONE) && in_labels(BETA_ZONE))
    };
    if is_beta { (BETA_ZONE, BETA_REGION) } else { (ZONE, REGION) }
}

fn is_required(affinity: &VolumeNodeAffinity, key: &str) -> bool {
    requirements(affinity.required.as_ref()).any(|requirement| requirement.key == key)
}

fn requirements(selector: Option<&NodeSelector>) -> impl Iterator<Item = &NodeSelectorRequirement> {
    let terms = selector.into_iter().flat_map(|selector| &selector.node_selector_terms);
    terms.flat_map(|term| term.match_expressions.iter().flatten())
}

fn has_values(selector: Option<&NodeSelector>, key: &str) -> bool {
    let mut of_key = requirements(selector).filter(|requirement| requirement.key == key);
    of_key.any(|requirement| requirement.values.as_ref().is_some_and(|values| !values.is_empty()))
}

fn rename(selector: Option<&mut NodeSelector>, old: &str, new: &str) {
    let terms = selector.into_iter().flat_map(|selector| &mut selector.node_selector_terms);
    for requirement in terms.flat_map(|term| term.match_expressions.iter_mut().flatten()) {
        if requirement.key == old {
            new.clone_into(&mut requirement.key);
        }
    }
}

/// Requires one of the zones of a label in each term.
fn add_zones(required: &mut Option<NodeSelector>, key: &str, label: &str) {
    let zones = label.split(ZONE_DELIMITER).map(str::trim).filter(|zone| !zone.is_empty());
    let mut zones: Vec<String> = zones.map(str::to_owned).collect();
    zones.sort();
    zones.dedup();
    if zones.is_empty() {
        return;
    }
    let selector = required.get_or_insert_default();
    if selector.node_selector_terms.is_empty() {
        selector.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut selector.node_selector_terms {
        term.match_expressions.get_or_insert_default().push(NodeSelectorRequirement {
            key: key.to_owned(),
            operator: "In".to_owned(),
            values: Some(zones.clone()),
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn volume(spec: Value, labels: Value) -> PersistentVolume {
        from_value(json!({"metadata": {"name": "v", "labels": labels}, "spec": spec})).unwrap()
    }

    #[test]
    fn handles_of_built_in_volumes_are_those_of_their_csi_drivers() {
        let zones = |zones: &str| json!({ZONE: zones});
        let ebs = |id: &str| json!({"awsElasticBlockStore": {"volumeID": id}});
        let gce = || json!({"gcePersistentDisk": {"pdName": "d"}});
        for (spec, labels, wanted) in [
            (ebs("vol-1"), json!({}), Some(("ebs.csi.aws.com", "vol-1"))),
            (ebs("aws://us-east-1a/vol-1"), json!({}), Some(("ebs.csi.aws.com", "vol-1"))),
            (ebs("aws:///vol-1"), json!({}), Some(("ebs.csi.aws.com", "vol-1"))),
            (ebs("aws://us-east-1a/disk"), json!({}), None),
            (
                gce(),
                json!({}),
                Some(("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d")),
            ),
            (
                gce(),
                zones("us-a-1"),
                Some(("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/us-a-1/disks/d")),
            ),
            (
                gce(),
                zones("us-a-1__us-a-2"),
                Some(("pd.csi.storage.gke.io", "projects/UNSPECIFIED/regions/us-a/disks/d")),
            ),
            (gce(), zones("us-a-1__us-b-1"), None),
            (gce(), zones("1__2"), None),
            (json!({"cinder": {"volumeID": "c"}}), json!({}), Some(("cinder.csi.openstack.org", "c"))),
            (json!({"portworxVolume": {"volumeID": "p"}}), json!({}), Some(("pxd.portworx.com", "p"))),
            (
                json!({"azureDisk": {"diskName": "d", "diskURI": "u", "kind": "managed"}}),
                json!({}),
                Some(("disk.csi.azure.com", "u")),
            ),
            (json!({"azureDisk": {"diskName": "d", "diskURI": "u", "kind": "Shared"}}), json!({}), None),
            (json!({"azureFile": {"shareName": "s", "secretName": "x"}}), json!({}), None),
            (json!({"vsphereVolume": {"volumePath": "p"}}), json!({}), None),
            (json!({"nfs": {"server": "s", "path": "/"}}), json!({}), None),
            (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), json!({}), Some(("d", "h"))),
        ] {
            let volume = volume(spec, labels);
            let found = handle(&volume, true);
            assert_eq!(
                found.as_ref().map(|(driver, handle)| (*driver, handle.as_str())),
                wanted,
                "{volume:?}"
            );
            let is_csi = volume.spec.as_ref().unwrap().csi.is_some();
            assert_eq!(handle(&volume, false).is_some(), is_csi, "no migration without a CSINode");
        }
    }

    #[test]
    fn zones_of_migrated_volumes_are_those_of_the_driver() {
        let disk = json!({"volumeID": "vol-1"});
        let key = "topology.ebs.csi.aws.com/zone";
        let affinity =
            |terms: Value| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": terms}]}});
        let expression = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
        for (labels, terms, wanted) in [
            (json!({}), json!([expression(ZONE, "a")]), json!([expression(key, "a")])),
            (
                json!({}),
                json!([expression(BETA_ZONE, "a"), expression(BETA_REGION, "r")]),
                json!([expression(key, "a"), expression(REGION, "r")]),
            ),
            (
                json!({BETA_ZONE: "a"}),
                json!([expression("x", "y")]),
                json!([expression("x", "y"), expression(key, "a")]),
            ),
            (json!({ZONE: "__"}), json!([expression("x", "y")]), json!([expression("x", "y")])),
        ] {
            let volume =
                volume(json!({"awsElasticBlockStore": disk, "nodeAffinity": affinity(terms)}), labels);
            let required = csi_affinity(&volume, BuiltIn::AwsEbs).unwrap();
            assert_eq!(json!({"required": required}), affinity(wanted));
        }
        let none = volume(json!({"awsElasticBlockStore": disk}), json!({ZONE: "b__a"}));
        let term = json!({"nodeSelectorTerms": [{"matchExpressions": [
            {"key": key, "operator": "In", "values": ["a", "b"]}]}]});
        assert_eq!(json!(csi_affinity(&none, BuiltIn::AwsEbs).unwrap()), term);
    }
}
