//! Limits on a pod's local ephemeral storage: its volumes, its logs and the writable layers of its
//! containers.

use std::collections::BTreeMap;

use apiserver_meta::quantity::{self, Quantity};
use apiserver_meta::resources::pod_limits;
use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::spec;

/// Name of the resource that limits a container's local storage.
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Pods of at least this priority are never evicted.
const CRITICAL: i32 = 2_000_000_000;

/// Local storage usage of a pod, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Usage of each volume that [`volumes`] returns.
    pub volumes: BTreeMap<String, u64>,
    /// Usage of the logs and the writable layer of each container.
    pub containers: BTreeMap<String, u64>,
}

/// Returns `true` if a pod has any limit on its local storage.
pub fn is_limited(pod: &Pod) -> bool {
    size_limits(pod).next().is_some() || pod_limit(pod).is_some()
}

/// Returns `true` if the writable layers of the containers count towards a limit.
pub fn limits_containers(pod: &Pod) -> bool {
    pod_limit(pod).is_some()
}

/// Returns `true` if a pod must not be evicted.
pub fn is_critical(pod: &Pod) -> bool {
    spec(pod).priority.is_some_and(|priority| priority >= CRITICAL)
}

/// Returns the names of the volumes that take disk space and end with the pod.
pub fn volumes(pod: &Pod) -> impl Iterator<Item = &str> {
    let on_disk = |volume: &&Volume| is_empty_dir_on_disk(volume) || volume.config_map.is_some();
    spec(pod).volumes.iter().flatten().filter(on_disk).map(|volume| volume.name.as_str())
}

/// Returns why a pod must be evicted, in the words of Kubernetes; `None` if it is within its limits.
pub fn exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    volume_exceeded(pod, usage)
        .or_else(|| pod_exceeded(pod, usage))
        .or_else(|| container_exceeded(pod, usage))
}

fn volume_exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    let (name, limit) = size_limits(pod)
        .find(|(name, limit)| usage.volumes.get(*name).is_some_and(|used| bytes(*used) > *limit))?;
    Some(format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". "))
}

fn pod_exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    let limit = pod_limit(pod)?;
    let used = usage.volumes.values().chain(usage.containers.values()).copied();
    let used = bytes(used.fold(0, u64::saturating_add));
    (used > limit)
        .then(|| format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "))
}

fn container_exceeded(pod: &Pod, usage: &Usage) -> Option<String> {
    let (name, limit) = spec(pod).containers.iter().find_map(|container| {
        let limit = limit(container).filter(|limit| limit.value() != 0)?;
        let used = usage.containers.get(&container.name)?;
        (bytes(*used) > limit).then_some((&container.name, limit))
    })?;
    Some(format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". "))
}

fn bytes(used: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(used).unwrap_or(i64::MAX))
}

fn is_empty_dir_on_disk(volume: &Volume) -> bool {
    volume.empty_dir.as_ref().is_some_and(|source| source.medium.as_deref().unwrap_or_default().is_empty())
}

/// Returns the disk volumes that have size limits, by name.
fn size_limits(pod: &Pod) -> impl Iterator<Item = (&str, Quantity)> {
    let limited = |volume: &'_ Volume| {
        let limit = quantity::read(volume.empty_dir.as_ref()?.size_limit.as_ref()?)?;
        (is_empty_dir_on_disk(volume) && limit > Quantity::from_value(0)).then_some(limit)
    };
    let volumes = spec(pod).volumes.iter().flatten();
    volumes.filter_map(move |volume| Some((volume.name.as_str(), limited(volume)?)))
}

fn limit(container: &Container) -> Option<Quantity> {
    quantity::read(container.resources.as_ref()?.limits.as_ref()?.get(EPHEMERAL_STORAGE)?)
}

