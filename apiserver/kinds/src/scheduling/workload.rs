//! Workloads: groups of pods that are scheduled together.

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, items, names, same, text, with_metadata};
use serde_json::Value;

use crate::kind::Kind;
use crate::scheduling::pod_group;
use crate::shared::checks::{at_most, distinct, required_name};
use crate::shared::gates;

pub(crate) static KIND: Kind = Kind {
    group: "scheduling.k8s.io",
    plural: "workloads",
    drop_disabled: Some(workload),
    validate,
    validate_update,
    ..Kind::DEFAULT
};

/// Drops the fields from each template of a Workload.
fn workload(new: &mut Value, old: Option<&Value>) {
    let templates = meta::list(new, "/spec/podGroupTemplates").len();
    for index in 0..templates {
        gates::drop_at(new, old, &format!("/spec/podGroupTemplates/{index}"), pod_group::GATES);
    }
}

const MOST_TEMPLATES: usize = 8;

/// Errors of a Workload.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    if let Some(controller) = spec.get("controllerRef").filter(|c| !c.is_null()) {
        let group = text(controller, "apiGroup");
        if !group.is_empty() {
            errors.faults("spec.controllerRef.apiGroup", group, names::dns_subdomain(group));
        }
        for field in ["kind", "name"] {
            required_name(controller, field, "spec.controllerRef", names::path_segment, &mut errors);
        }
    }
    let templates = items(spec, "podGroupTemplates");
    if templates.is_empty() {
        errors.required("spec.podGroupTemplates", "must have at least one item");
    }
    at_most(spec, "podGroupTemplates", "spec", MOST_TEMPLATES, &mut errors);
    for (index, template) in templates.iter().enumerate() {
        let path = format!("spec.podGroupTemplates[{index}]");
        required_name(template, "name", &path, names::dns_label, &mut errors);
        pod_group::group(template, &path, &mut errors);
    }
    distinct(templates, "name", "spec.podGroupTemplates", &mut errors);
    errors.list()
}

/// The groups of a Workload stay, and so does its controller, once it has one. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if !same(old["spec"].get("controllerRef"), None) {
        errors.immutable("spec.controllerRef", new, old);
    }
    errors.immutable("spec.podGroupTemplates", new, old);
    errors.list()
}
