//! ReplicationControllers.

use apiserver_registry::Dependents;
use apiserver_registry::LabelSelector;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, metadata};
use serde_json::Value;

use crate::core::workload::REPLICA_COLUMNS;
use crate::core::{pod, pod_template, workload};
use crate::kind::Kind;
use crate::shared::defaults::{empty_status, fill, is_empty, with_spec};
use crate::shared::gates;

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "replicationcontrollers",
    short_names: &["rc"],
    category: Some("all"),
    prefix: "controllers",
    selectable: &["status.replicas"],
    generation: true,
    default,
    prepare_create: empty_status,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec/template/spec", pod::GATES)),
    validate,
    validate_update,
    validate_status: Some(workload::replicas_status),
    warnings: Some(workload::warnings),
    columns: REPLICA_COLUMNS,
    dependents: Dependents::Orphaned,
    ..Kind::DEFAULT
};

/// Defaults of a ReplicationController: selector and labels are those of the template.
pub(crate) fn default(value: &mut Value) {
    let labels = value.pointer("/spec/template/metadata/labels").cloned();
    with_spec(value, |spec| {
        fill(spec, "replicas", 1);
        if let Some(labels) = &labels
            && is_empty(spec, "selector")
        {
            spec.insert("selector".into(), labels.clone());
        }
        pod_template::default_template(spec);
    });
    if let (Some(labels), Some(Value::Object(metadata))) = (labels, value.get_mut("metadata"))
        && is_empty(metadata, "labels")
    {
        metadata.insert("labels".into(), labels);
    }
}

/// Errors of a ReplicationController, whose selector is a plain map.
fn validate(object: &Value) -> Vec<FieldError> {
    // The generated name is validated instead of the base that it is generated from.
    let of_base = |error: &FieldError| error.field == "metadata.generateName";
    let mut errors =
        Errors::of(metadata::subdomain_name(object).into_iter().filter(|error| !of_base(error)).collect());
    let spec = &object["spec"];
    workload::not_negative_counts(spec, &["minReadySeconds"], &mut errors);
    let selector = spec.get("selector").and_then(Value::as_object).filter(|s| !s.is_empty());
    if selector.is_none() {
        errors.required("spec.selector", "");
    }
    workload::not_negative_counts(spec, &["replicas"], &mut errors);
    if spec.get("template").is_none_or(Value::is_null) {
        errors.required("spec.template", "");
    } else {
        if let Some(selector) = selector {
            workload::matches_template(&LabelSelector::from_map(selector), spec, &mut errors);
        }
        workload::always_restarting_template(spec, "ReplicationController", &mut errors);
        workload::new_shared_disks(object, &mut errors);
    }
    errors.list()
}

/// Errors of a change of a ReplicationController, all of which may change. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    workload::shared_disks(&new["spec"], Some(&old["spec"]), &mut errors);
    errors.list()
}
