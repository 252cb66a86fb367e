//! DeviceClasses.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, metadata, names};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::resource::requests::MOST;
use crate::resource::{requests, sets};
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "resource.k8s.io",
    plural: "deviceclasses",
    generation: true,
    validate,
    columns: AGED_COLUMNS,
    ..Kind::DEFAULT
};

/// Errors of a DeviceClass.
fn validate(object: &Value) -> Vec<FieldError> {
    apiserver_cel::on_large_stack(|| apiserver_cel::bounded(|| errors(object)))
}

fn errors(object: &Value) -> Vec<FieldError> {
    let mut errors = class_metadata(object);
    let spec = &object["spec"];
    requests::selectors(spec, "spec", &mut errors);
    sets::list(spec, "config", "spec", MOST, &mut errors, &mut requests::configuration);
    if let Some(name) = spec.get("extendedResourceName").and_then(Value::as_str) {
        let native = !name.contains('/') || name.contains("kubernetes.io/") || name.starts_with("requests.");
        if native || !names::qualified_name(&format!("requests.{name}")).is_empty() {
            errors.invalid(
                "spec.extendedResourceName",
                &json!(name),
                "must be a valid extended resource name",
            );
        }
    }
    errors.list()
}

/// The name of a class is validated as it is, however it was generated.
fn class_metadata(object: &Value) -> Errors {
    let errors = metadata::of_builtin(object, names::dns_subdomain_in_bytes);
    Errors::of(errors.into_iter().filter(|error| error.field != "metadata.generateName").collect())
}

pub(crate) const AGED_COLUMNS: Columns = Columns {
    headers: &[NAME, AGE],
    cells: |object, now| vec![cells::name(object), cells::age(object, now)],
};
