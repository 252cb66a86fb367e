//! APIServices.

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, metadata, names, text};
use serde_json::{Value, json};

use crate::kind::{Kind, METADATA_OF_STATUS};
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{fill, object, with_spec};

pub(crate) static KIND: Kind = Kind {
    group: "apiregistration.k8s.io",
    plural: "apiservices",
    category: Some("api-extensions"),
    prefix: "apiregistration.k8s.io/apiservices",
    needs_version: true,
    default,
    prepare_create,
    validate,
    columns: COLUMNS,
    unowned: METADATA_OF_STATUS,
    ..Kind::DEFAULT
};

/// Defaults of an APIService.
fn default(value: &mut Value) {
    with_spec(value, |spec| {
        if let Some(service) = object(spec, "service") {
            fill(service, "port", 443);
        }
    });
}

/// An APIService that this server answers itself is available from the start; about others nothing
/// is known yet.
fn prepare_create(value: &mut Value) {
    let local = value.pointer("/spec/service").is_none_or(Value::is_null);
    if let (true, Value::Object(map)) = (local, value) {
        let mut condition = serde_json::json!({
            "type": "Available", "status": "True", "reason": "Local",
            "message": "Local APIServices are always available",
        });
        if let Some(created) = map.get("metadata").and_then(|metadata| metadata.get("creationTimestamp")) {
            condition["lastTransitionTime"] = created.clone();
        }
        map.insert("status".to_owned(), serde_json::json!({"conditions": [condition]}));
    }
}

/// Returns the errors of an APIService, whose name is `VERSION.GROUP`.
fn validate(object: &Value) -> Vec<FieldError> {
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

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Service", "string", 0, "Service that answers, or Local"),
        ("Available", "string", 0, "Whether it answers"),
        AGE,
    ],
    cells: |object, now| {
        let service = object.pointer("/spec/service").filter(|s| !s.is_null());
        let service = service.map_or("Local".to_owned(), |service| {
            format!("{}/{}", meta::text(service, "/namespace"), meta::text(service, "/name"))
        });
        let available = match cells::condition(object, "Available") {
            None => "Unknown".to_owned(),
            Some(condition) if condition["status"] == "True" => "True".to_owned(),
            Some(condition) => {
                format!("{} ({})", meta::text(condition, "/status"), meta::text(condition, "/reason"))
            }
        };
        vec![cells::name(object), json!(service), json!(available), cells::age(object, now)]
    },
};
