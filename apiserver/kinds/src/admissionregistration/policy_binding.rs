//! ValidatingAdmissionPolicyBindings and MutatingAdmissionPolicyBindings.

use std::collections::BTreeSet;

use apiserver_registry::LabelSelector;
use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, items, label_selector, names, text};
use serde_json::{Value, json};

use crate::admissionregistration::{matching, policy};
use crate::kind::{Kind, Version};
use crate::shared::cells::{self, UNSET};
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{fill_absent, object, with_spec};

pub(crate) static VALIDATING: Kind = Kind {
    group: "admissionregistration.k8s.io",
    plural: "validatingadmissionpolicybindings",
    category: Some("api-extensions"),
    generation: true,
    needs_version: true,
    default,
    validate: validate_validating,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

pub(crate) static MUTATING: Kind = Kind {
    group: "admissionregistration.k8s.io",
    plural: "mutatingadmissionpolicybindings",
    category: Some("api-extensions"),
    generation: true,
    needs_version: true,
    versions: &[Version { name: "v1alpha1", default: Some(default_v1alpha1), shape: None }],
    default,
    validate: validate_mutating,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Defaults of a binding of either sort.
fn default(value: &mut Value) {
    with_spec(value, |spec| {
        if let Some(resources) = object(spec, "matchResources") {
            matching::default_match_resources(resources);
        }
    });
}

/// Defaults of a binding in `v1alpha1`, where a missing parameter denies unless the binding says otherwise.
fn default_v1alpha1(value: &mut Value) {
    default(value);
    with_spec(value, |spec| {
        if let Some(parameter) = object(spec, "paramRef") {
            fill_absent(parameter, "parameterNotFoundAction", "Deny");
        }
    });
}

/// Errors of a ValidatingAdmissionPolicyBinding.
fn validate_validating(object: &Value) -> Vec<FieldError> {
    let mut errors = binding(object);
    let actions = items(&object["spec"], "validationActions");
    let path = "spec.validationActions";
    if actions.is_empty() {
        errors.required(path, "at least one validation action is required");
    }
    let known = ["Audit", "Deny", "Warn"];
    let mut seen = BTreeSet::new();
    for (index, action) in actions.iter().filter_map(Value::as_str).enumerate() {
        let path = format!("{path}[{index}]");
        if !known.contains(&action) {
            errors.extend([FieldError::not_supported(path.as_str(), &json!(action), &known)]);
        }
        if !seen.insert(action) {
            errors.duplicate(path, &json!(action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                      response and headers serves no purpose)";
        errors.invalid(path, &json!(actions), detail);
    }
    errors.list()
}

/// Errors of a MutatingAdmissionPolicyBinding.
fn validate_mutating(object: &Value) -> Vec<FieldError> {
    let mut errors = binding(object);
    policy::mutable_operations(&object["spec"]["matchResources"], "spec.matchResources", &mut errors);
    errors.list()
}

fn binding(object: &Value) -> Errors {
    let mut errors = matching::with_any_finalizer(object);
    let spec = &object["spec"];
    match text(spec, "policyName") {
        "" => errors.required("spec.policyName", ""),
        name => errors.faults("spec.policyName", name, names::dns_subdomain(name)),
    }
    if let Some(parameter) = spec.get("paramRef").filter(|p| !p.is_null()) {
        param_ref(parameter, &mut errors);
    }
    if let Some(resources) = spec.get("matchResources").filter(|m| !m.is_null()) {
        matching::match_resources(resources, "spec.matchResources", &mut errors);
    }
    errors
}

fn param_ref(parameter: &Value, errors: &mut Errors) {
    let name = text(parameter, "name");
    let selector = parameter.get("selector").filter(|s| !s.is_null());
    const EITHER: &str = "name and selector are mutually exclusive";
    if !name.is_empty() {
        errors.faults("spec.paramRef.name", name, names::path_segment(name));
    }
    let both = !name.is_empty() && selector.is_some();
    if both {
        errors.forbidden("spec.paramRef.name", EITHER);
    }
    label_selector(selector, "spec.paramRef.selector", errors);
    if both {
        errors.forbidden("spec.paramRef.selector", EITHER);
    }
    if name.is_empty() && selector.is_none() {
        errors.required("spec.paramRef", "one of name or selector must be specified");
    }
    let action = parameter.get("parameterNotFoundAction");
    errors.one_of("spec.paramRef.parameterNotFoundAction", action, &["Deny", "Allow"]);
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("PolicyName", "string", 0, "Policy that it puts into force"),
        ("ParamRef", "string", 0, "Object that parameters are taken from"),
        AGE,
    ],
    cells: |object, now| {
        vec![
            cells::name(object),
            cells::text_or(object, "/spec/policyName", ""),
            json!(param_ref_cell(object)),
            cells::age(object, now),
        ]
    },
};

fn param_ref_cell(object: &Value) -> String {
    let Some(parameter) = object.pointer("/spec/paramRef").filter(|p| !p.is_null()) else {
        return UNSET.to_owned();
    };
    let namespace = match meta::text(parameter, "/namespace") {
        "" => "*",
        namespace => namespace,
    };
    let selected = || {
        let selector = parameter.get("selector").and_then(|s| LabelSelector::from_meta(s).ok());
        selector.map(|s| s.to_string()).unwrap_or_default()
    };
    match meta::text(parameter, "/name") {
        "" => selected(),
        name => format!("{namespace}/{name}"),
    }
}
