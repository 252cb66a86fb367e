//! APIService.

use serde_json::{Value, json};

use super::{Errors, metadata, names, text};
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;

/// Returns the errors of an APIService, whose name is `VERSION.GROUP`.
pub fn api_service(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::of(metadata::validate(object, names::path_segment));
    let spec = &object["spec"];
    let (group, version) = (text(spec, "group"), text(spec, "version"));
    let wanted = format!("{version}.{group}");
    for (field, name) in [("generateName", meta::generate_name(object)), ("name", meta::name(object))] {
        if !name.is_empty() && name != wanted && names::path_segment(name).is_empty() {
            let detail = format!("must be `spec.version+\".\"+spec.group`: \"{wanted}\"");
            errors.invalid(format!("metadata.{field}"), &json!(name), &detail);
        }
    }
    // The core group is called v1 and has no name.
    if group.is_empty() && version != "v1" {
        errors.required("spec.group", "only v1 may have an empty group and it better be legacy kube");
    }
    if !group.is_empty() {
        errors.faults("spec.group", group, names::dns_subdomain(group));
    }
    errors.faults("spec.version", version, names::dns_1035_label(version));
    for (field, limit) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let value = spec[field].as_i64().unwrap_or(0);
        if !(1..=limit).contains(&value) {
            let detail = format!("must be positive and less than {limit}");
            errors.invalid(format!("spec.{field}"), &json!(value), &detail);
        }
    }
    service(spec, &mut errors);
    errors.list()
}

fn service(spec: &Value, errors: &mut Errors) {
    let (bundle, insecure) = (text(spec, "caBundle"), spec["insecureSkipTLSVerify"] == true);
    let Some(service) = spec.get("service").filter(|s| !s.is_null()) else {
        if !bundle.is_empty() {
            let detail = "local APIServices may not have a caBundle";
            errors.invalid("spec.caBundle", &json!(format!("{} bytes", bundle.len())), detail);
        }
        if insecure {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            errors.invalid("spec.insecureSkipTLSVerify", &json!(true), detail);
        }
        return;
    };
    for field in ["namespace", "name"] {
        if text(service, field).is_empty() {
            errors.required(format!("spec.service.{field}"), "");
        }
    }
    let port = service["port"].as_i64().unwrap_or(443);
    for fault in names::port_number(port) {
        errors.invalid("spec.service.port", &json!(port), &format!("port is not valid: {fault}"));
    }
    if insecure && !bundle.is_empty() {
        errors.invalid("spec.insecureSkipTLSVerify", &json!(true), "may not be true if caBundle is present");
    }
}
