//! PodGroup and Workload: pods that are scheduled together.

use serde_json::{Value, json};

use super::shared::{at_most, conditions, distinct, required_name};
use super::{Errors, IMMUTABLE, items, names, same, text, with_metadata};
use apiserver_registry::Written;
use apiserver_schema::error::FieldError;

const MOST_TEMPLATES: usize = 8;
const MOST_CLAIMS: usize = 4;

/// Errors of a PodGroup.
pub fn pod_group(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    if let Some(reference) = spec.get("podGroupTemplateRef").filter(|r| !r.is_null()) {
        let path = "spec.podGroupTemplateRef";
        match reference.get("workload").filter(|w| !w.is_null()) {
            None => errors.invalid(path, &json!(""), "must specify one of: `workload`"),
            Some(workload) => {
                let path = format!("{path}.workload");
                required_name(workload, "workloadName", &path, names::dns_subdomain, &mut errors);
                required_name(workload, "podGroupTemplateName", &path, names::dns_label, &mut errors);
            }
        }
    }
    group(spec, "spec", &mut errors);
    errors.list()
}

/// Returns the errors of a change of a PodGroup, whose request may not change. Arguments: new, old.
pub fn pod_group_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if written == Written::Status {
        conditions(items(&new["status"], "conditions"), "status.conditions", &mut errors);
        let claims = items(&new["status"], "resourceClaimStatuses");
        distinct(claims, "name", "status.resourceClaimStatuses", &mut errors);
        return errors.list();
    }
    errors.extend(super::subdomain_name(new));
    let (now, before) = (&new["spec"], &old["spec"]);
    let fields = now.as_object().into_iter().chain(before.as_object()).flatten().map(|(field, _)| field);
    for field in fields.collect::<std::collections::BTreeSet<_>>() {
        if !same(now.get(field), before.get(field)) {
            errors.invalid(format!("spec.{field}"), now.get(field).unwrap_or(&Value::Null), IMMUTABLE);
        }
    }
    errors.list()
}

/// Errors of a Workload.
pub fn workload(object: &Value) -> Vec<FieldError> {
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
        group(template, &path, &mut errors);
    }
    distinct(templates, "name", "spec.podGroupTemplates", &mut errors);
    errors.list()
}

/// The groups of a Workload stay, and so does its controller, once it has one. Arguments: new, old.
pub fn workload_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if !same(old["spec"].get("controllerRef"), None) {
        errors.immutable("spec.controllerRef", new, old);
    }
    errors.immutable("spec.podGroupTemplates", new, old);
    errors.list()
}

fn group(spec: &Value, path: &str, errors: &mut Errors) {
    policy(&spec["schedulingPolicy"], &format!("{path}.schedulingPolicy"), errors);
    for (index, constraint) in items(&spec["schedulingConstraints"], "topology").iter().enumerate() {
        let path = format!("{path}.schedulingConstraints.topology[{index}]");
        required_name(constraint, "key", &path, names::qualified_name, errors);
    }
    at_most(&spec["schedulingConstraints"], "topology", &format!("{path}.schedulingConstraints"), 1, errors);
    let claims = items(spec, "resourceClaims");
    at_most(spec, "resourceClaims", path, MOST_CLAIMS, errors);
    for (index, claim) in claims.iter().enumerate() {
        let path = format!("{path}.resourceClaims[{index}]");
        required_name(claim, "name", &path, names::dns_label, errors);
        let set = |field: &str| !text(claim, field).is_empty();
        if set("resourceClaimName") == set("resourceClaimTemplateName") {
            let detail = "must specify exactly one of: `resourceClaimName`, `resourceClaimTemplateName`";
            errors.invalid(path, &json!(""), detail);
        }
    }
    distinct(claims, "name", &format!("{path}.resourceClaims"), errors);
    let modes = ["Pod", "PodGroup"];
    errors.one_of_if_set(&format!("{path}.disruptionMode"), spec.get("disruptionMode"), &modes);
    let class = text(spec, "priorityClassName");
    if !class.is_empty() {
        errors.faults(&format!("{path}.priorityClassName"), class, names::dns_subdomain(class));
    }
}

fn policy(policy: &Value, path: &str, errors: &mut Errors) {
    let set = |field: &str| policy.get(field).is_some_and(|v| !v.is_null());
    match (set("basic"), set("gang")) {
        (false, false) => errors.invalid(path, &json!(""), "must specify one of: `basic`, `gang`"),
        (true, true) => {
            let detail = "exactly one of `basic`, `gang` is required, but multiple fields are set";
            errors.invalid(path, &json!("{`basic`, `gang`}"), detail);
        }
        (false, true) => match policy["gang"]["minCount"].as_i64().unwrap_or(0) {
            0 => errors.required(format!("{path}.gang.minCount"), ""),
            count if count < 0 => {
                errors.invalid(format!("{path}.gang.minCount"), &json!(count), "must be greater than zero");
            }
            _ => {}
        },
        (true, false) => {}
    }
}
