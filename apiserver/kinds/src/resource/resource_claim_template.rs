//! ResourceClaimTemplates.

use super::admin_access;
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, IMMUTABLE, with_metadata};
use serde_json::Value;

use crate::core::pod;
use crate::kind::{Kind, Shape, Version};
use crate::resource::device_class::AGED_COLUMNS;
use crate::resource::requests;
use crate::shared::defaults::{Object, object, with_spec};

pub(crate) static KIND: Kind = Kind {
    group: "resource.k8s.io",
    plural: "resourceclaimtemplates",
    versions: &[Version {
        name: "v1beta1",
        default: Some(default_v1beta1),
        shape: Some(Shape { to_stored: to_v1, from_stored: to_v1beta1 }),
    }],
    default,
    validate,
    validate_change: Some(validate_change),
    columns: AGED_COLUMNS,
    admin_access: Some(admin_access::of_template),
    ..Kind::DEFAULT
};

/// Defaults of a ResourceClaimTemplate.
fn default(value: &mut Value) {
    template_spec(value, requests::default_device);
}

/// Defaults of a ResourceClaimTemplate in `v1beta1`.
fn default_v1beta1(value: &mut Value) {
    template_spec(value, requests::default_older_device);
}

fn template_spec(value: &mut Value, exact: fn(&mut Object)) {
    with_spec(value, |spec| {
        if let Some(spec) = object(spec, "spec") {
            requests::default_spec(spec, exact);
        }
    });
}

fn to_v1(template: &mut Value) {
    requests::convert_requests(template, "/spec/spec/devices/requests", requests::nest_request);
}

fn to_v1beta1(template: &mut Value) {
    requests::convert_requests(template, "/spec/spec/devices/requests", requests::flatten_request);
}

/// Errors of a ResourceClaimTemplate.
fn validate(object: &Value) -> Vec<FieldError> {
    apiserver_cel::on_large_stack(|| apiserver_cel::bounded(|| errors(object)))
}

fn errors(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    pod::volume::template_metadata(&spec["metadata"], "spec.metadata", &mut errors);
    requests::spec_errors(&spec["spec"], "spec.spec", &mut errors);
    errors.list()
}

/// Errors of a change of a ResourceClaimTemplate. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::of(validate(new));
    if !requests::same_spec("ResourceClaimTemplate", new, old) {
        errors.invalid("spec", &new["spec"], IMMUTABLE);
    }
    errors.list()
}
