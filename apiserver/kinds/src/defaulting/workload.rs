//! Deployment, ReplicaSet, StatefulSet, DaemonSet, ReplicationController.

use serde_json::{Map, Value};

use super::{Object, each, fill, fill_absent, is, is_empty, made, object, pod, with_spec};
use apiserver_schema::meta;
use apiserver_schema::validation::same;

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
            // A strategy with only a type gets nothing more.
            if is_empty(strategy, "type") {
                fill(strategy, "type", "RollingUpdate");
                fill(strategy, "rollingUpdate", Map::new());
            }
            if is(strategy, "type", "RollingUpdate")
                && let Some(rolling) = object(strategy, "rollingUpdate")
            {
                fill(rolling, "partition", 0);
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
        fill_absent(spec, "volumeMode", "Filesystem");
    }
    if let Some(status) = made(claim, "status") {
        fill(status, "phase", "Pending");
    }
}

/// Defaults of a DaemonSet.
pub fn daemon_set(value: &mut Value) {
    // Kubernetes counts in a field of its own and shows it here, so there always is a number.
    if template_generation(value).is_none() {
        set_template_generation(value, 0);
    }
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

/// Counts the templates of a DaemonSet, for kubectl of long ago.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// A new DaemonSet has its first template, unless the client counts from elsewhere.
pub fn prepare_create_daemon_set(value: &mut Value) {
    prepare_create(value);
    let told = template_generation(value).filter(|n| *n >= 1);
    set_template_generation(value, told.unwrap_or(1));
}

/// Counts only changes of the template, regardless of the client's value. Arguments: new, old.
pub fn prepare_update_daemon_set(new: &mut Value, old: &Value) {
    let template = |object: &Value| object.pointer("/spec/template").cloned().unwrap_or_default();
    let before = template_generation(old).unwrap_or(0);
    let changed = !same(Some(&template(new)), Some(&template(old)));
    set_template_generation(new, if changed { before + 1 } else { before });
}

fn template_generation(value: &Value) -> Option<i64> {
    meta::annotation(value, TEMPLATE_GENERATION).and_then(|number| number.parse().ok())
}

fn set_template_generation(value: &mut Value, number: i64) {
    if let Some(annotations) = made(meta::metadata_mut(value), "annotations") {
        annotations.insert(TEMPLATE_GENERATION.to_owned(), number.to_string().into());
    }
}

/// Status of a new object of these kinds: none yet. Clients expect the field to be there.
pub fn prepare_create(value: &mut Value) {
    if let Value::Object(map) = value {
        fill(map, "status", Map::new());
    }
}
