//! ReplicaSets.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::with_metadata;
use serde_json::Value;

use crate::core::workload::REPLICA_COLUMNS;
use crate::core::{pod, pod_template, workload};
use crate::kind::Kind;
use crate::shared::defaults::{empty_status, fill, with_spec};
use crate::shared::gates;

pub(crate) static KIND: Kind = Kind {
    group: "apps",
    plural: "replicasets",
    short_names: &["rs"],
    category: Some("all"),
    selectable: &["status.replicas"],
    generation: true,
    default,
    prepare_create: empty_status,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec/template/spec", pod::GATES)),
    validate,
    validate_update: workload::validate_update,
    validate_status: Some(workload::replicas_status),
    warnings: Some(workload::warnings),
    columns: REPLICA_COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a ReplicaSet.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| {
        fill(spec, "replicas", 1);
        pod_template::default_template(spec);
    });
}

/// Errors of a ReplicaSet.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    workload::not_negative_counts(spec, &["replicas", "minReadySeconds"], &mut errors);
    // The word is Kubernetes' own.
    if workload::selector(spec, "deployment", workload::UNREAD, &mut errors) {
        workload::always_restarting_template(spec, "ReplicaSet", &mut errors);
    }
    workload::new_shared_disks(object, &mut errors);
    errors.list()
}