/// Returns the sum of the limits of a pod's containers; `None` if no container has one.
fn pod_limit(pod: &Pod) -> Option<Quantity> {
    pod_limits(spec(pod)).get(EPHEMERAL_STORAGE).copied()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::pod;

    const MI: u64 = 1 << 20;

    fn limited(name: &str, limit: &str) -> Value {
        json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}})
    }

    fn usage(volumes: &[(&str, u64)], containers: &[(&str, u64)]) -> Usage {
        let map =
            |list: &[(&str, u64)]| list.iter().map(|(name, used)| ((*name).to_owned(), *used)).collect();
        Usage { volumes: map(volumes), containers: map(containers) }
    }

    fn empty_dir(source: Value) -> Value {
        json!({"containers": [{"name": "a"}], "volumes": [{"name": "v", "emptyDir": source}]})
    }

    #[test]
    fn a_volume_may_hold_its_limit_and_not_a_byte_more() {
        let text =
            |limit: &str| Some(format!("Usage of EmptyDir volume \"v\" exceeds the limit \"{limit}\". "));
        for (source, used, verdict) in [
            (json!({"sizeLimit": "1Mi"}), MI, None),
            (json!({"sizeLimit": "1Mi"}), MI + 1, text("1Mi")),
            (json!({"sizeLimit": "1024Ki"}), u64::MAX, text("1Mi")),
            (json!({"sizeLimit": "1500m"}), 2, text("1500m")),
            (json!({"sizeLimit": "0"}), MI, None),
            (json!({}), MI, None),
            // Limited by the in-memory file system itself.
            (json!({"sizeLimit": "1Mi", "medium": "Memory"}), 2 * MI, None),
        ] {
            let pod = pod(empty_dir(source.clone()));
            assert_eq!(exceeded(&pod, &usage(&[("v", used)], &[])), verdict, "{source}");
            assert_eq!(exceeded(&pod, &Usage::default()), None, "{source}");
        }
    }

    #[test]
    fn a_pod_is_judged_by_all_that_it_keeps() {
        let pod = pod(json!({
            "initContainers": [limited("i", "1Mi")], "containers": [limited("a", "2Mi"), {"name": "b"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }));
        let text = "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ";
        for (volume, a, b, verdict) in [
            (MI, MI, 0, None),
            (0, MI, MI, None),
            (MI, MI, 1, Some(text)),
            (2 * MI + 1, 0, 0, Some(text)),
            (u64::MAX, u64::MAX, 0, Some(text)),
        ] {
            let used = usage(&[("v", volume)], &[("a", a), ("b", b)]);
            assert_eq!(exceeded(&pod, &used).as_deref(), verdict, "{used:?}");
        }
    }

    #[test]
    fn a_container_is_judged_by_its_logs_and_its_own_files() {
        let pod = pod(json!({"containers": [limited("a", "1Mi"), limited("b", "3Mi")]}));
        let text = "Container a exceeded its local ephemeral storage limit \"1Mi\". ";
        assert_eq!(exceeded(&pod, &usage(&[], &[("a", MI), ("b", 3 * MI)])), None);
        assert_eq!(exceeded(&pod, &usage(&[], &[("a", MI + 1)])).as_deref(), Some(text));
    }

    #[test]
    fn the_limit_of_a_pod_is_the_greatest_of_its_stages() {
        let sidecar = |limit| {
            let mut container = limited("s", limit);
            container["restartPolicy"] = json!("Always");
            container
        };
        for (spec, limit) in [
            (json!({"containers": [{"name": "a"}]}), None),
            (json!({"containers": [{"name": "a"}], "initContainers": [limited("i", "1Gi")]}), Some("1Gi")),
            (
                json!({"containers": [limited("a", "1Gi")], "initContainers": [sidecar("1Gi"), limited("i", "2Gi")]}),
                Some("3Gi"),
            ),
            (
                json!({"containers": [limited("a", "1Gi")], "overhead": {"ephemeral-storage": "1Gi"}}),
                Some("2Gi"),
            ),
            (json!({"containers": [limited("a", "0")], "overhead": {"ephemeral-storage": "1Gi"}}), Some("0")),
        ] {
            let pod = pod(spec.clone());
            assert_eq!(pod_limit(&pod).map(|limit| limit.to_string()).as_deref(), limit, "{spec}");
            assert_eq!(is_limited(&pod), limit.is_some());
        }
        assert!(is_limited(&pod(empty_dir(json!({"sizeLimit": "1"})))));
        assert!(!is_limited(&pod(empty_dir(json!({"sizeLimit": "1", "medium": "Memory"})))));
    }
}
