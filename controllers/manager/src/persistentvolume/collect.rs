//! Counts of volumes and claims for metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::Cache;
use apiserver_meta::volumes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::limits::SERIES;
use crate::meta::namespace;
use crate::metrics::{BOUND_CLAIMS, BOUND_VOLUMES, Metrics, UNBOUND_CLAIMS, UNBOUND_VOLUMES, VOLUMES};

/// Adds the gauges, which count when they are read.
pub(super) fn add(
    metrics: &Metrics,
    volumes: &Cache<PersistentVolume>,
    claims: &Cache<PersistentVolumeClaim>,
) {
    for (measure, bound) in [(&BOUND_VOLUMES, true), (&UNBOUND_VOLUMES, false)] {
        let volumes = volumes.clone();
        metrics.add_gauge(measure, move || by_class(&volumes.list(), bound));
    }
    for (measure, bound) in [(&BOUND_CLAIMS, true), (&UNBOUND_CLAIMS, false)] {
        let claims = claims.clone();
        metrics.add_gauge(measure, move || by_namespace(&claims.list(), bound));
    }
    let volumes = volumes.clone();
    metrics.add_gauge(&VOLUMES, move || by_plugin(&volumes.list()));
}

fn count(labels: impl Iterator<Item = Vec<String>>) -> Vec<(Vec<String>, f64)> {
    let mut counts: BTreeMap<Vec<String>, f64> = BTreeMap::new();
    labels.for_each(|labels| *counts.entry(labels).or_default() += 1.0);
    counts.into_iter().take(SERIES).collect()
}

fn by_class(all: &[Arc<PersistentVolume>], bound: bool) -> Vec<(Vec<String>, f64)> {
    let is_bound = |volume: &PersistentVolume| phase(volume.status.as_ref().and_then(|s| s.phase.as_deref()));
    let counted = all.iter().filter(|volume| is_bound(volume) == bound);
    count(counted.map(|volume| vec![volumes::volume_class(volume).to_owned()]))
}

fn by_namespace(all: &[Arc<PersistentVolumeClaim>], bound: bool) -> Vec<(Vec<String>, f64)> {
    let is_bound =
        |claim: &PersistentVolumeClaim| phase(claim.status.as_ref().and_then(|s| s.phase.as_deref()));
    let counted = all.iter().filter(|claim| is_bound(claim) == bound);
    count(counted.map(|claim| {
        let attributes = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
        let class = volumes::claim_class(claim).to_owned();
        vec![namespace(&claim.metadata).to_owned(), class, attributes.unwrap_or_default()]
    }))
}

fn by_plugin(all: &[Arc<PersistentVolume>]) -> Vec<(Vec<String>, f64)> {
    count(all.iter().map(|volume| {
        let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.clone());
        vec![plugin(volume), mode.unwrap_or_else(|| "Filesystem".to_owned())]
    }))
}

fn phase(phase: Option<&str>) -> bool {
    phase == Some("Bound")
}

/// Returns the name of the plugin of a volume, as Kubernetes has it.
fn plugin(volume: &PersistentVolume) -> String {
    let Some(spec) = &volume.spec else { return "N/A".to_owned() };
    if let Some(csi) = &spec.csi {
        return format!("kubernetes.io/csi:{}", csi.driver);
    }
    let known = [
        (spec.host_path.is_some(), "host-path"),
        (spec.local.is_some(), "local-volume"),
        (spec.nfs.is_some(), "nfs"),
        (spec.iscsi.is_some(), "iscsi"),
        (spec.fc.is_some(), "fc"),
    ];
    let found = known.into_iter().find(|(is, _)| *is);
    found.map_or_else(|| "N/A".to_owned(), |(_, name)| format!("kubernetes.io/{name}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn volume(class: &str, phase: &str, source: Value) -> Arc<PersistentVolume> {
        let mut spec = json!({"storageClassName": class, "volumeMode": "Block"});
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        Arc::new(
            from_value(json!({"metadata": {"name": "v"}, "spec": spec, "status": {"phase": phase}})).unwrap(),
        )
    }

    #[test]
    fn volumes_are_counted_by_class_and_by_plugin() {
        let csi = json!({"csi": {"driver": "disk.example.com", "volumeHandle": "h"}});
        let local = json!({"local": {"path": "/a"}});
        let all = [
            volume("fast", "Bound", csi.clone()),
            volume("fast", "Bound", csi),
            volume("slow", "Available", local),
            volume("", "Released", json!({})),
        ];
        let row = |labels: &[&str], number: f64| (labels.iter().map(ToString::to_string).collect(), number);
        assert_eq!(by_class(&all, true), [row(&["fast"], 2.0)]);
        assert_eq!(by_class(&all, false), [row(&[""], 1.0), row(&["slow"], 1.0)]);
        let expected = [
            row(&["N/A", "Block"], 1.0),
            row(&["kubernetes.io/csi:disk.example.com", "Block"], 2.0),
            row(&["kubernetes.io/local-volume", "Block"], 1.0),
        ];
        assert_eq!(by_plugin(&all), expected);
    }

    #[test]
    fn claims_are_counted_by_namespace_and_classes() {
        let claim = |namespace: &str, phase: &str| {
            Arc::new(
                from_value(json!({
                    "metadata": {"name": "c", "namespace": namespace},
                    "spec": {"storageClassName": "fast", "volumeAttributesClassName": "gold"},
                    "status": {"phase": phase},
                }))
                .unwrap(),
            )
        };
        let all = [claim("a", "Bound"), claim("a", "Bound"), claim("b", "Pending")];
        let row =
            |namespace: &str, number| (vec![namespace.to_owned(), "fast".into(), "gold".into()], number);
        assert_eq!(by_namespace(&all, true), [row("a", 2.0)]);
        assert_eq!(by_namespace(&all, false), [row("b", 1.0)]);
    }
}
