//! References of pods and PersistentVolumes to API objects, as far as a kubelet has to read them.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::graph::{Kind, References};

/// The parts of a pod that are decoded; everything else is skipped.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    metadata: Metadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    annotations: Option<Annotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
    service_account_name: Option<String>,
    image_pull_secrets: Option<Vec<Named>>,
    init_containers: Option<Vec<Container>>,
    containers: Option<Vec<Container>>,
    ephemeral_containers: Option<Vec<Container>>,
    volumes: Option<Vec<Volume>>,
    resource_claims: Option<Vec<PodClaim>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    resource_claim_statuses: Option<Vec<PodClaim>>,
    extended_resource_claim_status: Option<PodClaim>,
}

/// Names a claim in the specification, and in the status one that was made from a template.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodClaim {
    name: Option<String>,
    resource_claim_name: Option<String>,
    resource_claim_template_name: Option<String>,
}

/// A reference to an object in the same namespace, or in another one that it names.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Option<String>,
    namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    env: Option<Vec<Variable>>,
    env_from: Option<Vec<Source>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Variable {
    value_from: Option<ValueFrom>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ValueFrom {
    secret_key_ref: Option<Named>,
    config_map_key_ref: Option<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Source {
    secret_ref: Option<Named>,
    config_map_ref: Option<Named>,
}

/// A volume of a pod, or the specification of a PersistentVolume, which spells its driver alike.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    name: String,
    secret: Option<SecretFile>,
    config_map: Option<Named>,
    projected: Option<Projected>,
    persistent_volume_claim: Option<Claim>,
    ephemeral: Option<IgnoredAny>,
    /// The claim that a PersistentVolume is bound to.
    claim_ref: Option<Named>,
    azure_file: Option<SecretFile>,
    cephfs: Option<WithSecret>,
    cinder: Option<WithSecret>,
    flex_volume: Option<WithSecret>,
    rbd: Option<WithSecret>,
    #[serde(rename = "scaleIO")]
    scale_io: Option<WithSecret>,
    iscsi: Option<WithSecret>,
    storageos: Option<WithSecret>,
    csi: Option<Csi>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SecretFile {
    secret_name: Option<String>,
    secret_namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WithSecret {
    secret_ref: Option<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Csi {
    node_publish_secret_ref: Option<Named>,
    node_stage_secret_ref: Option<Named>,
    node_expand_secret_ref: Option<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Projected {
    sources: Option<Vec<ProjectedSource>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ProjectedSource {
    secret: Option<Named>,
    config_map: Option<Named>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Claim {
    claim_name: Option<String>,
}

impl Pod {
    /// The node that the pod is bound to; empty before that.
    pub fn node(&self) -> &str {
        self.spec.node_name.as_deref().unwrap_or_default()
    }

    /// Returns `true` if a kubelet created the object for a pod of its own.
    pub fn is_mirror(&self) -> bool {
        self.metadata.annotations.as_ref().is_some_and(|annotations| annotations.mirror.is_some())
    }

    /// Returns the objects that the pod's node may read because of it. A mirror pod gives no rights, because
    /// nodes create them.
    pub fn references(&self) -> References {
        let mut found = References::new();
        if self.is_mirror() {
            return found;
        }
        let mut add = |kind: Kind, name: &str| {
            if !name.is_empty() {
                found.insert((kind, name.to_owned()));
            }
        };
        add(Kind::ServiceAccount, self.spec.service_account_name.as_deref().unwrap_or_default());
        self.secrets().for_each(|name| add(Kind::Secret, name));
        self.config_maps().for_each(|name| add(Kind::ConfigMap, name));
        for volume in each(&self.spec.volumes) {
            if let Some(claim) = &volume.persistent_volume_claim {
                add(Kind::PersistentVolumeClaim, claim.claim_name.as_deref().unwrap_or_default());
            } else if volume.ephemeral.is_some() {
                add(Kind::PersistentVolumeClaim, &format!("{}-{}", self.metadata.name, volume.name));
            }
        }
        let status = &self.status;
        for claim in each(&self.spec.resource_claims) {
            let made = || {
                claim.resource_claim_template_name.as_ref()?;
                let made = each(&status.resource_claim_statuses).find(|made| made.name == claim.name);
                made?.resource_claim_name.as_deref()
            };
            add(Kind::ResourceClaim, claim.resource_claim_name.as_deref().or_else(made).unwrap_or_default());
        }
        let extended = status.extended_resource_claim_status.as_ref();
        let extended = extended.and_then(|claim| claim.resource_claim_name.as_deref());
        add(Kind::ResourceClaim, extended.unwrap_or_default());
        found
    }

    /// The names of the Secrets that the specification mentions; some may be empty.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let spec = &self.spec;
        let of_containers = spec.containers().flat_map(|container| {
            let from = each(&container.env_from).filter_map(|source| source.secret_ref.as_ref());
            let values = each(&container.env).filter_map(|variable| variable.value_from.as_ref());
            from.chain(values.filter_map(|value| value.secret_key_ref.as_ref()))
        });
        let of_volumes = each(&spec.volumes).flat_map(|volume| {
            let projected = volume.projected.iter().flat_map(|projected| each(&projected.sources));
            let csi = volume.csi.iter().filter_map(|csi| csi.node_publish_secret_ref.as_ref());
            projected.filter_map(|source| source.secret.as_ref()).chain(volume.driver_secrets()).chain(csi)
        });
        let files = each(&spec.volumes).flat_map(|volume| [&volume.secret, &volume.azure_file]);
        let files = files.flatten().filter_map(|file| file.secret_name.as_deref());
        names(each(&spec.image_pull_secrets).chain(of_containers).chain(of_volumes)).chain(files)
    }

    /// The names of the ConfigMaps that the specification mentions; some may be empty.
    pub fn config_maps(&self) -> impl Iterator<Item = &str> {
        let of_containers = self.spec.containers().flat_map(|container| {
            let from = each(&container.env_from).filter_map(|source| source.config_map_ref.as_ref());
            let values = each(&container.env).filter_map(|variable| variable.value_from.as_ref());
            from.chain(values.filter_map(|value| value.config_map_key_ref.as_ref()))
        });
        let of_volumes = each(&self.spec.volumes).flat_map(|volume| {
            let projected = volume.projected.iter().flat_map(|projected| each(&projected.sources));
            volume.config_map.iter().chain(projected.filter_map(|source| source.config_map.as_ref()))
        });
        names(of_containers.chain(of_volumes))
    }
}

impl PodSpec {
    fn containers(&self) -> impl Iterator<Item = &Container> {
        each(&self.init_containers).chain(each(&self.containers)).chain(each(&self.ephemeral_containers))
    }
}

impl Volume {
    /// Iterates over the Secrets of drivers, except CSI and Azure files.
    fn driver_secrets(&self) -> impl Iterator<Item = &Named> {
        let Self { cephfs, cinder, flex_volume, rbd, scale_io, iscsi, storageos, .. } = self;
        let all = [cephfs, cinder, flex_volume, rbd, scale_io, iscsi, storageos];
        all.into_iter().flatten().filter_map(|volume| volume.secret_ref.as_ref())
    }
}

/// The parts of a PersistentVolume that are decoded.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    spec: Volume,
}

impl PersistentVolume {
    /// Namespace and name of the claim that the volume is bound to.
    pub fn claim(&self) -> Option<(&str, &str)> {
        let claim = self.spec.claim_ref.as_ref()?;
        Some((claim.namespace.as_deref().unwrap_or_default(), claim.name.as_deref().unwrap_or_default()))
    }

    /// Namespaces and names of the Secrets that a kubelet needs to mount the volume. Those that only the
    /// controllers of a CSI driver need are none of them.
    pub fn secrets(&self) -> BTreeSet<(String, String)> {
        let claimed = self.claim().map(|(namespace, _)| namespace).unwrap_or_default();
        let volume = &self.spec;
        let csi = volume.csi.iter().flat_map(|csi| {
            let Csi { node_publish_secret_ref, node_stage_secret_ref, node_expand_secret_ref } = csi;
            [node_publish_secret_ref, node_stage_secret_ref, node_expand_secret_ref].into_iter().flatten()
        });
        let pairs = volume.driver_secrets().chain(csi).map(|named| (&named.namespace, &named.name));
        let files = volume.azure_file.iter().map(|file| (&file.secret_namespace, &file.secret_name));
        pairs
            .chain(files)
            .filter_map(|(namespace, name)| {
                let namespace = namespace.as_deref().filter(|namespace| !namespace.is_empty());
                let name = name.as_deref().filter(|name| !name.is_empty())?;
                Some((namespace.unwrap_or(claimed).to_owned(), name.to_owned()))
            })
            .collect()
    }
}

/// The parts that are decoded of objects that name their node.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct OnNode {
    spec: NodeName,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeName {
    node_name: Option<String>,
}

impl OnNode {
    /// The node; empty if there is none.
    pub fn node(&self) -> &str {
        self.spec.node_name.as_deref().unwrap_or_default()
    }
}

fn each<T>(list: &Option<Vec<T>>) -> impl Iterator<Item = &T> {
    list.iter().flatten()
}

fn names<'a>(list: impl Iterator<Item = &'a Named>) -> impl Iterator<Item = &'a str> {
    list.filter_map(|named| named.name.as_deref())
}

#[cfg(test)]
#[path = "references_tests.rs"]
mod tests;
