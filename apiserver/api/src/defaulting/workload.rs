//! Deployment, ReplicaSet, StatefulSet, DaemonSet, ReplicationController.

use serde_json::{Map, Value, json};

use super::{Object, each, fill, is, is_empty, made, object, pod, with_spec};

/// Defaults of a Deployment.
pub fn deployment(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "replicas", 1);
        fill(spec, "revisionHistoryLimit", 10);
        fill(spec, "progressDeadlineSeconds", 600);
        if let Some(strategy) = made(spec, "strategy") {
            fill(strategy, "type", "RollingUpdate");
            if is(strategy, "type", "RollingUpdate")
                && let Some(rolling) = made(strategy, "rollingUpdate")
            {
                fill(rolling, "maxUnavailable", "25%");
                fill(rolling, "maxSurge", "25%");
            }
        }
        pod::template(spec);
    });
}

/// Defaults of a ReplicaSet.
pub fn replica_set(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "replicas", 1);
        pod::template(spec);
    });
}

/// Defaults of a ReplicationController: selector and labels are those of the template.
pub fn replication_controller(value: &mut Value) {
    let labels = value.pointer("/spec/template/metadata/labels").cloned();
    with_spec(value, |spec| {
        fill(spec, "replicas", 1);
        if let Some(labels) = &labels
            && is_empty(spec, "selector")
        {
            spec.insert("selector".into(), labels.clone());
        }
        pod::template(spec);
    });
    if let (Some(labels), Some(Value::Object(metadata))) = (labels, value.get_mut("metadata"))
        && is_empty(metadata, "labels")
    {
        metadata.insert("labels".into(), labels);
    }
}

/// Defaults of a StatefulSet.
pub fn stateful_set(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "podManagementPolicy", "OrderedReady");
        fill(spec, "replicas", 1);
        fill(spec, "revisionHistoryLimit", 10);
        if let Some(strategy) = made(spec, "updateStrategy") {
            fill(strategy, "type", "RollingUpdate");
            if is(strategy, "type", "RollingUpdate")
                && let Some(rolling) = made(strategy, "rollingUpdate")
            {
                fill(rolling, "partition", 0);
                fill(rolling, "maxUnavailable", 1);
            }
        }
        if let Some(policy) = made(spec, "persistentVolumeClaimRetentionPolicy") {
            fill(policy, "whenDeleted", "Retain");
            fill(policy, "whenScaled", "Retain");
        }
        each(spec, "volumeClaimTemplates", claim_template);
        pod::template(spec);
    });
}

fn claim_template(claim: &mut Object) {
    fill(claim, "apiVersion", "v1");
    fill(claim, "kind", "PersistentVolumeClaim");
    if let Some(spec) = object(claim, "spec") {
        fill(spec, "volumeMode", "Filesystem");
    }
    fill(claim, "status", json!({"phase": "Pending"}));
}

/// Defaults of a DaemonSet.
pub fn daemon_set(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "revisionHistoryLimit", 10);
        if let Some(strategy) = made(spec, "updateStrategy") {
            fill(strategy, "type", "RollingUpdate");
            if is(strategy, "type", "RollingUpdate")
                && let Some(rolling) = made(strategy, "rollingUpdate")
            {
                fill(rolling, "maxUnavailable", 1);
                fill(rolling, "maxSurge", 0);
            }
        }
        pod::template(spec);
    });
}

/// Status of a new object of these kinds: none yet. Clients expect the field to be there.
pub fn prepare_create(value: &mut Value) {
    if let Value::Object(map) = value {
        fill(map, "status", Map::new());
    }
}
