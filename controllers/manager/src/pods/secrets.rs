//! The Secrets that pods refer to.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, LocalObjectReference, Volume};

use super::{Pod, volumes};

/// Returns the names of the Secrets that a pod refers to.
pub(crate) fn secrets_of(pod: &Pod) -> BTreeSet<&str> {
    let spec = pod.spec();
    let mut names: BTreeSet<&str> = references(spec.image_pull_secrets.iter().flatten()).collect();
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    for container in containers {
        names.extend(in_environment(container.env.as_deref(), container.env_from.as_deref()));
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        names.extend(in_environment(container.env.as_deref(), container.env_from.as_deref()));
    }
    volumes(pod).iter().for_each(|volume| names.extend(of_volume(volume)));
    names
}

fn references<'a>(
    references: impl IntoIterator<Item = &'a LocalObjectReference>,
) -> impl Iterator<Item = &'a str> {
    references.into_iter().map(|reference| reference.name.as_str())
}

fn in_environment<'a>(
    variables: Option<&'a [EnvVar]>,
    sources: Option<&'a [EnvFromSource]>,
) -> impl Iterator<Item = &'a str> {
    let keys = variables.into_iter().flatten().filter_map(|variable| {
        let source = variable.value_from.as_ref()?;
        source.secret_key_ref.as_ref().map(|secret| secret.name.as_str())
    });
    let whole = sources.into_iter().flatten();
    keys.chain(whole.filter_map(|source| source.secret_ref.as_ref().map(|secret| secret.name.as_str())))
}

/// Returns the names of the Secrets that a volume refers to.
pub(super) fn of_volume(volume: &Volume) -> impl Iterator<Item = &str> {
    let named = [
        volume.secret.as_ref().and_then(|source| source.secret_name.as_deref()),
        volume.azure_file.as_ref().map(|source| source.secret_name.as_str()),
    ];
    let referred = [
        volume.cephfs.as_ref().and_then(|source| source.secret_ref.as_ref()),
        volume.cinder.as_ref().and_then(|source| source.secret_ref.as_ref()),
        volume.csi.as_ref().and_then(|source| source.node_publish_secret_ref.as_ref()),
        volume.flex_volume.as_ref().and_then(|source| source.secret_ref.as_ref()),
        volume.iscsi.as_ref().and_then(|source| source.secret_ref.as_ref()),
        volume.rbd.as_ref().and_then(|source| source.secret_ref.as_ref()),
        volume.scale_io.as_ref().map(|source| &source.secret_ref),
        volume.storageos.as_ref().and_then(|source| source.secret_ref.as_ref()),
    ];
    let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    let projected = projected.filter_map(|source| source.secret.as_ref().map(|secret| secret.name.as_str()));
    named.into_iter().flatten().chain(references(referred.into_iter().flatten())).chain(projected)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::pod;

    #[test]
    fn secrets_of_a_pod_are_found_wherever_it_names_them() {
        let key =
            |name: &str| json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}]);
        let spec = json!({
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"name": "i", "env": key("init")}],
            "containers": [{"name": "c", "env": key("env"), "envFrom": [{"secretRef": {"name": "from"}}]}],
            "ephemeralContainers": [{"name": "e", "env": key("debug")}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "volume"}},
                {"name": "b", "projected": {"sources": [{"secret": {"name": "projected"}}]}},
                {"name": "c", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}},
                {"name": "d", "configMap": {"name": "map"}},
            ],
        });
        let mut pod = pod("p");
        pod.spec = serde_json::from_value(spec).unwrap();
        let expected = ["csi", "debug", "env", "from", "init", "projected", "pull", "volume"];
        assert_eq!(secrets_of(&pod.into()), expected.into());
    }
}
