//! IngressClasses.

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, given, names, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::networking::ingress;
use crate::shared::cells::{self, NONE};
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{fill_absent, object, with_spec};

pub(crate) static KIND: Kind = Kind {
    group: "networking.k8s.io",
    plural: "ingressclasses",
    generation: true,
    default,
    validate,
    validate_change: Some(validate_change),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of an IngressClass.
fn default(value: &mut Value) {
    with_spec(value, |spec| {
        if let Some(parameters) = object(spec, "parameters") {
            fill_absent(parameters, "scope", "Cluster");
        }
    });
}

/// Longest name of the controller behind an IngressClass.
const CONTROLLER_LENGTH: usize = 250;

/// Errors of an IngressClass.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    let controller = text(spec, "controller");
    if controller.len() > CONTROLLER_LENGTH {
        errors.too_long("spec.controller", CONTROLLER_LENGTH);
    }
    errors.domain_path("spec.controller", controller);
    let Some(parameters) = given(spec, "parameters") else { return errors.list() };
    let path = "spec.parameters";
    ingress::object_reference(parameters, path, &mut errors);
    let namespace = given(parameters, "namespace").and_then(Value::as_str);
    let at = format!("{path}.namespace");
    match text(parameters, "scope") {
        "" if given(parameters, "scope").is_none() => errors.required(format!("{path}.scope"), ""),
        "Cluster" if namespace.is_some() => {
            errors.forbidden(at, "`parameters.scope` is set to 'Cluster'");
        }
        "Cluster" => {}
        "Namespace" => match namespace {
            None => errors.required(at, "`parameters.scope` is set to 'Namespace'"),
            Some(name) => errors.faults(&at, name, names::dns_label(name)),
        },
        other => errors.not_supported(format!("{path}.scope"), &json!(other), &["Cluster", "Namespace"]),
    }
    errors.list()
}

/// Errors of a change of an IngressClass, whose controller stays. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable_text("spec.controller", new, old);
    errors.extend(validate(new));
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Controller", "string", 0, "Controller that implements the class"),
        ("Parameters", "string", 0, "Object with further settings"),
        AGE,
    ],
    cells: |object, now| {
        let parameters = object.pointer("/spec/parameters").map_or(NONE.to_owned(), |p| {
            let (group, kind, name) =
                (meta::text(p, "/apiGroup"), meta::text(p, "/kind"), meta::text(p, "/name"));
            let dot = if group.is_empty() { "" } else { "." };
            format!("{kind}{dot}{group}/{name}")
        });
        vec![
            cells::name(object),
            cells::text_or(object, "/spec/controller", ""),
            json!(parameters),
            cells::age(object, now),
        ]
    },
};
