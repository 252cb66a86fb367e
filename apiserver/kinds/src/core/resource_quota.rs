//! ResourceQuotas.

use std::collections::BTreeSet;

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, IMMUTABLE, given, items, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::quantities::{is_quota_resource, one, resource_name};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "resourcequotas",
    short_names: &["quota"],
    validate,
    validate_update,
    validate_status: Some(validate_status),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// Scopes that exclude each other.
const OPPOSITES: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["NotTerminating", "Terminating"]];

/// Errors of a ResourceQuota.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    amounts(spec, "hard", "spec", &mut errors);
    scopes(spec, &mut errors);
    if let Some(selector) = given(spec, "scopeSelector") {
        scope_selector(spec, selector, &mut errors);
    }
    status(object, &mut errors);
    errors.list()
}

fn status(object: &Value, errors: &mut Errors) {
    for field in ["hard", "used"] {
        amounts(&object["status"], field, "status", errors);
    }
}

/// Scopes of a ResourceQuota stay. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let set = |object: &Value| -> BTreeSet<String> {
        items(&object["spec"], "scopes").iter().filter_map(|s| Some(s.as_str()?.to_owned())).collect()
    };
    if set(new) != set(old) {
        errors.invalid("spec.scopes", &json!(items(&new["spec"], "scopes")), IMMUTABLE);
    }
    errors.list()
}

/// Errors of a write of a ResourceQuota's status. Arguments: new, old.
fn validate_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    status(new, &mut errors);
    errors.list()
}

fn amounts(parent: &Value, field: &str, path: &str, errors: &mut Errors) {
    for (name, amount) in parent[field].as_object().into_iter().flatten() {
        let path = format!("{path}.{field}[{name}]");
        resource_name(name, &path, errors);
        if !name.contains('/') && !is_quota_resource(name) {
            errors.invalid(path.as_str(), &json!(name), "must be a standard resource for quota");
        }
        one(name, amount, &path, errors);
    }
}

/// Returns `true` if a scope applies to a resource.
fn applies(scope: &str, resource: &str) -> bool {
    let computed = [
        "cpu",
        "memory",
        "requests.cpu",
        "requests.memory",
        "limits.cpu",
        "limits.memory",
        "pods",
        "ephemeral-storage",
        "requests.ephemeral-storage",
        "limits.ephemeral-storage",
    ];
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => computed.contains(&resource),
        _ => true,
    }
}

fn limited(spec: &Value) -> Vec<&str> {
    let hard = spec["hard"].as_object().into_iter().flatten();
    hard.map(|(name, _)| name.as_str()).filter(|n| is_quota_resource(n)).collect()
}

fn opposites(given: &[&str], shown: &Value, path: &str, errors: &mut Errors) {
    for pair in OPPOSITES {
        if pair.iter().all(|scope| given.contains(scope)) {
            errors.invalid(path, shown, "conflicting scopes");
        }
    }
}

fn scopes(spec: &Value, errors: &mut Errors) {
    let path = "spec.scopes";
    let shown = json!(items(spec, "scopes"));
    let given: Vec<&str> = items(spec, "scopes").iter().filter_map(Value::as_str).collect();
    let limited = self::limited(spec);
    let mut seen = BTreeSet::new();
    for scope in &given {
        if !SCOPES.contains(scope) {
            errors.invalid(path, &shown, "unsupported scope");
        }
        // A scope that is repeated gets no further errors.
        let new = seen.insert(scope);
        for _ in limited.iter().filter(|resource| new && !applies(scope, resource)) {
            errors.invalid(path, &shown, "unsupported scope applied to resource");
        }
    }
    opposites(&given, &shown, path, errors);
}

fn scope_selector(spec: &Value, selector: &Value, errors: &mut Errors) {
    let path = "spec.scopeSelector.matchExpressions";
    let expressions = items(selector, "matchExpressions");
    let (limited, mut seen) = (self::limited(spec), BTreeSet::new());
    for expression in expressions {
        let (scope, operator) = (text(expression, "scopeName"), text(expression, "operator"));
        let values = items(expression, "values");
        if !SCOPES.contains(&scope) {
            errors.invalid(format!("{path}.scopeName"), &json!(scope), "unsupported scope");
        }
        let new = seen.insert(scope);
        for _ in limited.iter().filter(|resource| new && !applies(scope, resource)) {
            errors.invalid(path, selector, "unsupported scope applied to resource");
        }
        let plain = SCOPES.contains(&scope) && !matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if plain && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                          ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                          ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(format!("{path}.operator"), &json!(operator), detail);
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => errors.required(
                format!("{path}.values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.invalid(
                format!("{path}.values"),
                &json!(values),
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.invalid(format!("{path}.operator"), &json!(other), "not a valid selector operator");
            }
        }
    }
    let given: Vec<&str> = expressions.iter().map(|e| text(e, "scopeName")).collect();
    opposites(&given, &json!(items(spec, "scopes")), path, errors);
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Request", "string", 0, "Used and allowed requests and counts"),
        ("Limit", "string", 0, "Used and allowed limits"),
        AGE,
    ],
    cells: |object, now| {
        let hard = object.pointer("/status/hard").and_then(Value::as_object);
        let line = |limits: bool| {
            let mut list: Vec<String> = hard
                .into_iter()
                .flatten()
                .filter(|(key, _)| key.starts_with("limits.") == limits)
                .map(|(key, most)| {
                    let used = object["status"]["used"][key].as_str().unwrap_or("0");
                    format!("{key}: {used}/{}", most.as_str().unwrap_or_default())
                })
                .collect();
            list.sort();
            json!(list.join(", "))
        };
        vec![cells::name(object), line(false), line(true), cells::age(object, now)]
    },
};
